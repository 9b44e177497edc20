"""Classify images with an exported ONNX file. Needs onnxruntime, numpy and pillow; neither torch nor slimprompt.

slimprompt export my-prompt --onnx classifier.onnx
python onnx_without_torch.py classifier.onnx a.jpg b.jpg
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def preprocess(image, size, resize_mode, interpolation, fill_color, mean, std):
    """PIL image → pixels (3, height, width), as the metadata of the file say."""
    height, width = size
    resampling = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}[interpolation]
    image = upright_rgb(image)
    if resize_mode == "squash":
        image = image.resize((width, height), resampling)
    elif resize_mode == "longest":  # the whole image, padded
        ratio = max(image.width / width, image.height / height)
        image = image.resize((round(image.width / ratio), round(image.height / ratio)), resampling)
        canvas = Image.new(
            "RGB", (width, height), (fill_color,) * 3 if isinstance(fill_color, int) else tuple(fill_color)
        )
        canvas.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
        image = canvas
    else:  # "shortest": the centre of the image
        if height != width:
            raise ValueError(f"expected a square size, got {size}")
        short = min(image.size)
        image = image.resize((int(width * image.width / short), int(height * image.height / short)), resampling)
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        image = image.crop((left, top, left + width, top + height))
    pixels = np.asarray(image, dtype=np.float32) / 255  # (height, width, 3)
    return ((pixels - np.float32(mean)) / np.float32(std)).transpose(2, 0, 1)


def upright_rgb(image):
    """8-bit RGB, with the rotation of the camera applied, 16-bit and float grey scaled, and transparent pixels blended with white."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":  # Pillow's conversion clips instead of scaling
        values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
        whites = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
        white = next((white for white in whites if values.max() <= white), 65535.0)
        image = Image.fromarray((np.clip(values / white, 0, 1) * 255).round().astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def main(model, *paths):
    """Print one line per image: path, class and probability."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    names, settings = json.loads(facts["class_names"]), json.loads(facts["preprocessing"])
    pixels = np.stack([preprocess(Image.open(path), **settings) for path in paths])
    (probabilities,) = session.run(["probabilities"], {"pixels": pixels})  # (n, n_classes)
    for path, row in zip(paths, probabilities, strict=True):
        best = int(row.argmax())
        print(f"{path}\t{names[best]}\t{row[best]:.6f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
