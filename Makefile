# Each target does all of its own set-up: a fresh clone needs nothing but Python 3.10+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: quickstart test test-fast check format clean

quickstart: $(STAMP)  ## set everything up and run the main job
	$(BIN)/slimprompt quickstart

test: $(STAMP)  ## set everything up and run all the tests
	$(BIN)/python -m pytest -n auto

test-fast: $(STAMP)  ## the tests without the slow ones
	$(BIN)/python -m pytest -n auto -m "not slow"

check: $(STAMP)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

# The stamp is written last, so that an interrupted installation is resumed.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing slimprompt and its dependencies into $(VENV) (a few minutes the first time) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	touch $@
