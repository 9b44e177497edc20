# Each target does all of its own set-up: a fresh clone needs nothing but Python 3.10+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LAB := $(VENV)/.with-lab
EVERYTHING := $(VENV)/.with-all,dev,docs
LOWEST := .venv-lowest

.PHONY: quickstart test test-fast test-lowest check format docs notebooks wheel clean help

quickstart: $(LAB)  ## install what the quickstart needs and run it
	$(BIN)/slimprompt quickstart

# The processes of the tests share bytecode, even where the environment turns it off.
test test-fast test-lowest: export PYTHONDONTWRITEBYTECODE :=

test: $(EVERYTHING)  ## install everything and run all tests
	$(BIN)/python -m pytest -n auto --dist worksteal

test-fast: $(EVERYTHING)  ## the tests without the slow ones
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

# uv, unlike pip, can choose the lowest versions that pyproject.toml allows. With the newest protobuf, which the oldest mlflow-skinny
# does not take, it would choose newer trackers.
test-lowest:  ## the fast tests with the lowest versions of the dependencies; PYTHON=python3.10 is the lowest Python
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[all,test]' 'protobuf==4.25.*'
	$(LOWEST)/bin/python -m pytest -n auto --dist worksteal -m "not slow"

check: $(EVERYTHING)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(EVERYTHING)  ## mend what lint and format can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(EVERYTHING)  ## build the package, install it in an empty environment and run it there
	$(BIN)/python tools/try_wheel.py --extras lab

docs: $(EVERYTHING)  ## build the documentation site; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -c docs -d docs/_build/doctrees . docs/_build/html
	@echo "the first page is docs/_build/html/index.html"

notebooks: $(EVERYTHING)  ## execute the notebooks and store their outputs
	$(BIN)/python tools/run_notebooks.py

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) $(LOWEST) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

# `.with-EXTRAS` is written last, so that an interrupted installation is resumed. uv installs faster than pip. It knows nothing of pip's
# configuration, so pip is tried where uv fails.
$(VENV)/.with-%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing slimprompt[$*] and its dependencies into $(VENV) (some minutes the first time) ..."
	{ $(BIN)/python -m pip install --quiet --disable-pip-version-check uv && \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[$*]'; } || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@
