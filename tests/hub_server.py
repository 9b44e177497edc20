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
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": state}))
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


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(self.path.partition("?")[0])
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.broken and self.hub.broken.search(self.hub.requests[-1]):
            self.close_connection = True
            return
        status, content, headers = (503, {}, {}) if self.hub.failing else self.answer(path.strip("/").split("/"), body)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_HEAD

    def answer(self, path: list[str], body: bytes) -> tuple[int, Any, dict[str, str]]:
        """Status, content and headers."""
        hub, token = self.hub, (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        name = "/".join(path[2:4] if path[0] == "api" else path[:2]).removesuffix(".git")
        writes = self.command in ("POST", "PUT")
        if path == ["api", "validate-yaml"]:
            wrong = [{"message": '"license" must be one of [mit, ...]'}] if b"license: nonsense" in body else []
            return 400 if wrong else 200, {"errors": wrong, "warnings": []}, {}
        if path[0] == "lfs":
            hub.objects[path[1]] = body
            return 200, {}, {}
        if writes and token != TOKEN:
            return 403 if token else 401, {"error": "Forbidden: this token cannot write"}, {}
        if path == ["api", "repos", "create"]:
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            exists = name in hub.repositories
            if not exists:
                private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
                hub.repositories[name] = Repository(private=private)
                hub.repositories[name].commit({".gitattributes": b"*.safetensors filter=lfs\n"})
            return 409 if exists else 200, {"url": f"{hub.address}/{name}", "name": name}, {}
        repository = hub.repositories.get(name)
        if repository is None or (repository.private and not token):
            return 404 if token else 401, {}, {"X-Error-Code": "RepoNotFound"}
        if repository.gated and not writes:
            return 403, {}, {"X-Error-Code": "GatedRepo"}
        if path[-1:] == ["batch"]:
            objects = [
                {**one, "actions": {"upload": {"href": f"{hub.address}/lfs/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            return 200, {"transfer": "basic", "objects": objects}, {}
        if "preupload" in path:
            modes = {True: "lfs", False: "regular"}
            files = [
                {
                    "path": one["path"],
                    "uploadMode": modes[one["path"].endswith(hub.lfs_suffixes)],
                    "shouldIgnore": False,
                }
                for one in json.loads(body)["files"]
            ]
            return 200, {"files": files}, {}
        if "commit" in path:
            changed = dict(repository.files)
            for entry in map(json.loads, body.splitlines()):
                value = entry["value"]
                if entry["key"] == "file":
                    changed[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    changed[value["path"]] = hub.objects[value["oid"]]
                elif entry["key"] == "deletedFile":
                    del changed[value["path"]]
            oid = repository.commit(changed)
            return 200, {"commitUrl": f"{hub.address}/{name}/commit/{oid}", "commitOid": oid, "success": True}, {}
        if path[0] == "api":
            facts = {"id": name, "modelId": name, "sha": repository.commits[-1][0], "private": repository.private}
            return 200, facts | {"tags": [], "siblings": [{"rfilename": file} for file in repository.files]}, {}
        _, _, _, revision, *file_path = path  # <user>/<name>/resolve/<revision>/<file>
        oid, file = repository.commits[-1][0] if revision == "main" else revision, "/".join(file_path)
        if oid not in dict(repository.commits):
            return 404, {}, {"X-Error-Code": "RevisionNotFound"}
        files_then = dict(repository.commits)[oid]
        if file not in files_then:
            return 404, {}, {"X-Error-Code": "EntryNotFound"}
        headers = {"X-Repo-Commit": oid, "ETag": f'"{hashlib.sha256(files_then[file]).hexdigest()}"'}
        if file in hub.sizes:
            headers["X-Linked-Size"] = str(hub.sizes[file])
        return 200, files_then[file], headers
