"""Image files → eval views, on threads.

A request whose images are small never waits for those of a large one: large requests have threads of their own, one fewer than
there are for small ones. Pillow has no limit on pixels that suits a service, and none on scans, so both are checked here.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

import numpy as np
from fastapi import HTTPException
from PIL import Image, UnidentifiedImageError

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import one_line
from slimprompt.images.decode import open_image
from slimprompt.images.views import eval_pixels
from slimprompt.service.limits import Limits
from slimprompt.service.uploads import RETRY, Upload

T = TypeVar("T")

#: Pillow's names of the formats that are decoded. Others start programs (EPS) or are hardly used.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
#: Scans of a JPEG file. Each takes as long as the image, and a small file can hold many thousands of them.
_SCANS = 100
#: Scans of an ordinary progressive file.
_USUAL_SCANS = 10
#: Cost of a compressed text in pixels.
_TEXT = 5e4
#: Longer side divided by the shorter one: preprocessing enlarges the shorter side to the size of the model's input.
_ASPECT = 100
#: Up to this cost, which takes a few tenths of a second, a request is small.
_SMALL = 4e6
#: Large requests that may wait, in units of the largest one.
_LARGE_REQUESTS = 4
#: Threads of small requests; a decoded image of the largest allowed size takes a few hundred MB.
_THREADS = min(4, os.cpu_count() or 1)


class OpenedImage(NamedTuple):
    """An image file whose header was read."""

    name: str
    image: Image.Image
    cost: float
    """Pixels, weighted by what their decoding takes."""


#: An image, or why it cannot be used.
Opened = OpenedImage | HTTPException
#: An eval view uint8 (height, width, 3), or why there is none.
View = np.ndarray | HTTPException


class Decoder:
    """The threads that decode, and how much waits for them. Its methods are called by the event loop only."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._small = ThreadPoolExecutor(_THREADS, thread_name_prefix="slimprompt-decode")
        self._large = ThreadPoolExecutor(max(1, _THREADS - 1), thread_name_prefix="slimprompt-decode-large")
        self.n_images = 0
        """Images that are admitted and not yet answered."""
        self._large_cost = 0.0

    def close(self) -> None:
        """End the threads; what waits is not decoded."""
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def decoded(
        self, uploads: Sequence[Upload], backbone: Backbone
    ) -> AsyncIterator[tuple[np.ndarray, list[str | None]]]:
        """The eval views of the images that can be read, uint8 (n_images, height, width, 3), and for each image None or why it cannot.

        The images count as waiting until the block ends. If no image can be read, the error of the first one is raised.
        """
        if self.n_images and self.n_images + len(uploads) > self._limits.max_waiting:
            raise HTTPException(429, f"too many requests at once: {self.n_images} images are waiting; try again", RETRY)
        self.n_images += len(uploads)
        try:
            # One by one: a header can take long too, and the next request should not wait for all of them.
            opened = [await _run(self._small, open_upload, one, self._limits) for one in uploads]
            found = await self._views(opened, backbone)
            readable = [one for one in found if isinstance(one, np.ndarray)]
            errors = [None if isinstance(one, np.ndarray) else one for one in found]
            if not readable and errors[0] is not None:
                raise errors[0]
            yield np.stack(readable), [None if error is None else error.detail for error in errors]
        finally:
            self.n_images -= len(uploads)

    async def _views(self, opened: list[Opened], backbone: Backbone) -> list[View]:
        cost = sum(one.cost for one in opened if isinstance(one, OpenedImage))
        most = self._limits.max_request_megapixels * 1e6
        if cost > most:
            raise HTTPException(
                413,
                f"the images of the request have {cost / 1e6:,.0f} megapixels; at most {most / 1e6:g} are allowed "
                "(--max-request-megapixels): shrink them or send several requests",
            )
        if cost <= _SMALL:
            return await asyncio.gather(*(_run(self._small, eval_view, one, backbone) for one in opened))
        if self._large_cost and self._large_cost + cost > _LARGE_REQUESTS * most:
            detail = f"too many large images at once: {self._large_cost / 1e6:,.0f} megapixels are waiting; try again"
            raise HTTPException(429, detail, RETRY)
        self._large_cost += cost
        try:
            return await asyncio.gather(*(_run(self._large, eval_view, one, backbone) for one in opened))
        finally:
            self._large_cost -= cost


async def _run(pool: ThreadPoolExecutor, function: Callable[..., T], *arguments: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


def open_upload(upload: Upload, limits: Limits) -> Opened:
    """An image file with its header read and its size checked; 415 if it is none of `FORMATS`, 413 if it has too many pixels."""
    name = one_line(upload.name, 100)
    try:
        image = Image.open(io.BytesIO(upload.data), formats=FORMATS)
    except UnidentifiedImageError:
        return HTTPException(415, f"{name} is not an image that can be read; allowed are {', '.join(FORMATS)} files")
    except Image.DecompressionBombError:
        return _too_large(name, limits)
    except Exception as error:  # Pillow raises almost anything for damaged data
        return _unreadable(name, error)
    # 16-bit and float images are converted in double precision
    pixels = image.width * image.height * (4 if image.mode.startswith("I") or image.mode == "F" else 1)
    if pixels > limits.max_megapixels * 1e6:
        return _too_large(name, limits)
    if max(image.size) > _ASPECT * min(image.size):
        return HTTPException(415, f"{name} has {image.width} × {image.height} pixels: one side is too short; crop it")
    # In compressed data the byte FF is followed by 00, so these two bytes are the marker of a scan.
    n_scans = upload.data.count(b"\xff\xda") if image.format in ("JPEG", "MPO") else 1
    if n_scans > _SCANS:
        return HTTPException(415, f"{name} has more than {_SCANS} scans; save it again as an ordinary JPEG")
    n_texts = upload.data.count(b"zTXt") + upload.data.count(
        b"iTXt"
    )  # of PNG files, each up to a megabyte when unpacked
    return OpenedImage(name, image, pixels * max(1, n_scans / _USUAL_SCANS) + _TEXT * n_texts)


def eval_view(opened: Opened, backbone: Backbone) -> View:
    """The eval view of an image, as `predict` computes it from a file; an error is passed on."""
    if isinstance(opened, HTTPException):
        return opened
    try:
        return eval_pixels(open_image(opened.image), backbone.preprocess, opened.name)
    except Exception as error:  # Pillow's decoders raise almost anything for damaged data
        return _unreadable(opened.name, error)
    finally:
        opened.image.close()


def _unreadable(name: str, error: Exception) -> HTTPException:
    return HTTPException(415, f"{name} cannot be read: {one_line(str(error) or type(error).__name__, 200)}")


def _too_large(name: str, limits: Limits) -> HTTPException:
    return HTTPException(
        413,
        f"{name} has more than {limits.max_megapixels:g} megapixels (16-bit and float greyscale: a quarter of that), the "
        "limit of this service (--max-megapixels); shrink it",
    )
