from pathlib import Path

import pytest
import torch

from slimprompt import load_backbone
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS


def test_the_folder_is_a_backbone_of_this_logit_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    import train_at_clip_scale as tool
    import train_pocket

    one = "pocket-negative"
    monkeypatch.setattr(train_pocket, "POCKET_BENCHMARKS", {one: POCKET_BENCHMARKS[one]})
    command = ["--steps", "2", "--batch-size", "8", "--images", "16", "--threads", "1", "--out", str(tmp_path)]
    threads = torch.get_num_threads()
    try:
        tool.main(command)
    finally:
        torch.set_num_threads(threads)
    embedded, trained = load_backbone("pocket", device="cpu"), load_backbone(f"local-dir:{tmp_path}", device="cpu")
    assert trained.logit_scale == pytest.approx(100)
    assert trained.preprocess == embedded.preprocess
    assert trained.fingerprint != embedded.fingerprint
    assert not torch.equal(trained.model.text_projection, embedded.model.text_projection)
    out = capsys.readouterr().out
    assert "pocket-negative: zero-shot " in out and f"before {tool.mean_cosine(embedded.model):.2f}\n" in out
