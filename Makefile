# One place for every command. All paths are relative, so a folder's name never matters.
# Each target makes .venv by itself; `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
PY := .venv/bin/python
PIP := $(PY) -m pip install -qq --disable-pip-version-check --no-input --require-hashes
MANAGE := $(PY) manage.py
TESTS ?= tests
# Workers share nothing but the machine; stores that are given from outside are for one alone.
WORKERS ?= $(if $(DATABASE_URL)$(REDIS_URL),0,2)
PYTEST := $(PY) -m pytest -q -n $(WORKERS) --no-loadscope-reorder

# What `check --deploy` is held against: a production environment, complete and made up.
DEPLOY := PORTAL_ENV=production SECRET_KEY=$$(printf 'check-only-%.0s' 1 2 3 4 5 6 7 8) \
  PUBLIC_URL=https://fairway.example ALLOWED_HOSTS=fairway.example \
  DATABASE_URL=postgres://fairway@db/fairway REDIS_URL=redis://redis:6379/0

.PHONY: help up compiled test test-long test-vllm check format bench usage-rows \
  usage-bench screenshots lock clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

up: .venv/.ready  ## Start everything and print where it is
	@$(MANAGE) up

compiled: .venv/.ready-dev  ## Compile the gateway's hot modules: half the CPU (needs a C compiler)
	@command -v cc >/dev/null || { echo "This needs a C compiler (on Debian: gcc and python3-dev)."; exit 1; }
	@$(PY) -m gateway.compiled

test: .venv/.ready-dev  ## Run the tests, with every service they need
	@$(PYTEST) -m "not long and not vllm" $(TESTS)

test-long: .venv/.ready-dev  ## Run the tests that count for a long time too
	@$(PYTEST) -m "not vllm" $(TESTS)

test-vllm: .venv/.ready-dev  ## Test against a real vLLM: make test-vllm VLLM_URL=http://gpu1:8000
	@[ -n "$${VLLM_URL:-}" ] || { echo "Name the engine: make test-vllm VLLM_URL=http://gpu1:8000"; exit 1; }
	@$(PY) -m pytest -q -m vllm tests/gateway/wire/test_vllm.py

check: .venv/.ready-dev  ## Check format, lint, types, templates, migrations, deployment, rooms
	@$(PY) -m ruff format --check -q . || { echo "Format differs: run make format."; exit 1; }
	@$(PY) -m ruff check -q .
	@$(PY) -m mypy --no-error-summary
	@$(PY) -m djlint --lint --quiet templates
	@$(MANAGE) stores run --temporary -- $(MANAGE) makemigrations --check --dry-run -v 0
	@$(DEPLOY) $(MANAGE) check --deploy --fail-level WARNING
	@$(PY) -m pytest -q -p no:randomly tests/house/test_rooms.py tests/house/test_sizes.py

format: .venv/.ready-dev  ## Put the code into the house format
	@$(PY) -m ruff format -q . && $(PY) -m ruff check -q --fix .

screenshots: .venv/.ready-dev  ## Keep a picture of every page in var/screenshots
	@$(PY) -m tests.portal.screenshots

bench: .venv/.ready-dev  ## Measure the gateway on this machine
	@$(PY) -m tests.bench

usage-rows: .venv/.ready-dev  ## Fill a usage database to measure: make usage-rows ROWS=10000000
	@$(PY) -m tests.bench.usage rows "$${USAGE_DIR:-var/bench/usage}" $${ROWS:-10000000}

usage-bench: .venv/.ready-dev  ## Measure the usage database that usage-rows has filled
	@$(PY) -m tests.bench.usage measure "$${USAGE_DIR:-var/bench/usage}"

lock: .venv/.ready-dev  ## Compile requirements*.in into hashed requirements*.txt
	@for name in requirements requirements-dev requirements-demo requirements-compile; do \
	  $(PY) -m uv pip compile -q --python-version 3.11 --generate-hashes --no-header \
	    --no-emit-index-url $$([ $$name = requirements-demo ] && echo --no-deps) \
	    $$name.in -o $$name.txt; done

clean:  ## Remove what can be made again (never your data in var/)
	@rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage tests/.cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@command -v "$(PYTHON)" >/dev/null \
	  || { echo "Fairway needs Python 3.11 or newer (python3): please install it."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Fairway needs Python 3.11 or newer; $(PYTHON) is older. Name another with make PYTHON=..."; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "Fairway needs Python's venv module: please install it (on Debian: python3-venv)."; exit 1; }
	@"$(PYTHON)" -m venv .venv

.venv/.ready: requirements.txt requirements-demo.txt | .venv/bin/python
	@echo "Installing Fairway's packages into .venv (once; a minute or two)"
	@$(PIP) -r requirements.txt
	@$(PIP) --no-deps -r requirements-demo.txt
	@touch $@

.venv/.ready-dev: requirements-dev.txt .venv/.ready
	@echo "Installing the packages for tests and checks into .venv (once)"
	@$(PIP) -r requirements.txt -r requirements-dev.txt
	@touch $@
