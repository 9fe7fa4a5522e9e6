# Targets for development and CI. Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core# what users install
STAMP := $(VENV)/.installed# and what tests and checks need
LOCK ?= .ci/requirements.lock # versions with hashes; LOCK= installs the newest within the bounds of pyproject.toml
CORE_LOCK := $(if $(strip $(LOCK)),.ci/core.lock)
INSTALLER := .ci/installer.lock
WORKERS = $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')# one more than cores: tests in real time wait
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
export PYTHONDONTWRITEBYTECODE := # if set, each of some thousand processes compiles everything again

install = @$(BIN)/uv pip install --quiet --python $(BIN)/python $(1) || { \
	  echo "uv failed; installing with pip, which takes two minutes" >&2; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check $(1); }
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade

.PHONY: help demo test compiled lowest schemas wheel lint check gate baselines gallery pictures site claims systems leaderboard perf nightly lock audit clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(CORE): pyproject.toml $(CORE_LOCK) $(INSTALLER)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "bench needs Python 3.11 or newer; name one: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(INSTALLER)
	$(call install,$(if $(CORE_LOCK),--require-hashes -r $(CORE_LOCK),-e .))
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

$(STAMP): $(CORE) $(LOCK)
	$(call install,$(if $(CORE_LOCK),--require-hashes -r $(strip $(LOCK)),-e . --group dev))
	@touch $@

# the first run is not valid on a busy machine; the second command does not depend on it
demo: $(CORE) ## a short run of the built-in engine, then the curve of a simulated system and its page, about 40 s
	-$(BIN)/bench run --workload chatbot --slo ttft=0.25,tpot=0.1 --duration 10s
	$(BIN)/bench sweep --backend sim --latency abc:distserve --policy vllm-v0 --rate 1:5:1 --requests 1000

test: $(STAMP) ## run all but the slow tests
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests --ignore=tests/real/nightly --ignore=tests/perf

# the tests of replay that step the core through every policy; the others go through commands, which CI runs uncompiled
REPLAYED := $(addprefix tests/replay/test_,engine.py engine_clusters.py handoff.py leaps.py pipeline.py prefix_cache.py)
READ := $(addprefix tests/client/test_,connection.py framing.py pool.py quirks.py)
compiled: export MYPYC_OPT_LEVEL ?= 0# in half the time; make nightly tests what users get, 2
compiled: $(STAMP) ## test the compiled core of the simulator and reads of the client, where there is a C compiler
	@$(BIN)/python hatch_build.py build/compiled || { test $$? = 3 && exit 0; exit 1; }; \
	test ! -e build/compiled || PYTHONSAFEPATH=1 PYTHONPATH=build/compiled \
	  $(BIN)/python -m pytest -n auto --dist worksteal $(REPLAYED) tests/contracts/test_core_plugins.py tests/contracts/test_invariants.py $(READ)

lowest: $(STAMP) ## test with the lowest versions of libraries that pyproject.toml allows
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/lowest
	$(BIN)/uv pip install --quiet --python build/lowest/bin/python --resolution lowest-direct -e .
	$(BIN)/uv pip install --quiet --python build/lowest/bin/python hypothesis openai pytest pytest-timeout pytest-xdist pyyaml tokenizers trustme
	build/lowest/bin/python -m pytest -n $(WORKERS) --dist worksteal -k 'not golden' tests/cli tests/client tests/harness tests/workloads --ignore=tests/cli/test_light.py # tables and imports are those of newer ones

schemas: $(STAMP) ## write the JSON Schema of every file that bench writes to build/schemas
	$(BIN)/python tools/schemas.py

wheel: $(STAMP) ## build dist/*.whl with the compiled core, for this Python on this machine
	@rm -rf dist
	HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/uv build --quiet --wheel --out-dir dist
	@ls dist/*-cp3*.whl 2>/dev/null || { echo "make wheel: a C compiler and Python.h are needed" >&2; exit 1; }

lint: $(STAMP) ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test ## what CI runs: lint and tests

gate: $(STAMP) ## compare the simulator with its baselines; any difference is reported with its cause
	@rm -rf bench-runs/gate
	@set -e; for base in baselines/*/; do \
	  new=bench-runs/gate/$$(basename $$base); code=0; \
	  $(BIN)/bench run --config $$base/run.json --out $$new --no-html --quiet >/dev/null || code=$$?; \
	  if [ $$code = 4 ] && [ ! -e $$new ]; then echo "gate: $$base is not compared: this machine draws another schedule (run make baselines to renew it)" >&2; \
	  elif [ $$code != 0 ]; then exit $$code; \
	  else $(BIN)/bench compare $$base $$new; fi; \
	done

baselines: $(STAMP) ## renew the baselines after an intended difference; commit them with the change
	@set -e; for config in baselines/*.toml; do \
	  $(BIN)/bench run --config $$config --out $${config%.toml} --no-html --quiet --force >/dev/null; \
	done

gallery: $(STAMP) ## write a page of every kind of report to gallery/index.html
	@rm -rf gallery
	@$(BIN)/python docs/examples/gallery.py gallery
	@echo gallery/index.html

pictures: gallery ## renew the pictures of README and docs/guide/report.md from the gallery; needs Chromium
	$(BIN)/python docs/pictures/make.py gallery

site: $(STAMP) ## build the site of docs/ into site/, in an environment of its own; a broken link is an error
	$(BIN)/uv tool run --quiet --from sphinx==9.0.4 --with furo==2025.12.19 --with myst-parser==5.2.0 \
	  sphinx-build -W --keep-going -n -q docs site
	@echo site/index.html

claims: $(STAMP) ## measure the figures of README and guides again (docs/claims.json); long ones with ONLY=id
	$(BIN)/python tools/claims.py renew $(if $(ONLY),--only $(ONLY))

leaderboard: $(STAMP) ## score simulators on the same public measurements into docs/leaderboard.md, at first an hour
	$(BIN)/python tests/published/leaderboard.py --out docs/leaderboard.md

systems: $(STAMP) ## compare with published results and write docs/systems.md, some hours
	$(BIN)/bench reproduce --all --page docs/systems.md || test $$? = 1 -o $$? = 3 # a row misses its band, or lacks its data

perf: $(STAMP) ## measure client, server, simulator, engine and statistics on this machine, an hour
	$(BIN)/python tests/perf/client_accuracy.py
	$(BIN)/python tests/perf/server_lateness.py
	$(BIN)/python tests/perf/command_speed.py
	$(BIN)/python tests/perf/command_speed.py --answers
	$(BIN)/python tests/perf/command_speed.py --stored
	$(BIN)/python tests/perf/simulator_speed.py --long 1000000
	$(BIN)/python tests/perf/simulator_speed.py --flat 1000000 --policy vllm-v0
	$(BIN)/python tests/perf/simulator_speed.py --clusters --policy vllm-v0
	$(BIN)/python tests/perf/trace_reading.py
	$(BIN)/python tests/perf/engine_throughput.py
	$(BIN)/python tests/perf/latency_beside_measurements.py
	$(BIN)/python tests/perf/one_run_interval.py
	$(BIN)/python tests/perf/interval_coverage.py --systems 0
	$(BIN)/python tests/perf/false_alarms.py
	$(BIN)/python tests/perf/comparison_power.py
	$(BIN)/python tests/perf/interim_analyses.py
	$(BIN)/python tests/perf/trend_rule.py
	$(BIN)/python tests/perf/sweep_ratios.py --cases 3
	$(BIN)/python tests/perf/capacity_queues.py --queues 40 --searches 10
	$(BIN)/python tests/perf/random_systems.py --file random-systems.jsonl --first 1000 --systems 12 --searches 2

nightly: $(STAMP) ## run the slow tests, then install other servers and clients under .nightly/ (5 GB) and test them
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -m 'nightly or hypothesis' --hypothesis-profile nightly -n $(WORKERS) --dist worksteal tests --ignore=tests/real/nightly --ignore=tests/perf
	@$(MAKE) --no-print-directory compiled MYPYC_OPT_LEVEL=2
	@$(MAKE) --no-print-directory lowest
	$(BIN)/python tests/real/build_environments.py --torch-index '$(TORCH_INDEX)'
	$(BIN)/python -m pytest tests/real
	$(BIN)/python tests/real/clients.py
	$(BIN)/bench reproduce --all || test $$? = 1 -o $$? = 3 # rows that miss their bands, or lack their data
	@$(MAKE) --no-print-directory site

lock: $(STAMP) ## renew the versions and hashes of .ci/*.lock; run the tests before you commit them
	$(COMPILE) --group dev -o .ci/requirements.lock pyproject.toml
	$(COMPILE) --constraints .ci/requirements.lock -o .ci/core.lock pyproject.toml
	printf 'editables\nhatch-fancy-pypi-readme>=25.1\nhatchling>=1.25\nuv\n' | $(COMPILE) -o $(INSTALLER) -

audit: $(STAMP) ## look up known vulnerabilities of the locked versions; needs the network
	@for lock in .ci/*.lock; do \
	  echo "$$lock"; $(BIN)/uv tool run --quiet pip-audit --strict --require-hashes --disable-pip -r $$lock || code=$$?; \
	done; if [ -n "$$code" ]; then \
	  echo "audit: not passed: a locked version has a known vulnerability, or could not be looked up (see above)" >&2; exit 1; fi

clean: ## remove the environment and caches; keep runs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
