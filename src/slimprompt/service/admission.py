"""Which requests are let in: bodies are read within limits, and the images in progress are counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from fastapi import HTTPException, Request

from slimprompt.service.limits import Limits

#: Bodies that are held at once, in units of the largest body.
_BODIES = 10
#: Bytes of a body that is too large which are still read, in units of the largest body: a client that is sending does not
#: see the answer if the connection is closed under it.
_DISCARDED = 4
#: Seconds after which a refused client may try again.
RETRY = {"Retry-After": "1"}
_CLOSE = {"Connection": "close"}


class Uploads:
    """Bodies in memory, limited one by one and in total. Used by the event loop only, so it needs no lock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.n_bytes = 0

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request; it counts until the block ends.

        Raises
        ------
        HTTPException
            413 if it is too large, also without a Content-Length; 408 if it takes too long; 503 if too many bodies are held.
        """
        held = 0
        try:
            chunks: list[bytes] = []
            async for chunk in self._chunks(request):
                self.n_bytes += len(chunk)
                held += len(chunk)
                if self.n_bytes > _BODIES * self._limits.upload_bytes:
                    raise HTTPException(503, "too many uploads at once; try again", {**RETRY, **_CLOSE})
                chunks.append(chunk)
            yield b"".join(chunks)
        finally:
            self.n_bytes -= held

    async def _chunks(self, request: Request) -> AsyncIterator[bytes]:
        most = self._limits.upload_bytes
        declared = request.headers.get("content-length", "")
        too_large = declared.isdecimal() and int(declared[:20]) > most
        waits = request.headers.get("expect", "").lower() == "100-continue"
        deadline = asyncio.get_running_loop().time() + self._limits.max_upload_seconds
        n_bytes, more = 0, True
        while more and not (too_large and (waits or n_bytes > _DISCARDED * most)):
            left = deadline - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(request.receive(), max(left, 0))
            except asyncio.TimeoutError:
                detail = f"the request was not sent completely within {self._limits.max_upload_seconds:g} s"
                raise HTTPException(408, detail, _CLOSE) from None
            if message["type"] == "http.disconnect":
                raise HTTPException(400, "the client disconnected before the request was complete")
            chunk, more = message.get("body", b""), message.get("more_body", False)
            n_bytes += len(chunk)
            too_large = too_large or n_bytes > most
            if chunk and not too_large:
                yield chunk
        if too_large:
            detail = f"the request has more than {self._limits.max_upload_mb:g} MB, the limit of this service (--max-upload-mb)"
            raise HTTPException(413, detail, _CLOSE)


class Waiting:
    """Images that are admitted and not yet answered. Changed by the event loop only."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.n_images = 0

    @contextmanager
    def admit(self, n_images: int) -> Iterator[None]:
        """Count images until the block ends; an `HTTPException` with status 429 if too many are waiting already."""
        if self.n_images and self.n_images + n_images > self._limits.max_waiting:
            detail = f"too many requests at once: {self.n_images} images are waiting; try again"
            raise HTTPException(429, detail, RETRY)
        self.n_images += n_images
        try:
            yield
        finally:
            self.n_images -= n_images
