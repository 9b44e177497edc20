"""PromptClassifier: a low-rank prompt on a frozen CLIP, following scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slimprompt.calibration import Calibration
from slimprompt.classifiers.base import ImageClassifier, label_names, short_hashes
from slimprompt.classifiers.warm_start import PROMPT_SETTINGS, read_start
from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError, whole_number
from slimprompt.methods.prompt import initial_prompt, learn_prompts
from slimprompt.methods.task import Task
from slimprompt.names import check_class_names
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.spec import check_variant, check_without_a_run, check_words, used_settings
from slimprompt.saved.files import describe_backbone
from slimprompt.saved.prompt import PROMPT_FILES, PromptDescription, read_prompt, write_prompt
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.text.words import words_template
from slimprompt.training.evaluation import class_scores
from slimprompt.training.recipe import MANY_IMAGES, Recipe, RecipeLike, make_recipe


class PromptClassifier(ImageClassifier):
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
        Where the fixed factor comes from: "gaussian", "orthogonal", "svd", "random" or "module:function" for "fixed-B" (default:
        "orthogonal"), "svd" or "random" for "fixed-A" (default: "svd").
    n_ctx
        Number of context tokens; not used with `words`, whose tokens are the context.
    words
        Start from the token embeddings of these words, such as "a photo of a".
    anchored
        With `words`: train P = W + B A from B A = 0, so that it starts at the zero-shot classifier of the words.
    depth
        Number of layers of the text tower that receive a context B A_l of their own, with one B for all.
    position
        Position of the class name: "end", "middle" or "front".
    recipe
        How it is trained: "auto", which depends on the number of images per class, "fast", "paper", "paper-10x", a `Recipe`, or
        a dictionary of fields that replace those of "auto".
    class_names
        Names of the labels, if these are not the class names themselves: a list, where label i is `class_names[i]`, or a
        dictionary from labels to names. `classes_` and `predict` then give the labels. `save` stores the names alone.
    seed
        Seed of everything random.
    start_from
        Start training at the factors of a finished prompt instead: the folder of a saved prompt, or a fitted
        `PromptClassifier`. It needs the same backbone and the same settings of the prompt (variant to position). Its training
        images count as training images of this classifier too. The trainings for the calibration start cold. `clone` of
        scikit-learn removes what a classifier has learned, so give a folder where classifiers are cloned.
    activation, device, precision
        Passed to `load_backbone`.
    cache
        Store image features on disk.
    calibrate
        Also fit a temperature in `fit`, by cross-validation inside the training images: up to three more trainings. The command
        `slimprompt fit` does.

    Attributes
    ----------
    fitted_params_ : dict
        The parameters that decide what the prompt is, as they were when it was fitted; `set_params` does not change them.
    class_names_ : tuple of str
        Class names.
    classes_ : ndarray
        The labels of the classes: their names, or the labels that were given with `class_names`.
    prompt_ : Prompt
        The learned prompt.
    class_features_ : Tensor
        Class features (n_classes, embed_dim), computed once.
    curve_ : list of EpochResult
        Learning curve; only after `fit`.
    recipe_ : Recipe or None
        The recipe that it was trained with; None if the prompt was trained by other software.
    grown_from_ : str or None
        Hash of the factors that training started from (`factors_sha256` of the saved prompt); None if it started cold.
    imported_ : dict or None
        Origin of a prompt that was trained by other software.
    calibration_ : Calibration
        Temperature of the probabilities, and confidences of training images when they were held out.
    training_images_ : frozenset
        Short hashes of the training images; empty if they are not known.
    """

    _files = PROMPT_FILES
    grown_from_: str | None
    recipe_: Recipe | None

    def __init__(
        self,
        backbone: str | Backbone = "ViT-B-16",
        *,
        pretrained: str | Path | None = None,
        variant: str = "fixed-B",
        rank: int | None = 4,
        basis: str | None = None,
        n_ctx: int = 16,
        words: str | None = None,
        anchored: bool = False,
        depth: int = 1,
        position: str = "end",
        recipe: RecipeLike = "auto",
        class_names: Sequence[str] | Mapping[Any, str] | None = None,
        seed: int = 1,
        start_from: str | Path | PromptClassifier | None = None,
        activation: str | None = None,
        device: str | torch.device = "auto",
        precision: str = "fp32",
        cache: bool = True,
        calibrate: bool = False,
    ) -> None:
        self.backbone = backbone
        self.pretrained = pretrained
        self.variant = variant
        self.rank = rank
        self.basis = basis
        self.n_ctx = n_ctx
        self.words = words
        self.anchored = anchored
        self.depth = depth
        self.position = position
        self.recipe = recipe
        self.class_names = class_names
        self.seed = seed
        self.start_from = start_from
        self.activation = activation
        self.device = device
        self.precision = precision
        self.cache = cache
        self.calibrate = calibrate

    def check_settings(self) -> None:
        """Raise an error unless recipe, variant, rank, basis, n_ctx, depth and seed are of the right kind and fit together."""
        make_recipe(self.recipe, MANY_IMAGES)
        n_ctx, depth = whole_number("n_ctx", self.n_ctx, least=1), whole_number("depth", self.depth, least=1)
        whole_number("seed", self.seed)
        used = used_settings(self.variant, rank=self.rank, basis=self.basis)
        if used["rank"] is not None:
            whole_number("rank", used["rank"], least=1)
        check_words(words=self.words is not None, anchored=self.anchored, depth=depth)
        if self.words is None:  # with words, n_ctx is their number of tokens, which the backbone knows
            check_variant(self.variant, **used, n_ctx=n_ctx)
        if self.start_from is self:
            raise InputError(
                "start_from is the classifier itself: to train on, make another one that starts from it, by "
                "classifier.unfitted(start_from=classifier).fit(images, labels)"
            )
        if self.start_from is not None:
            read_start(self.start_from).check_settings(self)
        else:
            check_without_a_run(self.variant, used["basis"])

    def task_settings(self) -> dict[str, Any]:
        """The template of `words`, to which a recipe that keeps close to zero-shot keeps close."""
        return {"templates": (words_template(self.words),)} if self.words else {}

    def fit_task(self, task: Task) -> PromptClassifier:
        """Learn the prompt from a task, with the feature bank and backbone of the task."""
        check_class_names(task.class_names)
        backbone = task.bank.backbone
        start = None if self.start_from is None else read_start(self.start_from)
        prompt, recipe = self.start(backbone), self.recipe_for(task)
        (learned,) = learn_prompts(
            task,
            [prompt],
            recipe,
            position=self.position,  # type: ignore[arg-type]
        )
        self.curve_ = learned.curve
        self.set_prompt(backbone, prompt, task.class_names)
        self.recipe_ = recipe
        self.training_images_ = frozenset(short_hashes(task.hashes))
        if start is not None:
            self.grown_from_ = start.sha256
            self.training_images_ |= start.training_images
        return self

    def recipe_for(self, task: Task) -> Recipe:
        """The recipe to train on a task with."""
        return make_recipe(self.recipe, len(task.labels) / len(task.class_names))

    def fold_classifier(self) -> PromptClassifier:
        """Not fitted, with the same recipe and a cold start: a warm one may have been trained on the images of the fold."""
        return self.unfitted(start_from=None, recipe=self.recipe_ or self.recipe)

    def start(self, backbone: Backbone) -> Prompt:
        """The prompt before training."""
        self.check_settings()
        if self.start_from is not None:
            return read_start(self.start_from).prompt_for(backbone)
        if self.words is None and self.n_ctx >= backbone.context_length:
            raise InputError(
                f"n_ctx={self.n_ctx} does not fit: {backbone.name} reads {backbone.context_length} tokens, with the class name"
            )
        return initial_prompt(
            backbone,
            self.variant,
            seed=self.seed,
            n_ctx=self.n_ctx if self.words is None else None,
            words=self.words,
            anchored=self.anchored,
            depth=self.depth,
            **used_settings(self.variant, rank=self.rank, basis=self.basis),
        )

    def with_classes(self, class_names: Iterable[str]) -> PromptClassifier:
        """The same prompt on other class names; nothing is trained."""
        self.check_fitted()
        names = [name.strip() for name in label_names(class_names, "class names")]
        other = self.unfitted(class_names=None, **self.fitted_params_)
        other.set_prompt(self.backbone_, self.prompt_, names, imported=self.imported_)
        other.calibration_, other.training_images_ = self._calibration_of(names), self.training_images_
        other.grown_from_, other.recipe_ = self.grown_from_, self.recipe_
        return other

    def logits(self, features: Tensor) -> Tensor:
        """logit_scale · cos (n_images, n_classes) for image features (n_images, embed_dim)."""
        return self.backbone_.logit_scale * class_scores(features, self.class_features_)

    def concept_features(self) -> Tensor:
        """Text features of the classes in the learned prompt (n_classes, embed_dim)."""
        return self.class_features_

    def save(self, folder: str | Path, *, overwrite: bool = False, **facts: Any) -> Path:
        """Write `prompt.safetensors` and `prompt.json`, a few KB, completely or not at all.

        Parameters
        ----------
        folder
            Where to write.
        overwrite
            Replace a saved prompt in that folder.
        facts
            Further entries for `prompt.json`, under names that it does not have.
        """
        self.check_fitted()
        folder = Path(folder)
        PROMPT_FILES.check_free(folder, overwrite=overwrite)
        fitted = self.fitted_params_
        entries = {
            "class_names": list(self.class_names_),
            "backbone": describe_backbone(self.backbone_),
            "variant": fitted["variant"],
            "basis": used_settings(fitted["variant"], rank=fitted["rank"], basis=fitted["basis"])["basis"],
            "words": fitted["words"],
            "anchored": fitted["anchored"],
            "position": fitted["position"],
            "recipe": self.recipe_ and self.recipe_.model_dump(),
            "seed": fitted["seed"] if self.recipe_ else None,
            **self.calibration_._asdict(),
            "training_images": " ".join(sorted(self.training_images_)),
            **({"imported": self.imported_} if self.imported_ else {}),
            **({"grown_from": self.grown_from_} if self.grown_from_ else {}),
        }
        write_prompt(folder, entries, self.prompt_, facts)
        return folder

    @classmethod
    def _read(cls, folder: Path) -> tuple[PromptDescription, Prompt]:
        description, _, prompt = read_prompt(folder)
        return description, prompt

    @classmethod
    def _of_saved(cls, folder: Path, saved: PromptDescription, prompt: Prompt, backbone: Backbone) -> PromptClassifier:
        if prompt.width != backbone.text_width:
            reason = f"A: its width {prompt.width} is not the text width {backbone.text_width} of {backbone.name}"
            raise PROMPT_FILES.damaged(folder / PROMPT_FILES.tensors, reason)
        trained: dict[str, Any] = {}  # an imported prompt was trained with neither
        if saved.recipe is not None:
            trained = {"recipe": saved.recipe, "seed": saved.seed}
        classifier = cls(
            backbone,
            variant=saved.variant,
            rank=None if saved.variant == "dense" else saved.rank,
            basis=saved.basis,
            n_ctx=saved.n_ctx,
            words=saved.words,
            anchored=saved.anchored,
            depth=saved.depth,
            position=saved.position,
            **trained,
        )
        classifier.set_prompt(backbone, prompt, saved.class_names, imported=saved.imported)
        classifier.grown_from_, classifier.recipe_ = saved.grown_from, saved.recipe
        return classifier

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
            Class names.
        imported
            Origin of a prompt that was trained by other software, for `prompt.json`.
        """
        check_class_names(class_names)
        position: Any = self.position
        encode = SharedPrefixTextEncoder(backbone, class_names, prompt.n_ctx, position, depth=prompt.depth)
        with torch.inference_mode():
            features = encode(prompt.to(backbone.device)())
        if not features.isfinite().all():
            raise InputError(f"this prompt cannot be used with {backbone.title}: its class features are not finite")
        self.fitted_params_ = {name: getattr(self, name) for name in (*PROMPT_SETTINGS, "seed")}
        self.imported_ = imported
        self.grown_from_ = self.recipe_ = None
        self.calibration_ = Calibration()
        self.training_images_ = frozenset()
        self.backbone_ = backbone
        self.prompt_ = prompt
        self.class_names_ = tuple(class_names)
        self.classes_ = np.array(self.class_names_, dtype=str)
        self.class_features_ = features  # computed once: prediction only runs the image tower
        return self
