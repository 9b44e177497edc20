"""Image files of the kinds that readers treat differently."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

ODD_IMAGES = ("rotated.jpg", "transparent.png", "16-bit.png", "cmyk.jpg", "palette.png", "transparent-palette.png")


def write_odd_image(folder: Path, name: str) -> Path:
    """Write the image of that name: 24 x 16 pixels of smooth colours; returns its path."""
    path = folder / name
    y, x = np.mgrid[:16, :24]
    colours = Image.fromarray(np.stack([x * 10, y * 15, 255 - x * 10], axis=-1).astype(np.uint8))
    if name == "rotated.jpg":
        exif = colours.getexif()
        exif[0x0112] = 6  # a quarter turn
        colours.save(path, exif=exif)
    elif name == "transparent.png":
        colours.putalpha(Image.fromarray((x * 10).astype(np.uint8)))
        colours.save(path)
    elif name == "16-bit.png":
        Image.fromarray((x * 2800).astype(np.uint16)).save(path)
    elif name == "cmyk.jpg":
        colours.convert("CMYK").save(path)
    elif name == "palette.png":
        colours.quantize(16).save(path)
    elif name == "transparent-palette.png":
        colours.quantize(16).save(path, transparency=3)
    else:
        raise ValueError(name)
    return path
