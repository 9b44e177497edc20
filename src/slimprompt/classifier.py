"""PromptClassifier: a low-rank prompt on a frozen CLIP, following scikit-learn's conventions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from slimprompt import __version__
from slimprompt.clip.backbone import Backbone, default_pretrained, load_backbone
from slimprompt.clip.weights import ACTIVATIONS, UnknownActivationError
from slimprompt.errors import InputError, shown, whole_number
from slimprompt.images.bank import FeatureBank, encode_eval_views
from slimprompt.images.sources import image_sources
from slimprompt.methods.prompt_learning import learn_prompts
from slimprompt.methods.task import Task
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.start import start_prompt
from slimprompt.prompts.variants import check_variant, used_settings
from slimprompt.storage import draft_folder, publish, sha256
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.training.evaluation import class_scores
from slimprompt.training.recipe import Recipe, make_recipe

FACTORS_FILE, DESCRIPTION_FILE = "prompt.safetensors", "prompt.json"
_FORMAT = 1


class PromptClassifier(ClassifierMixin, BaseEstimator):
    """Classify images by `argmax_k cos(image, text(B A, name of class k))`, with B A learned from a few images per class.

    Images are a list of paths or PIL images, or another form that `image_sources` accepts: arrays, tensors, open files, a
    generator, a pandas Series. Labels are class names, which become part of the prompt.

    Parameters
    ----------
    backbone
        A loaded `Backbone`, or a name for `load_backbone`.
    pretrained
        Tag or file of the weights; default: OpenAI's, where OpenAI published weights of the model.
    variant
        "fixed-B" (train A over a fixed token basis), "dense" (CoOp), "joint" or "fixed-A".
    rank
        Rank of the factorisation; not used by "dense".
    basis
        Where the fixed factor comes from; used by "fixed-B" and "fixed-A".
    n_ctx
        Number of context tokens.
    position
        Position of the class name: "end", "middle" or "front".
    recipe
        How it is trained: "fast", "paper", a `Recipe`, or a dictionary of fields that replace those of "fast".
    seed
        Seed of everything random.
    activation, device, precision
        Passed to `load_backbone`.
    cache
        Store image features on disk.

    Attributes
    ----------
    classes_ : ndarray
        Class names.
    prompt_ : Prompt
        The learned prompt.
    class_features_ : Tensor
        Class features (n_classes, embed_dim), computed once.
    curve_ : list of EpochResult
        Learning curve; only after `fit`.
    imported_ : dict or None
        Origin of a prompt that was trained by other software.
    """

    def __init__(
        self,
        backbone: str | Backbone = "ViT-B-16",
        *,
        pretrained: str | None = None,
        variant: str = "fixed-B",
        rank: int | None = 4,
        basis: str | None = "orthogonal",
        n_ctx: int = 16,
        position: str = "end",
        recipe: str | Recipe | Mapping[str, Any] = "fast",
        seed: int = 1,
        activation: str | None = None,
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
        self.activation = activation
        self.device = device
        self.precision = precision
        self.cache = cache

    def fit(self, images: Any, labels: Iterable[str]) -> PromptClassifier:
        """Learn the prompt from labelled images.

        Parameters
        ----------
        images
            A list of paths or PIL images, or another form that `image_sources` accepts.
        labels
            The class name of each image.
        """
        images, names = image_sources(images), _label_names(labels)
        if len(images) != len(names):
            raise InputError(f"{len(images)} images but {len(names)} labels were given: one label per image is needed")
        if not names:
            raise InputError("no images were given to learn from")
        classes = sorted(set(names))
        if len(classes) < 2:
            raise InputError(f"only one class was given ({classes[0]!r}): a classifier needs at least two")
        make_recipe(self.recipe)  # parameters that cannot be used are an error before the backbone is loaded
        self._check_prompt()
        bank = FeatureBank(self._load_backbone(), "default" if self.cache else None)
        return self.fit_task(Task(bank, images, [classes.index(name) for name in names], tuple(classes), self.seed))

    def fit_task(self, task: Task) -> PromptClassifier:
        """Learn the prompt from a task, with the feature bank and backbone of the task."""
        backbone = task.bank.backbone
        prompt = self.start(backbone)
        (learned,) = learn_prompts(
            task,
            [prompt],
            make_recipe(self.recipe),
            position=self.position,  # type: ignore[arg-type]
        )
        self.curve_ = learned.curve
        return self.set_prompt(backbone, prompt, task.class_names)

    def start(self, backbone: Backbone) -> Prompt:
        """The prompt before training."""
        self._check_prompt()
        if self.n_ctx >= backbone.context_length:
            raise InputError(
                f"n_ctx={self.n_ctx} does not fit: {backbone.name} reads {backbone.context_length} tokens, with the class name"
            )
        return start_prompt(
            self.variant,
            width=backbone.text_width,
            seed=self.seed,
            n_ctx=self.n_ctx,
            **used_settings(self.variant, rank=self.rank, basis=self.basis),
        )

    def _check_prompt(self) -> None:
        """Raise an `InputError` unless variant, rank, basis, n_ctx and seed are of the right kind and fit together."""
        n_ctx = whole_number("n_ctx", self.n_ctx, least=1)
        whole_number("seed", self.seed)
        used = used_settings(self.variant, rank=self.rank, basis=self.basis)
        if used["rank"] is not None:
            whole_number("rank", used["rank"], least=1)
        check_variant(self.variant, **used, n_ctx=n_ctx)

    def with_classes(self, class_names: Iterable[str]) -> PromptClassifier:
        """The same prompt on other class names; nothing is trained."""
        check_is_fitted(self)
        names = [name.strip() for name in _label_names(class_names, "class names")]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InputError(f"the class name {repeated[0]!r} was given twice")
        other = PromptClassifier(**self.get_params(deep=False))
        return other.set_prompt(self.backbone_, self.prompt_, names, imported=self.imported_)

    def predict_proba(self, images: Any) -> np.ndarray:
        """Class probabilities (n_images, n_classes), columns as in `classes_`."""
        return self.probabilities(self.encode(images))

    def predict(self, images: Any) -> np.ndarray:
        """The most likely class name of each image."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(images).argmax(1)]

    def score(self, images: Any, labels: Iterable[str], sample_weight: Any = None) -> float:
        """Accuracy on labelled images, between 0 and 1."""
        check_is_fitted(self)
        images, names = image_sources(images), _label_names(labels)
        if not names or len(images) != len(names):
            raise InputError(
                f"{len(images)} images and {len(names)} labels were given: expected one label per image, at least one"
            )
        return float(super().score(images, names, sample_weight))

    def encode(self, images: Any) -> Tensor:
        """Unit-length image features (n_images, embed_dim) of the eval view."""
        check_is_fitted(self)
        sources = image_sources(images)
        return (
            encode_eval_views(self.backbone_, sources)
            if sources
            else self.class_features_.new_empty(0, self.class_features_.shape[1])
        )

    def probabilities(self, features: Tensor) -> np.ndarray:
        """softmax(logit_scale · cos) for image features."""
        logits = self.backbone_.logit_scale * class_scores(features, self.class_features_)
        return logits.double().softmax(1).cpu().numpy()

    def save(self, folder: str | Path, *, overwrite: bool = False, **facts: Any) -> Path:
        """Write `prompt.safetensors` and `prompt.json`, a few KB, completely or not at all.

        Parameters
        ----------
        folder
            Where to write.
        overwrite
            Replace a saved prompt in that folder.
        facts
            Further entries for `prompt.json`.
        """
        check_is_fitted(self)
        folder = Path(folder)
        check_free(folder, overwrite=overwrite)
        factors = save({"A": self.prompt_.A.detach().cpu(), "B": self.prompt_.B.detach().cpu()})
        description = {
            "format": _FORMAT,
            "slimprompt": __version__,
            "class_names": self.classes_.tolist(),
            "backbone": {
                "name": self.backbone_.name,
                "pretrained": self.backbone_.pretrained,
                "activation": self.backbone_.activation,
                "fingerprint": self.backbone_.fingerprint,
            },
            "variant": self.variant,
            "basis": used_settings(self.variant, rank=self.rank, basis=self.basis)["basis"],
            "trains": self.prompt_.trainable,
            "n_ctx": self.prompt_.n_ctx,
            "rank": self.prompt_.rank,
            "position": self.position,
            "recipe": None if self.imported_ else make_recipe(self.recipe).model_dump(),
            "seed": None if self.imported_ else self.seed,
            **({"imported": self.imported_} if self.imported_ else {}),
            "factors_sha256": sha256(factors),
            **facts,
        }
        with draft_folder(folder) as draft:
            (draft / FACTORS_FILE).write_bytes(factors)
            text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
            (draft / DESCRIPTION_FILE).write_text(text, encoding="utf-8")
            publish(draft, folder)
        return folder

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        backbone: Backbone | None = None,
        pretrained: str | None = None,
        activation: str | None = None,
        device: str = "auto",
        precision: str = "fp32",
        cache: bool = True,
    ) -> PromptClassifier:
        """Read a saved prompt and load its backbone; weights other than those it was trained on are refused.

        Parameters
        ----------
        folder
            The folder that `save` wrote.
        backbone
            A loaded backbone to use.
        pretrained
            Tag or file of the weights, if it differs from when the prompt was saved.
        activation
            Activation of the backbone; default: the one that the prompt was trained with.
        device, precision
            Passed to `load_backbone`.
        cache
            Store image features on disk.
        """
        folder = Path(folder)
        description, factors = _read(folder)
        saved = description["backbone"]
        if backbone is None:
            backbone = _backbone_of(saved, pretrained, activation, device=device, precision=precision)
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
        trained: dict[str, Any] = {}  # an imported prompt was trained with neither
        if description["recipe"] is not None:
            trained = {"recipe": Recipe(**description["recipe"]), "seed": description["seed"]}
        classifier = cls(
            backbone,
            variant=description["variant"],
            rank=None if description["variant"] == "dense" else description["rank"],
            basis=description["basis"],
            n_ctx=description["n_ctx"],
            position=description["position"],
            **trained,
            cache=cache,
        )
        return classifier.set_prompt(backbone, prompt, description["class_names"], imported=description.get("imported"))

    def set_prompt(
        self,
        backbone: Backbone,
        prompt: Prompt,
        class_names: Sequence[str],
        *,
        imported: dict[str, Any] | None = None,
    ) -> PromptClassifier:
        """Use a finished prompt instead of fitting one.

        Parameters
        ----------
        backbone
            The model that the prompt belongs to.
        prompt
            The finished prompt.
        class_names
            Class names in the order of `classes_`.
        imported
            Origin of a prompt that was trained by other software, for `prompt.json`.
        """
        self.imported_ = imported
        self.backbone_ = backbone
        self.prompt_ = prompt.to(backbone.device)
        self.classes_ = np.array(class_names, dtype=object if not len(class_names) else None)
        encode = SharedPrefixTextEncoder(backbone, class_names, prompt.n_ctx, self.position)  # type: ignore[arg-type]
        with torch.inference_mode():
            self.class_features_ = encode(prompt())  # computed once: prediction only runs the image tower
        return self

    def _load_backbone(self) -> Backbone:
        if isinstance(self.backbone, Backbone):
            return self.backbone
        return load_backbone(
            self.backbone,
            self.pretrained or default_pretrained(self.backbone),
            activation=self.activation,
            device=self.device,
            precision=self.precision,
        )


def _label_names(labels: Iterable[str], what: str = "labels") -> list[str]:
    """Class names as a list of text; anything else is an `InputError`, because a class name becomes part of the prompt."""
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise InputError(f"{what} must be a list of class names, such as ['cat', 'dog'] (given: {shown(labels)})")
    names = list(labels)
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"{what} must be class names, which become part of the prompt, such as 'cat' (given: {shown(name)}, "
                f"a {type(name).__name__}); replace numbers by names"
            )
    return [str(name) for name in names]


def _backbone_of(saved: dict[str, Any], pretrained: str | None, activation: str | None, **options: Any) -> Backbone:
    """The backbone that a saved prompt describes."""
    if activation in (None, "auto"):
        activation = saved.get("activation")

    def load_with(activation: str | None) -> Backbone:
        return load_backbone(saved["name"], pretrained or saved["pretrained"], activation=activation, **options)

    try:
        return load_with(activation)
    except UnknownActivationError:  # a prompt of version 0.1, which did not store it: the fingerprint tells
        candidates = [load_with(activation) for activation in ACTIVATIONS]
        return next((one for one in candidates if one.fingerprint == saved["fingerprint"]), candidates[0])


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Raise an error unless a prompt may be written to `folder`: an old prompt is only replaced on request, other files never."""
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
    """The content of a saved prompt's `prompt.json`."""
    return _read(Path(folder))[0]


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not (folder / DESCRIPTION_FILE).is_file():
        raise InputError(
            f"no saved prompt at {folder}: expected {DESCRIPTION_FILE} and {FACTORS_FILE}, as `slimprompt fit --out` writes them"
        )
    try:
        description = json.loads((folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))
        if description["format"] != _FORMAT:
            raise InputError(
                f"{folder} has prompt format {description['format']}; this slimprompt reads format {_FORMAT}: update it"
            )
        data = (folder / FACTORS_FILE).read_bytes()
        if sha256(data) != description["factors_sha256"]:
            raise InputError(
                f"{folder / FACTORS_FILE} is damaged: its content is not what {DESCRIPTION_FILE} describes. Fit the prompt again or restore the file"
            )
        factors = load(data)
        return description, {"B": factors["B"], "A": factors["A"]}
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the saved prompt at {folder} is damaged ({type(error).__name__}: {error}). Fit it again or restore the files"
        ) from None
