"""`slimprompt serve`: an HTTP service and a web page for saved models."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from slimprompt.cli.options import ModelOptions, model_options, options_from
from slimprompt.cli.printing import note, say
from slimprompt.cli.stopping import resumable
from slimprompt.errors import InputError, validate
from slimprompt.extras import require_extra
from slimprompt.files import read_text
from slimprompt.service.limits import Limits

if TYPE_CHECKING:
    from slimprompt.service.models import ServedModel

TOKEN_VARIABLE = "SLIMPROMPT_TOKEN"
_SHORTEST_TOKEN = 16


@model_options("pretrained", "activation", "device", "precision")
@options_from(Limits, *Limits.model_fields, into="limits", panel="Limits", defaults=Limits().model_dump())
def serve(
    models: list[Path] = typer.Argument(..., help="Folders of saved models, or hf:user/name."),
    host: str = typer.Option(
        "127.0.0.1", help="Address to listen on. 0.0.0.0 lets other machines in; use a token then."
    ),
    port: int = typer.Option(8000, min=0, max=65535, help="Port; 0 for a free one."),
    token_file: Path | None = typer.Option(
        None, help=f"File with a token that clients must send. Default: ${TOKEN_VARIABLE}, if it is set."
    ),
    *,
    limits: dict[str, Any],
    model_options: ModelOptions,
) -> None:
    """Serve saved models over HTTP, with a web page.

    Example: slimprompt serve my-prompt
    Example: slimprompt serve my-prompt my-head --port 9000 --token-file token.txt
    """
    checked = validate(Limits, limits, "service")
    token = read_token(token_file)
    require_extra("serve", "the service")
    from slimprompt.service.app import create_app
    from slimprompt.service.models import load_models
    from slimprompt.service.server import LOOPBACK_NAMES, address, bind, is_loopback, make_server
    from slimprompt.service.server import serve as run

    with bind(host, port) as bound:  # before the models are loaded: a port in use is known at once
        local = is_loopback(bound)
        chosen = model_options.model_dump(include={"pretrained", "activation", "device", "precision"})
        served = load_models(models, **chosen)
        hosts = LOOPBACK_NAMES | {host.lower()} if local and token is None else None
        server = make_server(create_app(served, checked, token=token, hosts=hosts))
        bound.listen(128)
        _announce(served, address(bound), local=local, has_token=token is not None)
        with resumable("requests that had begun were answered"):
            run(server, bound)


def read_token(path: Path | None) -> str | None:
    """The token of a file, or of the environment variable if there is no file; None without both."""
    if path is not None:
        token, source = read_text(path, most=4096).strip(), str(path)
    else:
        token, source = os.environ.get(TOKEN_VARIABLE, "").strip(), f"${TOKEN_VARIABLE}"
        if not token:
            return None
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"the token in {source} cannot be used: expected at least {_SHORTEST_TOKEN} printable ASCII characters without "
            "spaces, such as those that Python's secrets.token_urlsafe() makes"
        )
    return token


def _announce(models: dict[str, ServedModel], where: str, *, local: bool, has_token: bool) -> None:
    for model in models.values():
        facts = model.describe()
        say(f"{model.name}: {facts.method}, {len(facts.classes):,} classes, {facts.backbone}")
    if not local and not has_token:
        note(
            "Everyone who can reach this machine can use the service:",
            f"set ${TOKEN_VARIABLE} or --token-file, or leave out --host.",
        )
    say(f"listening on {where} (a web page; Ctrl-C stops)")
    sys.stdout.flush()  # also into a pipe or a file: the service may run for weeks
