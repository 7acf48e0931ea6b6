# Two commands: `make demo` shows it, `make test` checks it. Both make .venv first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: demo test lint types layers unit browser bench clean

demo: $(STAMP)
	$(BIN)/python notebooks/run.py notebooks/01-first-job.ipynb

test: lint types layers unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

unit: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile

# In a real JupyterLab in the system's Chromium; skipped by name in `make test`.
CHROMIUM_PATH ?= $(shell command -v chromium || command -v google-chrome)
browser: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group browser
	CHROMIUM_PATH=$(CHROMIUM_PATH) $(BIN)/pytest tests/browser

bench: $(STAMP)
	for file in tests/benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

# torch comes from the constraints: a plain `torch` would bring gigabytes of CUDA.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --editable '.[local,kubernetes]'
	touch $@

clean:
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
