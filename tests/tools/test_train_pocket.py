import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from slimprompt.pocket.benchmarks import HELD_OUT_STYLES, POCKET_BENCHMARKS, held_out


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "train_pocket.py"
    spec = importlib.util.spec_from_file_location("train_pocket", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_pocket"] = module
    spec.loader.exec_module(module)
    return module


def rendered(tool: ModuleType, total: int, size: int) -> np.ndarray:
    return np.stack([tool.pretraining_image(0, index, size) for index in range(total)])


@pytest.mark.parametrize("name", ["pocket", "pocket-rn"])
def test_a_few_steps_reduce_the_loss_below_chance(tool: ModuleType, name: str) -> None:
    images = rendered(tool, 8, tool.ARCHITECTURES[name]["vision_cfg"]["image_size"])
    torch.manual_seed(0)
    losses = tool.train(tool.build(name), images, steps=18, batch_size=8, lr=1e-3, seed=0)
    assert len(losses) == 18
    assert np.mean(losses[-4:]) < np.log(8) - 0.4  # log(8) is the loss at chance level
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.4


def test_training_is_deterministic(tool: ModuleType) -> None:
    images = rendered(tool, 16, 48)
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        runs.append(tool.train(tool.build("pocket"), images, steps=2, batch_size=8, lr=1e-3, seed=3))
    assert runs[0] == runs[1]


def test_skipping_padding_does_not_change_text_features(tool: ModuleType) -> None:
    model = tool.build("pocket").eval()
    texts = ["a red star.", "x " * 20 + "dotted blue fish on sand.", "fish"]
    tokens = tool.open_clip.get_tokenizer("ViT-B-32")(texts, 48)
    with torch.no_grad():
        full = model.encode_text(tokens)
        torch.testing.assert_close(tool.text_features(model, tokens), full)
        torch.testing.assert_close(tool.text_features_by_length(model, tokens), full)


def test_pre_training_images_exclude_held_out_classes_and_styles(tool: ModuleType) -> None:
    for index in range(300):
        scene, style, _ = tool.scene_and_style(0, index)
        assert not held_out(scene.shape, scene.colour, scene.texture)
        assert style not in HELD_OUT_STYLES
    assert np.array_equal(tool.pretraining_image(0, 5, 48), tool.pretraining_image(0, 5, 48))
    assert not np.array_equal(tool.pretraining_image(0, 5, 48), tool.pretraining_image(1, 5, 48))


def test_command_writes_architecture_weights_and_facts(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = "pocket-negative"
    monkeypatch.setattr(tool, "POCKET_BENCHMARKS", {one: POCKET_BENCHMARKS[one]})
    out = tmp_path / "out"
    command = ["--steps", "1", "--batch-size", "8", "--images", "16", "--threads", "1", "--cache", str(tmp_path)]
    tool.main([*command, "--out", str(out)])
    facts = json.loads((out / "pocket.facts.json").read_text())
    assert facts["sha256"] == hashlib.sha256((out / "pocket.safetensors").read_bytes()).hexdigest()
    assert facts["held_out"][one]["chance"] == 0.05
    assert "chance" in capsys.readouterr().out
    weights = load_file(out / "pocket.safetensors")
    rows = weights.pop("token_embedding.rows")
    assert len(weights["token_embedding.weight"]) == len(rows) == len(rows.unique())
    assert set(weights) == set(tool.build("pocket").state_dict())
