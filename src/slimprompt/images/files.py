"""Opening a picture: any common mode and orientation in, upright RGB out, or one clear error that names the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from slimprompt.errors import InputError
from slimprompt.storage import sha256

#: Files with these endings count as pictures when a folder is read.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})


def open_image(source: str | Path | Image.Image) -> Image.Image:
    """The picture as upright 8-bit RGB.

    EXIF rotation is applied, transparency is laid on white, 16-bit and float grey are scaled to 8 bits, palette and
    CMYK are converted, and of an animation the first frame is taken. A file that cannot be read whole is an `InputError`.
    """
    if isinstance(source, Image.Image):
        return _to_rgb(ImageOps.exif_transpose(source))
    try:
        with Image.open(source) as image:
            # Pillow itself only warns until twice its limit, and warnings cannot be caught safely among threads.
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
    """sha256 of a picture file's bytes, in hexadecimal."""
    try:
        return sha256(path)
    except FileNotFoundError:
        raise InputError(f"no such image: {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I") or image.mode == "F":  # Pillow's own conversion clips these instead of scaling
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
