"""What users give as images, as one list of paths and images in memory."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from slimprompt.errors import InputError, shown
from slimprompt.images.decode import GivenImage

_IMAGES = "a list of paths, PIL images, uint8 arrays (height, width, 3) or open binary files"


def image_sources(images: Any) -> list[str | Path | GivenImage]:
    """A list of paths and images in memory from any collection of images.

    That is a list, tuple, generator, pandas Series or array of images; or an array (n, height, width, 3) or a tensor
    (n, 3, height, width). One image is a path, a PIL image, an array (height, width, 3) or (height, width), a tensor
    (3, height, width) or (height, width), or an open binary file such as `io.BytesIO`. Arrays and tensors hold uint8
    values, or floats from 0 to 1.
    """
    if isinstance(images, str | bytes | os.PathLike | Image.Image | GivenImage | io.IOBase):
        raise InputError(f"one image was given ({shown(images)}), but {_IMAGES} is expected: write [image]")
    if isinstance(images, np.ndarray | Tensor) and images.ndim != 1 and images.ndim != 4:
        raise InputError(
            f"an array of shape {tuple(images.shape)} was given as images; one image goes into a list, [image], and several "
            "of equal size are an array (n, height, width, 3) or a tensor (n, 3, height, width)"
        )
    if isinstance(images, Mapping | Set) or hasattr(images, "columns") or not isinstance(images, Iterable):
        raise InputError(f"a {type(images).__name__} was given as images; expected {_IMAGES}")
    return [_source(image, number) for number, image in enumerate(images)]


def _source(image: Any, number: int) -> str | Path | GivenImage:
    if isinstance(image, str | Path | GivenImage):
        return image
    try:
        if isinstance(image, os.PathLike):
            return Path(os.fsdecode(image))
        if isinstance(image, bytes | bytearray):
            image = io.BytesIO(image)
        if isinstance(image, Tensor):
            image = _channels_last(image.detach().cpu())
        if isinstance(image, np.ndarray):
            return GivenImage(_from_array(image))
        if hasattr(image, "read"):
            image.seek(0)
            image = Image.open(image)
        if isinstance(image, Image.Image):
            if 0 in image.size:
                raise InputError(f"it has {image.width} × {image.height} pixels")
            image.load()  # here and not in a thread: a PIL image that occurs twice must not be decoded twice at a time
            return GivenImage(image)
    except InputError as error:
        raise InputError(f"image {number}: {error}") from None
    except Exception as error:  # closed, truncated, not an image
        raise InputError(f"image {number} cannot be read: {str(error) or type(error).__name__}") from None
    raise InputError(f"image {number} is {shown(image)}, a {type(image).__name__}; expected {_IMAGES}")


def _channels_last(tensor: Tensor) -> np.ndarray:
    """(channels, height, width) → (height, width, channels); a tensor that can only be the latter stays as it is."""
    return (tensor.permute(1, 2, 0) if tensor.ndim == 3 and tensor.shape[0] in (1, 3, 4) else tensor).numpy()


def _from_array(array: np.ndarray) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise InputError(
            f"an array of shape {array.shape} is not an image; expected (height, width, 3) or (height, width)"
        )
    if 0 in array.shape:
        raise InputError(f"an array of shape {array.shape} has no pixels")
    if array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):  # also if a value is not a number
            raise InputError(
                f"its floats lie between {array.min():g} and {array.max():g}; expected 0 to 1, or uint8 from 0 to 255, before "
                "any normalisation"
            )
        array = (array * 255).round().astype(np.uint8)
    elif array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    if array.dtype != np.uint8:
        raise InputError(f"its values are {array.dtype}; expected uint8 from 0 to 255, or floats from 0 to 1")
    return Image.fromarray(np.ascontiguousarray(array))
