# Every target makes what it needs from a bare clone. `make test` is the one to start with.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
CORE := src/hotfire/core
CORE_SOURCES := $(wildcard $(CORE)/*.c $(CORE)/*.h)
REPORTS := build/promises
PYTEST := $(PY) -m pytest
SAY = @printf '== %s\n'

.DEFAULT_GOAL := help
.PHONY: help install core demo test check format bench bench-store interop promises long crash clean sanitize lock spark spark-crash

help:
	@echo 'install   .venv with everything the other targets use, and the compiled core'
	@echo 'demo      a broker, a name server, a producer and a consumer on this machine'
	@echo 'test      every test that needs neither Apache'"'"'s programs nor strace, under 8 minutes'
	@echo 'check     format, lint, types, import arrows, tidiness, under 2 minutes'
	@echo 'format    rewrite the Python files in the house format'
	@echo 'sanitize  the core tests again, under address and undefined-behaviour checks'
	@echo 'crash     kill and trace tests (installs strace and redis-server when they are missing)'
	@echo 'spark     those of the tests that share a Spark session; spark-crash: those that kill it, or run on two executors'
	@echo 'interop   tests against the Java reference implementation'
	@echo 'long      tests that take minutes each, then figures beside a great backlog'
	@echo 'promises  run every test that claims a promise, fill docs/promises.md'
	@echo 'bench     figures beside Apache RocketMQ, Redis, Kafka and in Spark, an hour and a half, then the store'"'"'s own'
	@echo 'bench-store  the store'"'"'s own figures, beside their goals'
	@echo 'clean     remove what the build made'

# --- what the other targets stand on ---------------------------------------------------------------------

$(VENV)/.deps-stamp: requirements.lock
	$(SAY) 'installing the locked dependencies into $(VENV)'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --require-hashes --requirement requirements.lock
	@touch $@

$(VENV)/.install-stamp: $(VENV)/.deps-stamp pyproject.toml setup.py
	$(SAY) 'installing hotfire into $(VENV), editable'
	@HOTFIRE_NO_CORE=1 $(PY) -m pip install --quiet --no-build-isolation --no-deps --editable . || \
	  { echo 'hotfire: the editable install failed; the lines above say why' >&2; exit 1; }
	@touch $@

# the directory itself too: a source that was taken away is a change like any other
$(VENV)/.core-stamp: $(VENV)/.install-stamp $(CORE) $(CORE_SOURCES) $(if $(HOTFIRE_NO_CORE),always)
	$(SAY) 'building the compiled core'
	@tools/build_core.sh $(PY) $@

.PHONY: always

install: $(VENV)/.core-stamp

core: $(VENV)/.core-stamp

# --- using it --------------------------------------------------------------------------------------------

demo: install
	$(SAY) 'starting a name server, a broker, a producer and a consumer'
	@$(PY) -m hotfire.cli demo

# One part alone: make bench PART=extras, with ARGS for it; ARGS without PART are for the first, bench/run.py.
bench: install
ifdef PART
	$(SAY) 'measuring $(PART)'
	@$(PY) -m bench.$(PART) $(ARGS)
else
	$(SAY) 'measuring throughput and latency, an hour and a half; ARGS=--help says how to run parts of it'
	@$(PY) bench/run.py $(ARGS)
	@test -n '$(ARGS)' || { $(PY) -m bench.beside && $(PY) -m bench.extras && $(PY) -m bench.filters && $(PY) -m bench.clients && $(PY) -m bench.spark && $(MAKE) --no-print-directory bench-store; }
endif

bench-store: install
	$(SAY) 'measuring the store alone'
	@$(PY) -m bench.store $(ARGS)

# --- trusting it -----------------------------------------------------------------------------------------

check: install
	$(SAY) 'checking format, lint, types, import arrows and tidiness'
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports
	@$(PYTEST) tests/tidy

format: install
	$(SAY) 'rewriting the Python files in the house format'
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

# Four lanes at once, for two cores: two that compute, one that mostly waits, for processes and for time, and one
# that shares a Spark session. With ARGS, which may choose tests of one lane only, all but Spark's in one. Tidiness
# is told by `check`.
QUICK := not interop and not slow and not crash and not spark
PIPELINES := spark and not crash and not slow
LIVES := tests/sim tests/unit/store tests/wire
MORE := tests/unit/spark tests/unit/core tests/unit/protocol
WAITS := tests/broker tests/docs tests/unit/client tests/unit/filtersrv
test: install
	$(SAY) 'running every test that needs neither Apache'"'"'s programs nor strace'
ifdef ARGS
	@$(PYTEST) -m '$(QUICK)' --promises-report=$(REPORTS)/test.json $(ARGS)
else
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=line test-spark test-lives test-waits test-rest
endif

.PHONY: test-spark test-lives test-waits test-rest
test-spark:
	@$(PYTEST) -m '$(PIPELINES)' --promises-report=$(REPORTS)/spark.json
	@$(PYTEST) -m '$(QUICK)' --promises-report=$(REPORTS)/test-more.json $(MORE)

test-lives:
	@$(PYTEST) -m '$(QUICK)' --promises-report=$(REPORTS)/test-lives.json $(LIVES)

test-waits:
	@$(PYTEST) -m '$(QUICK)' --promises-report=$(REPORTS)/test-waits.json $(WAITS)

test-rest:
	@$(PYTEST) -m '$(QUICK)' --promises-report=$(REPORTS)/test-rest.json $(addprefix --ignore=,$(LIVES) $(WAITS) $(MORE) tests/tidy) tests

long: install
	$(SAY) 'running the tests that take minutes each; docs/long-run.md says how they ended'
	@tools/need.sh strace
	@mkdir -p build; $(PYTEST) -m 'slow and not interop' --timeout 1800 --junitxml=build/long.xml -o junit_family=xunit1 $(ARGS); \
	  status=$$?; $(PY) tools/longreport.py $(if $(ARGS),--onto) build/long.xml docs/long-run.md && exit $$status
	$(SAY) 'measuring beside a great backlog'
	@$(PY) -m bench.long

crash: install
	$(SAY) 'killing brokers and consumers, tracing system calls'
	@tools/need.sh strace redis-server
	@$(PYTEST) -m 'crash and not slow and not spark' --promises-report=$(REPORTS)/crash.json $(ARGS)

spark: install
	$(SAY) 'running pipelines'
	@$(PY) -m tests.peers.sparkjava
	@$(PYTEST) -m '$(PIPELINES)' --promises-report=$(REPORTS)/spark.json $(ARGS)

spark-crash: install
	$(SAY) 'killing pipelines, and running them on two executors'
	@$(PY) -m tests.peers.sparkjava
	@$(PYTEST) -m 'spark and crash and not slow' --promises-report=$(REPORTS)/spark-crash.json $(ARGS)

interop: install
	$(SAY) 'running against the Java reference implementation'
	@if [ -x tests/interop/prepare.sh ]; then tests/interop/prepare.sh; fi
ifdef ARGS
	@$(PYTEST) -m '$(REFERENCE)' --promises-report=$(REPORTS)/interop.json $(ARGS)
else
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line interop-rows interop-rest
endif

# Two lanes at once: both mostly wait, for virtual machines to start and for time to pass.
ROWS := $(addprefix tests/interop/test_,rows.py replication.py stores.py timer_stores.py)
REFERENCE := interop and not slow
.PHONY: interop-rows interop-rest
interop-rows:
	@$(PYTEST) -m '$(REFERENCE)' --promises-report=$(REPORTS)/interop-rows.json $(ROWS)

interop-rest:
	@$(PYTEST) -m '$(REFERENCE)' --promises-report=$(REPORTS)/interop-rest.json $(addprefix --ignore=,$(ROWS)) tests

sanitize: install
	$(SAY) 'running the core tests under address and undefined-behaviour checks'
	@tools/sanitize.sh $(PY) $(ARGS)

promises: install
	$(SAY) 'running every test that claims a promise and filling docs/promises.md'
	@rm -rf $(REPORTS)
	@failed=''; for stage in test crash spark spark-crash interop; do \
	  $(MAKE) --no-print-directory $$stage ARGS=--promises-only || failed="$$failed $$stage"; done; \
	$(PY) tools/promises.py docs/promises.md $(REPORTS)/*.json || failed="$$failed promises"; \
	test -z "$$failed" || { echo "promises: failed in$$failed" >&2; exit 1; }

# --- housekeeping ----------------------------------------------------------------------------------------

lock: $(VENV)/.deps-stamp
	$(SAY) 'pinning requirements.in into requirements.lock'
	@tools/lock.sh $(PY)

clean:
	$(SAY) 'removing what the build made'
	@rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  .import_linter_cache $(CORE)/*.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
