"""Forms, JSON and image files, well-formed and hostile."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import zlib

import numpy as np
import pytest
from fastapi import HTTPException, Request
from PIL import Image

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.images.decode import open_image
from slimprompt.images.views import eval_pixels
from slimprompt.service.decoding import OpenedImage, View, eval_view, open_upload
from slimprompt.service.limits import Limits
from slimprompt.service.uploads import Question, Upload, Uploads
from tests.service.conftest import RED, file_of

LIMITS = Limits(max_images=3, max_classes=4, max_megapixels=1)
FORM = "multipart/form-data; boundary=b"


def parse(content_type: str, body: bytes, limits: Limits) -> Question:
    """What a request with this body asks; it arrives in parts of 1,000 bytes."""
    parts = iter([body[start : start + 1000] for start in range(0, len(body), 1000)])

    async def receive() -> dict[str, object]:
        part = next(parts, None)
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    async def read() -> Question:
        request = Request({"type": "http", "headers": [(b"content-type", content_type.encode())]}, receive)
        async with Uploads(limits).read(request) as question:
            return question

    return asyncio.run(read())


def decode(upload: Upload, backbone: Backbone) -> View:
    return eval_view(open_upload(upload, LIMITS), backbone)


def multipart(*parts: tuple[str, bytes], end: bytes = b"--b--\r\n") -> bytes:
    lines = [
        b"--b\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (header.encode(), value) for header, value in parts
    ]
    return b"".join(lines) + end


def picture(name: str = "a.png", data: bytes = RED) -> tuple[str, bytes]:
    return f'name="images"; filename="{name}"', data


def test_a_form() -> None:
    body = multipart(
        picture("a.png"),
        ('name="top"', b"3"),
        ('name="classes"', "café\n dog \n".encode()),
        ('name="classes"', b"cat"),
        ('name="coverage"', b""),
        ('name="zero_shot"', b"true"),
        picture("b.png", b"x"),
    )
    images, options = parse(FORM, body, LIMITS)
    assert images == [Upload("a.png", RED), Upload("b.png", b"x")]
    assert options.top == 3 and options.classes == ["café", "dog", "cat"] and options.zero_shot
    assert options.coverage is None and options.min_confidence is None


def test_json() -> None:
    text = base64.b64encode(RED).decode()
    body = json.dumps(
        {
            "images": [text, f"data:image/png;base64,{base64.encodebytes(RED).decode()}"],
            "min_confidence": 0.5,
            "classes": [" a", "b\n"],
        }
    )
    images, options = parse("application/json; charset=utf-8", body.encode(), LIMITS)
    assert images == [Upload("image 1", RED), Upload("image 2", RED)]
    assert options.min_confidence == 0.5 and options.classes == ["a", "b"]


UNUSABLE = {
    "no images": (multipart(('name="top"', b"3")), "no images were sent"),
    "truncated": (multipart(picture(), end=b""), "last boundary is missing"),
    "cut in a header": (b"--b\r\nContent-Dispo", "last boundary is missing"),
    "garbage": (b"\x00\xff" * 100, "cannot be read"),
    "empty": (b"", "last boundary is missing"),
    "part without a name": (multipart(("nothing", b"")), "cannot be read"),
    "another file field": (multipart(('name="image"; filename="a"', RED)), "did you mean 'images'?"),
    "unknown option": (multipart(picture(), ('name="tpo"', b"3")), "did you mean 'top'?"),
    "wrong option": (multipart(picture(), ('name="top"', b"0")), "top: Input should be greater than or equal to 1"),
    "option twice": (multipart(picture(), ('name="top"', b"1"), ('name="top"', b"1")), "given twice"),
    "two thresholds": (
        multipart(picture(), ('name="coverage"', b".5"), ('name="min_confidence"', b".5")),
        "give one of them",
    ),
    "too many names": (multipart(picture(), ('name="classes"', b"a\nb\nc\nd\ne")), "class names is 5; from 2 to 4"),
    "a long name": (multipart(picture(), ('name="classes"', b"a\n" + b"b" * 201)), "at most 200 characters"),
    "one name twice": (multipart(picture(), ('name="classes"', b"a_b\na b")), "the same words"),
    "a control token": (multipart(picture(), ('name="classes"', b"a\n</s>")), "control token"),
    "one name": (multipart(picture(), ('name="classes"', b"cat; dog")), "class names is 1; from 2 to 4 are allowed"),
    "no names": (multipart(picture(), ('name="classes"', b" ")), "class names is 0"),
    "thousands of fields": (multipart(*[(f'name="x{n}"', b"1") for n in range(5000)]), "Too many fields"),
    "a long field": (multipart(picture(), ('name="top"', b"1" * 10_000)), "exceeded maximum size"),
    "thousands of headers": (b"--b\r\n" + b"A: b\r\n" * 5000, "cannot be read"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_forms(case: str) -> None:
    body, message = UNUSABLE[case]
    with pytest.raises(InputError) as caught:
        parse(FORM, body, LIMITS)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"9" * 10_000, "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[]", "expected a JSON object"),
        (b'{"images": "x"}', "images: "),
        (b'{"images": [1]}', "images.0: "),
        (b'{"images": ["*"]}', "image 1 is not valid base64"),
        (b'{"images": []}', "no images"),
        (b'{"images": ["aaaa"], "classes": "a,b"}', "classes"),
        (b'{"images": ["aaaa"], "classes": [1]}', "classes"),
        (b'{"images": ["aaaa"], "classes": ["\\ud800"]}', "not valid JSON"),
    ],
)
def test_unusable_json(body: bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse("application/json", body, LIMITS)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["", "text/plain", "multipart/mixed; boundary=b"])
def test_other_content_types(kind: str) -> None:
    with pytest.raises(HTTPException) as caught:
        parse(kind, b"", LIMITS)
    assert caught.value.status_code == 415


@pytest.mark.parametrize("n_images", [4, 5000])
def test_too_many_images(n_images: int) -> None:
    for kind, body in {
        FORM: multipart(*[picture(data=b"x")] * n_images),
        "application/json": json.dumps({"images": ["aaaa"] * n_images}).encode(),
    }.items():
        with pytest.raises(HTTPException) as caught:
            parse(kind, body, LIMITS)
        assert caught.value.status_code == 413 and "more than 3 images" in caught.value.detail


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of_size(width: int, height: int) -> bytes:
    """A PNG file that claims this size and holds no pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def jpeg_of_scans(n_scans: int) -> bytes:
    """A progressive JPEG file whose last scan is repeated."""
    data = file_of(Image.new("RGB", (64, 64), "red"), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * n_scans + data[-2:]


REFUSED = {
    "garbage": (b"\x00\x01garbage", 415),
    "empty": (b"", 415),
    "HTML": (b"<script>alert(1)</script>", 415),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', 415),
    "EPS, which starts a program": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n", 415),
    "truncated": (file_of(Image.effect_noise((200, 200), 90), "PNG")[:5000], 415),
    "truncated JPEG": (file_of(Image.effect_noise((200, 200), 90), "JPEG")[:3000], 415),
    "bomb beyond Pillow's limit": (png_of_size(60_000, 60_000), 413),
    "bomb below Pillow's limit": (png_of_size(1001, 1000), 413),
    "16 bits": (file_of(Image.new("I;16", (600, 600)), "PNG"), 413),
    "one pixel wide": (file_of(Image.new("RGB", (1, 5000)), "PNG"), 415),
    "one pixel high": (file_of(Image.new("L", (5000, 1)), "PNG"), 415),
    "hours of scans": (jpeg_of_scans(2000), 415),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_images(case: str, tiny: Backbone) -> None:
    data, status = REFUSED[case]
    found = decode(Upload("evil\n.png", data), tiny)
    assert isinstance(found, HTTPException) and found.status_code == status
    assert "evil .png" in found.detail and "\n" not in found.detail


def test_what_decoding_costs() -> None:
    """Pixels, four times as much for 16 bits, the scans beyond those of an ordinary progressive file, and texts to unpack."""
    texts = png_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1_000_000))) * 60
    files = {
        RED[:-12] + texts + RED[-12:]: 3e6,
        RED: 1600,
        file_of(Image.new("I;16", (400, 400)), "PNG"): 4 * 400 * 400,
        jpeg_of_scans(0): 64 * 64,
        jpeg_of_scans(80): 8.6 * 64 * 64,
    }
    for data, cost in files.items():
        opened = open_upload(Upload("a", data), LIMITS)
        assert isinstance(opened, OpenedImage) and opened.cost == pytest.approx(cost, rel=0.05)


def test_images_are_read_as_files_are(tiny: Backbone, tmp_path) -> None:
    """Rotation, transparency, palettes: the pixels are those of `predict`."""
    image = Image.new("RGBA", (30, 20), (255, 0, 0, 100))
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, data in {
        "a.png": file_of(image, "PNG", exif=exif),
        "b.jpg": file_of(image.convert("RGB"), "JPEG", exif=exif),
        "c.gif": file_of(image.convert("P"), "GIF"),
        "d.png": file_of(Image.new("I;16", (400, 400)), "PNG"),
        "e.jpg": jpeg_of_scans(2),
    }.items():
        (tmp_path / name).write_bytes(data)
        expected = eval_pixels(open_image(tmp_path / name), tiny.preprocess, name)
        assert np.array_equal(decode(Upload(name, data), tiny), expected)


def test_a_form_without_a_boundary() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        parse("multipart/form-data", multipart(picture()), LIMITS)
