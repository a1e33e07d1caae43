# `make demo`, `make miniature` and `make test`. Everything is set up in .venv on the first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# TORCH=cpu takes PyTorch's build without CUDA from PyTorch's own index (TORCH=cu128 that of CUDA 12.8);
# empty: PyPI's, which brings CUDA on Linux.
TORCH ?=
TORCH_INDEX ?= https://download.pytorch.org/whl/$(TORCH)
# Processes that run tests: one more than cores, as tests that start ranks wait for them.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(min((os.cpu_count() or 1) + 1, 4))')
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder
# What `make test-cluster` runs, on how many clusters.
CLUSTER_TESTS ?= tests/cluster tests/pipeline/distributed/test_scale.py
CLUSTERS ?= 4
READY := $(VENV)/.ready$(TORCH)
# What requirements.lock holds of pyproject.toml: all but wandb.
EXTRAS := fast segmenters mpi demo eval web tasks docs dev

.PHONY: help setup demo miniature test test-slow test-cluster test-lowest lock soak docs lint format clean
help:
	@echo "make demo       from raw text to a trained model that parses and writes (INPUT=path for your own text)"
	@echo "make miniature  the paper's claims at a thousandth of its text: hours, resumable (INPUT= TREES= SUITES=)"
	@echo "make test       set up and run the tests       make test-slow  the long ones too"
	@echo "make TORCH=cpu demo, make TORCH=cpu test: without the gigabytes of CUDA"
	@echo "make test-cluster  several machines with ssh, Slurm and MPI, simulated on this one (root)"
	@echo "make test-lowest  the tests with every package at the lowest version that pyproject.toml allows"
	@echo "make lock       write requirements.lock anew from pyproject.toml (UPGRADE=--upgrade: newest versions)"
	@echo "make soak       train, killed at random: must end as an undisturbed run"
	@echo "make docs       the documentation, in site/"
	@echo "make lint       ruff, pyright, import-linter   make format     let ruff format"
	@echo "make clean      remove .venv, data/, runs/ and what else these make"

setup: $(READY)

$(READY): requirements.lock pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "Python 3.11 or newer is needed, this is %d.%d: make PYTHON=python3.11" % v[:2])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# A venv that was cut short (no python3-venv, Ctrl-C) has a Python and no pip, for good.
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(BIN)/python -m ensurepip > /dev/null 2>&1 || { \
		echo "$(VENV) has no pip, and its Python brings none: install python3-venv (apt), or make PYTHON=another; then rm -r $(VENV)" >&2; exit 2; }
	@echo "Installing requirements.lock into $(VENV): minutes the first time"
	@bash launch/install.sh $(BIN)/python $(if $(TORCH),\
		--extra-index-url $(TORCH_INDEX) "$$(sed -n 's/^\(torch==[^ ;]*\).*/\1/p' requirements.lock)+$(TORCH)")
	@# The packages are found in the checkout itself, from any working directory.
	@echo "$(CURDIR)" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gpst_checkout.pth"
	@touch $@

demo: $(READY)
	@PATH="$(CURDIR)/$(BIN):$$PATH" INPUT="$(INPUT)" OUTPUT="$(OUTPUT)" SETTINGS="$(SETTINGS)" bash launch/demo.sh

miniature: $(READY)
	@PATH="$(CURDIR)/$(BIN):$$PATH" INPUT="$(INPUT)" TREES="$(TREES)" SUITES="$(SUITES)" MODELS="$(MODELS)" SEEDS="$(SEEDS)" \
		OUTPUT="$(OUTPUT)" SETTINGS="$(SETTINGS)" bash launch/miniature.sh

test: $(READY)
	$(BIN)/python -m pytest $(PARALLEL)

test-slow: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) -m "not gpu and not cluster"

# Real ssh, Slurm and MPI between machines that are namespaces of this one: root, and Debian's packages, which
# it names and does not install. The tests wait more than they compute: a few clusters side by side.
test-cluster: $(READY)
	$(BIN)/python -m pytest -rs -n $(CLUSTERS) --maxschedchunk 1 -o tmp_path_retention_policy=failed -m "" $(CLUSTER_TESTS)

# A checkout of its own in .lowest, whose requirements.lock has every lower bound of pyproject.toml.
test-lowest: $(READY)
	mkdir -p .lowest
	git ls-files -z | xargs -0 cp --parents --target-directory=.lowest
	$(BIN)/uv pip compile --quiet --no-header --no-annotate --python-version 3.11 --upgrade --resolution lowest-direct \
		$(EXTRAS:%=--extra %) pyproject.toml --output-file .lowest/requirements.lock
	sed -i -E '/^(nvidia|cuda)-/d' .lowest/requirements.lock
	$(MAKE) -C .lowest PYTHON=$(PYTHON) TORCH=$(TORCH) test

# The versions in requirements.lock stay as they are unless UPGRADE=--upgrade, for every Python.
lock: $(READY)
	$(BIN)/uv pip compile --quiet --no-header --no-annotate --universal --python-version 3.11 $(UPGRADE) \
		$(EXTRAS:%=--extra %) pyproject.toml --output-file requirements.lock
	@sed -i -E '/^(nvidia|cuda)-/d' requirements.lock
	@sed -i '1i # Every version that the project is tested with, on Python 3.11 to 3.13: written by `make lock`. Install: make setup.\n# CUDA itself is not named: torch on PyPI requires it, the build of TORCH=cpu does not.' requirements.lock

# The demo's training killed every 30 to 60 s must end as one that is left alone (10 minutes).
soak: $(READY)
	$(BIN)/python benchmarks/soak.py

# The generated pages are written anew; warnings (a dead link, a page outside the navigation) are errors.
docs: $(READY)
	$(BIN)/python docs/generate > /dev/null
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .lowest runs data .pytest_cache .ruff_cache build dist site *.egg-info
