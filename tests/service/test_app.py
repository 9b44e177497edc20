"""The application: answers equal to `predict`, options, description, metrics, token, headers."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from slimprompt.service.app import create_app
from slimprompt.service.limits import Limits
from slimprompt.service.models import ServedModel
from slimprompt.service.server import LOOPBACK_NAMES
from tests.html_page import Page
from tests.service.conftest import RED, file_of, form, served

#: More pixels than an image may have.
LARGE = file_of(Image.new("1", (5001, 5000)))


@pytest.fixture(scope="module")
def client(models: dict[str, ServedModel]) -> Iterator[TestClient]:
    with TestClient(create_app(models)) as client:
        yield client


@pytest.fixture
def files(photos: Path) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (path.name, path.read_bytes())) for path in sorted(photos.glob("*/0.png"))]


@pytest.mark.parametrize("name", ["prompt", "gda", "zero-shot"])
def test_answers_are_those_of_the_classifier(client, models, files, photos, name):
    answer = client.post("/predict", files=files, data={"model": name, "top": 2}).json()
    classifier = models[name].classifier
    probabilities = classifier.predict_proba(sorted(photos.glob("*/0.png")))
    assert answer["model"] == name and "zero_shot" not in answer
    for row, expected in zip(answer["predictions"], probabilities, strict=True):
        assert set(row) == {"image", "answer", "concept_match", "classes", "error"} and row["error"] is None
        assert row["image"] == "0.png" and row["answer"] == classifier.classes_[expected.argmax()]
        assert row["classes"][0]["probability"] == pytest.approx(expected.max(), abs=1e-5)
        assert len(row["classes"]) == 2


def test_json_and_forms_have_the_same_answer(client, files):
    texts = [base64.b64encode(data).decode() for _, (_, data) in files]
    options = {"model": "prompt", "top": 3, "classes": ["cat", "dog", "otter"], "min_confidence": 0.5}
    by_json = client.post("/predict", json={"images": texts, **options}).json()["predictions"]
    by_form = client.post("/predict", files=files, data=options).json()["predictions"]
    assert [row["classes"] for row in by_json] == [row["classes"] for row in by_form]
    assert [row["image"] for row in by_json] == ["image 1", "image 2", "image 3"]
    assert {entry["name"] for entry in by_form[0]["classes"]} == {"cat", "dog", "otter"}


def test_thresholds(client, models, files):
    def answers(**options):
        response = client.post("/predict", files=files, data={"model": "prompt", **options})
        return [row["answer"] for row in response.json()["predictions"]]

    assert answers(min_confidence=1) == ["none of these"] * 3
    assert "none of these" not in answers(min_confidence=0)
    threshold = models["prompt"].classifier.calibration_.threshold(0.5)
    assert answers(coverage=0.5) == answers(min_confidence=threshold)
    response = client.post("/predict", files=files, data={"model": "gda", "coverage": 0.5})
    assert response.status_code == 422 and "this model has none" in response.json()["detail"]


def test_zero_shot_beside_the_prompt(client, files):
    data = {"model": "prompt", "zero_shot": "true", "top": 3, "classes": "cat\ndog\notter"}
    both = client.post("/predict", files=files, data=data).json()
    alone = client.post("/predict", files=files, data={**data, "model": "zero-shot", "zero_shot": ""}).json()
    assert both["zero_shot"] == alone["predictions"]
    assert both["zero_shot"] != both["predictions"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "several models are served: set model to one of prompt, gda, zero-shot"),
        ({"model": "pormpt"}, "did you mean 'prompt'?"),
        ({"model": "gda", "classes": "otter\nbadger"}, "cannot take new class names (otter, badger)"),
        ({"model": "prompt", "classes": "otter\n" + "word " * 39}, "does not fit"),
        ({"model": "prompt", "top": "many"}, "top"),
    ],
)
def test_unusable_options_are_one_line(client, files, data, message):
    response = client.post("/predict", files=files, data=data)
    assert response.status_code == 422
    assert message in response.json()["detail"] and "\n" not in response.json()["detail"]


def test_unreadable_images_do_not_refuse_the_others(client, files):
    bad = form(b"no image", LARGE)
    alone = client.post("/predict", files=files, data={"model": "gda"}).json()
    data = {"model": "gda", "zero_shot": "true"}
    mixed = client.post("/predict", files=[bad[0], *files, bad[1]], data=data).json()
    assert [row["answer"] for row in mixed["predictions"][1:-1]] == [row["answer"] for row in alone["predictions"]]
    for rows in (mixed["predictions"], mixed["zero_shot"]):
        assert len(rows) == len(files) + 2
        for row, reason in ((rows[0], "0.png is not an image"), (rows[-1], "1.png has more than 25 megapixels")):
            assert row["error"].startswith(reason) and row["answer"] is row["concept_match"] is None
            assert row["classes"] == []


def test_if_no_image_can_be_read_the_request_is_refused(client):
    response = client.post("/predict", files=form(b"no image", LARGE), data={"model": "gda"})
    assert response.status_code == 415 and response.json()["detail"].startswith("0.png is not an image")


def test_pixels_of_a_request_are_limited(only_prompt):
    image = file_of(Image.new("1", (1000, 1000)))
    with TestClient(create_app(only_prompt, Limits(max_request_megapixels=3))) as client:
        assert client.post("/predict", files=form(*[image] * 3)).status_code == 200
        response = client.post("/predict", files=form(*[image] * 4))
        assert response.status_code == 413 and "--max-request-megapixels" in response.json()["detail"]


def test_description_and_health(client, photos):
    assert client.get("/health").json() == {"status": "ok"}
    facts = client.get("/classes").json()
    assert [model["name"] for model in facts["models"]] == ["prompt", "gda", "zero-shot"]
    assert facts["models"][0]["classes"] == sorted(path.name for path in photos.iterdir())
    assert facts["limits"] == Limits().model_dump()


def test_metrics(only_prompt):
    with TestClient(create_app(only_prompt)) as client:
        client.post("/predict", files=form(RED, RED))
        client.post("/predict", files=form(b""))
        text = client.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['slimprompt_requests_total{status="200"}'] == "1"
    assert values['slimprompt_requests_total{status="415"}'] == "1"
    assert values["slimprompt_images_total"] == values["slimprompt_encoded_images_total"] == "2"
    assert values["slimprompt_batches_total"] == "1"
    buckets = [int(value) for name, value in values.items() if "_bucket" in name]
    assert buckets == sorted(buckets) and buckets[-1] == int(values["slimprompt_predict_seconds_count"]) == 2
    assert float(values["slimprompt_predict_seconds_sum"]) > 0
    assert values["slimprompt_queue_requests"] == values["slimprompt_admitted_images"] == "0"
    assert int(values["slimprompt_resident_memory_bytes"]) > 1e7
    described = re.findall(r"^# TYPE (\S+) (counter|gauge|histogram)$", text, re.MULTILINE)
    assert len(described) == 8 and all(any(name.startswith(one) for one, _ in described) for name in values)


def test_the_openapi_document(client):
    document = client.get("/openapi.json").json()
    assert set(document["paths"]) == {"/predict", "/classes", "/health", "/metrics"}
    bodies = document["paths"]["/predict"]["post"]["requestBody"]["content"]
    for kind in ("multipart/form-data", "application/json"):
        assert {"images", "model", "top", "min_confidence", "classes"} <= set(bodies[kind]["schema"]["properties"])
    assert {"401", "413", "415", "422", "429"} <= set(document["paths"]["/predict"]["post"]["responses"])


def test_the_page_holds_nothing_external(client):
    response = client.get("/")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    page = Page(response.text)
    addresses = [a.get("src") or a.get("href") for tag, a in page.elements if tag in ("script", "link", "img")]
    assert sorted(addresses) == ["base.css", "icon.svg", "page.css", "page.js"]
    for address in addresses:
        found = client.get(f"/{address}")
        assert found.status_code == 200 and found.headers["x-content-type-options"] == "nosniff"
        assert "http://" not in found.text.replace("http://www.w3.org/2000/svg", "") and "https://" not in found.text
    handlers = [
        name for _, attributes in page.elements for name in attributes if name.startswith("on") or name == "style"
    ]
    assert handlers == []
    labelled = {label["for"] for label in page.all("label")}
    fields = [a["id"] for tag, a in page.elements if tag in ("input", "select", "textarea")]
    assert set(fields) == labelled


def test_a_token(only_prompt):
    with TestClient(create_app(only_prompt, token="a-secret-token-1234")) as client:
        for header in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic a-secret-token-1234"},
            {"Authorization": b"Bearer \xff\xfe"},
        ):
            for response in (
                client.post("/predict", files=form(RED), headers=header),
                client.get("/classes", headers=header),
                client.get("/metrics", headers=header),
            ):
                assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": "Bearer a-secret-token-1234"}
        assert client.post("/predict", files=form(RED), headers=right).status_code == 200
        assert client.get("/metrics", headers=right).status_code == 200
        assert client.get("/health").status_code == client.get("/").status_code == 200


def test_other_web_sites_are_refused(only_prompt):
    app = create_app(only_prompt, hosts=LOOPBACK_NAMES)
    for host, status in {
        "localhost": 200,
        "LOCALHOST:80": 200,
        "[::1]:8000": 200,
        "evil.example": 400,
        "": 400,
    }.items():
        with TestClient(app, headers={"Host": host}) as client:
            assert client.get("/health").status_code == status, host
        app = create_app(only_prompt, hosts=LOOPBACK_NAMES)
    with TestClient(create_app(only_prompt)) as client:
        cross = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
        assert client.post("/predict", files=form(RED), headers=cross).status_code == 403
        assert client.get("/", headers={**cross, "Sec-Fetch-Mode": "navigate"}).status_code == 200  # a link
        assert client.post("/predict", files=form(RED), headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_a_bug_is_one_answer_and_not_the_end(only_prompt, monkeypatch):
    app = create_app(only_prompt)
    with TestClient(app, raise_server_exceptions=False) as client:
        monkeypatch.setattr("slimprompt.service.app._predictions", lambda *_: 1 / 0)
        response = client.post("/predict", files=form(RED))
        assert response.status_code == 500 and response.json() == {
            "detail": "this is a bug in slimprompt (ZeroDivisionError)"
        }
        monkeypatch.undo()
        assert client.post("/predict", files=form(RED)).status_code == 200
        assert 'status="500"} 1' in client.get("/metrics").text


def test_the_examples_of_the_document(only_prompt, photos, tmp_path, monkeypatch, capsys):
    """The Python block and the curl commands run as they are, but for the address."""
    text = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    monkeypatch.chdir(tmp_path)
    for name in ("a.jpg", "b.jpg"):
        Path(name).write_bytes(next(photos.glob("*/*.png")).read_bytes())
    with served(create_app(only_prompt)) as address:
        (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        exec(block.replace("http://127.0.0.1:8000", address), {})
        assert "disc" in capsys.readouterr().out
        commands = re.findall(r"^curl -F.*$", text, re.MULTILINE)
        assert len(commands) == 2
        if shutil.which("curl"):
            found = [
                json.loads(subprocess.check_output(shlex.split(one.replace("http://127.0.0.1:8000", address))))
                for one in commands
            ]
            assert [len(one["predictions"]) for one in found] == [2, 1]
            assert found[1]["predictions"][0]["answer"] in ("red panda", "otter")


def test_the_document_has_the_limits_and_their_defaults():
    text = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    listed = dict(re.findall(r"^\| `--([a-z-]+)` \| ([\d.]+) \|", text, re.MULTILINE))
    assert listed == {name.replace("_", "-"): f"{value:g}" for name, value in Limits().model_dump().items()}


def test_the_page_of_the_api(client):
    """Its scripts come from elsewhere, which is allowed on this page alone."""
    response = client.get("/docs")
    assert response.status_code == 200 and "swagger" in response.text and "openapi.json" in response.text
    assert "https:" in response.headers["content-security-policy"]
    assert "https:" not in client.get("/").headers["content-security-policy"]
