# The two commands: `make demo` and `make test`. Everything is set up in .venv on the first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test test-slow soak docs lint format clean
help:
	@echo "make demo       from raw text to a trained model that parses and writes (INPUT=path for your own text)"
	@echo "make test       set up and run the tests       make test-slow  the long ones too"
	@echo "make soak       train, killed at random: must end as an undisturbed run"
	@echo "make docs       the documentation, in site/"
	@echo "make lint       ruff, pyright, import-linter   make format     let ruff format"

setup: $(READY)

$(READY): requirements.lock pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "Python 3.11 or newer is needed, this is %d.%d: make PYTHON=python3.11" % v[:2])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing requirements.lock into $(VENV): minutes the first time"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@# The packages are found in the checkout itself, from any working directory.
	@echo "$(CURDIR)" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gpst_checkout.pth"
	@touch $@

demo: $(READY)
	@PATH="$(CURDIR)/$(BIN):$$PATH" INPUT="$(INPUT)" bash launch/demo.sh

test: $(READY)
	$(BIN)/python -m pytest

test-slow: $(READY)
	$(BIN)/python -m pytest -m "not gpu"

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
	rm -rf $(VENV) runs data .pytest_cache .ruff_cache build dist site *.egg-info
