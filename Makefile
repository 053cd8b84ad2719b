# Start with `make demo` and `make test`. Both set up .venv on first use.
PYTHON ?= python3
VENV ?= .venv
# Options of `make bench`; by default everything is run and written to docs/benchmarks.md.
BENCH ?= --docs
BIN := $(VENV)/bin
export MPLBACKEND ?= Agg
# Tests multiply small matrices, which several BLAS threads would slow down.
test test-full: export OPENBLAS_NUM_THREADS ?= 1

# All cores, but no more processes than the tests can use.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

.PHONY: demo test test-full bench lint format clean

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "leapwise needs Python 3.11 or newer, found $$($(PYTHON) --version); try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(VENV)/.installed  ## sample the elliptic PDE posterior and draw the inferred field
	$(BIN)/leapwise sample elliptic-pde --draws 1000 --chains 4 --seed 1 --plot out/elliptic-pde.png --output out/elliptic-pde.nc

test: $(VENV)/.installed  ## quick tests, docstring examples included
	$(PYTEST)

test-full: $(VENV)/.installed  ## quick and slow tests
	$(PYTEST) -m 'slow or not slow'

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

bench: $(VENV)/.installed-bench  ## this library and its peers on the same posteriors: takes hours, can be interrupted and continued
	$(BIN)/python -m benchmarks.compare $(BENCH)

lint: $(VENV)/.installed  ## format, lint, types, one-way imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed  ## rewrite in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache
