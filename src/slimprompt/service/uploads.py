"""Images and options of a request, from a multipart form or JSON, and decoding.

All functions take hostile input and are slow for large input: they run in threads, never in the event loop. They raise an
`HTTPException` with the status that fits, or an `InputError`, which becomes status 422.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import HTTPException
from PIL import Image, UnidentifiedImageError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from slimprompt.errors import InputError, one_line, shown, unknown, validate
from slimprompt.images.decode import open_image
from slimprompt.names import check_class_names
from slimprompt.service.limits import Limits

#: Pillow's names of the formats that are decoded. Others start programs (EPS) or are hardly used.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
#: Scans of a JPEG file. Each takes as long as the image, and a small file can hold many thousands of them.
_SCANS = 100
#: Longer side divided by the shorter one: preprocessing enlarges the shorter side to the size of the model's input.
_ASPECT = 100
#: Parts of a form beside images and class names.
_OTHER_PARTS = 20


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
    classes: list[Annotated[str, AfterValidator(str.strip)]] | None = Field(
        None, description="Other class names: the same prompt on new classes (not for heads, but zero-shot)"
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


def parse(content_type: str, body: bytes, limits: Limits) -> Question:
    """Images and options of a request.

    Raises
    ------
    HTTPException
        415 for another content type, 413 for too many images.
    InputError
        If the form or JSON is malformed, or an option cannot be used.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        images, fields = _parse_form(content_type, body, limits)
    elif kind == "application/json":
        images, fields = _parse_json(body, limits)
    else:
        raise HTTPException(
            415, f"content type {shown(kind)}: send images as multipart/form-data or in application/json"
        )
    if not images:
        raise InputError("no images were sent: name the files of a form 'images', or give JSON a list 'images'")
    options = validate(Options, fields, "request")
    if options.min_confidence is not None and options.coverage is not None:
        raise InputError("min_confidence and coverage both set the lowest confidence of an answer: give one of them")
    if options.classes is not None:
        _check_names(options.classes, limits)
    return Question(images, options)


def _check_names(names: Sequence[str], limits: Limits) -> None:
    if len(names) > limits.max_classes:
        raise InputError(
            f"{len(names):,} class names were given; at most {limits.max_classes:,} are allowed (--max-classes)"
        )
    if not names:
        raise InputError("an empty list of class names was given: at least two are needed")
    for name in names:
        if len(name) > limits.max_name_length:
            raise InputError(
                f"the class name {shown(name)} has {len(name):,} characters; at most {limits.max_name_length:,} are allowed "
                "(--max-name-length)"
            )
    check_class_names(names)
    if len(names) < 2:
        raise InputError(
            f"{shown(names[0])} is one class name, and a classifier needs at least two: give a form one name per line, or JSON a list"
        )


def _too_many(limits: Limits) -> HTTPException:
    return HTTPException(
        413, f"more than {limits.max_images} images in one request (--max-images); send several requests"
    )


def _parse_json(body: bytes, limits: Limits) -> tuple[list[Upload], dict[str, Any]]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the request is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InputError(f"expected a JSON object with 'images', found {shown(fields)}")
    texts = fields.pop("images", [])
    if not isinstance(texts, list):
        raise InputError(f"images must be a list of base64 texts (given: {shown(texts)})")
    if len(texts) > limits.max_images:
        raise _too_many(limits)
    return [Upload(f"image {number}", _base64(text, number)) for number, text in enumerate(texts, 1)], fields


def _base64(text: object, number: int) -> bytes:
    if not isinstance(text, str):
        raise InputError(f"image {number} must be a base64 text (given: {shown(text)})")
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode("".join(text.split()), validate=True)  # the command base64 breaks lines
    except (binascii.Error, ValueError):
        raise InputError(f"image {number} is not valid base64 (given: {shown(text)})") from None


def _parse_form(content_type: str, body: bytes, limits: Limits) -> tuple[list[Upload], dict[str, Any]]:
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import Field as FormField
    from python_multipart.multipart import File, FormParser, parse_options_header

    images: list[Upload] = []
    fields: list[tuple[str, str]] = []
    complete: list[bool] = []

    def on_file(file: File) -> None:
        if _text(file.field_name) != "images":
            raise unknown("file field", _text(file.field_name), ["images"])
        if len(images) == limits.max_images:
            raise _too_many(limits)
        file.file_object.seek(0)
        images.append(Upload(_text(file.file_name) or f"image {len(images) + 1}", file.file_object.read()))

    def on_field(field: FormField) -> None:
        if len(fields) == limits.max_classes + _OTHER_PARTS:
            raise InputError(f"the form has more than {len(fields)} fields; class names may be one per line")
        if len(field.value or b"") > (limits.max_classes + 1) * (4 * limits.max_name_length + 2):
            raise InputError(
                f"the field {shown(_text(field.field_name))} is too long ({len(field.value or b''):,} bytes)"
            )
        fields.append((_text(field.field_name), _text(field.value)))

    boundary = parse_options_header(content_type)[1].get(b"boundary")
    try:
        parser = FormParser(
            "multipart/form-data",
            on_field,
            on_file,
            lambda: complete.append(True),
            boundary=boundary,
            config={"MAX_MEMORY_FILE_SIZE": float("inf")},  # the body is in memory already
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, AssertionError) as error:
        raise InputError(f"the form cannot be read: {error}") from None
    if not complete:
        raise InputError("the form is incomplete: its last boundary is missing")
    return images, _form_options(fields)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _form_options(fields: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Fields of a form as options: class names may be repeated, one per line; an empty field counts as not given."""
    options: dict[str, Any] = {}
    for name, value in fields:
        if name == "classes":
            options.setdefault(name, []).extend(line.strip() for line in value.splitlines() if line.strip())
        elif name in options:
            raise InputError(f"the field {shown(name)} was given twice")
        elif value.strip():
            options[name] = value.strip()
    return options


def decode(upload: Upload, limits: Limits) -> Image.Image:
    """An image file as RGB image, as `open_image` reads it; its size is checked before its pixels are decoded.

    Raises
    ------
    HTTPException
        415 if it is none of `FORMATS`, damaged or of extreme shape; 413 if it has too many pixels.
    """
    name = one_line(upload.name, 100)
    try:
        image = Image.open(io.BytesIO(upload.data), formats=FORMATS)
        _check_image(image, name, upload.data, limits)
        return open_image(image)
    except HTTPException:
        raise
    except UnidentifiedImageError:
        raise HTTPException(
            415, f"{name} is not an image that can be read; allowed are {', '.join(FORMATS)} files"
        ) from None
    except Image.DecompressionBombError:
        raise _too_large(name, limits) from None
    except InputError as error:
        raise HTTPException(415, f"{name}: {error}") from None
    except Exception as error:  # Pillow's decoders raise almost anything for damaged data
        reason = one_line(str(error) or type(error).__name__, 200)
        raise HTTPException(415, f"{name} cannot be read: {reason}") from None


def _check_image(image: Image.Image, name: str, data: bytes, limits: Limits) -> None:
    # 16-bit and float images are converted in double precision
    weight = 4 if image.mode.startswith("I") or image.mode == "F" else 1
    if weight * image.width * image.height > limits.max_megapixels * 1e6:
        raise _too_large(name, limits)
    if max(image.size) > _ASPECT * min(image.size):
        raise HTTPException(415, f"{name} has {image.width} × {image.height} pixels: one side is too short; crop it")
    # In compressed data the byte FF is followed by 00, so these two bytes are the marker of a scan.
    if image.format in ("JPEG", "MPO") and data.count(b"\xff\xda") > _SCANS:
        raise HTTPException(415, f"{name} has more than {_SCANS} scans; save it again as an ordinary JPEG")


def _too_large(name: str, limits: Limits) -> HTTPException:
    return HTTPException(
        413,
        f"{name} has more than {limits.max_megapixels:g} megapixels (16-bit and float greyscale: a quarter of that), the "
        "limit of this service (--max-megapixels); shrink it",
    )


def options_schema() -> Mapping[str, Any]:
    """The two bodies of a prediction request, for the OpenAPI document."""
    form = Options.model_json_schema()
    form["properties"] = {
        "images": {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "Image files"},
        **form["properties"],
    }
    form["required"] = ["images"]
    schemas = {"multipart/form-data": form, "application/json": JSONRequest.model_json_schema()}
    return {"required": True, "content": {kind: {"schema": schema} for kind, schema in schemas.items()}}
