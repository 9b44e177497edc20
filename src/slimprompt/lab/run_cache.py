"""What the runs of one process share."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from slimprompt.data import Benchmark, base_new, few_shot, held_out, make_manifest, short_classes
from slimprompt.data.catalogue import open_dataset
from slimprompt.data.check import check_images
from slimprompt.data.manifest import Manifest
from slimprompt.errors import InputError, first_few
from slimprompt.files import cache_dir
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.inputs import KnownInputs, inputs
from slimprompt.lab.records import complete_runs
from slimprompt.lab.spec import RunSpec

if TYPE_CHECKING:
    from slimprompt.clip.backbone import Backbone
    from slimprompt.images.bank import FeatureBank
    from slimprompt.text.encoder import SharedPrefixTextEncoder
    from slimprompt.training.evaluation import EvalSet


class SetupError(InputError):
    """A backbone or dataset cannot be loaded, so that none of its runs can succeed: the study stops."""


@dataclass(frozen=True)
class Sample:
    """The few-shot sample of a run: what it trains on and what it is evaluated on."""

    train: Benchmark
    """Its `train` items are the training images."""
    evaluated: dict[str, Benchmark]
    """By metric, what of its dataset it is evaluated on: "accuracy", or "seen" and "unseen" for a run on the base classes."""


@dataclass(frozen=True)
class Evaluation:
    """Eval sets by metric, and the zero-shot accuracy on each."""

    sets: dict[str, EvalSet]
    zero_shot: dict[str, float]


def other_metric(dataset: str) -> str:
    """Metric of a run that is evaluated on another dataset by its class names only."""
    return f"accuracy@{dataset}"


class RunCache:
    """Loaded backbones, feature banks, datasets, samples, text encoders and eval sets, for the runs of one process."""

    def __init__(self, environment: RunEnvironment) -> None:
        self.environment = environment
        self._cache = environment.cache or cache_dir()
        # Runs come sorted by backbone; a second one is kept for the runs that had to wait for a source.
        self._backbone = lru_cache(maxsize=2)(self._load_backbone)
        self._bank = lru_cache(maxsize=2)(self._open_bank)
        self._dataset = lru_cache(maxsize=None)(self._open_dataset)
        self._sample = lru_cache(maxsize=64)(self._draw_sample)
        self._manifest = lru_cache(maxsize=64)(self._hash_sample)
        self._encoder = lru_cache(maxsize=16)(self._make_encoder)
        self._evaluation = lru_cache(maxsize=8)(self._make_evaluation)
        self._other_evaluation = lru_cache(maxsize=32)(self._make_other_evaluation)

    def bank(self, spec: RunSpec) -> FeatureBank:
        """The feature bank of the run's backbone."""
        return self._bank(spec.backbone, spec.pretrained, spec.precision)

    def sample(self, spec: RunSpec) -> Sample:
        """The run's few-shot sample. It is taken from all classes; the restriction to base classes comes after."""
        return self._sample(spec.dataset, spec.class_subset, spec.shots, spec.seed)

    def manifest(self, spec: RunSpec) -> Manifest:
        """The run's training and validation images with their hashes."""
        return self._manifest(spec.dataset, spec.class_subset, spec.shots, spec.seed)

    def evaluated(self, spec: RunSpec) -> dict[str, Benchmark]:
        """By metric, what the run is evaluated on; the metric of another dataset is `accuracy@<dataset>`."""
        others = {other_metric(name): self._other(name) for name in spec.evaluate_on}
        return self.sample(spec).evaluated | others

    def evaluation(self, spec: RunSpec) -> Evaluation:
        """Eval sets and zero-shot accuracy, once per backbone, dataset and class subset."""
        # With test images of the dataset's own, every sample is evaluated on the same ones.
        shots, seed = (1, 0) if self._dataset(spec.dataset)[0].test else (spec.shots, spec.seed)
        model = (spec.backbone, spec.pretrained, spec.precision)
        own = self._evaluation(*model, spec.dataset, spec.class_subset, shots, seed)
        others = [self._other_evaluation(*model, name) for name in spec.evaluate_on]
        return Evaluation(
            own.sets | {metric: one for other in others for metric, one in other.sets.items()},
            own.zero_shot | {metric: value for other in others for metric, value in other.zero_shot.items()},
        )

    def encoder(self, spec: RunSpec, class_names: tuple[str, ...]) -> SharedPrefixTextEncoder:
        """The text encoder of these classes for contexts of the run's shape."""
        model, context = (spec.backbone, spec.pretrained, spec.precision), (spec.n_ctx, spec.position, spec.depth)
        return self._encoder(*model, class_names, *context)

    def notes(self, spec: RunSpec) -> list[str]:
        """Warnings of the datasets' readers, such as a split that differs from the published one, and classes with too few images."""
        found = [note for name in (spec.dataset, *spec.evaluate_on) for note in self._dataset(name)[1]]
        short = [f"{name} ({count})" for name, count in short_classes(self.sample(spec).train, spec.shots)]
        return found + (
            [f"{spec.dataset}: fewer than {spec.shots} images, all used: {first_few(short)}"] if short else []
        )

    def input_facts(self, spec: RunSpec) -> dict[str, Any]:
        """The entries of the run's record that tell what it is made with."""
        return {
            "backbone_fingerprint": self.bank(spec).backbone.fingerprint,
            "dataset_fingerprints": {
                name: self._dataset(name)[0].fingerprint for name in (spec.dataset, *spec.evaluate_on)
            },
        }

    def check_inputs(self, spec: RunSpec) -> None:
        """Raise a `SetupError` if complete runs in the folder of the runs were made with other inputs than this one would be."""
        try:
            self._known_inputs.check(inputs(spec, self.input_facts(spec)))
        except InputError as error:
            raise SetupError(str(error)) from None

    @cached_property
    def _known_inputs(self) -> KnownInputs:
        return KnownInputs(complete_runs(self.environment.runs))

    def _load_backbone(self, name: str, pretrained: str | None, precision: str) -> Backbone:
        from slimprompt.clip.backbone import load_backbone

        device = self.environment.device
        try:
            return load_backbone(name, pretrained, device=device, precision=precision, cache=self._cache)
        except InputError as error:
            raise SetupError(str(error)) from None

    def _open_bank(self, name: str, pretrained: str | None, precision: str) -> FeatureBank:
        from slimprompt.images.bank import FeatureBank

        # Images are decoded on all cores, whatever the threads of a run: this does not change a feature.
        backbone = self._backbone(name, pretrained, precision)
        return FeatureBank(
            backbone, self._cache / "features", show_progress=False, store_precision=self.environment.features
        )

    def _open_dataset(self, dataset: str) -> tuple[Benchmark, list[str]]:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                benchmark = open_dataset(dataset, self.environment.data_root, self._cache)
            check_images(benchmark)
        except InputError as error:
            raise SetupError(str(error)) from None
        return benchmark, [str(warning.message) for warning in caught]

    def _draw_sample(self, dataset: str, split: str, shots: int, seed: int) -> Sample:
        whole, _ = self._dataset(dataset)
        sample = few_shot(whole, shots, seed)
        sample = replace(sample, test=held_out(whole, sample))
        if split == "all":
            return Sample(sample, {"accuracy": sample})
        base, new = base_new(sample)
        return Sample(base, {"seen": base, "unseen": new})

    def _hash_sample(self, dataset: str, split: str, shots: int, seed: int) -> Manifest:
        return make_manifest(self._sample(dataset, split, shots, seed).train, shots=shots, seed=seed)

    def _make_encoder(
        self,
        name: str,
        pretrained: str | None,
        precision: str,
        class_names: tuple[str, ...],
        n_ctx: int,
        position: Any,
        depth: int,
    ) -> SharedPrefixTextEncoder:
        from slimprompt.text.encoder import SharedPrefixTextEncoder

        backbone = self._backbone(name, pretrained, precision)
        return SharedPrefixTextEncoder(backbone, class_names, n_ctx, position, depth=depth)

    def _other(self, dataset: str) -> Benchmark:
        """A dataset that is classified by names only: its test images or, if it has no test split, all images."""
        whole, _ = self._dataset(dataset)
        return replace(whole, test=whole.test or (*whole.train, *whole.val))

    def _make_evaluation(
        self, name: str, pretrained: str | None, precision: str, dataset: str, split: str, shots: int, seed: int
    ) -> Evaluation:
        parts = self._sample(dataset, split, shots, seed).evaluated
        return self._evaluate_zero_shot(self._bank(name, pretrained, precision), parts)

    def _make_other_evaluation(self, name: str, pretrained: str | None, precision: str, dataset: str) -> Evaluation:
        parts = {other_metric(dataset): self._other(dataset)}
        return self._evaluate_zero_shot(self._bank(name, pretrained, precision), parts)

    @staticmethod
    def _evaluate_zero_shot(bank: FeatureBank, parts: dict[str, Benchmark]) -> Evaluation:
        from slimprompt.methods.zero_shot import zero_shot_features
        from slimprompt.training.evaluation import accuracy, make_eval_set

        sets, zero_shot = {}, {}
        for metric, part in parts.items():
            paths, labels = [part.path(item) for item in part.test], [item.label for item in part.test]
            found = sets[metric] = make_eval_set(bank, paths, labels, part.class_names, part.decode)
            class_features = zero_shot_features(bank.backbone, part.class_names, part.templates[:1])
            zero_shot[metric] = accuracy(found.features, class_features, found.labels)
        return Evaluation(sets, zero_shot)
