# `make demo` and `make test` need nothing but Python 3.11 or newer; .ci/setup gets the rest.
PYTHON := .venv/bin/python
ARGS ?=

.PHONY: demo dev bench test chaos lint format setup clean

demo: setup    ## Three Redis and three ZooKeeper servers, workers, and failures: watch that nothing gets lost.
	$(PYTHON) -m zkrq demo $(ARGS)

dev: setup     ## The same servers without the failures, to try things out against.
	$(PYTHON) -m zkrq dev $(ARGS)

bench: setup
	$(PYTHON) -m benchmarks $(ARGS)

test: lint     ## ARGS="-k local" goes to pytest.
	$(PYTHON) -m pytest -m "not chaos" $(ARGS)

chaos: setup
	$(PYTHON) -m pytest -m chaos $(ARGS)

lint: setup
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/pyright --pythonpath $(PYTHON)

format: setup
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

setup:
	@.ci/setup

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
