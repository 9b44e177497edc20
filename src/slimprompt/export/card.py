"""The model card of a saved model: README.md with YAML front matter, as the Hugging Face hub shows it."""

from __future__ import annotations

import math
import re

import numpy as np
import yaml

from slimprompt.errors import InputError, shown
from slimprompt.saved import Description
from slimprompt.scores import accuracy_of

_LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]*")


def check_licence(licence: str | None) -> None:
    """Raise an error unless a licence is None or can be an identifier of the hub, such as mit or cc-by-4.0."""
    if licence is not None and not _LICENCE.fullmatch(licence):
        raise InputError(
            f"licence {shown(licence)}: expected an identifier of the hub, such as mit, apache-2.0, cc-by-4.0 or other"
        )


def model_card(saved: Description, repository: str, licence: str | None = None) -> str:
    """The card of a saved model for the repository `user/name`; the hashes of its training images are counted."""
    front: dict[str, object] = {
        **({"license": licence} if licence else {}),
        "library_name": "slimprompt",
        "pipeline_tag": "image-classification",
        "tags": ["slimprompt", "clip", "few-shot", "prompt-learning" if saved.prompt else "image-features"],
    }
    if saved.backbone.name.startswith("hf-hub:"):
        front["base_model"] = saved.backbone.name.removeprefix("hf-hub:")
    weights = _text(saved.backbone.pretrained or "own weights")
    rows = {
        "Classes": f"{len(saved.class_names)}, listed below",
        "Backbone": f"{_text(saved.backbone.name)} ({weights}, {saved.backbone.activation})",
        "Fingerprint of its weights": f"`{saved.backbone.fingerprint}`",
        "Held-out accuracy": _held_out(saved),
        "Training images": _training_images(saved),
        "Recipe": _text(_recipe(saved)),
        "Temperature": f"{saved.temperature:.4g}",
        "Licence": licence or "not stated",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    what = "text prompt" if saved.prompt else "head on image features"
    names = ", ".join(_text(name) for name in saved.class_names)
    return f"""---
{yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip()}
---

# {repository.partition("/")[2]}

An image classifier: a {what} on a frozen CLIP, learned with slimprompt {_text(saved.slimprompt)} from a few images per class.
The weights of the backbone are not part of this repository and have a licence of their own. The model only works with the
weights of this fingerprint, which is checked when it is loaded.

| | |
|---|---|
{table}

## Use

```python
from slimprompt import load_classifier

classifier = load_classifier("hf:{repository}")
print(classifier.predict(["a.jpg"]))
```

On the command line: `slimprompt predict hf:{repository} a.jpg`

## Classes

{names}
"""


def _held_out(saved: Description) -> str:
    """What `slimprompt fit` measured; others may have saved anything under this name."""
    entry = (saved.model_extra or {}).get("held_out")
    found = {name: value for name, value in entry.items() if _is_number(value)} if isinstance(entry, dict) else {}
    n = int(found.get("images", 0))
    if n < 1 or not 0 <= found.get("model", -1) <= 1:
        return "not measured"
    hits = round(n * found["model"])
    value, low, high = accuracy_of(np.arange(n) < hits)
    zero_shot = f"; zero-shot {100 * found['zero_shot']:.1f} %" if "zero_shot" in found else ""
    return f"{value:.1f} % (95 % interval {low:.1f}–{high:.1f}, {n:,} images){zero_shot}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _training_images(saved: Description) -> str:
    n, expected = len(saved.training_images.split()), (saved.shots or 0) * len(saved.class_names)
    more = "" if n in (0, expected) else "up to " if n < expected else "at least "
    shots = f"{more}{saved.shots} per class" if saved.shots else ""
    return f"{n:,}{f' ({shots})' if shots else ''}" if n else shots or "number not stored"


def _recipe(saved: Description) -> str:
    """What was fitted and how: `gda, alpha 1, seed 1`."""
    if saved.prompt is None:
        return ", ".join([saved.method, *(f"{name} {value:g}" for name, value in saved.settings.items()), _seed(saved)])
    how = "trained by other software" if saved.recipe is None else f"{saved.recipe.describe()}, {_seed(saved)}"
    n_ctx = f"{saved.prompt.n_ctx} context tokens, " if saved.prompt.n_ctx else ""
    return f"{saved.prompt.label}, {n_ctx}class name at the {saved.prompt.position}; {how}"


def _seed(saved: Description) -> str:
    return f"seed {saved.seed}"


def _text(text: str) -> str:
    """A name as it is in Markdown: characters with a meaning there are escaped.

    >>> _text("red_panda <b>")
    'red\\\\_panda \\\\<b\\\\>'
    """
    return re.sub(r"([\\`*_\[\]<>|&#$~])", r"\\\1", text)
