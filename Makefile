# Everything runs in ./.venv (this package) and ./.venv-emulator (the embedded AWS), from locked files.
PYTHON ?= python3
UV_VERSION := 0.13.9
VENV := .venv
EMULATOR := .venv-emulator
PY := $(VENV)/bin/python
NODE = $(shell $(PY) -c "from infra.node import pinned_node; print(pinned_node())")
NPM = $(NODE) $(dir $(NODE))../lib/node_modules/npm/bin/npm-cli.js

.DEFAULT_GOAL := help
.PHONY: help install demo test check unit emulator control-plane cluster bench lock format clean

help:
	@echo "make demo     deploy the reference environment to an embedded AWS, read it back (installs first)"
	@echo "make test     everything that CI runs (installs first)"
	@echo "make install  virtual environments and the pinned CDK CLI, nothing outside this folder"
	@echo "make check    ruff, mypy      make unit  fast tests      make emulator  deploys to the embedded AWS"
	@echo "make control-plane  build a real Kubernetes control plane once      make cluster  tests on it"
	@echo "make bench    time of a render, and its growth with the number of pools"
	@echo "make lock     resolve the locked dependency files anew"

install: $(VENV)/.installed $(EMULATOR)/.installed node_modules/.installed

$(VENV)/.installed: requirements.lock pyproject.toml images/runtime/pyproject.toml
	@echo "install: python packages (about 4 GB, most of it torch with CUDA; a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(VENV)/bin/uv pip install --quiet --python $(PY) --require-hashes --requirement requirements.lock
	@$(VENV)/bin/uv pip install --quiet --python $(PY) --no-deps --no-build-isolation --editable . --editable images/runtime
	@touch $@

$(EMULATOR)/.installed: infra/local/emulator/requirements.lock $(VENV)/.installed
	@echo "install: embedded AWS"
	@$(PYTHON) -m venv $(EMULATOR)
	@$(VENV)/bin/uv pip install --quiet --python $(EMULATOR)/bin/python --require-hashes --requirement infra/local/emulator/requirements.lock
	@touch $@

node_modules/.installed: package-lock.json $(VENV)/.installed
	@echo "install: CDK CLI"
	@$(NPM) ci --silent --no-audit --no-fund
	@touch $@

demo: install
	@$(PY) -m infra.local.demo

test: install
	@$(PY) -m tests.run

check: install
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

unit: install
	@$(PY) -m pytest -m "not emulator and not cluster"

emulator: install
	@$(PY) -m pytest -m emulator

control-plane: install
	@$(PY) -m tests.cluster.build

cluster: control-plane
	@$(PY) -m pytest -m cluster

bench: install
	@$(PY) -m benchmarks.render
	@$(PY) -m benchmarks.charts

format: install
	@$(VENV)/bin/ruff check --fix --quiet .
	@$(VENV)/bin/ruff format --quiet .

lock: install
	@$(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-emit-index-url --extra dev --extra smoke pyproject.toml --output-file requirements.lock
	@$(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-emit-index-url --python-version 3.11 infra/local/emulator/requirements.in --output-file infra/local/emulator/requirements.lock

clean:
	@rm -rf $(VENV) $(EMULATOR) node_modules dist cdk.out
