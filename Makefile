# Each target does all of its own set-up: a fresh clone needs nothing but Python 3.10+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOWEST := .venv-lowest

.PHONY: quickstart test test-fast test-lowest check format docs notebooks wheel clean help

quickstart: $(STAMP)  ## set everything up and run the main job
	$(BIN)/slimprompt quickstart

# The processes of the tests share bytecode, even where the environment turns it off.
test test-fast test-lowest: export PYTHONDONTWRITEBYTECODE :=

test: $(STAMP)  ## set everything up and run all the tests
	$(BIN)/python -m pytest -n auto --dist worksteal

test-fast: $(STAMP)  ## the tests without the slow ones
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

# uv, unlike pip, can choose the lowest versions that pyproject.toml allows. With the newest protobuf, which the oldest mlflow-skinny
# does not take, it would choose newer trackers.
test-lowest:  ## the fast tests with the lowest versions of the dependencies; PYTHON=python3.10 is the lowest Python
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[all,test]' 'protobuf==4.25.*'
	$(LOWEST)/bin/python -m pytest -n auto --dist worksteal -m "not slow"

check: $(STAMP)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## mend what lint and format can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(STAMP)  ## build the package, install it in an empty environment and run it there
	$(BIN)/python tools/try_wheel.py --extras lab

docs: $(STAMP)  ## build the documentation site; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -c docs -d docs/_build/doctrees . docs/_build/html
	@echo "the first page is docs/_build/html/index.html"

notebooks: $(STAMP)  ## execute the notebooks and store their outputs
	$(BIN)/python tools/run_notebooks.py

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) $(LOWEST) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

# The stamp is written last, so that an interrupted installation is resumed.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing slimprompt and its dependencies into $(VENV) (a few minutes the first time) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,dev,docs]'
	touch $@
