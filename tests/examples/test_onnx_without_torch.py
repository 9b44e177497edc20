"""The ONNX example gives what `slimprompt predict` gives, in a process that cannot import torch or slimprompt."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image

from slimprompt import Backbone, Classifier
from slimprompt.export import export_onnx
from slimprompt.images.decode import open_image


@pytest.fixture
def blocked(tmp_path: Path) -> dict[str, str]:
    """An environment in which importing torch, torchvision, open_clip or slimprompt raises."""
    folder = tmp_path / "blocked"
    folder.mkdir()
    for name in ("torch", "torchvision", "open_clip", "slimprompt"):
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} must not be imported here')\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def odd_images(folder: Path) -> list[Path]:
    """Portrait, landscape, rotated by EXIF, transparent, grey with 8 bits, 16 bits and as float."""
    rng = np.random.default_rng(0)
    base = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    base.resize((70, 97), Image.Resampling.BICUBIC).save(folder / "portrait.png")
    base.resize((201, 64), Image.Resampling.BICUBIC).save(folder / "landscape.jpg", exif=exif)
    transparent = base.resize((80, 60)).convert("RGBA")
    transparent.putalpha(Image.linear_gradient("L").resize((80, 60)))
    transparent.save(folder / "transparent.png")
    grey = base.convert("L").resize((49, 48))
    grey.save(folder / "grey.png")
    for name, factor in (("bright", 257), ("dark", 20)):
        Image.fromarray(np.asarray(grey).astype(np.uint16) * np.uint16(factor)).save(folder / f"grey16-{name}.png")
    for name, top in (("float-1", 255), ("float-255", 1)):
        values = np.asarray(grey, dtype=np.float32) / top
        values[0] = np.inf  # pixels without data
        Image.fromarray(values).save(folder / f"{name}.tiff")
    return sorted(folder.glob("*.*"))


def test_same_answers_as_predict(
    examples: Path,
    tiny: Backbone,
    photos: Path,
    tmp_path: Path,
    blocked: dict[str, str],
    operators_parsed_once: None,
) -> None:
    discs = sorted(photos.glob("*/*.png"))
    labels = [path.parent.name for path in discs]
    classifier = Classifier(tiny, method="gda", views=1, cache=False).fit(discs, labels)
    export_onnx(classifier, tmp_path / "classifier.onnx")
    folder = tmp_path / "images"
    folder.mkdir()
    paths = [*odd_images(folder), *discs[::5]]
    script = [sys.executable, str(examples / "onnx_without_torch.py")]
    result = subprocess.run(
        [*script, str(tmp_path / "classifier.onnx"), *map(str, paths)], env=blocked, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    probabilities = classifier.predict_proba(paths)
    assert np.ptp(probabilities, axis=0).min() > 0.01  # the images differ
    assert [path for path, _, _ in lines] == [str(path) for path in paths]
    assert [name for _, name, _ in lines] == classifier.predict(paths).tolist()
    assert np.allclose([float(value) for _, _, value in lines], probabilities.max(1), atol=1e-4)

    blocked_torch = subprocess.run([sys.executable, "-c", "import torch"], env=blocked, capture_output=True, text=True)
    assert "must not be imported" in blocked_torch.stderr


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("resize_mode", ["shortest", "longest", "squash"])
def test_preprocessing_equals_open_clip(examples: Path, resize_mode: str, interpolation: str, tmp_path: Path) -> None:
    example = _module(examples / "onnx_without_torch.py")
    settings = {"size": [40, 40], "resize_mode": resize_mode, "interpolation": interpolation, "fill_color": 7}
    normal = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}
    config = PreprocessCfg(**settings | {"size": 40}, **normal)
    for path in odd_images(tmp_path):
        expected = image_transform_v2(config, is_train=False)(open_image(path)).numpy()
        assert np.allclose(example.preprocess(Image.open(path), **settings, **normal), expected, atol=1e-5), path.name


def test_pixels_that_are_no_numbers_are_black(examples: Path) -> None:
    example = _module(examples / "onnx_without_torch.py")
    values = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    values[1, 2] = np.nan
    found = [np.asarray(example.upright_rgb(Image.fromarray(grey))) for grey in (values, np.nan_to_num(values))]
    assert np.array_equal(*found) and found[0].max() == 255


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
