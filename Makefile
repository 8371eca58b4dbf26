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
.PHONY: help install core demo test check format bench bench-store interop promises long crash clean sanitize lock

help:
	@echo 'install   .venv with everything the other targets use, and the compiled core'
	@echo 'demo      a broker, a name server, a producer and a consumer on this machine'
	@echo 'test      every test that needs neither Java nor strace, under 8 minutes'
	@echo 'check     format, lint, types, import arrows, tidiness, under 2 minutes'
	@echo 'format    rewrite the Python files in the house format'
	@echo 'sanitize  the core tests again, under address and undefined-behaviour checks'
	@echo 'crash     kill and trace tests (installs strace and redis-server when they are missing)'
	@echo 'interop   tests against the Java reference implementation'
	@echo 'long      tests that take minutes each, then figures beside a great backlog'
	@echo 'promises  run every test that claims a promise, fill docs/promises.md'
	@echo 'bench     figures beside Apache RocketMQ and Redis, three quarters of an hour, then the store'"'"'s own'
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

bench: install
	$(SAY) 'measuring throughput and latency, three quarters of an hour; ARGS=--help says how to run parts of it'
	@$(PY) bench/run.py $(ARGS)
	@test -n '$(ARGS)' || { $(PY) -m bench.beside && $(PY) -m bench.clients && $(MAKE) --no-print-directory bench-store; }

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

# Two halves at once, for two cores; with ARGS, which may choose tests of one half only, all in one.
QUICK := -m 'not interop and not slow and not crash'
HALF := tests/unit/store tests/unit/core tests/sim tests/wire
test: install
	$(SAY) 'running every test that needs neither Java nor strace'
ifdef ARGS
	@$(PYTEST) $(QUICK) --promises-report=$(REPORTS)/test.json $(ARGS)
else
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line test-half test-rest
endif

.PHONY: test-half test-rest
test-half:
	@$(PYTEST) $(QUICK) --promises-report=$(REPORTS)/test-half.json $(HALF)

test-rest:
	@$(PYTEST) $(QUICK) --promises-report=$(REPORTS)/test-rest.json $(addprefix --ignore=,$(HALF)) tests

long: install
	$(SAY) 'running the tests that take minutes each; docs/long-run.md says how they ended'
	@tools/need.sh strace
	@mkdir -p build; $(PYTEST) -m 'slow and not interop' --timeout 1800 --junitxml=build/long.xml -o junit_family=xunit1 $(ARGS); \
	  status=$$?; $(PY) tools/longreport.py build/long.xml docs/long-run.md && exit $$status
	$(SAY) 'measuring beside a great backlog'
	@$(PY) -m bench.long

crash: install
	$(SAY) 'killing brokers and consumers, tracing system calls'
	@tools/need.sh strace redis-server
	@$(PYTEST) -m 'crash and not slow' --promises-report=$(REPORTS)/crash.json $(ARGS)

interop: install
	$(SAY) 'running against the Java reference implementation'
	@if [ -x tests/interop/prepare.sh ]; then tests/interop/prepare.sh; fi
	@$(PYTEST) -m 'interop and not slow' --promises-report=$(REPORTS)/interop.json $(ARGS)

sanitize: install
	$(SAY) 'running the core tests under address and undefined-behaviour checks'
	@tools/sanitize.sh $(PY) $(ARGS)

promises: install
	$(SAY) 'running every test that claims a promise and filling docs/promises.md'
	@rm -rf $(REPORTS)
	@failed=''; for stage in test crash interop; do \
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
