# Rolecall: `make up` runs it, `make test` tests it. Only Python 3.11+ and make are needed.

VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install -qq --disable-pip-version-check --no-compile -c constraints.txt
# On all cores, as pip cannot, and ours too; even where PYTHONDONTWRITEBYTECODE would have each process do it again.
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/(pip|mypy|mypyc|debugpy)/' $(VENV)/lib app workers admin
SOAK_MINUTES ?= 10

.DEFAULT_GOAL := help
.PHONY: help up test quick acceptance lint bench soak lock clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

up: $(VENV)/.embedded ## Install what is needed, start everything, load the examples; Ctrl-C stops it
	@exec $(BIN)/rolecall up

test: $(VENV)/.test ## Install what is needed, check the code, run the quick tests
	@$(MAKE) --no-print-directory -j2 lint quick

# Tests wait for real processes half of the time, so two files at a time keep two cores busy; in their own order, for
# xdist would put files of few tests last, and those are the long ones.
quick: $(VENV)/.test ## Run the quick tests alone
	@$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not soak and not e2e"

acceptance: $(VENV)/.browser ## Drive the whole product from outside: `make up`, and its pages in a browser
	@$(BIN)/pytest -q -m e2e tests/e2e

lint: $(VENV)/.test ## Check style, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy app
	@$(BIN)/lint-imports --no-cache

bench: $(VENV)/.test ## Measure Rolecall beside bare Celery; prints ratios
	@$(BIN)/python -m benchmarks

soak: $(VENV)/.test ## Kill, freeze and cut off things for SOAK_MINUTES (10), then prove that nothing was lost
	@SOAK_MINUTES=$(SOAK_MINUTES) $(BIN)/pytest -q -s -m soak --timeout=0 tests/soak

lock: $(VENV)/.browser ## Write the installed versions to constraints.txt
	@{ echo "# The versions that the project is tested with. \`make lock\` writes this file."; \
	   $(BIN)/pip freeze --all --exclude-editable | grep -viE '^(pip|wheel)='; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## Remove the virtual environment, the embedded servers' data and caches
	rm -rf $(VENV) .data build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was made from, so an unchanged project is not installed again.
$(VENV)/.embedded: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing Rolecall with its embedded servers into $(VENV) ..."
	@$(INSTALL) -e '.[embedded]' && $(COMPILE)
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing Rolecall with what its tests need into $(VENV) ..."
	@$(INSTALL) -e '.[embedded,test]' && $(COMPILE)
	@touch $@ $(VENV)/.embedded

$(VENV)/.browser: $(VENV)/.test
	@$(INSTALL) -e '.[embedded,test,browser]'
	@touch $@

# A pip of today finds the pinned versions in a third of the time; one that cannot be brought up to date will do.
$(BIN)/pip:
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
	   if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	     $$python -m venv $(VENV) && { $(BIN)/pip install -qq --no-compile -U pip || true; } && exit; \
	   fi; \
	 done; \
	 echo "Rolecall needs Python 3.11 or newer with venv (on Debian and Ubuntu: apt install python3 python3-venv)." >&2; \
	 echo "None was found on the PATH; name one with: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; \
	 exit 1
