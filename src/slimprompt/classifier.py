"""`Classifier`: CLIP adapted to named classes by a prompt or another method, following scikit-learn's conventions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from slimprompt.calibration import Calibration, calibration_folds, calibration_of, softmax
from slimprompt.clip.backbone import Backbone, load_backbone
from slimprompt.continued import FinishedPrompt, read_finished_prompt
from slimprompt.errors import InputError, first_few, shown, whole_number
from slimprompt.estimator import Estimator
from slimprompt.images.bank import FeatureBank
from slimprompt.images.decode import Decode
from slimprompt.images.encoding import encode_eval_views
from slimprompt.images.sources import image_sources
from slimprompt.methods.head import AnyHead, CacheHead, FittedHead, Head
from slimprompt.methods.prompt import LearnedPrompt, encode_images, learn_prompts, make_prompt, prompt_head, with_blocks
from slimprompt.methods.table import PROMPT, find_method
from slimprompt.methods.task import DEFAULT_TEMPLATE, DEFAULT_VIEWS, LabelledImages, Task, make_task, short_hashes
from slimprompt.methods.zero_shot import check_templates, zero_shot_features, zero_shot_head
from slimprompt.names import check_class_names
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.spec import PromptSpec, make_spec
from slimprompt.saved import (
    SavedBackbone,
    check_free,
    damaged,
    describe_backbone,
    load_backbone_of,
    read_model,
    tensors_sha256,
    write_model,
)
from slimprompt.scores import Verdict, verdict
from slimprompt.training.evaluation import class_scores
from slimprompt.training.loop import EpochResult
from slimprompt.training.recipe import MANY_IMAGES, Recipe, RecipeLike, make_recipe
from slimprompt.user_functions import is_user_function, user_function

if TYPE_CHECKING:
    from typing_extensions import Self


class Classifier(Estimator):
    """Classify images by a head on the features of a frozen CLIP, learned from a few images per class.

    With the method "prompt", the default, the head is `argmax_k cos(image, text(B A, name of class k))`.

    Images are a list of paths or PIL images, or another form that `image_sources` accepts: arrays, tensors, open files, a
    generator, a pandas Series. Labels are class names, which become part of the prompt.

    Parameters
    ----------
    backbone
        A loaded `Backbone`, or a name for `load_backbone`.
    method
        "prompt"; "zero-shot", "linear-probe", "zs-linear-probe", "clap", "tip-adapter", "tip-adapter-f", "gda", "task-residual" or
        "cross-modal"; or a function of your own, "module:function", whose module has been imported.
    pretrained
        Tag or file of the weights; default: OpenAI's, where OpenAI published weights of the model.
    variant
        "fixed-B" (train A over a fixed token basis), "dense" (CoOp), "joint" or "fixed-A". This and the following up to `recipe`
        are for prompts only.
    rank
        Rank of the factorisation; default: 4. A dense prompt has none.
    basis
        Where the fixed factor comes from: "gaussian", "orthogonal", "svd", "random" or "module:function" for "fixed-B" (default:
        "orthogonal"), "svd" or "random" for "fixed-A" (default: "svd").
    n_ctx
        Number of context tokens; default: 16, or with `words` the number of their tokens.
    words
        Start from the token embeddings of these words, such as "a photo of a".
    anchored
        With `words`: train P = W + B A from B A = 0, so that it starts at the zero-shot classifier of the words.
    depth
        Number of layers of the text tower that receive a context B A_l of their own, with one B for all.
    position
        Position of the class name: "end", "middle" or "front".
    tower
        Where the prompt is: "text", "image" (the text is then fixed words) or "both".
    n_ctx_image
        Extra rows of the image tower; default: 8, or `n_ctx` with `share_basis`.
    image_blocks
        Blocks of the image tower that receive rows of their own, "J:E" for J up to E − 1; default: the last quarter. The
        blocks below J are computed once per image and stored.
    share_basis
        With both towers: one basis B for both.
    recipe
        How it is trained: "auto", which depends on the number of images per class, "fast", "paper", "paper-10x", a `Recipe`, or
        a dictionary of fields that replace those of "auto".
    continue_from
        Start training at the factors of a finished prompt instead: a saved prompt, or a fitted classifier. It needs the same
        backbone and the same settings of the prompt (variant to position). Its training images count as training images of this
        classifier too. The trainings for the calibration start cold. `clone` of scikit-learn removes what a classifier has
        learned, so give a saved prompt where classifiers are cloned.
    templates
        Zero-shot prompts, each with one `{}` for the class name: the text that methods and recipes with `anchor` or `prograd`
        keep to.
    views
        Train views of each image beside the eval view, for the methods other than prompts.
    class_names
        Names of the labels, if these are not the class names themselves: a list, where label i is `class_names[i]`, or a
        dictionary from labels to names. `classes_` and `predict` then give the labels. `save` stores the names alone.
    seed
        Seed of everything random.
    activation, device, precision
        Passed to `load_backbone`.
    cache
        Store image features on disk.
    calibrate
        Also fit a temperature in `fit`, by cross-validation inside the training images: up to three more trainings. The command
        `slimprompt fit` does.

    Attributes
    ----------
    class_names_ : tuple of str
        Class names.
    classes_ : ndarray
        The labels of the classes: their names, or the labels that were given with `class_names`.
    head_ : Head or CacheHead
        The fitted head.
    prompt_ : Prompt or None
        The learned prompt.
    spec_ : PromptSpec or None
        What the prompt is.
    method_ : str
        The method that was fitted; `set_params` does not change this, nor what follows.
    settings_ : dict
        Settings of the method that were chosen inside the training images.
    n_trained_ : int
        How many of its numbers come from the training images.
    curve_ : list of EpochResult
        Learning curve of a prompt; empty after `load`.
    recipe_ : Recipe or None
        The recipe that the prompt was trained with; None if it was trained by other software.
    continued_from_ : str or None
        Hash of the factors that training started from; None if it started cold.
    codes_ : dict
        Class names by the codes of class folders or labels that it was fitted on; empty without codes.
    imported_ : dict or None
        Origin of a prompt that was trained by other software.
    calibration_ : Calibration
        Temperature of the probabilities, and confidences of training images when they were held out.
    verdict_ : Verdict or None
        How it compares with zero-shot on the validation images that were given to `fit`; None without.
    training_images_ : frozenset
        Short hashes of the training images; empty if they are not known.
    """

    def __init__(
        self,
        backbone: str | Backbone = "ViT-B-16",
        *,
        method: str = PROMPT,
        pretrained: str | Path | None = None,
        variant: str = "fixed-B",
        rank: int | None = None,
        basis: str | None = None,
        n_ctx: int | None = None,
        words: str | None = None,
        anchored: bool = False,
        depth: int = 1,
        position: str = "end",
        tower: str = "text",
        n_ctx_image: int | None = None,
        image_blocks: str | None = None,
        share_basis: bool = False,
        recipe: RecipeLike = "auto",
        continue_from: str | Path | Classifier | None = None,
        templates: Sequence[str] = (DEFAULT_TEMPLATE,),
        views: int = DEFAULT_VIEWS,
        class_names: Sequence[str] | Mapping[Any, str] | None = None,
        seed: int = 1,
        activation: str | None = None,
        device: str | torch.device = "auto",
        precision: str = "fp32",
        cache: bool = True,
        calibrate: bool = False,
    ) -> None:
        self.backbone = backbone
        self.method = method
        self.pretrained = pretrained
        self.variant = variant
        self.rank = rank
        self.basis = basis
        self.n_ctx = n_ctx
        self.words = words
        self.anchored = anchored
        self.depth = depth
        self.position = position
        self.tower = tower
        self.n_ctx_image = n_ctx_image
        self.image_blocks = image_blocks
        self.share_basis = share_basis
        self.recipe = recipe
        self.continue_from = continue_from
        self.templates = templates
        self.views = views
        self.class_names = class_names
        self.seed = seed
        self.activation = activation
        self.device = device
        self.precision = precision
        self.cache = cache
        self.calibrate = calibrate

    # --- fitting -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        images: Any,
        labels: Iterable[Any],
        sample_weight: Any = None,
        *,
        validation: tuple[Any, Iterable[Any]] | None = None,
    ) -> Self:
        """Learn from labelled images.

        Parameters
        ----------
        images
            A list of paths or PIL images, or another form that `image_sources` accepts.
        labels
            The class name of each image, or its label in `class_names`.
        sample_weight
            Weight of each image in the loss, (n_images,), for prompts only; default: all count equally.
        validation
            Further images and their labels, which are not trained on. A prompt is taken from the epoch with the lowest loss on them,
            and training ends when that does not become lower; `verdict_` says how the classifier compares with zero-shot on them.
            Of a prompt it is a little too good, because its epoch was chosen on the same images.
        """
        images, labels = image_sources(images), self._checked_labels(labels)
        if len(images) != len(labels):
            raise InputError(f"{len(images)} images but {len(labels)} labels were given: one label per image is needed")
        if not labels:
            raise InputError("no images were given to learn from")
        classes = sorted(set(labels))
        names = tuple(self._names_of(classes))
        if len(classes) < 2:
            raise InputError(f"only one class was given ({names[0]!r}): a classifier needs at least two")
        check_class_names(names)
        self.check_params()  # before the backbone is loaded
        index_of = {label: index for index, label in enumerate(classes)}
        sample = LabelledImages(images, [index_of[label] for label in labels], names)
        task = make_task(self._bank(self._load_backbone()), sample, self.seed, self.templates, self.views)
        task = replace(task, sample_weight=self._checked_weights(sample_weight, len(labels)))
        held_out = None if validation is None else self._checked_validation(task, validation, index_of)
        self.fit_task(task, validation=held_out)
        self.classes_ = np.array(classes)
        if held_out is not None and self.method != "zero-shot":
            zero_shot = zero_shot_head(self.backbone_, names, self.templates_)
            of_heads = (self.head_, held_out.adapted_features(self.prompt_)), (zero_shot, held_out.eval_features)
            right = [head.logits(features).argmax(1) == held_out.targets for head, features in of_heads]
            self.verdict_: Verdict | None = verdict(
                "the classifier", *(one.cpu() for one in right), chance=1 / len(names)
            )
        return self.fit_calibration(task) if self.calibrate else self

    def _checked_weights(self, sample_weight: Any, n_images: int) -> list[float] | None:
        if sample_weight is None:
            return None
        if self.method != PROMPT:
            raise InputError(f"sample_weight is for prompts; the method {self.method} counts all images equally")
        weights = np.asarray(sample_weight, dtype=float)
        if weights.shape != (n_images,) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
            raise InputError(
                f"sample_weight must be {n_images} numbers, one per image, of at least 0 and not all 0 (given: {shown(sample_weight)})"
            )
        return list(map(float, weights / weights.mean()))

    def _checked_validation(
        self, task: Task, validation: tuple[Any, Iterable[Any]], index_of: Mapping[Any, int]
    ) -> Task:
        """The validation images as a task, none of which may be a training image."""
        images, labels = image_sources(validation[0]), self._checked_labels(validation[1])
        if not labels or len(images) != len(labels):
            raise InputError(
                f"{len(images)} validation images and {len(labels)} labels were given: expected one label per image, at least one"
            )
        if new := [label for label in labels if label not in index_of]:
            raise InputError(
                f"the validation images have classes without training images: {first_few([shown(one) for one in new])}"
            )
        hashes = task.bank.hashes(images)
        if common := len(set(hashes) & set(task.hashes)):
            raise InputError(
                f"{common} of the validation images are training images too; leave them out of one of the two, because what was "
                "trained on says nothing about new images"
            )
        return replace(task, images=images, labels=[index_of[label] for label in labels], sample_weight=None)

    def check_params(self) -> None:
        """Raise an error if a parameter cannot be used, as far as that is known without a backbone."""
        if not isinstance(self.backbone, str | Backbone):
            raise InputError(
                f"backbone must be the name of a model, such as 'ViT-B-16', or a loaded Backbone (given: {shown(self.backbone)})"
            )
        whole_number("seed", self.seed)
        whole_number("views", self.views)
        check_templates(self.templates)
        if not self.templates:
            raise InputError("at least one template is needed, such as 'a photo of a {}.'")
        if self.method != PROMPT:
            find_method(self.method, also=[PROMPT])
            if is_user_function(self.method):
                user_function("method", self.method)
            defaults = self.parameter_defaults()
            for name in (*PromptSpec.model_fields, "recipe", "continue_from"):
                if (given := getattr(self, name)) != defaults[name]:
                    raise InputError(f"{name}={shown(given)} is for prompts; the method {self.method} does not use it")
            return
        make_recipe(self.recipe, MANY_IMAGES)
        if self.continue_from is self:
            raise InputError(
                "continue_from is the classifier itself: to train on, make another one that starts from it, by "
                "classifier.unfitted(continue_from=classifier).fit(images, labels)"
            )
        spec = self.prompt_spec()
        if self.continue_from is None:
            spec.check_standalone()
        else:
            finished_prompt(self.continue_from).check_spec(spec)

    def prompt_spec(self) -> PromptSpec:
        """The prompt that the parameters describe."""
        fields = {name: getattr(self, name) for name in PromptSpec.model_fields}
        numbers = {name: int(value) for name, value in fields.items() if isinstance(value, np.integer)}
        return make_spec(**fields | numbers)

    def recipe_for(self, task: Task) -> Recipe:
        """The recipe that a prompt is trained with on a task."""
        return make_recipe(self.recipe, len(task.labels) / len(task.class_names), tower=self.tower)

    def encode_task(self, task: Task) -> None:
        """Encode the training images as the method needs them, so that this is not counted as fitting."""
        if self.method == PROMPT:
            encode_images(task, self.prompt_spec(), self.recipe_for(task))
        else:
            find_method(self.method).encode(task)

    def fit_task(
        self,
        task: Task,
        on_epoch: Callable[[EpochResult], object] = lambda row: None,
        *,
        validation: Task | None = None,
    ) -> Self:
        """Learn from a task, with its feature bank, templates and views; not calibrated.

        `validation` holds the images by which the training of a prompt is stopped. `on_epoch` is called with each row of the
        learning curve of a prompt as soon as it is known.
        """
        backbone, spec, recipe, start, images = task.bank.backbone, None, None, None, frozenset(task.short_hashes)
        if self.method == PROMPT:
            spec, recipe = with_blocks(backbone, self.prompt_spec()), self.recipe_for(task)
            start = None if self.continue_from is None else finished_prompt(self.continue_from)
        elif find_method(self.method).reads == "nothing":
            images = frozenset()
        fitted = self._fit_head(task, spec, recipe, start, validation=validation, on_epoch=on_epoch)
        if not fitted.head.weights.isfinite().all():
            raise InputError(f"training diverged on {backbone.title}: its class features are not finite")
        return self._set_fitted(
            backbone,
            fitted.head,
            prompt=fitted.prompt if isinstance(fitted, LearnedPrompt) else None,
            curve=fitted.curve if isinstance(fitted, LearnedPrompt) else [],
            spec=spec,
            recipe=recipe,
            seed=self.seed,
            n_trained=fitted.n_trained,
            settings=fitted.settings,
            templates=task.templates,
            views=task.views,
            training_images=images | (start.training_images if start else frozenset()),
            continued_from=start.sha256 if start else None,
        )

    def _fit_head(
        self,
        task: Task,
        spec: PromptSpec | None,
        recipe: Recipe | None,
        start: FinishedPrompt | None = None,
        settings: Mapping[str, float] | None = None,
        validation: Task | None = None,
        on_epoch: Callable[[EpochResult], object] = lambda row: None,
    ) -> FittedHead:
        if spec is None or recipe is None:
            return find_method(self.method).fit(task, settings)
        if start is None:
            prompt = make_prompt(task.bank.backbone, spec, self.seed)
        else:
            prompt = start.prompt_for(task.bank.backbone)
        (learned,) = learn_prompts(
            task, [prompt], recipe, position=spec.position, validation=validation, on_epoch=on_epoch
        )
        return learned

    def fit_calibration(self, task: Task) -> Self:
        """Set the temperature and the confidences of a fitted classifier by cross-validation inside the task's images.

        Up to three folds are held out in turn, until enough images were. An image without another of its class is not held out.
        """
        self.check_fitted()
        if (inside := self.cross_validate(task)) is not None:
            self.calibration_ = calibration_of(*inside)
        return self

    def cross_validate(self, task: Task) -> tuple[np.ndarray, np.ndarray] | None:
        """`held_out_logits` in the folds of the calibration; None if no image can be held out."""
        folds = calibration_folds(task.labels, task.seed)
        return self.held_out_logits(task, folds) if folds else None

    def held_out_logits(self, task: Task, folds: Iterable[tuple[Tensor, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
        """Logits (n_images, n_classes) and labels (n_images,) of the task's images while they were held out.

        For each fold (images to fit on, images held out), the method is fitted again, with the same recipe or settings and from a
        cold start.
        """
        recipe = self.recipe_ or (self.recipe_for(task) if self.spec_ else None)  # a prompt of other software has none
        logits, labels = [], []
        for kept, held_out in folds:
            fitted = self._fit_head(task.of_images(kept.tolist()), self.spec_, recipe, settings=self.settings_)
            prompt = fitted.prompt if isinstance(fitted, LearnedPrompt) else None
            if prompt is None or prompt.image is None:
                features = task.eval_features[held_out.to(task.eval_features.device)]
            else:
                features = task.of_images(held_out.tolist()).adapted_features(prompt)
            logits.append(fitted.head.logits(features).cpu().numpy())
            labels += [task.labels[index] for index in held_out.tolist()]
        return np.concatenate(logits), np.array(labels)

    # --- other ways to a fitted classifier ----------------------------------------------------------------------------

    @classmethod
    def zero_shot(
        cls, backbone: Backbone, class_names: Sequence[str], templates: Sequence[str] = (DEFAULT_TEMPLATE,)
    ) -> Self:
        """The zero-shot classifier of these class names, which needs no images.

        Parameters
        ----------
        backbone
            The model.
        class_names
            Class names.
        templates
            Prompts, each with one `{}` for the class name; their text features are averaged.
        """
        check_class_names(class_names)
        classifier = cls(backbone, method="zero-shot", templates=tuple(templates))
        return classifier._set_fitted(backbone, zero_shot_head(backbone, class_names, templates))

    @classmethod
    def of_prompt(
        cls,
        backbone: Backbone,
        prompt: Prompt,
        spec: PromptSpec,
        class_names: Sequence[str],
        *,
        imported: dict[str, Any] | None = None,
    ) -> Self:
        """The classifier of a finished prompt.

        Parameters
        ----------
        backbone
            The model that the prompt belongs to.
        prompt
            The finished prompt.
        spec
            What it is.
        class_names
            Class names.
        imported
            Origin of a prompt that was trained by other software.
        """
        head = prompt_head(backbone, class_names, prompt, spec.position)
        if not head.weights.isfinite().all():
            raise InputError(f"this prompt cannot be used with {backbone.title}: its class features are not finite")
        return cls(backbone, **spec.prompt_fields())._set_fitted(
            backbone, head, prompt=prompt, spec=spec, n_trained=prompt.trainable_parameters, imported=imported
        )

    def unfitted(self, **changes: Any) -> Self:
        """A classifier with the same parameters but for `changes`, the backbone shared."""
        return type(self)(**self.get_params(deep=False) | changes)

    def with_classes(self, class_names: Iterable[str], *, distinct: bool = True) -> Self:
        """The same classifier on some of its classes or, for prompts and zero-shot, on new ones; nothing is trained.

        On new class names, the temperature is 1: nothing is known about the probabilities there.

        Parameters
        ----------
        class_names
            The classes, in the order of the answers.
        distinct
            Whether two names that are the same words are an error. Classes of a benchmark may have equal names.

        Raises
        ------
        InputError
            If a class is new and the method learned its classes from their images.
        """
        self.check_fitted()
        names = [name.strip() for name in label_names(class_names, "class names")]
        if distinct:
            check_class_names(names)
        known, calibration = set(self.class_names_), Calibration()
        if known.issuperset(names):
            head: AnyHead = self.head_.of_classes(names)
            calibration = self.calibration_ if known == set(names) else self.calibration_._replace(confidences=())
        elif self.prompt_ is not None and self.spec_ is not None:
            head = prompt_head(self.backbone_, names, self.prompt_, self.spec_.position)
        elif self.takes_new_names:
            head = zero_shot_head(self.backbone_, names, self.templates_)
        else:
            new = [name for name in names if name not in known]
            raise InputError(
                f"a head of {self.method_} cannot take new class names ({first_few(new)}): it learned its {len(known)} classes "
                "from their images. Fit it on images of the new classes, or use a prompt or zero-shot, which need only names"
            )
        other = copy.copy(self)
        other.class_names = None
        other.head_, other.class_names_, other.classes_ = head, tuple(names), np.array(names)
        other.calibration_, other._concepts = calibration, None
        return other

    @property
    def takes_new_names(self) -> bool:
        """Whether it can be used on class names that it was not fitted on."""
        return self.prompt_ is not None or find_method(self.method_).takes_new_names

    def _set_fitted(
        self,
        backbone: Backbone,
        head: AnyHead,
        *,
        prompt: Prompt | None = None,
        curve: Sequence[EpochResult] = (),
        spec: PromptSpec | None = None,
        recipe: Recipe | None = None,
        seed: int | None = None,
        n_trained: int = 0,
        settings: Mapping[str, float] | None = None,
        templates: Sequence[str] | None = None,
        views: int = 0,
        calibration: Calibration | None = None,
        training_images: frozenset[str] = frozenset(),
        continued_from: str | None = None,
        imported: dict[str, Any] | None = None,
        codes: Mapping[str, str] | None = None,
    ) -> Self:
        """Use a head, with what is known about its fit."""
        if prompt is not None and prompt.image is not None:
            backbone = backbone.with_image_rows(prompt.image.first, prompt.image())
        self.backbone_, self.head_, self.method_ = backbone, head, self.method
        self.class_names_, self.classes_ = head.class_names, np.array(head.class_names, dtype=str)
        self.prompt_, self.curve_, self.spec_, self.recipe_ = prompt, list(curve), spec, recipe
        self.seed_, self.n_trained_, self.settings_ = seed, n_trained, dict(settings or {})
        self.templates_, self.views_ = tuple(templates or self.templates), views
        self.calibration_, self.training_images_ = calibration or Calibration(), training_images
        self.verdict_ = None
        self.continued_from_, self.imported_, self.codes_ = continued_from, imported, dict(codes or {})
        self._concepts: Tensor | None = None
        return self

    # --- saving -------------------------------------------------------------------------------------------------------

    def save(self, model: str | Path, *, overwrite: bool = False, **facts: Any) -> Path:
        """Write the classifier to one file, completely or not at all, and return its path.

        Parameters
        ----------
        model
            A folder, for the file `model.safetensors` in it, or a path that ends in .safetensors.
        overwrite
            Replace a saved model there.
        facts
            Further entries for its description, under names that it does not have.
        """
        self.check_fitted()
        path = check_free(model, overwrite=overwrite)
        entries = {
            "method": self.method_,
            "class_names": list(self.class_names_),
            "backbone": describe_backbone(self.backbone_),
            "prompt": self.spec_ and self.spec_.prompt_fields(),
            "recipe": self.recipe_ and self.recipe_.model_dump(),
            "n_trained": self.n_trained_,
            "settings": self.settings_,
            "templates": list(self.templates_),
            "views": self.views_,
            "seed": self.seed_,
            **self.calibration_._asdict(),
            "training_images": " ".join(sorted(self.training_images_)),
            "codes": self.codes_,
            "imported": self.imported_,
            "continued_from": self.continued_from_,
        }
        write_model(path, entries, self.head_ if self.prompt_ is None else self.prompt_, facts)
        return path

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        backbone: Backbone | None = None,
        pretrained: str | Path | None = None,
        activation: str | None = None,
        device: str | torch.device = "auto",
        precision: str = "fp32",
        cache: bool = True,
    ) -> Self:
        """Read what `save` wrote and load its backbone; weights other than those it was fitted on are refused.

        Parameters
        ----------
        model
            What `save` was given, or "hf:user/name" or "hf:user/name@revision" for a model on the Hugging Face hub.
        backbone
            A loaded backbone to use.
        pretrained
            Tag or file of the weights, if it differs from when the model was saved; the folder of a `local-dir:` model.
        activation
            Activation of the backbone; default: the one that the model was fitted with.
        device, precision
            Passed to `load_backbone`.
        cache
            Store image features on disk.
        """
        saved = read_model(model)
        described, spec, trained = saved.description, saved.description.prompt, saved.model
        backbone = load_backbone_of(saved, backbone, pretrained, activation, device=device, precision=precision)
        prompt: Prompt | None = None
        head: AnyHead
        if isinstance(trained, Prompt):
            assert spec is not None  # the description of every prompt has one
            if trained.width != backbone.text_width:
                reason = f"A: its width {trained.width} is not the text width {backbone.text_width} of {backbone.name}"
                raise damaged(saved.path, reason)
            prompt = trained.to(backbone.device)
            head = prompt_head(backbone, described.class_names, prompt, spec.position)
        else:
            head = trained.to(backbone.device)
        params: dict[str, Any] = spec.prompt_fields() if spec else {}
        if described.recipe is not None:
            params["recipe"] = described.recipe
        if described.seed is not None:
            params["seed"] = described.seed
        params |= {"method": described.method, "templates": tuple(described.templates), "views": described.views}
        return cls(backbone, cache=cache, **params)._set_fitted(
            backbone,
            head,
            prompt=prompt,
            spec=spec,
            recipe=described.recipe,
            seed=described.seed,
            n_trained=described.n_trained,
            settings=described.settings,
            views=described.views,
            calibration=Calibration(described.temperature, tuple(described.confidences)),
            training_images=frozenset(described.training_images.split()),
            continued_from=described.continued_from,
            imported=described.imported,
            codes=described.codes,
        )

    # --- prediction ---------------------------------------------------------------------------------------------------

    def predict_proba(self, images: Any) -> np.ndarray:
        """Class probabilities (n_images, n_classes), columns as in `classes_`."""
        return self.probabilities(self.encode(images))

    def predict(self, images: Any) -> np.ndarray:
        """The most likely class of each image: one of `classes_`."""
        probabilities = self.predict_proba(images)
        return self.classes_[probabilities.argmax(1)]

    def decision_function(self, images: Any) -> np.ndarray:
        """Logits (n_images, n_classes), columns as in `classes_`; of two classes, second minus first, (n_images,)."""
        logits: np.ndarray = self.logits(self.encode(images)).cpu().numpy()
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def transform(self, images: Any) -> np.ndarray:
        """Unit-length image features (n_images, embed_dim) of the frozen model, for a step that follows in a pipeline."""
        features: np.ndarray = self.encode(images).float().cpu().numpy()
        return features

    def fit_transform(self, images: Any, labels: Iterable[Any]) -> np.ndarray:
        """`fit`, then `transform` of the same images."""
        return self.fit(images, labels).transform(images)

    def score(self, images: Any, labels: Iterable[Any], sample_weight: Any = None) -> float:
        """Accuracy on labelled images, between 0 and 1.

        With `cache`, their features are stored like those of training images: a search over settings scores the same images
        again and again.
        """
        self.check_fitted()
        images, labels = image_sources(images), self._checked_labels(labels)
        if not labels or len(images) != len(labels):
            raise InputError(
                f"{len(images)} images and {len(labels)} labels were given: expected one label per image, at least one"
            )
        probabilities = self.probabilities(self._bank(self.backbone_).features(images))
        predicted = self.classes_[probabilities.argmax(1)].tolist()
        correct = [one == other for one, other in zip(predicted, labels, strict=True)]
        return float(np.average(correct, weights=sample_weight))

    def encode(self, images: Any) -> Tensor:
        """Unit-length image features (n_images, embed_dim) of the eval view."""
        self.check_fitted()
        return encode_eval_views(self.backbone_, image_sources(images))

    def probabilities(self, features: Tensor) -> np.ndarray:
        """softmax(logits / temperature), (n_images, n_classes), for image features (n_images, embed_dim)."""
        return softmax(self.logits(features).cpu().numpy(), self.calibration_.temperature)

    def logits(self, features: Tensor) -> Tensor:
        """Logits (n_images, n_classes) for image features (n_images, embed_dim), before the temperature."""
        return self.head_.logits(features)

    def concept_match(self, features: Tensor) -> np.ndarray:
        """Maximum concept matching max_k softmax_k(cos(f, t_k)), (n_images,): low for images that are none of the classes.

        f are image features (n_images, embed_dim) and t_k the text features of the classes. The softmax is over the cosine
        similarities themselves, without logit scale and temperature, so the values lie close to 1 / n_classes.
        """
        return softmax(class_scores(features, self.concept_features()).cpu().numpy()).max(1)

    def concept_features(self) -> Tensor:
        """Text features of the classes (n_classes, embed_dim): in the prompt, or in the zero-shot templates."""
        if self.prompt_ is not None:
            return self.head_.weights
        if self._concepts is None:
            self._concepts = zero_shot_features(self.backbone_, self.class_names_, self.templates_)
        return self._concepts

    def trained_on(self, bank: FeatureBank, images: Any, *, decode: Decode = "upright") -> np.ndarray:
        """Whether each image was a training image, by its content, (n_images,).

        Parameters
        ----------
        bank
            Knows the hashes of the images.
        images
            Images in any form that `image_sources` accepts.
        decode
            How the images are read; see `open_image`.
        """
        hashes = short_hashes(bank.hashes(images, decode=decode))
        return np.array([short in self.training_images_ for short in hashes], dtype=bool)

    def summary(self) -> dict[str, Any]:
        """What is known after `fit`, for the display in notebooks."""
        if not hasattr(self, "head_"):
            return {"state": "not fitted"}
        classes = f"{len(self.classes_)}: {first_few([str(name) for name in self.classes_])}"
        facts = {"classes": classes, "model": self.backbone_.title, "trained numbers": self.n_trained_}
        return facts | ({"verdict": self.verdict_.sentence} if self.verdict_ else {})

    # --- inside -------------------------------------------------------------------------------------------------------

    def _bank(self, backbone: Backbone) -> FeatureBank:
        return FeatureBank(backbone, "default" if self.cache else None)

    def _load_backbone(self) -> Backbone:
        if isinstance(self.backbone, Backbone):
            return self.backbone.frozen
        return load_backbone(
            self.backbone,
            self.pretrained,
            activation=self.activation,
            device=self.device,
            precision=self.precision,
        )

    def _checked_labels(self, labels: Iterable[Any]) -> list[Any]:
        """The labels as a list: class names, or labels that `class_names` has a name for."""
        if labels is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        if self.class_names is None:
            return label_names(labels)
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import column_or_1d

        plain = column_or_1d(list(labels) if isinstance(labels, Iterator) else labels, warn=True)
        check_classification_targets(plain)
        self._names_of(set(plain.tolist()))
        return plain.tolist()

    def _names_of(self, labels: Iterable[Any]) -> list[str]:
        """The class name of each label; an `InputError` if `class_names` has none."""
        if self.class_names is None:
            return [str(label) for label in labels]
        if isinstance(self.class_names, str):
            raise InputError(f"class_names must be a list of names or a dictionary (given: {shown(self.class_names)})")
        if isinstance(self.class_names, Mapping):
            names: Mapping[Any, str] = self.class_names
        else:
            names = dict(enumerate(self.class_names))
        for label in labels:
            if label not in names:
                raise InputError(f"label {shown(label)} has no name in class_names, which names {len(names)} classes")
        return label_names([names[label] for label in labels], "class_names")

    def __getstate__(self) -> dict[str, Any]:
        return {name: _on_device(value, "cpu") for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        device = state["backbone_"].device if "backbone_" in state else "cpu"
        self.__dict__.update({name: _on_device(value, device) for name, value in state.items()})


#: The name for the default method.
PromptClassifier = Classifier


def load_classifier(model: str | Path, **options: Any) -> Classifier:
    """Read a saved classifier.

    Parameters
    ----------
    model
        What `save` was given, or "hf:user/name" or "hf:user/name@revision" for a model on the Hugging Face hub.
    options
        Those of `Classifier.load`.
    """
    return Classifier.load(model, **options)


def finished_prompt(continue_from: str | Path | Classifier) -> FinishedPrompt:
    """The prompt of a saved model or of a fitted classifier."""
    if isinstance(continue_from, str | Path):
        return read_finished_prompt(continue_from)
    prompt, spec = (getattr(continue_from, name, None) for name in ("prompt_", "spec_"))
    if prompt is None or spec is None:
        raise InputError(
            f"continue_from must be a saved prompt or a classifier with a fitted prompt (given: {shown(continue_from)}); clone of "
            "scikit-learn removes what a classifier has learned, so give it a saved one"
        )
    backbone, images = SavedBackbone(**describe_backbone(continue_from.backbone_)), continue_from.training_images_
    return FinishedPrompt("the given classifier", prompt, spec, backbone, images, tensors_sha256(prompt))


def label_names(labels: Iterable[str], what: str = "labels") -> list[str]:
    """Class names as a list of text; anything else is an `InputError`, because a class name becomes part of the prompt."""
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise InputError(f"{what} must be a list of class names, such as ['cat', 'dog'] (given: {shown(labels)})")
    names = list(labels)
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"{what} must be class names, which become part of the prompt, such as 'cat' (given: {shown(name)}, "
                f"a {type(name).__name__}); name numbers by class_names=['cat', 'dog'] of the classifier, also where scikit-learn "
                "replaces names by numbers, as VotingClassifier does"
            )
    return [str(name) for name in names]


def _on_device(value: Any, device: torch.device | str) -> Any:
    """A fitted attribute with its tensors on a device; the original is not changed."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(device)
    return value.to(device) if isinstance(value, Head | CacheHead) else value
