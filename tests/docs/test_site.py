"""The site builds without warnings, loads nothing from other servers, and has every public name and command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import slimprompt
from slimprompt.cli import app
from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(module, reason=f"{module} is not installed (pip install 'slimprompt[docs]')")
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-c",
        "docs",
        "-d",
        str(folder / "doctrees"),
    ]
    done = subprocess.run([*command, ".", str(folder / "html")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def pages(site: Path) -> dict[str, str]:
    """The built pages by their path in the site."""
    return {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}


def test_nothing_is_loaded_from_other_servers(site: Path) -> None:
    loading = re.compile(r"<(?:link|script|img|iframe|source|video|audio|object|embed|use)\b[^>]*")
    for name, text in pages(site).items():
        for tag in loading.findall(text):
            assert not re.search(r"""(?:src|href|data)=["']?(?:https?:)?//""", tag), f"{name}: {tag}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_every_document_and_notebook_is_a_page(site: Path) -> None:
    sources = [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("notebooks/*.ipynb"),
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
    ]
    for source in sources:
        assert (site / source.relative_to(ROOT).with_suffix(".html")).is_file(), source.name
    assert "url=docs/index.html" in (site / "index.html").read_text(encoding="utf-8")


def test_links_between_pages_lead_to_existing_places(site: Path) -> None:
    """Also those of the theme and the generated parts, which Sphinx does not check."""
    found = pages(site)
    anchors = {name: set(re.findall(r"""\bid=["']([^"']+)""", text)) for name, text in found.items()}
    for name, text in found.items():
        for link in re.findall(r"""<a\b[^>]*\bhref=["']([^"']*)""", text):
            target, _, anchor = link.partition("#")
            if re.match(r"\w+:", link):
                continue
            path = (site / name).parent / target if target else site / name
            assert path.resolve().is_file(), f"{name}: {link}"
            if anchor and path.suffix == ".html":
                assert anchor in anchors[str(path.resolve().relative_to(site.resolve()))], f"{name}: {link}"


@pytest.mark.parametrize("document", ["README.md", "SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_links_of_other_documents_lead_to_existing_places(site: Path, document: str) -> None:
    for target, anchor in re.findall(r"\]\(([\w./]+)\.md#([^)]+)\)", (ROOT / document).read_text(encoding="utf-8")):
        page = (site / f"{target}.html").read_text(encoding="utf-8")
        assert f'id="{anchor}"' in page, f"{document}: {target}.md#{anchor}"


def test_the_reference_has_every_public_name_and_command(site: Path) -> None:
    api = (site / "docs" / "api.html").read_text(encoding="utf-8")
    for name in slimprompt.__all__:
        assert f'id="slimprompt.{name}"' in api, name
    commands = (site / "docs" / "commands.html").read_text(encoding="utf-8")
    for name in typer.main.get_command(app).commands:
        assert f"slimprompt {name}" in commands, name
    assert "--prompt-batch" in commands


def test_the_file_formats_are_those_of_the_schemas(site: Path) -> None:
    from slimprompt.lab.spec import RunSpec
    from slimprompt.prompts.spec import PromptSpec
    from slimprompt.saved import Description

    formats = (site / "docs" / "formats.html").read_text(encoding="utf-8")
    for schema in (Description, PromptSpec, RunSpec):
        for name in schema.model_fields:
            assert f">{name}</span>" in formats, name
    assert "Probabilities are softmax(logits / temperature)" in formats
    assert "generated:" not in formats
