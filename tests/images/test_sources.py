import io

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from slimprompt import InputError
from slimprompt.images.decode import open_image
from slimprompt.images.sources import image_sources


@pytest.fixture
def image():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8))


@pytest.fixture
def path(image, tmp_path):
    image.save(tmp_path / "a.png")
    return tmp_path / "a.png"


FORMS = {
    "generator of paths": lambda image, path: (one for one in [path]),
    "object array": lambda image, path: np.array([path], dtype=object),
    "series": lambda image, path: pd.Series([str(path)], index=[7]),
    "PIL image": lambda image, path: [image],
    "open file": lambda image, path: [io.BytesIO(path.read_bytes())],
    "bytes": lambda image, path: [path.read_bytes()],
    "array": lambda image, path: [np.asarray(image)],
    "arrays": lambda image, path: np.asarray(image)[None],
    "tensor": lambda image, path: [torch.from_numpy(np.array(image)).permute(2, 0, 1)],
    "float tensor": lambda image, path: [torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_pixels(image, path, form):
    (source,) = image_sources(FORMS[form](image, path))
    assert open_image(source).tobytes() == image.tobytes()


def test_greyscale_arrays(image):
    grey = np.asarray(image)[:, :, 0]
    for one in (grey, grey[:, :, None], torch.from_numpy(grey.copy())[None]):
        (source,) = image_sources([one])
        assert np.array_equal(np.asarray(open_image(source))[:, :, 0], grey)


def test_a_file_is_read_from_its_beginning(path):
    file = io.BytesIO(path.read_bytes())
    for _ in range(2):
        assert open_image(image_sources([file])[0]).size == (7, 5)


def test_nothing_is_an_empty_list():
    for nothing in ([], np.array([]), (), iter(()), pd.Series([], dtype=object)):
        assert image_sources(nothing) == []


def closed():
    image = Image.new("RGB", (2, 2))
    image.close()
    return image


@pytest.mark.parametrize(
    "given",
    [
        "a.png",
        np.zeros((5, 5, 3), np.uint8),
        None,
        pd.DataFrame({"path": ["a.png"]}),
        [3],
        ["a.png", None],
        [np.zeros((5, 5, 7), np.uint8)],
        [torch.randn(3, 5, 5)],
        [io.BytesIO(b"no image")],
        [Image.new("RGB", (0, 4))],
        [closed()],
    ],
)
def test_anything_else_is_refused(given):
    with pytest.raises(InputError):
        image_sources(given)
