"""Image features, encoded once per view and stored on disk.

The key of a feature holds the backbone's fingerprint, precision and preprocessing (one store per combination, which holds
them inside), the hash of the image's content, how the image is decoded, and the view: the eval view or a numbered train
view, with what resized it if that was not Pillow. All variants, ranks, shot counts and seeds share the features they have in common.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from slimprompt.clip.architectures import LOCAL_FOLDER
from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.files import cache_dir, sha256
from slimprompt.images.cached import HASHES, bytes_per_feature, import_old_file
from slimprompt.images.decode import Decode, ImageSource, open_image
from slimprompt.images.encoding import BATCH, check_finite, device_batch, encode_padded, in_batches
from slimprompt.images.hashes import FileHashes, image_hash
from slimprompt.images.prefetch import prefetched, written_behind
from slimprompt.images.sources import image_sources
from slimprompt.images.store import FeatureStore, StorePrecision, default_store_precision
from slimprompt.images.views import Resize, eval_pixels, train_pixels, train_pixels_by_torch, view_size
from slimprompt.progress import progress
from slimprompt.seeds import stream_seed

#: A view's name: "" is the eval view, "seed/number" a train view, "seed/number@torch" the same train view resized by torch.
EVAL_VIEW = ""
_BY_TORCH = "@torch"

_VIEWS_PER_TASK = 64  # of one decoded image; as 8-bit pixels they take about 10 MB
_MANY_FEATURES = 100_000  # before so many are encoded, the space on the disk is compared
_CHANGED = "an image file was changed while its features were computed; run the command again"


def train_view_name(seed: int, number: int, resize: Resize = "pillow") -> str:
    """The name of train view `number` in the stream of `seed`."""
    return f"{seed}/{number}" + (_BY_TORCH if resize == "torch" else "")


class FeatureBank:
    """Unit-length image features (n, embed_dim) by image and view.

    Safe under several processes and threads: each batch is stored completely or not at all, and the first feature written is
    kept. A file that changes while the bank is open is hashed again.

    Parameters
    ----------
    backbone
        The model whose image tower computes the features.
    folder
        Where the stores are; "default" is `<cache>/features`. None keeps everything in memory.
    workers
        Threads that decode images and make views; default: one per core.
    show_progress
        Show a progress bar on a terminal while encoding.
    store_precision
        "fp32", or "fp16" to store features in half of the space, rounded, and separately from those in fp32. Default: the
        environment variable SLIMPROMPT_FEATURES, else "fp32".
    """

    def __init__(
        self,
        backbone: Backbone,
        folder: Path | str | None = "default",
        *,
        workers: int | None = None,
        show_progress: bool = True,
        store_precision: StorePrecision | None = None,
    ) -> None:
        self.backbone = backbone
        self._workers, self._show_progress = workers or os.cpu_count() or 1, show_progress
        self._precision = store_precision or default_store_precision()
        key = {
            "weights": backbone.fingerprint,
            "precision": backbone.precision,
            "device": backbone.device.type,
            "preprocess": json.dumps(asdict(backbone.preprocess), sort_keys=True),
            "views": "random-resized-crop 0.08-1 3/4-4/3 flip 0.5",
        }
        if self._precision != "fp32":
            key["stored"] = self._precision
        configuration = Path(backbone.name.removeprefix(LOCAL_FOLDER), "open_clip_config.json")
        if backbone.name.startswith(LOCAL_FOLDER) and configuration.is_file():
            # The number of heads, for instance, is not in the weights.
            key["configuration"] = sha256(configuration)
        self.path: Path | None = None
        if folder is not None:
            root = cache_dir() / "features" if folder == "default" else Path(folder)
            name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
            title = re.sub(r"[^\w.-]", "-", backbone.name.removeprefix("hf-hub:").removeprefix(LOCAL_FOLDER))
            self.path = root / f"{title}-{name}"
        self.store = FeatureStore(self.path, key, self._precision)
        if self.path is not None:
            import_old_file(self.path.with_name(f"{self.path.name}.sqlite"), self.store, key)
        self._hashes = FileHashes(self.path and self.path.with_name(HASHES), self._workers)

    def features(
        self, images: Any, view: str = EVAL_VIEW, *, decode: Decode = "upright", hashes: Sequence[str] | None = None
    ) -> Tensor:
        """Features (n, embed_dim) in the order of the images; missing ones are encoded first.

        Parameters
        ----------
        images
            Images in any form that `image_sources` accepts.
        view
            Name of the view.
        decode
            How the images are read; see `open_image`.
        hashes
            What `hashes` returned for these images; their files are then not looked at again if all features are stored.
        """
        if hashes is None:
            images = image_sources(images)
            hashes = self.hashes(images, decode=decode)
        if not len(hashes):
            return torch.empty(0)
        stored = _stored_name(view, decode)
        found = self.store.read(hashes, stored)
        if found is None:
            self.build(images, [view], decode=decode)
            found = self.store.read(hashes, stored)
        if found is None:
            raise InputError(_CHANGED)
        return torch.from_numpy(found)

    def build(
        self,
        images: Any,
        views: Sequence[str] = (EVAL_VIEW,),
        *,
        decode: Decode = "upright",
        skip_bad: bool = False,
    ) -> dict[int, InputError]:
        """Encode every missing (image, view). If interrupted, finished batches stay stored.

        Images are decoded ahead on threads, and features are stored behind the encoder on another one.

        Parameters
        ----------
        images
            Images in any form that `image_sources` accepts.
        views
            Names of the views to encode.
        decode
            How the images are read; see `open_image`.
        skip_bad
            Skip unreadable images and return their errors by index, instead of raising the first one.
        """
        sources = image_sources(images)
        bad: dict[int, InputError] = {}
        first: dict[str, int] = {}  # images with the same content are encoded once
        same: dict[int, int] = {}
        for index, found in enumerate(self._find_hashes(sources, decode)):
            if isinstance(found, InputError):
                if not skip_bad:
                    raise found
                bad[index] = found
            elif found in first:
                same[index] = first[found]
            else:
                first[found] = index
        tasks = [
            _Task(index, sources[index], decode, key, some)
            for (key, index), missing in zip(first.items(), self._missing(list(first), views, decode), strict=True)
            for some in _in_tasks(missing)
        ]
        total = sum(len(task.views) for task in tasks)
        self._check_space(total)
        with (
            progress("encoding images", total, "views", show=self._show_progress) as advance,
            written_behind(self._store) as store,
        ):
            batch = device_batch(self.backbone) if tasks else BATCH
            for names, pixels in in_batches(self._decoded(tasks, batch, bad, skip_bad=skip_bad), batch):
                store(names, self._encode(pixels))
                advance(len(names))
        return bad | {index: bad[other] for index, other in same.items() if other in bad}

    def hashes(self, images: Any, *, decode: Decode = "upright") -> list[str]:
        """Hexadecimal sha256 of each image's content: of the file, or of the pixels of a PIL image."""
        found = self._find_hashes(image_sources(images), decode)
        for one in found:
            if isinstance(one, InputError):
                raise one
        return [one for one in found if isinstance(one, str)]

    def __len__(self) -> int:
        """Number of features stored."""
        return len(self.store)

    def _find_hashes(self, images: Sequence[ImageSource], decode: Decode) -> list[str | InputError]:
        files = iter(self._hashes.find([image for image in images if not isinstance(image, Image.Image)]))
        return [_hash_or_error(image, decode) if isinstance(image, Image.Image) else next(files) for image in images]

    def _missing(self, keys: Sequence[str], views: Sequence[str], decode: Decode) -> Iterator[list[str]]:
        """The views of each image that are not stored."""
        missing = self.store.missing(keys, [_stored_name(view, decode) for view in views])
        for row in missing:
            yield [views[n] for n in np.flatnonzero(row).tolist()]

    def _check_space(self, n_features: int) -> None:
        """Refuse features that certainly do not fit on the disk; a few are not worth measuring."""
        if self.path is None or n_features < _MANY_FEATURES:
            return
        embed_dim = self.backbone.encode_texts(["a"]).shape[1]
        needed = n_features * bytes_per_feature(embed_dim, self._precision)
        free = shutil.disk_usage(self.path.parent).free
        if needed > free:
            raise InputError(
                f"{n_features:,} image features need about {needed / 1e9:,.1f} GB at {self.path.parent}, where {free / 1e9:,.1f} GB "
                "are free; lower the number of views (--epochs or --views) or of images, free some space, or point "
                "SLIMPROMPT_CACHE to another disk"
            )

    def _decoded(
        self, tasks: Sequence[_Task], batch: int, bad: dict[int, InputError], *, skip_bad: bool
    ) -> Iterator[tuple[list[tuple[str, str]], np.ndarray]]:
        """Keys and names of views with their pixels; errors go to `bad`, or are raised."""
        largest = max((len(task.views) for task in tasks), default=1)
        ahead = batch // largest + 2 * self._workers  # the next batch is decoded while one is encoded
        for task, pixels in prefetched(self._pixels, tasks, self._workers, ahead):
            if isinstance(pixels, InputError):
                if not skip_bad:
                    raise pixels
                bad[task.position] = pixels
            else:
                yield [(task.key, _stored_name(view, task.decode)) for view in task.views], pixels

    def _pixels(self, task: _Task) -> np.ndarray | InputError:
        """8-bit views (n_views, height, width, 3) of one image."""
        try:
            image = open_image(task.image, task.decode)
            if self._find_hashes([task.image], task.decode) != [task.key]:
                raise InputError(f"{task.image} was changed while it was read; run the command again")
            return self._views(task, image)
        except InputError as error:
            return error

    def _views(self, task: _Task, image: Image.Image) -> np.ndarray:
        preprocess = self.backbone.preprocess
        pixels = np.empty((len(task.views), *view_size(preprocess), 3), dtype=np.uint8)
        tensor: Tensor | None = None
        for row, view in zip(pixels, task.views, strict=True):
            name = view.removesuffix(_BY_TORCH)
            seed = stream_seed(0, "view", name, task.key)  # the same crop and flip for both ways to resize
            if view == EVAL_VIEW:
                row[:] = eval_pixels(image, preprocess, task.image)
            elif view == name:
                row[:] = train_pixels(image, preprocess, seed)
            else:
                tensor = torch.from_numpy(np.array(image)) if tensor is None else tensor  # once for all views
                row[:] = train_pixels_by_torch(tensor, preprocess, seed)
        return pixels

    def _encode(self, pixels: np.ndarray) -> Tensor:
        return encode_padded(self.backbone, pixels)[: len(pixels)]

    def _store(self, names: Sequence[tuple[str, str]], features: Tensor) -> None:
        check_finite(self.backbone, features)
        images, views = zip(*names, strict=True)
        self.store.write(images, views, features.cpu().numpy())


class _Task(NamedTuple):
    position: int
    image: ImageSource
    decode: Decode
    key: str
    views: Sequence[str]


def _in_tasks(views: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(views), _VIEWS_PER_TASK):
        yield views[start : start + _VIEWS_PER_TASK]


def _hash_or_error(image: Image.Image, decode: Decode) -> str | InputError:
    try:
        return image_hash(image, decode)
    except InputError as error:
        return error


def _stored_name(view: str, decode: Decode) -> str:
    """The view's name in the store; without a prefix for upright images, as in banks of version 0.1."""
    return view if decode == "upright" else f"{decode}:{view}"
