"""Configuration of the documentation site. `make docs` builds it; nothing is loaded from other servers.

The source folder is the repository, not `docs/`: links between documents, notebooks and source files are then the same in
the site and in the repository.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "docs")]

import reference  # noqa: E402

import slimprompt.paper.claims  # noqa: E402, F401 - all modules, before autodoc changes the annotations of pydantic's classes
from slimprompt import __version__  # noqa: E402

project = "slimprompt"
author = "The slimprompt authors"
copyright = author
release = version = __version__

root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/notes/*.md",
    "notebooks/*.ipynb",
    "examples/*.ipynb",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
]
exclude_patterns = [".*", "src", "tests", "runs", "build", "dist", "docs/_build", "benchmarks", "tools"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
default_role = "py:obj"  # a name in docstrings is a link if it is documented, and code otherwise

highlight_language = "none"  # for blocks that name no language

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
nb_execution_mode = "off"  # the notebooks are stored with their outputs, and a test executes them
nb_merge_streams = True

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
autodoc_default_options = {"members": True, "undoc-members": False}
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"slimprompt {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path = ["_templates"]
html_additional_pages = {"index": "redirect.html"}  # the first page is docs/index.html
html_copy_source = False
html_show_sphinx = False


def setup(app: object) -> None:
    """Fill in the generated parts of the reference pages."""
    app.connect("source-read", reference.fill_in)  # type: ignore[attr-defined]
