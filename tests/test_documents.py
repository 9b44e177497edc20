"""Documents run: links lead somewhere, commands exist with the options shown, docstring examples give what they say."""

import doctest
import importlib
import pkgutil
import re
import shlex
from pathlib import Path

import pytest
import typer

import slimprompt
from slimprompt.cli import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/slimprompt/clip/models/*.md")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_table_has_a_head(document):
    """An empty line inside a table would make text of the rows below it."""
    for table in re.findall(r"(?:^\|.*\n)+", document.read_text(), re.MULTILINE):
        assert re.match(r".*\n\|[-:|]+\|\n", table), table.splitlines()[0]


def commands():
    for document in DOCUMENTS:
        for block in re.findall(r"```(?:sh|bash|console|)\n(.*?)```", document.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                line = line.strip().removeprefix("$ ")
                if line.startswith("slimprompt "):
                    yield pytest.param(line, id=f"{document.name}: {line.split('#')[0].strip()[:60]}")


@pytest.mark.parametrize("line", list(commands()))
def test_commands_exist_with_their_options(line):
    words = shlex.split(line, comments=True)[1:]
    command = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        name = words.pop(0)
        if name.startswith("-"):
            return
        assert name in command.commands, name
        command = command.commands[name]
    options = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in options | {"--help", "--debug"}, f"{word} is no option of {command.name}"


def cited_tests():
    for document in DOCUMENTS:
        for path, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", document.read_text()):
            yield pytest.param(path, name, id=f"{document.name}: {name}")


@pytest.mark.parametrize(("path", "name"), list(cited_tests()))
def test_cited_tests_exist(path, name):
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path} has no {name}"


def test_make_targets_in_documents_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        for target in re.findall(r"^make (\w+)", document.read_text(), re.MULTILINE):
            assert target in targets


def modules():
    for module in pkgutil.walk_packages(slimprompt.__path__, "slimprompt."):
        source = importlib.util.find_spec(module.name).origin
        if source and ">>> " in Path(source).read_text():
            yield module.name


@pytest.mark.parametrize("name", list(modules()))
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_python_block_of_the_readme(photos, tmp_path, monkeypatch):
    """It runs as it is but for the backbone: the real weights need a download."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    real = '"ViT-B-16", pretrained="openai"'
    assert real in block
    paths = sorted(photos.glob("*/*.png"))
    monkeypatch.chdir(tmp_path)
    Path("a.jpg").write_bytes(paths[0].read_bytes())
    names = {"paths": paths, "labels": [path.parent.name for path in paths]}
    exec(block.replace(real, '"pocket", device="cpu"'), names)
    assert Path("my-prompt", "model.safetensors").is_file()
    assert names["classifier"].classes_.tolist() == ["blue disc", "green disc", "red disc"]


def test_every_public_name_can_be_imported():
    for name in slimprompt.__all__:
        assert getattr(slimprompt, name).__doc__
    assert set(slimprompt.__all__) <= set(dir(slimprompt))
    with pytest.raises(AttributeError):
        slimprompt.nothing  # noqa: B018
