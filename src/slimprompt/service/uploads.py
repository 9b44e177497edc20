"""Images and options of a request: its body is read within the limits, and is a multipart form or JSON.

Forms are parsed by Starlette while they arrive. Its limits on files and fields are used; what it has no means for is done here: the size
of the body, of all bodies together, and the time that a body takes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple

from fastapi import HTTPException, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import from_json
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from slimprompt.errors import InputError, shown, unknown, validate
from slimprompt.names import check_class_names
from slimprompt.service.limits import Limits

#: Bodies that are held at once, in units of the largest body.
_BODIES = 10
#: Bytes of a body that is too large which are still read, in units of the largest body: a client that is sending does not
#: see the answer if the connection is closed under it.
_DISCARDED = 4
#: Fields of a form beside class names.
_OTHER_FIELDS = 20
#: Characters of a class name.
_NAME_LENGTH = 200
#: Seconds after which a refused client may try again.
RETRY = {"Retry-After": "1"}
_CLOSE = {"Connection": "close"}


class Options(BaseModel):
    """What a request may ask for; the same names as the options of `slimprompt predict`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = Field(None, description="Name of the model; needed if several are served")
    top: int = Field(1, ge=1, description="Number of classes per image")
    min_confidence: float | None = Field(
        None, ge=0, le=1, description='Answer "none of these" if the probability of the best class is lower'
    )
    coverage: float | None = Field(
        None,
        ge=0,
        le=1,
        description="The same, with the confidence that this fraction of the training images reached when they were held out",
    )
    classes: list[Annotated[str, Field(max_length=_NAME_LENGTH), AfterValidator(str.strip)]] | None = Field(
        None, description="Other class names: the same prompt on new classes (prompts and zero-shot only)"
    )
    zero_shot: bool = Field(False, description="Also answer with zero-shot classification, for comparison")


class JSONRequest(Options):
    """The body of a request in JSON."""

    images: list[str] = Field(description="Image files in base64; also `data:` URLs")


class Upload(NamedTuple):
    """An image file as it was sent."""

    name: str
    data: bytes


class Question(NamedTuple):
    """A request that was understood."""

    images: list[Upload]
    options: Options


class Uploads:
    """Reads requests within the limits. Used by the event loop only, so it needs no lock."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._most = limits, int(limits.max_upload_mb * 1e6)
        self.n_bytes = 0
        """Bytes of all requests that are being read or answered."""

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[Question]:
        """What a request asks; its bytes count until the block ends."""
        held = 0

        async def counted() -> AsyncGenerator[bytes, None]:
            nonlocal held
            async for chunk in self._chunks(request):
                self.n_bytes += len(chunk)
                held += len(chunk)
                if self.n_bytes > _BODIES * self._most:
                    raise HTTPException(503, "too many uploads at once; try again", {**RETRY, **_CLOSE})
                yield chunk

        try:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "multipart/form-data":
                question = await self._form(request, counted())
            elif kind == "application/json":
                body = b"".join([chunk async for chunk in counted()])
                question = await asyncio.to_thread(_json, body, self._limits)
                del body
            else:
                detail = f"content type {shown(kind)}: send images as multipart/form-data or in application/json"
                raise HTTPException(415, detail)
            yield question
        finally:
            self.n_bytes -= held

    async def _chunks(self, request: Request) -> AsyncIterator[bytes]:
        """The body in parts, at most `_most` bytes, also without a Content-Length."""
        declared = request.headers.get("content-length", "")
        too_large = declared.isdecimal() and int(declared[:20]) > self._most
        waits = request.headers.get("expect", "").lower() == "100-continue"
        deadline = asyncio.get_running_loop().time() + self._limits.max_upload_seconds
        n_bytes, more = 0, True
        while more and not (too_large and (waits or n_bytes > _DISCARDED * self._most)):
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
            too_large = too_large or n_bytes > self._most
            if chunk and not too_large:
                yield chunk
        if too_large:
            detail = f"the request has more than {self._limits.max_upload_mb:g} MB, the limit of this service (--max-upload-mb)"
            raise HTTPException(413, detail, _CLOSE)

    async def _form(self, request: Request, chunks: AsyncGenerator[bytes, None]) -> Question:
        limits = self._limits
        parser = _Parser(
            request.headers,
            chunks,
            max_files=limits.max_images,
            max_fields=limits.max_classes + _OTHER_FIELDS,
            max_part_size=(limits.max_classes + 1) * (4 * _NAME_LENGTH + 2),
        )
        try:
            form = await parser.parse()
        except MultiPartException as error:
            async for _ in chunks:  # a client that is still sending would not see the answer
                pass
            if error.message.startswith("Too many files"):
                raise _too_many_images(limits) from None
            raise InputError(f"the form cannot be read: {error.message}") from None
        if not parser.complete:
            raise InputError("the form is incomplete: its last boundary is missing")
        return _question(*_parts(form), limits)


class _Parser(MultiPartParser):
    """Starlette's parser; files stay in memory, whose use is limited, and a form may turn out to be incomplete."""

    spool_max_size = sys.maxsize
    complete = False

    def on_end(self) -> None:
        self.complete = True


def _parts(form: FormData) -> tuple[list[Upload], Options]:
    """The images of a form, and its options: class names may be repeated, one per line; an empty field counts as not given."""
    images: list[Upload] = []
    options: dict[str, Any] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name != "images":
                raise unknown("file field", name, ["images"])
            images.append(Upload(value.filename or f"image {len(images) + 1}", value.file.read()))
        elif name == "classes":
            options.setdefault(name, []).extend(line.strip() for line in value.splitlines() if line.strip())
        elif name in options:
            raise InputError(f"the field {shown(name)} was given twice")
        elif value.strip():
            options[name] = value.strip()
    return images, validate(Options, options, "request")


def _json(body: bytes, limits: Limits) -> Question:
    try:
        fields = from_json(body)
    except ValueError as error:
        raise InputError(f"the request is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InputError(f"expected a JSON object with 'images', found {shown(fields)}")
    request = validate(JSONRequest, fields, "request")
    if len(request.images) > limits.max_images:
        raise _too_many_images(limits)
    images = [Upload(f"image {number}", _base64(text, number)) for number, text in enumerate(request.images, 1)]
    return _question(images, request.model_copy(update={"images": []}), limits)


def _base64(text: str, number: int) -> bytes:
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode("".join(text.split()), validate=True)  # the command base64 breaks lines
    except (binascii.Error, ValueError):
        raise InputError(f"image {number} is not valid base64 (given: {shown(text)})") from None


def _question(images: list[Upload], options: Options, limits: Limits) -> Question:
    if not images:
        raise InputError("no images were sent: name the files of a form 'images', or give JSON a list 'images'")
    if options.min_confidence is not None and options.coverage is not None:
        raise InputError("min_confidence and coverage both set the lowest confidence of an answer: give one of them")
    if (names := options.classes) is not None:
        if not 2 <= len(names) <= limits.max_classes:
            raise InputError(
                f"the number of class names is {len(names):,}; from 2 to {limits.max_classes:,} are allowed (--max-classes): give a "
                "form one name per line, or JSON a list"
            )
        check_class_names(names)
    return Question(images, options)


def _too_many_images(limits: Limits) -> HTTPException:
    return HTTPException(
        413, f"more than {limits.max_images} images in one request (--max-images); send several requests"
    )


def request_body() -> dict[str, Any]:
    """The two bodies of a prediction request, for the OpenAPI document: the parser has limits, so FastAPI does not call it."""
    form = Options.model_json_schema()
    files = {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "Image files"}
    form |= {"properties": {"images": files, **form["properties"]}, "required": ["images"]}
    schemas = {"multipart/form-data": form, "application/json": JSONRequest.model_json_schema()}
    return {"required": True, "content": {kind: {"schema": schema} for kind, schema in schemas.items()}}
