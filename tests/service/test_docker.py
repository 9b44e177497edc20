"""The Dockerfile agrees with the command: options, health check, files. It is not built: that needs a container runtime."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import typer

from slimprompt.cli import app as commands
from slimprompt.service.app import create_app
from tests.service.conftest import served

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def instruction(name: str) -> str:
    (found,) = re.findall(rf"^{name} +(.*)$", DOCKERFILE, re.MULTILINE)
    return found


def test_the_entry_point_exists():
    program, command, *options = json.loads(instruction("ENTRYPOINT"))
    assert (program, command) == ("slimprompt", "serve")
    known = {name for one in typer.main.get_command(commands).commands["serve"].params for name in one.opts}
    assert {option for option in options if option.startswith("--")} <= known
    assert options[options.index("--port") + 1] == instruction("EXPOSE")


def test_the_health_check_tells_a_running_service_from_none(only_prompt):
    program, *arguments = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    assert program == "python"

    def check(address: str) -> int:
        code = [argument.replace("http://127.0.0.1:8000", address) for argument in arguments]
        return subprocess.run([sys.executable, *code], capture_output=True, check=False).returncode

    with served(create_app(only_prompt)) as address:
        assert check(address) == 0
    assert check(address) != 0


def test_it_copies_what_the_ignore_file_lets_through():
    copied = {word for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]}
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == let_through and all((ROOT / name).exists() for name in copied)


def test_the_volume_of_the_documentation_keeps_what_is_downloaded():
    (mounted,) = re.findall(r"-v weights:(\S+)", (ROOT / "docs" / "service.md").read_text(encoding="utf-8"))
    before_user = DOCKERFILE.partition("\nUSER ")[0]
    assert f"install -d -o {instruction('USER')} -g {instruction('USER')} {mounted}\n" in before_user
    code = "from huggingface_hub import constants; from slimprompt.files import cache_dir; print(constants.HF_HUB_CACHE, cache_dir())"
    set_by_image = dict(re.findall(r"^ENV (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/home/slimprompt"}
    places = subprocess.check_output([sys.executable, "-c", code], env=environment | set_by_image, text=True).split()
    for place in (*places, "/home/slimprompt/.cache/clip"):  # the last one is open_clip's, of weights by their address
        assert Path(place).is_relative_to(mounted)


def test_it_does_not_run_as_root():
    assert int(instruction("USER")) > 0
