"""A local stand-in for the Hugging Face hub: the calls that huggingface_hub makes to create, push to and read a model.

It listens on the loopback interface and ends with the block of `hub()`. Every push is one commit; all commits can be read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

import pytest

TOKEN = "hf_token_that_may_write"
READ_ONLY = "hf_token_that_may_only_read"


@dataclass
class Repository:
    """Files of each commit, the newest last."""

    private: bool = False
    gated: bool = False
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)

    def commit(self, files: dict[str, bytes]) -> str:
        """Add a commit with these files and return its hash."""
        text = json.dumps([len(self.commits), sorted((name, data.hex()) for name, data in files.items())])
        self.commits.append((hashlib.sha1(text.encode()).hexdigest(), files))
        return self.commits[-1][0]

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1][1]

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """A commit by its hash; the newest for "main"."""
        return (
            self.commits[-1] if revision == "main" else next((one for one in self.commits if one[0] == revision), None)
        )


@dataclass
class Hub:
    """The state of the server."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """Content that was uploaded by Git LFS, by its sha256."""
    lfs_suffixes: tuple[str, ...] = ()
    """Files with these suffixes are uploaded by Git LFS, the others in the commit."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes that the server claims for files of this name."""
    failing: bool = False
    """Answer every request with status 503."""
    broken: re.Pattern[str] | None = None
    """The connection is lost at requests `<method> <path>` that contain this pattern."""
    requests: list[str] = field(default_factory=list)
    """Method and path of every request."""


@contextmanager
def hub() -> Iterator[Hub]:
    """A running server."""
    state = Hub()
    handler = type("Handler", (_Handler,), {"hub": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=[0.02], daemon=True)  # seconds until it notices `shutdown`
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub read files from this address; before version 1.0, a second module had the template of their URLs."""
    from huggingface_hub import constants

    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with HF_HUB_OFFLINE=1; before version 1.0, huggingface_hub looked at it only when it opened a session."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if opened := getattr(_http, "_get_session_from_cache", None):
        monkeypatch.setattr(_http, "_get_session_from_cache", opened.__wrapped__)


class _Refusal(Exception):
    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status, self.code, self.message = status, code, message


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    do_GET = do_POST = do_PUT = do_HEAD

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(self.path.partition("?")[0])
        self.hub.requests.append(f"{self.command} {path}")
        try:
            if self.hub.failing:
                raise _Refusal(503, "", "out of order")
            if self.hub.broken and self.hub.broken.search(self.hub.requests[-1]):
                self.close_connection = True
                return None
            for method, pattern, call in _CALLS:
                found = re.fullmatch(pattern, path)
                if found and self.command in method:
                    return call(self, *found.groups(), body=body)
            raise _Refusal(404, "", f"no such call: {self.command} {path}")
        except _Refusal as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
            self._send({"error": refusal.message}, refusal.status, {k: v for k, v in headers.items() if v})

    def _send(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    # ---------------------------------------------------------------- access

    @property
    def _token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _repository(self, name: str, *, write: bool = False) -> Repository:
        found = self.hub.repositories.get(name)
        if write and self._token != TOKEN:
            raise _Refusal(403 if self._token else 401, "", "Forbidden: this token cannot write")
        if found is None or (found.private and not self._token):
            raise _Refusal(401 if not self._token else 404, "RepoNotFound", "Repository not found")
        if found.gated and not write:
            raise _Refusal(403, "GatedRepo", "Access to this model is restricted")
        return found

    # ---------------------------------------------------------------- calls

    def create(self, *, body: bytes) -> None:
        wanted = json.loads(body)
        if self._token != TOKEN:
            raise _Refusal(403 if self._token else 401, "", "You don't have the rights to create a model")
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.hub.repositories:
            return self._send({"error": "You already created it", "url": f"{self.hub.address}/{name}"}, 409)
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        repository = self.hub.repositories[name] = Repository(private=private)
        repository.commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        return self._send({"url": f"{self.hub.address}/{name}", "name": name})

    def info(self, name: str, *, body: bytes) -> None:
        found = self._repository(name)
        self._send(
            {
                "id": name,
                "modelId": name,
                "sha": found.commits[-1][0],
                "private": found.private,
                "tags": [],
                "siblings": [{"rfilename": file} for file in found.files],
            }
        )

    def validate_yaml(self, *, body: bytes) -> None:
        content = json.loads(body)["content"]
        if "license: nonsense" in content:
            return self._send({"errors": [{"message": '"license" must be one of [mit, ...]'}], "warnings": []}, 400)
        return self._send({"errors": [], "warnings": []})

    def preupload(self, name: str, revision: str, *, body: bytes) -> None:
        self._repository(name, write=True)
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(self.hub.lfs_suffixes or ("\0",)) else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        self._send({"files": files})

    def lfs_batch(self, name: str, *, body: bytes) -> None:
        self._repository(name, write=True)
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.hub.address}/lfs/{one['oid']}"}}}
            for one in json.loads(body)["objects"]
        ]
        self._send({"transfer": "basic", "objects": objects})

    def lfs_upload(self, oid: str, *, body: bytes) -> None:
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.objects[oid] = body
        self._send({})

    def commit(self, name: str, revision: str, *, body: bytes) -> None:
        repository = self._repository(name, write=True)
        files = dict(repository.files)
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        oid = repository.commit(files)
        self._send({"commitUrl": f"{self.hub.address}/{name}/commit/{oid}", "commitOid": oid, "success": True})

    def resolve(self, name: str, revision: str, file: str, *, body: bytes) -> None:
        found = self._repository(name).at(revision)
        if found is None:
            raise _Refusal(404, "RevisionNotFound", "Invalid rev id")
        commit, files = found
        if file not in files:
            raise _Refusal(404, "EntryNotFound", "Entry not found")
        data = files[file]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        if file in self.hub.sizes:
            headers["X-Linked-Size"] = str(self.hub.sizes[file])
        self._send(data, 200, headers)


_CALLS = (
    (("POST",), r"/api/repos/create", _Handler.create),
    (("POST",), r"/api/validate-yaml", _Handler.validate_yaml),
    (("GET",), r"/api/models/([^/]+/[^/]+?)(?:/revision/main)?", _Handler.info),
    (("POST",), r"/api/models/([^/]+/[^/]+)/preupload/(.+)", _Handler.preupload),
    (("POST",), r"/api/models/([^/]+/[^/]+)/commit/(.+)", _Handler.commit),
    (("POST",), r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", _Handler.lfs_batch),
    (("PUT",), r"/lfs/(\w+)", _Handler.lfs_upload),
    (("HEAD", "GET"), r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", _Handler.resolve),
)
