.DEFAULT_GOAL := help
.PHONY: help demo test test-slow coverage lint format bench docs lock clean

PYTHON ?= python3
BIN := .venv/bin
DEMO ?= demo
TESTS ?=
QUICK := OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

help:  ## list what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "siteless needs Python 3.11 or newer, but $(PYTHON) is %d.%d; set another with: make PYTHON=python3.12" % v[:2])'
	@echo "installing into .venv, which takes some minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

.venv/docs-installed: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

demo: .venv/installed  ## install, then simulate a small cohort, harmonize it, and write a report
	$(BIN)/siteless demo $(DEMO)

test: lint  ## install, then run every test but the slow ones
	$(QUICK)

test-slow: .venv/installed  ## run the tests that take minutes
	$(BIN)/pytest -m slow

coverage: .venv/installed  ## tell which lines no quick test runs, or none of TESTS=tests/bids
	$(QUICK) --cov --cov-report=term --cov-report=html $(TESTS)

lint: .venv/installed  ## style, types and import order
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed  ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed  ## measure speed and memory, as ratios
	$(BIN)/python -m benchmarks

docs: .venv/docs-installed  ## build the documentation into docs/_build
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

lock: .venv/installed  ## write down which releases are installed, when the tests have passed with them
	@mkdir -p requirements
	@{ echo "# The releases that siteless is tested with, on $$($(BIN)/python -c 'import platform as p; print("Python", p.python_version(), "and", p.system())'); written by \`make lock\`."; \
	  $(BIN)/python -m pip --disable-pip-version-check freeze --exclude-editable --exclude siteless \
	  | sed 's/+cpu$$//'; } > requirements/tested.txt

clean:  ## remove the environment and everything built
	rm -rf .venv docs/_build demo .coverage htmlcov
