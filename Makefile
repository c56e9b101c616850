# Everything a person or a CI needs, from a bare machine with Python 3.10 or later and make.
# All paths are relative, so that a checkout below a folder with spaces in its name works too.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet --retries 10 --timeout 180
PYTEST_ARGS ?=
# Tests spend half of their time waiting: twice as many workers as cores, 12 at most. More only take time from servers whose
# clients give up. Chosen files are run by one, which begins at once; a later -n in PYTEST_ARGS is the one that counts.
CORES  := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS ?= $(if $(filter tests/%,$(PYTEST_ARGS)),0,$(shell n=$$((2 * $(CORES))); echo $$((n > 12 ? 12 : n))))
# A test that fails runs once more, and the summary shows both results; chosen ones and `make test-all`'s do not.
RERUNS ?= $(if $(filter tests/%,$(PYTEST_ARGS)),0,1)
# Tests start thousands of processes: each would compile Stoker again where bytecode is not to be kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.SUFFIXES:
.DELETE_ON_ERROR:
.PHONY: help check cheap shape test test-times test-pythons test-extras test-all servers faults storm-database fuzz demo bench storm storm-engine storm-ray packages-ray storm-kubernetes test-cluster storm-batch storm-slurm storm-store storm-names storm-containers bench-containers bench-slurm bench-peers bench-proof site release lint format clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## */\1|/p' Makefile | awk -F'|' '{ printf "  make %-14s %s\n", $$1, $$2 }'

test: $(VENV)/.test servers  ## install what the tests need, then run all of them
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --reruns $(RERUNS) --reruns-delay 5 $(PYTEST_ARGS)

check: $(VENV)/.test  ## formatting, style, types, imports, and the tests that cost little, in minutes
	@$(MAKE) --no-print-directory --jobs=2 lint cheap

cheap: $(VENV)/.test
	@$(BIN)/python -m pytest -q -n $(CORES) --dist loadgroup --cheap $(PYTEST_ARGS)

test-times: $(VENV)/.test servers  ## what tests cost: the dearest thirty, and the flaky ones of N=1 runs
	@$(BIN)/python -m tests.times --runs $(or $(N),1) -q -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

shape: $(BIN)/python  ## how large the house is, beside what it is to shrink to
	@$(BIN)/python -m tests.shape

# Everything long, one after the other: each target stops the rest where it fails.
LONG := faults storm storm-engine storm-store storm-names storm-database storm-slurm storm-ray storm-kubernetes storm-batch storm-containers packages-ray fuzz test-extras test-pythons

test-pythons: $(VENV)/.test servers  ## the wheel on each Python from 3.10 on that is found here, and says which is not
	@$(BIN)/python -m tests.distributions pythons

test-extras: $(VENV)/.test  ## the wheel with each extra alone, and with the oldest packages that it allows
	@$(BIN)/python -m tests.distributions extras
	@$(BIN)/python -m tests.distributions lowest

test-all:  ## all of `make test` in its long form, then every storm, the faults, Ray's packages and the fuzzer: N= SEED=
	@begin=$$(date +%s); ran=; \
	for target in test $(LONG); do \
	    echo "make $$target" >&2; began=$$(date +%s); \
	    $(MAKE) --no-print-directory $$target $$([ $$target = test ] && echo PYTEST_ARGS=--long RERUNS=0) || \
	        { echo "make $$target failed; before it ran:$$ran" >&2; exit 1; }; \
	    ran="$$ran $$target ($$(($$(date +%s) - began)) s)"; \
	done; \
	echo "ran in $$(($$(date +%s) - begin)) s:$$ran"

servers:
	@tests/servers/install.sh

storm-database: $(VENV)/.test servers  ## drivers on a database that is stopped at random moments: SEED= DRIVERS= RESTARTS=
	@$(BIN)/python -m tests.reliability.database_storm --seed $(or $(SEED),1) --drivers $(or $(DRIVERS),100) \
	    --restarts $(or $(RESTARTS),10)

fuzz: $(VENV)/.test  ## give every parser N=10000 hostile inputs, drawn by SEED=1
	@$(BIN)/python -m tests.fuzz --inputs $(or $(N),10000) --seed $(or $(SEED),1)

demo: $(VENV)/.demo  ## install what the demo needs, then train a small classifier in a pipeline
	@$(BIN)/python examples/digits.py

bench: $(VENV)/.bench  ## measure what Stoker costs, a step and a start at a time
	@$(BIN)/python -m benchmarks

storm: $(VENV)/.test  ## kill runs by seeded schedules: make storm SEED=1 N=500 (goes on where it stopped)
	@$(BIN)/python -m tests.reliability.storm --seed $(or $(SEED),1) --count $(or $(N),500) --jobs $(or $(JOBS),2)

storm-engine: $(VENV)/.test  ## run the engine through N=100000 seeded storms in a time of its own, from SEED=0 on
	@$(BIN)/python -m tests.reliability.seeds --first $(or $(SEED),0) --seeds $(or $(N),100000) --jobs $(CORES)

storm-ray: $(VENV)/.test  ## kill drivers while their runs go on at a Ray cluster: SEED= DRIVERS=
	@$(BIN)/python -m tests.ray.storm --seed $(or $(SEED),1) --drivers $(or $(DRIVERS),20)

packages-ray: $(VENV)/.test  ## have a real Ray make environments of pip and uv, which takes minutes
	@$(BIN)/python -m pytest tests/ray/packages.py

faults: $(VENV)/.test servers  ## break Slurm and Ray in each known way, and write what Stoker says into docs/dev/faults.md
	@$(BIN)/python -m tests.reliability.faults --write

storm-kubernetes: $(VENV)/.test  ## kill drivers while their runs go on in a Kubernetes cluster: SEED=1 N=20
	@$(BIN)/python -m tests.kubernetes.storm --seed $(or $(SEED),1) --kills $(or $(N),20)

test-cluster: $(VENV)/.test  ## run whole pipelines on the Kubernetes cluster of STOKER_TEST_KUBECONFIG (docs/dev/real-cluster.md)
	@$(BIN)/python -m pytest -m cluster tests/kubernetes/test_real_cluster.py -v

storm-batch: $(VENV)/.test servers  ## kill drivers while their runs go on at AWS Batch (moto and our double): SEED=1 N=20
	@$(BIN)/python -m tests.aws_batch.storm --seed $(or $(SEED),1) --kills $(or $(N),20)

storm-slurm: $(VENV)/.test servers  ## kill drivers while their runs go on at a Slurm cluster: SEED=1 N=60
	@$(BIN)/python -m tests.slurm.storm --seed $(or $(SEED),1) --kills $(or $(N),60)

storm-store: $(VENV)/.test  ## damage files of the home beside N=200 runs, drawn by SEED=1 (goes on where it stopped)
	@$(BIN)/python -m tests.reliability.store_storm --seed $(or $(SEED),1) --count $(or $(N),200)

storm-names: $(VENV)/.test servers  ## kill N=60 processes that name things at once, on SQLite and on PostgreSQL: SEED=1
	@$(BIN)/python -m tests.reliability.names_storm --seed $(or $(SEED),1) --kills $(or $(N),60)

storm-containers: $(VENV)/.test servers  ## kill drivers while steps share containers: SEED=1 KILLS=30
	@$(BIN)/python -m tests.containers.storm --seed $(or $(SEED),1) --kills $(or $(KILLS),30)

bench-containers: $(VENV)/.test servers  ## measure steps in containers beside `docker run`
	@$(BIN)/python -m benchmarks.containers

bench-slurm: $(VENV)/.test servers  ## measure chains and fan-outs on a Slurm cluster beside bare jobs: ROUNDS=5
	@$(BIN)/python -m benchmarks.slurmjobs $(or $(ROUNDS),5)

bench-proof: $(VENV)/.test  ## put the sourced cases to the planner, and compare its proofs with what is true
	@$(BIN)/python -m benchmarks.proof --write

bench-peers: $(VENV)/.bench  ## measure the same work by Metaflow and joblib, where they are installed
	@$(BIN)/python -m benchmarks --peers

site: $(VENV)/.test  ## the documentation as a site, in build/site/site
	@$(BIN)/python docs/site/build.py

# Built twice from one commit, the files are the same: their times are the commit's.
release: $(VENV)/.test  ## wheel, sdist, a list of what the wheel needs (SBOM, CycloneDX) and checksums, in dist
	@test -z "$$(git status --porcelain)" || { echo "error: commit or remove what git status shows" >&2; exit 1; }
	@rm -rf dist build/release
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build
	@$(PYTHON) -m venv --without-pip build/release
	@$(PIP) --python build/release/bin/python install dist/*.whl
	@build/release/bin/stoker --version
	@$(BIN)/uv --quiet tool run --from cyclonedx-bom cyclonedx-py environment build/release/bin/python \
	    --output-reproducible --output-file dist/sbom.cdx.json
	@cd dist && sha256sum *.whl *.tar.gz *.json | tee SHA256SUMS

lint: $(VENV)/.test  ## formatting, style, types and imports, without the tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python -m mypy
	@$(BIN)/lint-imports

format: $(VENV)/.test  ## rewrite the files as `make lint` wants them
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

clean:  ## remove everything that make made
	@rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made once; each stamp installs its extra again when pyproject.toml changes. The tests' extra has
# the demo's inside.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Stoker needs Python 3.10 or later: make PYTHON=python3.11")'
	@echo "making an environment in $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.%: pyproject.toml | $(BIN)/python
	@echo "installing stoker[$*] into $(VENV) (minutes the first time)" >&2
	@$(PIP) install --editable '.[$*]'
	@touch $@ $(if $(filter test,$*),$(VENV)/.demo)
