"""Read image files of any common mode and orientation as upright RGB images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from slimprompt.errors import InputError
from slimprompt.storage import sha256

#: Suffixes of the files that count as images when a folder is read.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})


def open_image(source: str | Path | Image.Image) -> Image.Image:
    """Read an image as upright 8-bit RGB.

    EXIF rotation is applied, transparent pixels are blended with white, 16-bit and float greyscale are scaled to 8 bits,
    palette and CMYK images are converted, and the first frame of an animation is used.

    Parameters
    ----------
    source
        Path of a file, or a PIL image.

    Raises
    ------
    InputError
        If the file is missing, damaged, not an image, or larger than Pillow's pixel limit.
    """
    if isinstance(source, Image.Image):
        return _to_rgb(ImageOps.exif_transpose(source))
    try:
        with Image.open(source) as image:
            # Pillow only warns up to twice its limit, and catching warnings is not thread-safe.
            if Image.MAX_IMAGE_PIXELS and image.width * image.height > Image.MAX_IMAGE_PIXELS:
                raise Image.DecompressionBombError
            image.load()
            return _to_rgb(ImageOps.exif_transpose(image))
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


def _to_rgb(image: Image.Image) -> Image.Image:
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
