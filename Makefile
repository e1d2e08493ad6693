# What a newcomer, a developer and CI run. Needs make, Python 3.11 or newer and Java 17 or newer; nothing else.
# Another Python: make venv PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# SIGTERM ends pytest alone: its workers, and the brokers and the Spark that they have started, would live on.
REAPED := $(BIN)/python .ci/reap.py

MAKEFLAGS += --no-print-directory
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Nothing that uv installs is compiled yet: with this variable, every process would compile what it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow test-stress canaries mutants release-check prove bench bench-peers check lint types arch prose wheel docs docs-serve images up down lock audit licences clean

help: ## show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

venv: $(INSTALLED) ## set up .venv with the locked dependencies (the other targets do it by themselves)
	@:

demo: $(INSTALLED) ## a real broker, Spark and two databases, processes killed inside transactions, and the proof
	@$(BIN)/python -m jobs.demo

export TESTS

test: $(INSTALLED) ## the tests, on a real broker and a real Spark that they start themselves (25 to 35 minutes on 2 cores; TESTS="tests/unit …")
	@$(REAPED) $(BIN)/python .ci/gate.py

# What fails on a busy machine now and then; TESTS as above.
test-stress: $(INSTALLED) ## `make test` again and again with one core kept busy, and a table of what failed how often (TIMES=3)
	@$(REAPED) $(BIN)/python -m tests.stress $(or $(TIMES),3)

# In random order, and property tests again with examples that `make test` does not have.
test-slow: $(INSTALLED) ## the long cases, which `make test` leaves out, new examples for the property tests, and the canaries
	@$(REAPED) $(BIN)/python -m pytest -n 2 --dist loadgroup --max-worker-restart=0 -m "slow or hypothesis or canary"

canaries: $(INSTALLED) ## do librdkafka and Kafka still have the faults that eos works around? `make test` asks after each change of the lock until this is green
	@$(REAPED) $(BIN)/python .ci/gate.py canaries

# One at a time on each core: a mutation that a broker or Spark is needed for starts it anew.
mutants: $(INSTALLED) ## break the rules of the guarantee one by one: each must turn a named test red (20 minutes; docs/MUTANTS.md; NAMES="no-member …")
	@$(REAPED) $(BIN)/python -m tests.mutants $(NAMES)

release-check: check test test-slow demo ## all that must be green before a release (an hour)

prove: $(INSTALLED) ## faults by the hundred, counted, and docs/PROOF.md of them (an hour; HOURS=8, ROWS=A1,A6, AGAIN=1)
	@$(REAPED) $(BIN)/python -m tests.proof $(if $(HOURS),--hours $(HOURS)) $(if $(ROWS),--rows $(ROWS)) $(if $(AGAIN),--again)

bench: $(INSTALLED) ## eos against the raw loops of confluent-kafka and Spark's own sink, interleaved; every part runs, and one that fails fails it
	@failed=; run() { $(BIN)/python -m bench "$$@" || failed="$$failed $$1"; }; \
	run copy; \
	run latency --transaction-ms 100 --contenders b,b-look,c,eos,eos-record; \
	run latency --transaction-ms 10 --contenders b,b-look,c,eos,eos-record; \
	run copy --partitions 500 --contenders b,eos; \
	run copy --value-bytes 10000 --records 100000 --contenders b,c,b-batch,b-record,eos,eos-record; \
	run start; \
	run takeover; \
	run join; \
	run spark; \
	run sql; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

# Their jars and Python environments are fetched once, into .eos; nothing of them enters the lock.
bench-peers: $(INSTALLED) ## eos beside Kafka Streams, the Java client, aiokafka and Quix Streams (15 minutes; PEERS=java,quix, ROUNDS=5, RECORDS=200000)
	@$(BIN)/python -m bench peers $(if $(PEERS),--peers $(PEERS)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(RECORDS),--records $(RECORDS))

check: lint types arch prose ## what needs no broker: lint, types, arch, prose, and that each mutation of the list can still be made
	@.ci/quietly "the list of mutations" $(BIN)/python -m pytest -q -n0 tests/unit/test_mutants.py

lint: $(INSTALLED) ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(INSTALLED) ## mypy, strict
	@$(BIN)/mypy eos eos_pytest jobs tests bench docker/images.py docs/site .ci

arch: $(INSTALLED) ## the import contracts of .importlinter
	@.ci/quietly "import contracts" $(BIN)/lint-imports --no-logo

prose: $(INSTALLED) ## plain English in README and docs/: proselint, words, long sentences, long pages
	@$(BIN)/python .ci/prose.py

wheel: $(INSTALLED) ## build dist/*.whl
	@rm -rf dist
	@.ci/quietly "build the wheel" $(BIN)/python -m build --wheel --no-isolation
	@ls dist/*.whl

# A link that leads nowhere fails it. Nothing is asked of another host.
docs: $(INSTALLED) ## build the documentation site into build/site
	@NO_MKDOCS_2_WARNING=1 .ci/quietly "build the documentation" $(BIN)/mkdocs build

docs-serve: $(INSTALLED) ## show the documentation site on http://127.0.0.1:8000 while you write
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# One image: make image-kafka, image-app, image-spark. What has not changed is not built again.
images: image-all ## build the Docker images (where none can be pulled: make images OFFLINE=1, as root)
image-%: $(INSTALLED)
	@$(BIN)/python docker/images.py $(if $(OFFLINE),--offline) $*

# No image can be pulled: make up OFFLINE=1. Prometheus and Grafana too: make up MONITORING=1.
up: image-kafka image-app ## a secured cluster of three brokers with the refunds job on it (docker/README.md)
	@docker/cluster/up

down: ## remove what `make up` has brought up, its data included
	@docker/cluster/down

# Universal: one lock for every supported Python; hashes of each file; no word of the registry it came from.
# What is locked already stays as it is, unless `make lock UPGRADE=--upgrade` is asked for.
lock: $(INSTALLED) ## write requirements.lock from pyproject.toml
	@[ -x $(BIN)/uv ] || { echo "make lock needs $(BIN)/uv. Fix: $(BIN)/pip install uv" >&2; exit 1; }
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --all-extras --group dev \
		--no-annotate --no-header $(UPGRADE) pyproject.toml -o requirements.lock

audit: $(INSTALLED) ## known vulnerabilities of the locked packages
	@$(BIN)/python .ci/audit.py

licences: $(INSTALLED) ## write docs/LICENCES.md from what is installed
	@$(BIN)/python .ci/licences.py

clean: ## stop the local Kafka; remove .venv, .eos and all caches
	@if [ -d .eos ] && [ -x $(BIN)/eos ]; then $(BIN)/eos local stop; $(BIN)/eos local spark stop; $(BIN)/eos local postgres stop; fi
	@[ ! -d .eos/cluster ] || docker/cluster/down || :
	@rm -rf .venv .eos dist build .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The lock holds every dependency with its hashes, so the project itself is installed without looking for any;
# its build backend is in the lock too.
$(INSTALLED): requirements.lock pyproject.toml
	@[ -x $(BIN)/pip ] || $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { \
		echo "eos needs Python 3.11 or newer; name one: make venv PYTHON=python3.12" >&2; exit 1; }
	@[ -x $(BIN)/pip ] || .ci/quietly "make .venv" $(PYTHON) -m venv .venv
	@.ci/quietly "install the locked dependencies (500 MB the first time)" .ci/install_locked
	@.ci/quietly "install eos" $(BIN)/python -m pip install --no-deps --no-build-isolation -e .
	@touch $(INSTALLED)
