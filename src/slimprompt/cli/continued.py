"""`slimprompt fit --continue-from MODEL`: what is taken from the model, and what is said about the difference."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slimprompt.cli.printing import note, say
from slimprompt.errors import InputError, first_few
from slimprompt.lab.spec import one_spelling
from slimprompt.names import name_key

if TYPE_CHECKING:
    from slimprompt.data import Benchmark, Item
    from slimprompt.fit import Fit
    from slimprompt.saved import SavedModel

#: Class names that are listed.
_LISTED = 20


class Earlier(NamedTuple):
    """The saved model that a fit continues from. The training of a prompt continues; other methods are fitted again."""

    model: Path
    saved: SavedModel

    @property
    def is_prompt(self) -> bool:
        """Whether training continues."""
        return self.saved.description.prompt is not None

    def options(self, options: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
        """The options of the fit: those of the model, but for those of `given` that may differ; one that contradicts it is an error."""
        fixed, free = self._fixed(), self._free()
        for name in (name for name in fixed if name in given):
            own, value = options[name], fixed[name]
            if name == "backbone":
                own = one_spelling(own)
            if own != value:
                raise InputError(
                    f"--{name.replace('_', '-')} {own} contradicts {self.model}, which has {'none' if value is None else value}: "
                    "continued training keeps the settings and the backbone. Leave the option out, or fit without --continue-from"
                )
        known = {name: value for name, value in free.items() if value is not None and name not in given}
        return options | fixed | known

    def _fixed(self) -> dict[str, Any]:
        """What cannot change: the method, the settings of a prompt, and the backbone."""
        described = self.saved.description
        prompt = described.prompt.prompt_fields() if described.prompt else {}
        backbone = {"backbone": described.backbone.name, "precision": described.backbone.precision}
        return {"method": described.method, **prompt, **backbone}

    def _free(self) -> dict[str, Any]:
        """What stays the same unless an option says otherwise; None if the model does not know."""
        described = self.saved.description
        return {
            "seed": described.seed,
            "recipe": described.recipe,
            "shots": described.shots,
            "views": None if self.is_prompt else described.views,
            "template": described.templates,
        }

    def trained_items(self, images: Benchmark) -> frozenset[Item]:
        """The train items that must not be held out, because the prompt was trained on them."""
        from slimprompt.images.decode import file_sha256
        from slimprompt.methods.task import short_hashes

        known = set(self.saved.description.training_images.split()) if self.is_prompt else set()
        items: set[Item] = set()
        for item in images.train if known else ():
            try:
                (digest,) = short_hashes([file_sha256(images.path(item))])
            except InputError:  # an image that cannot be read is reported when it is needed
                continue
            if digest in known:
                items.add(item)
        return frozenset(items)

    def print_changes(self, result: Fit) -> None:
        """Say how many training images are new, and which classes were added and removed."""
        from slimprompt.methods.task import short_hashes

        described = self.saved.description
        if not self.is_prompt:
            note(
                f"{described.method} was fitted again:",
                f"only a prompt can be trained further, so only settings and backbone of {self.model} were used",
            )
        elif not described.training_images:
            note(
                f"the training images of {self.model} are not known:",
                "if some of them are held out here, the accuracy is too high",
            )
        else:
            before = set(described.training_images.split())
            known = sum(one in before for one in short_hashes(result.task.hashes))
            say(
                f"continued from {self.model}: {result.n_train - known} of the training images are new to it, {known} are not"
            )
        added, removed = class_changes(described.class_names, result.task.class_names)
        if removed:
            note(f"no images of {first_few(removed)} were given:", "these classes are not in the new model")
        say(f"classes: {_listed('added', added)}, {_listed('removed', removed)}")


def read_earlier(model: Path) -> Earlier:
    """Read a saved model; an `InputError` if there is none or it is damaged."""
    from slimprompt.saved import read_model

    return Earlier(model, read_model(model))


def class_changes(old: Sequence[str], new: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names that were added and removed; two spellings of the same words are one class.

    >>> class_changes(["red panda", "otter"], ["Red_panda", "cat"])
    (['cat'], ['otter'])
    """
    before, after = {name_key(name) for name in old}, {name_key(name) for name in new}
    return [name for name in new if name_key(name) not in before], [name for name in old if name_key(name) not in after]


def _listed(what: str, names: Sequence[str]) -> str:
    if not names:
        return f"none {what}"
    return f"{len(names)} {what} ({', '.join(names[:_LISTED])}{', …' if len(names) > _LISTED else ''})"
