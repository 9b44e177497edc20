"""`slimprompt fit --from MODEL`: what is taken from the model, and what is said about the growth."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slimprompt.cli.printing import note, say
from slimprompt.errors import InputError, first_few
from slimprompt.lab.spec import one_spelling
from slimprompt.names import name_key

if TYPE_CHECKING:
    from slimprompt.classifiers.fitting import Fit
    from slimprompt.clip.backbone import Backbone
    from slimprompt.data import Benchmark, Item
    from slimprompt.saved.files import SavedFiles
    from slimprompt.saved.head import HeadDescription
    from slimprompt.saved.prompt import PromptDescription

#: Class names that are listed.
_LISTED = 20


class Origin(NamedTuple):
    """The saved model that a fit starts from."""

    folder: Path
    files: SavedFiles
    description: PromptDescription | HeadDescription

    @property
    def is_prompt(self) -> bool:
        """Whether training continues; heads are fitted again."""
        return self.files.name == "prompt"

    def options(self, options: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
        """The options of the fit: those of the model, but for options that were given and may differ.

        Parameters
        ----------
        options
            All options of the command by name, with their defaults.
        given
            Names of the options that the user has given.

        Raises
        ------
        InputError
            If a given option contradicts the model.
        """
        fixed, free = self._fixed(), self._free()
        for name in (name for name in fixed if name in given):
            own, value = options[name], fixed[name]
            if name == "backbone":
                own = one_spelling(own)
            if own != value:
                raise InputError(
                    f"--{name.replace('_', '-')} {own} contradicts {self.folder}, which has {'none' if value is None else value}: a "
                    "model keeps its settings and its backbone when it grows. Leave the option out, or fit without --from"
                )
        known = {name: value for name, value in free.items() if value is not None and name not in given}
        return options | fixed | known

    def _fixed(self) -> dict[str, Any]:
        """What a grown model has in common with the model: its settings and backbone."""
        from slimprompt.classifiers.warm_start import settings_of
        from slimprompt.saved.prompt import PromptDescription

        backbone, described = self.description.backbone, self.description
        own = (
            {"method": "prompt", **settings_of(described)}
            if isinstance(described, PromptDescription)
            else {"method": described.method}
        )
        return {**own, "backbone": backbone.name} | ({"precision": backbone.precision} if backbone.precision else {})

    def _free(self) -> dict[str, Any]:
        """What a grown model has in common with the model unless an option says otherwise; None if the model does not know."""
        described = self.description
        names = ("seed", "recipe", "shots", "views")
        return {name: getattr(described, name, None) for name in names} | {"template": described.templates or None}

    def trained_items(self, images: Benchmark) -> frozenset[Item]:
        """The train items that must not be held out, because the start was trained on them; of heads, nothing is left."""
        from slimprompt.classifiers.warm_start import read_start

        return read_start(self.folder).trained_items(images) if self.is_prompt else frozenset()

    def load_backbone(self, pretrained: str | None, activation: str, *, device: str, precision: str) -> Backbone:
        """The backbone of the model; other weights are an error."""
        backbone = self.description.backbone
        return self.files.load_backbone(
            self.folder, backbone, None, pretrained, activation, device=device, precision=precision
        )

    def print_growth(self, result: Fit) -> None:
        """Say how many training images are new, and which classes were added and removed."""
        from slimprompt.classifiers.base import short_hashes

        if not self.is_prompt:
            method = getattr(self.description, "method", "")
            note(
                f"{method} was fitted again:",
                f"it has no start, so only settings and backbone of {self.folder} were used",
            )
        elif not self.description.training_images:
            note(
                f"the training images of {self.folder} are not known:",
                "if some of them are held out here, the accuracy is too high",
            )
        else:
            before = set(self.description.training_images.split())
            hashes = short_hashes(result.task.hashes)
            known = sum(one in before for one in hashes)
            say(
                f"started from {self.folder}: {result.n_train - known} of the training images are new to it, {known} are not"
            )
        added, removed = class_changes(self.description.class_names, result.task.class_names)
        if removed:
            note(f"no images of {first_few(removed)} were given:", "these classes are not in the new model")
        say(f"classes: {_listed('added', added)}, {_listed('removed', removed)}")


def read_origin(folder: Path) -> Origin:
    """Read the description of a saved prompt or head; an `InputError` if there is none or it is damaged."""
    from slimprompt.saved.models import read_description, saved_files

    return Origin(folder, saved_files(folder), read_description(folder))


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
