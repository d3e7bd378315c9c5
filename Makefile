# make demo: install into .venv and answer a question: is a prefill/decode split worth it here? make test: everything that CI checks.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test quick durations docs gallery lint clean chromium fidelity reference

demo: $(VENV)/.installed
	@$(BIN)/simserve run scenarios/pd_split.yaml --force
	@echo "Try next:"
	@echo "  $(BIN)/simserve init                            # your model, GPUs, traffic and SLO; docs/tutorial.md"
	@echo "  $(BIN)/simserve size scenarios/sizing.yaml      # how many GPUs, and which?"
	@echo "  $(BIN)/simserve run scenarios/pd_ratio.yaml     # in which ratio to split eight GPUs?"

test: $(VENV)/.installed-dev chromium lint
	$(BIN)/pytest -n 2 --durations=20

# Without what is slow, needs a browser or reads measurements beside the repository: under two minutes.
quick: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 -m "not slow and not browser and not reference" --durations=10

# Which tests are slow (tests/durations.json), measured anew.
durations: $(VENV)/.installed-dev chromium
	$(BIN)/pytest -n 2 --durations=50 --record-durations

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The tables of docs/fidelity.md (8 minutes on two idle cores); says what it skips where measurements do not lie beside us.
fidelity: $(VENV)/.installed
	$(BIN)/python -m benchmarks.fidelity

# The documentation as a site, in build/site. Reports of the gallery that are there already are kept.
docs: $(VENV)/.installed-docs gallery
	$(BIN)/python -m mkdocs build --strict

gallery: $(VENV)/.installed-docs
	$(BIN)/python -m docsite.gallery

# docs/reference: every key of a scenario and every command, from the program itself.
reference: $(VENV)/.installed
	$(BIN)/python -m simserve.cli.reference docs/reference

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("simserve needs Python 3.11 or newer: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)

# The stamps are files, so a second call installs nothing unless the dependencies changed.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing simserve into $(VENV) (a minute, once) ..."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing simserve and its development tools into $(VENV) (a few minutes, once) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-docs

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/bin/python
	@echo "installing simserve and what builds its site into $(VENV) (a minute, once) ..."
	@$(PIP) --editable '.[docs,search]'
	@touch $@

# The report is tested in a real browser.
chromium:
	@command -v chromium chromium-browser google-chrome >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    apt-get -qq update && apt-get -qq install -y chromium >/dev/null; \
	  else \
	    echo "the report's tests need Chromium: install the package chromium (Debian, Ubuntu: apt-get install chromium)"; \
	    exit 1; \
	  fi; }

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
