"""Which kind of model a folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from slimprompt.saved.head import HEAD_FILES
from slimprompt.saved.models import model_digest, read_description, saved_files
from slimprompt.saved.prompt import PROMPT_FILES

from slimprompt import HeadClassifier, InputError, PromptClassifier
from slimprompt.clip.backbone import Backbone

NAMES = ["blue disc", "red disc"]


def test_prompts_and_heads_are_told_apart(tiny: Backbone, tmp_path: Path) -> None:
    prompt = PromptClassifier(tiny, n_ctx=4, rank=2)
    prompt.set_prompt(tiny, prompt.start(tiny), NAMES).save(tmp_path / "prompt")
    HeadClassifier.zero_shot(tiny, NAMES).save(tmp_path / "head")
    for name, files in (("prompt", PROMPT_FILES), ("head", HEAD_FILES)):
        assert saved_files(tmp_path / name) is files
        assert read_description(tmp_path / name).class_names == NAMES
    assert model_digest(tmp_path / "prompt") != model_digest(tmp_path / "head")
    with pytest.raises(InputError, match="no saved prompt or head at .*: expected prompt.json .* or head.json"):
        read_description(tmp_path)
