"""Parts of a collection on the workers of a Ray cluster, by Ray Data.

Each worker is an actor that loads the model once, with a GPU if the cluster has GPUs. The machines read the model and the
images themselves, so both are on a disk that they share. Finished parts come back to the command, which writes them: kills
and resuming are the same as on one machine.
"""

from __future__ import annotations

import logging
import pickle
import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from slimprompt import __version__
from slimprompt.allocator import keep_freed_memory
from slimprompt.cluster import connect, first_line, gpus_per_worker, import_ray, most_cpus, nodes, workers_that_fit
from slimprompt.collections.parts import FinishedPart, Part
from slimprompt.errors import InputError
from slimprompt.startup import import_lightly

if TYPE_CHECKING:  # it imports open_clip, which a worker does later
    from slimprompt.collections.predict import Advance, PredictionSpec

#: Parts that are given to Ray Data at a time; their lists of images are in memory. The workers are started for each wave.
_WAVE = 256


class RayPredictor:
    """Predicts parts on actors that hold `cpus` CPUs and `gpus` GPUs each.

    `address` is "auto" or "host:port" of a running cluster; with None, Ray is started on this machine until `close`. By default an
    actor has one GPU if the device allows it and the cluster has GPUs, otherwise none, and the CPUs of a machine divided by its GPUs.
    """

    def __init__(
        self, spec: PredictionSpec, *, address: str | None = None, cpus: int | None = None, gpus: float | None = None
    ) -> None:
        from slimprompt.collections.predict import LocalPredictor

        self._ray = ray = import_ray(loopback=address is None)
        # Loaded here once, so that a bad model or option is an error before Ray starts.
        manifest = LocalPredictor(replace(spec, device="cpu", precision="fp32")).manifest
        self._started_here = connect(ray, address)
        try:
            self._gpus = gpus_per_worker(ray, spec.device, gpus)
            self._cpus = cpus or _cpus_per_worker(ray, self._gpus)
            self._check_fits()
        except BaseException:
            self.close()
            raise
        device = spec.device if spec.device != "auto" else "cuda" if self._gpus else "cpu"
        self._spec = replace(_without_working_directory(spec), device=device)
        self.manifest = {**manifest, "device": device.split(":")[0], "precision": spec.precision}

    def predict_parts(self, parts: Iterable[Part], advance: Advance) -> Iterator[FinishedPart]:
        """Predict parts in waves, on as many workers as fit on the cluster at the beginning of each."""
        rest = iter(parts)
        while wave := list(islice(rest, _WAVE)):
            for part in self._predict_wave(wave):
                advance(len(part.predictions))
                yield part

    def close(self) -> None:
        """Stop Ray if it was started here."""
        if self._started_here:
            self._ray.shutdown()

    def _predict_wave(self, wave: list[Part]) -> Iterator[FinishedPart]:
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = [{"part": pickle.dumps(part)} for part in wave]
        done = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            PartWorker,
            fn_constructor_args=(pickle.dumps(self._spec), self._cpus, __version__),
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=min(self._check_fits(), len(wave))),
            num_cpus=self._cpus,
            num_gpus=self._gpus,
        )
        try:
            for row in done.iter_rows():
                if row["error"]:
                    raise InputError(row["error"])
                yield pickle.loads(row["finished"])
        except self._ray.exceptions.RayError as error:
            raise InputError(f"a Ray worker failed: {first_line(error)}; re-run the command to resume") from None

    def _check_fits(self) -> int:
        """Number of workers that fit; an error if there is none, since Ray would wait for ever."""
        fits = workers_that_fit(self._ray, self._cpus, self._gpus)
        if not fits:
            raise InputError(
                f"no machine of the Ray cluster has {self._cpus} CPUs and {self._gpus:g} GPUs for one worker (the most CPUs are "
                f"{most_cpus(self._ray):g}); give fewer --cpus or --gpus"
            )
        return fits


class PartWorker:
    """The actor: predicts parts with a model that it keeps.

    What a user can act on is returned as a message: of an exception, Ray would print several pages.
    """

    def __init__(self, spec: bytes, cpus: int, version: str) -> None:
        keep_freed_memory()
        import_lightly()
        self._error = ""
        try:
            if version != __version__:
                raise InputError(f"it has slimprompt {__version__}, but the command was started with {version}")
            from slimprompt.collections.predict import LocalPredictor

            self._predictor = LocalPredictor(pickle.loads(spec), workers=cpus)
        except InputError as error:
            self._error = f"a worker on {socket.gethostname()} cannot start: {error}"

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        """Predict the parts of a batch."""
        if self._error:
            return {"finished": [b""], "error": [self._error]}
        parts = [pickle.loads(part) for part in batch["part"]]
        finished = [pickle.dumps(one) for one in self._predictor.predict_parts(parts, lambda n: None)]
        return {"finished": finished, "error": [""] * len(finished)}


def _without_working_directory(spec: PredictionSpec) -> PredictionSpec:
    """The same spec with absolute paths, because a worker starts in another directory; a model of the hub is its downloaded folder."""
    from slimprompt.clip.architectures import absolute_weights
    from slimprompt.hub import model_folder

    pretrained = None if spec.pretrained is None else absolute_weights(spec.pretrained)
    return replace(spec, model=str(model_folder(spec.model).absolute()), pretrained=pretrained)


def _cpus_per_worker(ray: Any, gpus: float) -> int:
    """CPUs of a machine divided by its GPUs, as few as any machine with GPUs has; 1 without GPUs."""
    if not gpus:
        return 1
    shares = [node.get("CPU", 0) * gpus / node["GPU"] for node in nodes(ray) if node.get("GPU", 0) >= gpus]
    return max(1, int(min(shares, default=1)))
