"""`slimprompt export`: what it prints, which files it leaves, and its errors."""

import json

import numpy as np
import onnxruntime
import pytest
from safetensors import safe_open

from tests.cli.conftest import QUICK, failed, ok

pytestmark = pytest.mark.usefixtures("operators_parsed_once")


NAMES = "yellow disc, black square"


@pytest.fixture(autouse=True, scope="module")
def _traced_once():
    """The same weights are traced once."""
    from slimprompt.export import onnx

    trace, programs = onnx._exported, {}

    def exported(network, *arguments):
        weights = b"".join(value.numpy().tobytes() for value in network.state_dict().values())
        if weights not in programs:
            programs[weights] = trace(network, *arguments)
        return programs[weights]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx, "_exported", exported)
        yield


@pytest.fixture(scope="module")
def saved(run, photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "my-prompt"
    ok(run("fit", photos, "--out", folder, "--shots", "2", *QUICK))
    return folder


def test_both_files_for_other_classes(run, saved, photos, tmp_path):
    onnx, matrix = tmp_path / "c.onnx", tmp_path / "c.safetensors"
    image = photos / "red disc" / "0.png"
    result = run("export", saved, "--onnx", onnx, "--matrix", matrix, "--classes", NAMES, "--images", image)
    shown = ok(result)
    assert "onnxruntime and torch on 5 images" in shown and "same class for 5 of 5" in shown
    assert f"ONNX file of 2 classes on tiny-for-tests (random:0, GELU): {onnx}" in shown
    assert "exporting the image tower of tiny-for-tests" in result.stderr
    facts = onnxruntime.InferenceSession(onnx).get_modelmeta().custom_metadata_map
    with safe_open(matrix, "np") as file:
        assert file.metadata()["class_names"] == facts["class_names"] == '["yellow disc", "black square"]'
        assert np.allclose(np.linalg.norm(file.get_tensor("weights"), axis=1), 1, atol=1e-5)
    predicted = json.loads(ok(run("predict", saved, image, "--classes", NAMES, "--format", "json")))
    assert predicted[0]["answer"] in json.loads(facts["class_names"])

    failed(run("export", saved, "--matrix", matrix), "c.safetensors exists", "--overwrite")
    ok(run("export", saved, "--matrix", matrix, "--overwrite"))
    with safe_open(matrix, "np") as file:
        assert json.loads(file.metadata()["class_names"]) == ["blue disc", "green disc", "red disc"]


def test_a_tolerance_that_rounding_exceeds_leaves_no_file(run, saved, tmp_path):
    target = tmp_path / "c.onnx"
    result = run("export", saved, "--onnx", target, "--classes", NAMES, "--tolerance", "0")
    failed(result, "does not compute the same", "was not written")
    assert not list(tmp_path.iterdir())


def test_help_names_the_extra_and_the_tolerance(run):
    from slimprompt.export.onnx import TOLERANCE

    shown = " ".join(ok(run("export", "--help")).split())
    assert "pip install 'slimprompt[onnx]'" in shown and f"[default: {TOLERANCE:g}]" in shown


def test_errors(run, saved, tmp_path):
    failed(run("export", saved), "export to what? Give --onnx")
    failed(run("export", saved, "--matrix", tmp_path / "m.npz"), "m.npz must end in .safetensors")
    failed(run("export", tmp_path / "no", "--matrix", tmp_path / "m.safetensors"), "no saved model at")
    failed(run("export", saved, "--onnx", tmp_path), "is a folder; give the name of a file")
    failed(run("export", saved, "--matrix", tmp_path / "m.safetensors", "--classes", "a,,b"), "holds an empty name")
    failed(run("export", saved, "--onnx", tmp_path / "m", "--images", "no.jpg"), "no such image: no.jpg")
    failed(run("export", saved, "--matrix", tmp_path / "m.safetensors", "--images", "no.jpg"), "add --onnx FILE")
    assert not list(tmp_path.iterdir())
