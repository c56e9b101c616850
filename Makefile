# Everything a person or a CI needs, from a bare machine with Python 3.10 or later and make.
# All paths are relative, so that a checkout below a folder with spaces in its name works too.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet --retries 10 --timeout 180
PYTEST_ARGS ?=
# Tests spend half of their time waiting: more workers than a small machine has cores. Chosen files are run by one, which
# begins at once; a later -n in PYTEST_ARGS is the one that counts.
WORKERS ?= $(if $(filter tests/%,$(PYTEST_ARGS)),0,4)
# Tests start thousands of processes: each would compile Stoker again where bytecode is not to be kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.SUFFIXES:
.DELETE_ON_ERROR:
.PHONY: help test servers demo bench bench-peers lint format clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## */\1|/p' Makefile | awk -F'|' '{ printf "  make %-11s %s\n", $$1, $$2 }'

test: $(VENV)/.test servers  ## install what the tests need, then run all of them
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

servers:
	@tests/servers/install.sh

demo: $(VENV)/.demo  ## install what the demo needs, then train a small classifier in a pipeline
	@$(BIN)/python examples/digits.py

bench: $(VENV)/.bench  ## measure what Stoker costs, a step and a start at a time
	@$(BIN)/python -m benchmarks

bench-peers: $(VENV)/.bench  ## measure flows beside Metaflow's, where that is installed
	@$(BIN)/python -m benchmarks --peers

lint: $(VENV)/.test  ## formatting, style, types and imports, without the tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python -m mypy
	@$(BIN)/lint-imports

format: $(VENV)/.test  ## rewrite the files as `make lint` wants them
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

clean:  ## remove everything that make made
	@rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made once; each stamp installs its extra again when pyproject.toml changes. The tests' extra has
# the demo's inside.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Stoker needs Python 3.10 or later: make PYTHON=python3.11")'
	@echo "making an environment in $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.%: pyproject.toml | $(BIN)/python
	@echo "installing stoker[$*] into $(VENV) (minutes the first time)" >&2
	@$(PIP) install --editable '.[$*]'
	@touch $@ $(if $(filter test,$*),$(VENV)/.demo)
