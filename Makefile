# `make demo` and `make test` need nothing but Python 3.11 or newer; .ci/setup gets the rest.
PYTHON := .venv/bin/python
ARGS ?=
SEEDS ?= 2000
SCHEDULES ?= 100000
PYTEST = $(PYTHON) -m pytest --dist loadfile --no-loadscope-reorder
# Hundreds of Python processes are started; compiling everything anew in each would take longer than what they do.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo dev quick test check long bench chaos turns flows callers simulate mutants model celery fuzz http soak oldest valkey wheel release docs lint format setup clean

demo: setup    ## Three Redis and three ZooKeeper servers, workers, and failures: watch that nothing gets lost.
	$(PYTHON) -m zkrq demo $(ARGS)

dev: setup     ## The same servers without the failures, to try things out against.
	$(PYTHON) -m zkrq dev $(ARGS)

quick: setup   ## While you think, about a minute: units, scripts, behaviour on servers in the process. ARGS="-k local" goes to pytest.
	$(PYTEST) -n 3 --suite quick $(ARGS)

test: setup    ## Before a commit, about 3 minutes: quick, the model, the simulation, and of each other kind what finds most.
	$(PYTEST) -n 4 --suite test $(ARGS)

check: setup   ## Before it is merged, about 10 minutes: the rest of what has to pass.
	$(PYTEST) -n 6 --suite check $(ARGS)

long: setup    ## What no change has to wait for, about 20 minutes.
	$(PYTHON) -m pytest -n 2 --dist loadfile --suite long $(ARGS)

bench: setup   ## About 25 minutes, ARGS=--quick four; tables and pictures in build/bench, see docs/benchmarks.md.
	$(PYTHON) -m benchmarks $(ARGS)

chaos: setup   ## Every fault on real servers, about 25 minutes; a table and a picture in build/chaos.
	$(PYTHON) -m tests.chaos $(ARGS)

turns: setup   ## Groups and limits while workers and primaries are killed, about 20 minutes; ARGS="--seconds 600 --plans rate".
	$(PYTHON) -m tests.chaos.turns --seconds 180 $(ARGS)

flows: setup   ## Flows on two shards while workers, makers and primaries are killed and operators cancel; ARGS="--seconds 600".
	$(PYTHON) -m tests.chaos.flows $(ARGS)

callers: setup ## Ten thousand callers wait for results while the primary is killed every ten seconds, 6 minutes.
	$(PYTHON) -m tests.chaos.callers $(ARGS)

simulate: setup ## SEEDS=20000: the real code and scripts in virtual time; a seed that fails is printed and replays exactly. ARGS=--shards, ARGS=--versions.
	$(PYTHON) -m tests.simulation --seeds $(SEEDS) $(ARGS)

mutants: setup ## Mistakes of one line each, in a copy of the tree: each must be found; about 10 minutes.
	$(PYTHON) -m tests.mutants $(ARGS)

model: setup   ## The protocol's rules as a random-schedule model, 100,000 schedules, about 7 minutes on two cores; ARGS=--shards, ARGS=--turns.
	$(PYTHON) -m tests.model --schedules $(SCHEDULES) $(ARGS)

celery: setup  ## Celery's own integration tests over Redis and over zkrq, about 50 minutes; CELERY=folder of its repository, see tests/frameworks/README.md.
	$(PYTHON) -m tests.frameworks.celery_suite "$(CELERY)" $(ARGS)

fuzz: setup    ## Hostile input of every kind, and generated histories, FUZZ_EXAMPLES=5000 of each by default, about 40 minutes.
	FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),5000) $(PYTHON) -m pytest -n 2 tests/security/test_fuzz.py tests/lua/test_histories.py tests/lua/test_copies.py tests/lua/test_comparing.py tests/lua/test_pages.py $(ARGS)

http: setup    ## Requests that are generated from the HTTP API's schema, HTTP_EXAMPLES=1000 of each kind by default, about 10 minutes.
	HTTP_EXAMPLES=$(or $(HTTP_EXAMPLES),1000) $(PYTHON) -m pytest tests/integration/test_serve_schema.py $(ARGS)

soak: setup    ## Millions of items, at most 15 minutes: memory must stay flat.
	$(PYTHON) -m tests.soak $(ARGS)

oldest: setup  ## A part of the tests on the oldest dependencies that are allowed, in build/oldest.
	.ci/oldest $(ARGS)

valkey: setup  ## The tests of scripts, integration and faults on Valkey, about 10 minutes, at most 25.
	.ci/valkey $(ARGS)

wheel: setup   ## The wheel and the sdist in an empty environment, on each Python that is here: the README's example; a minute each.
	.ci/wheel $(ARGS)

release: setup ## Tests, wheel, sdist, SBOM, notes in dist/, and a signed tag; ARGS=--draft. Pushes nothing.
	.ci/release $(ARGS)

docs: setup    ## The documentation as a site in build/docs; a dead link fails.
	.ci/docs

lint: setup    ## Linter, formatter, type checker.
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
