"""Read image files as RGB images: corrected for people's photographs, or exactly as CoOp reads its benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from slimprompt.errors import InputError
from slimprompt.storage import sha256

#: Suffixes of the files that count as images when a folder is read.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})

#: How an image is read; see `open_image`.
Decode = Literal["upright", "plain"]


def open_image(source: str | Path | Image.Image, decode: Decode = "upright") -> Image.Image:
    """Read an image as 8-bit RGB; of an animation, the first frame.

    Parameters
    ----------
    source
        Path of a file, or a PIL image.
    decode
        "upright" applies EXIF rotation, blends transparent pixels with white and scales 16-bit and float greyscale to 8
        bits, which is right for photographs. "plain" is `Image.open(source).convert("RGB")` and nothing else, which is
        how CoOp reads the published benchmarks.

    Raises
    ------
    InputError
        If the file is missing, damaged, not an image, or larger than Pillow's pixel limit.
    """
    if isinstance(source, Image.Image):
        return _to_rgb(source, decode)
    try:
        with Image.open(source) as image:
            # Pillow only warns up to twice its limit, and catching warnings is not thread-safe.
            if Image.MAX_IMAGE_PIXELS and image.width * image.height > Image.MAX_IMAGE_PIXELS:
                raise Image.DecompressionBombError
            image.load()
            return _to_rgb(image, decode)
    except FileNotFoundError:
        raise InputError(f"no such image: {source}") from None
    except IsADirectoryError:
        raise InputError(f"{source} is a folder, not an image") from None
    except Image.DecompressionBombError:
        raise InputError(
            f"{source} has more than {Image.MAX_IMAGE_PIXELS:,} pixels and is refused as a possible decompression bomb; "
            "shrink it, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        ) from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError) as error:
        raise InputError(f"cannot read the image {source}: {error}") from None


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of an image file; a missing or unreadable file raises an `InputError`."""
    try:
        return sha256(path)
    except FileNotFoundError:
        raise InputError(f"no such image: {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _to_rgb(image: Image.Image, decode: Decode) -> Image.Image:
    if decode == "plain":
        return image.convert("RGB")
    image = ImageOps.exif_transpose(image)
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I") or image.mode == "F":  # Pillow's conversion clips instead of scaling
        values = np.asarray(image, dtype=np.float64)
        if image.mode == "F" and values.max(initial=0.0) <= 1.0:
            top = 1.0
        else:
            top = 255.0 if values.max(initial=0.0) <= 255 else 65535.0
        image = Image.fromarray((np.clip(values / top, 0, 1) * 255).round().astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")
