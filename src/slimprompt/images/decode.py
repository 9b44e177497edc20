"""Read images as RGB images: corrected for people's photographs, or exactly as CoOp reads its benchmarks."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from slimprompt.errors import InputError, first_few
from slimprompt.files import check_regular, sha256

#: Suffixes of the files that count as images when a folder is read.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})

#: Suffixes of images that Pillow cannot read without a plugin.
HEIC_SUFFIXES = frozenset({".heic", ".heif"})

#: How an image is read. "upright" applies EXIF rotation, blends transparent pixels with white and scales greyscale of more than
#: 8 bits, which is right for photographs: 65535 is white in integer images, and the lowest of 1, 255 and 65535 that no pixel
#: exceeds in float images, whose values that are not finite become black. "plain" is `Image.open(path).convert("RGB")` and nothing
#: else, which is how CoOp reads the published benchmarks.
Decode = Literal["upright", "plain"]


class UnreadableImageError(InputError):
    """Images are missing, damaged, not images, or too large."""

    def __init__(self, *messages: str) -> None:
        self.messages = messages
        n = len(messages)
        super().__init__(messages[0] if n == 1 else f"{n:,} images cannot be read: {'; '.join(messages)}")


class GivenImage:
    """A PIL image, converted to RGB and hashed once for each way to read it; it must not change meanwhile."""

    def __init__(self, image: Image.Image) -> None:
        self._image = image
        self._rgb: dict[Decode, Image.Image] = {}
        self._hashes: dict[Decode, str] = {}

    def rgb(self, decode: Decode) -> Image.Image:
        """The image as 8-bit RGB; it may be the one that was given."""
        if decode not in self._rgb:
            self._rgb[decode] = _given_image(self._image, decode)
        return self._rgb[decode]

    def sha256(self, decode: Decode) -> str:
        """Hexadecimal sha256 of the RGB pixels, which depend on palette, EXIF data and so on."""
        if decode not in self._hashes:
            pixels = self.rgb(decode)
            digest = hashlib.sha256(f"{pixels.mode}{pixels.size}".encode())
            digest.update(pixels.tobytes())
            self._hashes[decode] = digest.hexdigest()
        return self._hashes[decode]

    def __str__(self) -> str:
        return "an image that was given"


#: Images as `open_image` reads them; see `slimprompt.images.sources` for what else users may give.
ImageSource = str | Path | Image.Image | GivenImage


def open_image(source: ImageSource, decode: Decode = "upright") -> Image.Image:
    """Read an image as 8-bit RGB; of an animation, the first frame. One that cannot be read is an `UnreadableImageError`."""
    if isinstance(source, GivenImage):
        return source.rgb(decode)
    if isinstance(source, Image.Image):
        return _given_image(source, decode)
    _check_file(Path(source))
    return _decode(source, source, decode)


def decode_image(content: bytes, name: str, decode: Decode = "upright") -> Image.Image:
    """`open_image` for the content of an image file; the name is for messages."""
    return _decode(io.BytesIO(content), name, decode)


def _decode(file: str | Path | IO[bytes], name: str | Path, decode: Decode) -> Image.Image:
    try:
        with Image.open(file) as image:
            # Pillow only warns up to twice its limit, and catching warnings is not thread-safe.
            if Image.MAX_IMAGE_PIXELS and image.width * image.height > Image.MAX_IMAGE_PIXELS:
                raise Image.DecompressionBombError
            image.load()
            return _to_rgb(image, decode)
    except Image.DecompressionBombError:
        raise UnreadableImageError(
            f"{name} has more than {Image.MAX_IMAGE_PIXELS:,} pixels and is refused as a possible decompression bomb; "
            "shrink it or, if you trust it, allow larger images (--max-megapixels; in Python, PIL.Image.MAX_IMAGE_PIXELS)"
        ) from None
    except Exception as error:  # Pillow's decoders raise almost anything for damaged data
        raise UnreadableImageError(f"cannot read the image {name}: {_reason(error)}{_advice(name, error)}") from None


@contextmanager
def largest_image(megapixels: float | None) -> Iterator[None]:
    """Read images of up to so many million pixels in the block; None keeps Pillow's limit, of which there is one per process."""
    before = Image.MAX_IMAGE_PIXELS
    if megapixels is not None:
        Image.MAX_IMAGE_PIXELS = round(1e6 * megapixels)
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def image_files(given: Iterable[Path]) -> list[Path]:
    """The given files, and all images in the given folders and the folders below them, which must hold some."""
    paths: list[Path] = []
    for path in given:
        if path.is_dir():
            found = list(walk_images(path))
            if not found:
                raise no_images(path)
            paths += found
        elif not path.exists():
            raise InputError(f"no such image: {path}")
        else:
            paths.append(path)
    return paths


def walk_images(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """All images in a folder and the folders below it, in sorted order; the names of one folder are held at a time.

    Hidden files and folders are left out. Links are followed, except those back to `above`, the real paths of the folders that are
    being walked.
    """
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        with os.scandir(folder) as entries:
            found = [
                (entry.name, is_folder)
                for entry in entries
                if not is_hidden(entry.name) and ((is_folder := entry.is_dir()) or is_image_name(entry.name))
            ]
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {_reason(error)}") from None
    found.sort()
    for name, is_folder in found:
        if is_folder:
            yield from walk_images(folder / name, above | {real})
        else:
            yield folder / name


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is left out when a folder is read: hidden ones, and those of macOS and Windows."""
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db", "desktop.ini")


def is_image_name(name: str) -> bool:
    """Whether a file of this name counts as an image when a folder is read and it is not hidden."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def no_images(folder: Path) -> InputError:
    """The error for a folder without images."""
    names = sorted(path.name for path in folder.iterdir())
    holds = f"it holds {first_few(names)}" if names else "it is empty"
    return InputError(f"no images under {folder} (looked for {', '.join(sorted(IMAGE_SUFFIXES))}); {holds}")


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of an image file; a missing or unreadable file raises an `UnreadableImageError`."""
    _check_file(path)
    try:
        return sha256(path)
    except OSError as error:
        raise UnreadableImageError(f"cannot read {path}: {error.strerror}") from None


def _check_file(path: Path) -> None:
    """Raise an `UnreadableImageError` unless the path is a regular file."""
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:  # a name that is too long, or contains NUL
        raise UnreadableImageError(f"cannot read the image {path}: {_reason(error)}") from None
    if is_folder:
        raise UnreadableImageError(f"{path} is a folder, not an image")
    if not exists:
        raise UnreadableImageError(f"no such image: {path}")
    try:
        check_regular(path)
    except InputError as error:
        raise UnreadableImageError(str(error)) from None


def _given_image(image: Image.Image, decode: Decode) -> Image.Image:
    try:
        if 0 in image.size:
            raise UnreadableImageError(f"an image of {image.width} × {image.height} pixels was given: it is empty")
        return _to_rgb(image, decode)
    except UnreadableImageError:
        raise
    except Exception as error:  # a closed or truncated image
        raise UnreadableImageError(f"an image that was given cannot be read: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image, or of a format that Pillow does not know"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _advice(name: str | Path, error: Exception) -> str:
    is_heic = isinstance(error, UnidentifiedImageError) and Path(name).suffix.lower() in HEIC_SUFFIXES
    return "; convert HEIC to JPEG" if is_heic else ""


def _to_rgb(image: Image.Image, decode: Decode) -> Image.Image:
    if decode == "plain":
        return image.convert("RGB")
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:  # `exif_transpose` copies all others
        image = ImageOps.exif_transpose(image)
    if image.mode == "RGB" and not isinstance(image.info.get("transparency"), tuple):  # of a PNG: a transparent colour
        return image
    if image.mode.startswith("I") or image.mode == "F":  # Pillow's conversion clips instead of scaling
        image = _to_8_bits(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """round(255 · value / white) of integer (I, I;16, …) and float (F) greyscale.

    Files of 16 bits have mode I;16, or I: PGM, and PNG in old versions of Pillow. In all integer images 65535 is white, whatever the
    brightest pixel is; TIFF files of 32-bit integers, which do not say what is white, are read in the same way. Float images follow no
    convention, so white is the lowest of 1, 255 and 65535 that no pixel exceeds.
    """
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)  # pixels without data
    white = 65535.0
    if image.mode == "F":
        white = next((top for top in (1.0, 255.0) if values.max(initial=0.0) <= top), white)
    return Image.fromarray((np.clip(values / white, 0, 1) * 255).round().astype(np.uint8))
