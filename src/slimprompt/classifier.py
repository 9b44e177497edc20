"""PromptClassifier: a low-rank prompt on a frozen CLIP, with the manners of a scikit-learn estimator."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from slimprompt import __version__
from slimprompt.clip.backbone import Backbone, load_backbone
from slimprompt.errors import InputError, unknown
from slimprompt.images.bank import FeatureBank, Picture, encode_pictures
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.start import start_prompt
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.training.evaluation import class_scores
from slimprompt.training.loop import fit_prompts
from slimprompt.training.recipe import RECIPES, Recipe

FACTORS_FILE, DESCRIPTION_FILE = "prompt.safetensors", "prompt.json"
_FORMAT = 1


class PromptClassifier(ClassifierMixin, BaseEstimator):
    """Classify images by `argmax_k cos(image, text(B A, name of class k))`, with B A learned from a few images per class.

    backbone: a loaded `Backbone`, or a name for `load_backbone` (then with `pretrained`, `device` and `precision`).
    variant: "fixed-B" (train A over a fixed token basis), "dense" (CoOp), "joint" or "fixed-A".
    rank, basis: of the factorisation; a dense prompt has neither. n_ctx: context tokens. position: of the class name.
    recipe: a name ("fast", "paper") or a `Recipe`. seed: of everything random. cache: keep image features on disk.

    Images are paths or PIL images; labels are class names, which is what the prompt is read with.
    """

    def __init__(
        self,
        backbone: str | Backbone = "pocket",
        *,
        pretrained: str | None = None,
        variant: str = "fixed-B",
        rank: int | None = 4,
        basis: str | None = "orthogonal",
        n_ctx: int = 16,
        position: str = "end",
        recipe: str | Recipe = "fast",
        seed: int = 1,
        device: str = "auto",
        precision: str = "fp32",
        cache: bool = True,
    ) -> None:
        self.backbone = backbone
        self.pretrained = pretrained
        self.variant = variant
        self.rank = rank
        self.basis = basis
        self.n_ctx = n_ctx
        self.position = position
        self.recipe = recipe
        self.seed = seed
        self.device = device
        self.precision = precision
        self.cache = cache

    def fit(self, images: Sequence[Picture], labels: Sequence[str]) -> PromptClassifier:
        """Learn the prompt from labelled images."""
        names = [str(label) for label in labels]
        if len(images) != len(names):
            raise InputError(f"{len(images)} images but {len(names)} labels were given: one label per image is needed")
        if not names:
            raise InputError("no images were given to learn from")
        classes = sorted(set(names))
        if len(classes) < 2:
            raise InputError(f"only one class was given ({classes[0]!r}): a classifier needs at least two")
        recipe = self._recipe()
        backbone = self._load_backbone()
        prompt = self.start(backbone)
        bank = FeatureBank(backbone, "default" if self.cache else None)
        index = {name: label for label, name in enumerate(classes)}
        encoder = self._encoder(backbone, classes, prompt.n_ctx)
        (curve,) = fit_prompts([prompt], bank, images, [index[name] for name in names], encoder, recipe, seed=self.seed)
        self.curve_ = curve
        return self.set_prompt(backbone, prompt, classes, encoder)

    def start(self, backbone: Backbone) -> Prompt:
        """The prompt that training starts from."""
        return start_prompt(
            self.variant,
            width=backbone.text_width,
            seed=self.seed,
            n_ctx=self.n_ctx,
            rank=None if self.variant == "dense" else self.rank,
            basis=self.basis if self.variant.startswith("fixed") else None,
        )

    def with_classes(self, class_names: Sequence[str]) -> PromptClassifier:
        """The same prompt reading other class names; nothing is trained."""
        check_is_fitted(self)
        names = [str(name).strip() for name in class_names]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InputError(f"the class name {repeated[0]!r} was given twice")
        other = PromptClassifier(**self.get_params(deep=False))
        return other.set_prompt(self.backbone_, self.prompt_, names)

    def predict_proba(self, images: Sequence[Picture]) -> np.ndarray:
        """Class probabilities (n_images, n_classes), columns as in `classes_`."""
        check_is_fitted(self)
        return self.probabilities(self.encode(images))

    def predict(self, images: Sequence[Picture]) -> np.ndarray:
        """The most likely class name of each image."""
        return (
            self.classes_[self.predict_proba(images).argmax(1)]
            if len(images)
            else np.empty(0, dtype=self.classes_.dtype)
        )

    def encode(self, images: Sequence[Picture]) -> Tensor:
        """Unit-length image features (n_images, embed_dim) of the test view."""
        check_is_fitted(self)
        return encode_pictures(self.backbone_, images)

    def probabilities(self, features: Tensor) -> np.ndarray:
        """softmax(logit_scale · cos) for image features."""
        logits = self.backbone_.logit_scale * class_scores(features, self.text_features_)
        return logits.double().softmax(1).cpu().numpy()

    def save(self, folder: str | Path, *, overwrite: bool = False, **facts: Any) -> Path:
        """Write `prompt.safetensors` and `prompt.json`, a few KB, whole or not at all; `facts` are kept in the latter."""
        check_is_fitted(self)
        folder = Path(folder)
        check_free(folder, overwrite=overwrite)
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            save_file(
                {"A": self.prompt_.A.detach().cpu(), "B": self.prompt_.B.detach().cpu()}, temporary / FACTORS_FILE
            )
            description = {
                "format": _FORMAT,
                "slimprompt": __version__,
                "class_names": self.classes_.tolist(),
                "backbone": {
                    "name": self.backbone_.name,
                    "pretrained": self.backbone_.pretrained,
                    "fingerprint": self.backbone_.fingerprint,
                },
                "variant": self.variant,
                "basis": self.basis if self.variant.startswith("fixed") else None,
                "trains": self.prompt_.trains,
                "n_ctx": self.prompt_.n_ctx,
                "rank": self.prompt_.rank,
                "position": self.position,
                "recipe": self._recipe().model_dump(),
                "seed": self.seed,
                "factors_sha256": hashlib.sha256((temporary / FACTORS_FILE).read_bytes()).hexdigest(),
                **facts,
            }
            (temporary / DESCRIPTION_FILE).write_text(json.dumps(description, indent=1, ensure_ascii=False) + "\n")
            os.chmod(temporary, 0o755)
            replaced = None
            if folder.exists():
                replaced = folder.with_name(f".{folder.name}-replaced-{os.getpid()}")
                folder.rename(replaced)
            temporary.rename(folder)
            if replaced is not None:
                shutil.rmtree(replaced)
        except OSError as error:
            raise InputError(f"the prompt could not be written to {folder}: {error}") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return folder

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        backbone: Backbone | None = None,
        pretrained: str | None = None,
        device: str = "auto",
        precision: str = "fp32",
        cache: bool = True,
    ) -> PromptClassifier:
        """Read a saved prompt and load its backbone, or use the one given; another backbone's weights are refused.

        pretrained: where the weights are on this machine, if not where they were when the prompt was saved.
        """
        folder = Path(folder)
        description, factors = _read(folder)
        saved = description["backbone"]
        if backbone is None:
            backbone = load_backbone(
                saved["name"], pretrained or saved["pretrained"], device=device, precision=precision
            )
        if backbone.fingerprint != saved["fingerprint"]:
            raise InputError(
                f"{folder} was trained on {saved['name']} ({saved['pretrained'] or 'own weights'}, fingerprint {saved['fingerprint'][:12]}), "
                f"but {backbone.name} ({backbone.pretrained or 'own weights'}) has fingerprint {backbone.fingerprint[:12]}: "
                "a prompt only works with the weights it was trained on"
            )
        prompt = Prompt(factors["B"], factors["A"], description["trains"])
        if prompt.width != backbone.text_width:
            raise InputError(
                f"{folder / FACTORS_FILE} is damaged: its width {prompt.width} is not the text width {backbone.text_width}"
            )
        classifier = cls(
            backbone,
            variant=description["variant"],
            rank=None if description["variant"] == "dense" else description["rank"],
            basis=description["basis"],
            n_ctx=description["n_ctx"],
            position=description["position"],
            recipe=Recipe(**description["recipe"]),
            seed=description["seed"],
            cache=cache,
        )
        return classifier.set_prompt(backbone, prompt, description["class_names"])

    def set_prompt(
        self,
        backbone: Backbone,
        prompt: Prompt,
        class_names: Sequence[str],
        encoder: SharedPrefixTextEncoder | None = None,
    ) -> PromptClassifier:
        """Take over a finished prompt instead of fitting one. encoder: of these class names, if there is one already."""
        self.backbone_ = backbone
        self.prompt_ = prompt.to(backbone.device)
        self.classes_ = np.array(class_names, dtype=object if not len(class_names) else None)
        encoder = encoder or self._encoder(backbone, class_names, prompt.n_ctx)
        with torch.inference_mode():
            self.text_features_ = encoder(prompt())  # computed once: prediction only runs the image tower
        return self

    def _encoder(self, backbone: Backbone, class_names: Sequence[str], n_ctx: int) -> SharedPrefixTextEncoder:
        return SharedPrefixTextEncoder(backbone, class_names, n_ctx, self.position)  # type: ignore[arg-type]

    def _recipe(self) -> Recipe:
        if isinstance(self.recipe, Recipe):
            return self.recipe
        if self.recipe not in RECIPES:
            raise unknown("recipe", self.recipe, RECIPES)
        return RECIPES[self.recipe]

    def _load_backbone(self) -> Backbone:
        if isinstance(self.backbone, Backbone):
            return self.backbone
        return load_backbone(self.backbone, self.pretrained, device=self.device, precision=self.precision)


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Whether a prompt may be written to `folder`; an old prompt is only replaced on request, anything else never."""
    if not folder.exists():
        return
    is_prompt = (folder / DESCRIPTION_FILE).is_file()
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if not is_prompt:
        raise InputError(f"{folder} exists and is not a saved prompt, so it is left alone; choose another name")
    if not overwrite:
        raise InputError(
            f"{folder} already holds a saved prompt; choose another name, or ask to overwrite it (--overwrite)"
        )


def saved_description(folder: str | Path) -> dict[str, Any]:
    """What `prompt.json` of a saved prompt says."""
    return _read(Path(folder))[0]


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not (folder / DESCRIPTION_FILE).is_file():
        raise InputError(
            f"no saved prompt at {folder}: expected {DESCRIPTION_FILE} and {FACTORS_FILE}, as `slimprompt fit --out` writes them"
        )
    try:
        description = json.loads((folder / DESCRIPTION_FILE).read_text())
        if description["format"] != _FORMAT:
            raise InputError(
                f"{folder} has prompt format {description['format']}; this slimprompt reads format {_FORMAT}: update it"
            )
        data = (folder / FACTORS_FILE).read_bytes()
        if hashlib.sha256(data).hexdigest() != description["factors_sha256"]:
            raise InputError(
                f"{folder / FACTORS_FILE} is damaged: its content is not what {DESCRIPTION_FILE} describes. Fit the prompt again or restore the file"
            )
        factors = load_file(folder / FACTORS_FILE)
        return description, {"B": factors["B"], "A": factors["A"]}
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the saved prompt at {folder} is damaged ({type(error).__name__}: {error}). Fit it again or restore the files"
        ) from None
