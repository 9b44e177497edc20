"""`slimprompt backbones`: list the models, whether prompts work with them, and their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from slimprompt.cli.options import OutputFormat
from slimprompt.cli.printing import Format, emit, say
from slimprompt.errors import InputError

if TYPE_CHECKING:
    from slimprompt.clip.architectures import PromptSupport

_LEGEND = """
weights: what --pretrained takes.
prompts: how class features are computed from a prompt.
  shared prefix  fast: the prompt is computed once for all classes
  full pass      slower: the prompt is computed for every class
  none           prompts do not work, or not before the named package is installed
image tower: whether it takes prompts (--tower image or both)"""


def backbones(
    search: str = typer.Argument("", help="Show only names that contain this."), format: OutputFormat = Format.table
) -> None:
    """List the models, whether prompts work with them, and the tags of their published weights."""
    from open_clip import list_models
    from open_clip.pretrained import list_pretrained_tags_by_model

    from slimprompt.clip.architectures import EMBEDDED, model_config, prompt_support, takes_image_prompts

    names = [*EMBEDDED, *(name for name in list_models() if name not in EMBEDDED)]
    rows = []
    for name in (name for name in names if search.lower() in name.lower()):
        tags = ", ".join(list_pretrained_tags_by_model(name)) or "none published"
        weights = "embedded, no weights needed" if name in EMBEDDED else tags
        config = model_config(name) or {}
        prompts, reason = _cells(prompt_support(config))
        image = "yes" if takes_image_prompts(config) else "no"
        rows.append({"backbone": name, "prompts": prompts, "because": reason, "image tower": image, "weights": weights})
    if not rows:
        raise InputError(f"no backbone has {search!r} in its name; `slimprompt backbones` lists all")
    emit(rows, format)
    if format is Format.table:
        say(_LEGEND)


def _cells(support: PromptSupport) -> tuple[str, str]:
    """What the columns "prompts" and "because" say."""
    from slimprompt.clip.architectures import TOKENIZER_EXTRA

    if not support.missing:
        return support.text_pass, support.reason
    why = f" ({support.reason})" if support.reason else ""
    return "none", f"tokenizer needs slimprompt[{TOKENIZER_EXTRA}]; then {support.text_pass}{why}"
