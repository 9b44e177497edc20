"""Image features, encoded once per view and stored on disk.

The key of a feature holds the backbone's fingerprint, precision and preprocessing (one file per combination, which holds
them inside), the hash of the image's content, how the image is decoded, and the view: the eval view or a numbered train
view. All variants, ranks, shot counts and seeds share the features they have in common.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slimprompt.clip.architectures import LOCAL_FOLDER
from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.files import cache_dir, sha256
from slimprompt.images.decode import Decode, GivenImage, UnreadableImageError, open_image
from slimprompt.images.encoding import BATCH, device_batch, encoded, refuse
from slimprompt.images.hashes import FileHashes
from slimprompt.images.sources import image_sources
from slimprompt.images.store import HASHES, FeatureStore, MemoryStore
from slimprompt.images.views import eval_pixels, train_pixels, view_size
from slimprompt.progress import announce, progress
from slimprompt.seeds import stream_seed

#: A view's name: "" is the eval view, "seed/number" a train view.
EVAL_VIEW = ""

_VIEWS_PER_TASK = 64  # of one decoded image; as 8-bit pixels they take about 10 MB


def train_view_name(seed: int, number: int) -> str:
    """The name of train view `number` in the stream of `seed`."""
    return f"{seed}/{number}"


class FeatureBank:
    """Unit-length image features (n, embed_dim) by image and view.

    Safe under several processes and threads: each batch is stored completely or not at all, and the first feature written is
    kept. A file that changes while the bank is open is hashed again.

    Parameters
    ----------
    backbone
        The model whose image tower computes the features.
    folder
        Where the files of features are; "default" is `<cache>/features`. None keeps everything in memory.
    workers
        Threads that decode images and make views; default: one per core.
    show_progress
        Show a progress bar on a terminal while encoding.
    """

    def __init__(
        self,
        backbone: Backbone,
        folder: Path | str | None = "default",
        *,
        workers: int | None = None,
        show_progress: bool = True,
    ) -> None:
        self.backbone = backbone
        self._folder, self._workers, self._show_progress = folder, workers or os.cpu_count() or 1, show_progress
        self._at_block: dict[int, FeatureBank] = {}
        self.path: Path | None = None
        self.store: FeatureStore | MemoryStore = MemoryStore()
        if folder is not None and backbone.image_pass.rows is None:  # features of an adapted tower belong to one model
            key = _key(backbone)
            name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
            title = re.sub(r"[^\w.-]", "-", backbone.name.removeprefix("hf-hub:").removeprefix(LOCAL_FOLDER))
            root = cache_dir() / "features" if folder == "default" else Path(folder)
            self.path = root / f"{title}-{name}.sqlite"
            self.store = FeatureStore(self.path, key)
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
            How the images are read: "upright" or "plain".
        hashes
            What `hashes` returned for these images; their files are then not looked at again if all features are stored.
        """
        if hashes is None:
            images = image_sources(images)
            hashes = self.hashes(images, decode=decode)
        if not len(hashes):
            return torch.empty(0, self.backbone.embed_dim)
        found = self.store.read(hashes, _stored_name(view, decode))
        if found is None:
            self.build(images, [view], decode=decode)
            found = self.store.read(hashes, _stored_name(view, decode))
        if found is None:
            raise InputError("an image file was changed while its features were computed; run the command again")
        return torch.from_numpy(found)

    def build(
        self,
        images: Any,
        views: Sequence[str] = (EVAL_VIEW,),
        *,
        decode: Decode = "upright",
        skip_bad: bool = False,
    ) -> dict[int, InputError]:
        """Encode every missing (image, view). If interrupted, the batches before the last one stay stored.

        Parameters
        ----------
        images
            Images in any form that `image_sources` accepts.
        views
            Names of the views to encode.
        decode
            How the images are read: "upright" or "plain".
        skip_bad
            Skip unreadable images and return their errors by index, instead of raising the first one.
        """
        sources = image_sources(images)
        bad: dict[int, InputError] = {}

        def skip(task: _Task, error: InputError) -> None:
            for index in task.indices:  # files of the same content; each error names its own
                named = str(error).replace(str(task.image), str(sources[index]))
                bad[index] = UnreadableImageError(named)

        unreadable = skip if skip_bad else refuse
        indices: dict[str, list[int]] = defaultdict(list)  # images with the same content are encoded once
        for index, found in enumerate(self._find_hashes(sources, decode)):
            if isinstance(found, InputError):
                unreadable(_Task([index], sources[index], "", []), found)
            else:
                indices[found].append(index)
        missing = self.store.missing(list(indices), [_stored_name(view, decode) for view in views])
        tasks = [
            _Task(same, sources[same[0]], key, names[start : start + _VIEWS_PER_TASK])
            for (key, same), names in zip(indices.items(), missing, strict=True)
            for start in range(0, len(names), _VIEWS_PER_TASK)
        ]
        if not tasks:
            return bad
        if self.backbone.image_pass.base is not None and self.backbone.image_pass.rows is None:
            self._check_space(sum(len(task.names) for task in tasks))
        batch, total = device_batch(self.backbone), sum(len(task.names) for task in tasks)
        ahead = batch // max(len(task.names) for task in tasks)  # the next batch is decoded while one is encoded
        with progress("encoding images", total, "views", show=self._show_progress) as advance:
            for rows, features in encoded(
                self.backbone,
                tasks,
                lambda task: self._views(task, decode),
                batch=batch,
                workers=self._workers,
                ahead=ahead,
                unreadable=unreadable,
            ):
                self.store.write([(task.key, task.names[number]) for task, number in rows], features.cpu().numpy())
                advance(len(rows))
        return bad

    def hashes(self, images: Any, *, decode: Decode = "upright") -> list[str]:
        """Hexadecimal sha256 of each image's content: of the file, or of the pixels of an image in memory."""
        hashes = []
        for found in self._find_hashes(image_sources(images), decode):
            if isinstance(found, InputError):
                raise found
            hashes.append(found)
        return hashes

    def features_with_rows(
        self, images: Any, first: int, rows: Tensor, *, decode: Decode = "upright", hashes: Sequence[str] | None = None
    ) -> Tensor:
        """Unit-length eval-view features (n, embed_dim) with rows of the image tower, from the stored inputs of block `first`."""
        images, bank = image_sources(images), self.at_block(first)
        bank.build(images, decode=decode)
        inputs = StoredViews(bank, hashes or bank.hashes(images, decode=decode), [EVAL_VIEW], decode)
        with torch.inference_mode():
            parts = [
                self.backbone.features_from_block(inputs[part], first, rows)
                for part in torch.arange(len(images)).split(BATCH)
            ]
        return torch.cat(parts)

    def at_block(self, block: int) -> FeatureBank:
        """The bank of the inputs of a block of the image tower, (n, n_tokens · width), beside this one."""
        if block not in self._at_block:
            self._at_block[block] = self.of(self.backbone.up_to_block(block))
        return self._at_block[block]

    def of(self, backbone: Backbone) -> FeatureBank:
        """The bank of another backbone in the same folder."""
        return FeatureBank(backbone, self._folder, workers=self._workers, show_progress=self._show_progress)

    def __len__(self) -> int:
        """Number of features stored."""
        return len(self.store)

    def _check_space(self, n_views: int) -> None:
        """Say how much the inputs of a block take; an `InputError` if they do not fit."""
        size = 4 * n_views * len(self.backbone.image_tower.positional_embedding) * self.backbone.image_width
        if self.path is None:
            import psutil

            place, free = "memory", psutil.virtual_memory().available
        else:
            place, free = str(self.path.parent), shutil.disk_usage(self.path.parent).free
        what = f"the inputs of block {self.backbone.image_pass.first} of the image tower for {n_views:,} views: {size / 1e9:.2f} GB in {place}"
        if size > 0.9 * free:
            raise InputError(
                f"there is no room for {what}, where {free / 1e9:.2f} GB are free. Use fewer images or views, or point "
                "SLIMPROMPT_CACHE to another disk"
            )
        if size > 1e8:
            announce(f"storing {what}")

    def _find_hashes(self, images: Sequence[str | Path | GivenImage], decode: Decode) -> list[str | InputError]:
        files = iter(self._hashes.find([image for image in images if not isinstance(image, GivenImage)]))
        return [_given_hash(image, decode) if isinstance(image, GivenImage) else next(files) for image in images]

    def _views(self, task: _Task, decode: Decode) -> np.ndarray:
        """8-bit views (n_views, height, width, 3) of one image."""
        preprocess = self.backbone.preprocess
        image = open_image(task.image, decode)
        if self._find_hashes([task.image], decode) != [task.key]:
            raise InputError(f"{task.image} was changed while it was read; run the command again")
        pixels = np.empty((len(task.names), *view_size(preprocess), 3), dtype=np.uint8)
        for row, name in zip(pixels, task.names, strict=True):
            view = name.removeprefix(_stored_name("", decode))
            if view == EVAL_VIEW:
                row[:] = eval_pixels(image, preprocess, task.image)
            else:
                row[:] = train_pixels(image, preprocess, stream_seed(0, "view", view, task.key))
        return pixels


class StoredViews:
    """Rows of a bank by index, read when they are asked for: view after view, the images of each in order."""

    def __init__(self, bank: FeatureBank, hashes: Sequence[str], views: Sequence[str], decode: Decode) -> None:
        self._bank, self._hashes, self._views = bank, hashes, [_stored_name(view, decode) for view in views]

    def __len__(self) -> int:
        return len(self._views) * len(self._hashes)

    def __getitem__(self, indices: Tensor) -> Tensor:
        """Rows (n, length) of these indices."""
        places: dict[str, list[int]] = defaultdict(list)
        for place, index in enumerate(indices.tolist()):
            places[self._views[index // len(self._hashes)]].append(place)
        rows: list[np.ndarray | None] = [None] * len(indices)
        for view, at in places.items():
            found = self._bank.store.read([self._hashes[int(indices[place]) % len(self._hashes)] for place in at], view)
            if found is None:
                raise InputError("features were deleted while they were needed; run the command again")
            for place, row in zip(at, found, strict=True):
                rows[place] = row
        return torch.from_numpy(np.stack(rows)).to(self._bank.backbone.device)  # type: ignore[arg-type]


class _Task(NamedTuple):
    """Views of one image to encode."""

    indices: Sequence[int]
    """Where the image is among those given."""
    image: str | Path | GivenImage
    key: str
    names: Sequence[str]
    """Those of its views in the store."""


def _key(backbone: Backbone) -> dict[str, Any]:
    """Everything that decides a feature besides the image and its view."""
    key = {
        "weights": backbone.fingerprint,
        "precision": backbone.precision,
        "device": backbone.device.type,
        "preprocess": asdict(backbone.preprocess),
        "views": "random-resized-crop 0.08-1 3/4-4/3 flip 0.5",
    }
    configuration = Path(backbone.name.removeprefix(LOCAL_FOLDER), "open_clip_config.json")
    if backbone.name.startswith(LOCAL_FOLDER) and configuration.is_file():
        key["configuration"] = sha256(configuration)  # the number of heads, for instance, is not in the weights
    return key


def _given_hash(image: GivenImage, decode: Decode) -> str | InputError:
    try:
        return image.sha256(decode)
    except InputError as error:
        return error


def _stored_name(view: str, decode: Decode) -> str:
    """The view's name in the store."""
    return f"{decode}:{view}"
