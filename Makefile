# make serve and make test need Debian's python3 (3.11 or newer) with venv and pip, nothing else.
PYTHON ?= python3
# What pip is asked for. Elsewhere than on a GPU machine a CPU build is the smaller choice.
TORCH ?= torch==2.13.0
# Where from, if not from PyPI: https://download.pytorch.org/whl/cpu has the CPU build.
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
# Bytecode is made of what is imported, when it is: of everything pip installs it takes minutes.
PIP_INSTALL := $(BIN)/pip install --quiet --no-compile
export PYTHONDONTWRITEBYTECODE :=

.PHONY: serve test test-full check fmt bench docs demo-accuracy clean

serve: $(VENV)/.serve
	$(BIN)/packhorse serve

test: $(VENV)/.test
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-full: $(VENV)/.conformance
	$(BIN)/pytest -m "long or not long" --timeout 900 --session-timeout 14400 --results test-results/full.json

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(VENV)/.check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test
	$(BIN)/packhorse bench ladder

docs: $(VENV)/.docs
	$(BIN)/python scripts/docs_site.py

demo-accuracy: $(VENV)/.serve
	$(BIN)/python -m packhorse.tools.demo

$(VENV)/.torch: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) '$(TORCH)' $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)')
	touch $@

$(VENV)/.serve: $(VENV)/.torch
	$(PIP_INSTALL) --editable .
	touch $@

$(VENV)/.test: $(VENV)/.torch
	$(PIP_INSTALL) --editable '.[test]'
	touch $(VENV)/.serve $@

$(VENV)/.conformance: $(VENV)/.torch
	$(PIP_INSTALL) --editable '.[test,conformance]'
	touch $(VENV)/.serve $(VENV)/.test $@

$(VENV)/.check: $(VENV)/.torch
	$(PIP_INSTALL) --editable '.[test,check]'
	touch $(VENV)/.serve $(VENV)/.test $@

$(VENV)/.docs: $(VENV)/.serve
	$(PIP_INSTALL) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist site test-results
