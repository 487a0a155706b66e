# Two commands do everything on a fresh machine with Python >= 3.11, make and Node: `make demo` and `make test`.
# Nothing needs root or Docker; everything lands in .venv, node_modules and .cache of this folder.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The providers' SDKs, for the tests alone: they exclude each other, so there are two environments beside ours.
SDKS := .venv-sdks
SDKS_READY := $(SDKS)/sdks/.ready $(SDKS)/sdks-apart/.ready
# The real writers of the logs we read (wandb, TensorBoard, ...), for the tests alone: an environment beside ours.
WRITERS := .venv-writers
# The generator of the documentation site.
DOCS := .venv-docs
# The edition of plotly.js with what our charts need: 0.4 MB on the wire where the whole is 1.5. Without npm, or without a
# registry, the whole one is served.
PLOTLY := dashboard/vendor/plotly-basic.min.js
# The dashboard's scripts and styles as one file each. Without npm the sources are served: the same page, more requests.
BUNDLE := dashboard/vendor/rollscope.min.mjs
ASSETS := $(shell find dashboard/assets -name '*.mjs' -o -name '*.css')
# The installer of the lock file is itself locked. A package index that has no uv is no obstacle: pip does it too.
# $(1): the environment, $(2): what to install there.
INSTALL = { test -x $(BIN)/uv && $(BIN)/uv pip install -q --python $(1)/bin/python $(2); } \
  || $(BIN)/python -m pip --python $(1)/bin/python install -q $(2)
# Markers of the tests that `make test-fast` leaves out.
NOT_FAST := postgres or browser or writers or sdks or process or crash or slow or long

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-long check docs bench bench-alerts bench-scrape bench-ui soak faults eval-verdict eval-advice screenshots lock clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.runtime $(PLOTLY) $(BUNDLE) ## make .venv with the console script rollscope

demo: setup ## start an imaginary cluster and the dashboard: http://127.0.0.1:8050
	@$(BIN)/rollscope demo $(ARGS)

test: $(VENV)/.dev $(PLOTLY) $(BUNDLE) $(SDKS_READY) $(WRITERS)/.ready $(DOCS)/.ready node_modules/.ready ## the whole suite: SQLite, a real PostgreSQL, a real Chromium
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder $(ARGS) || { test $$? -eq 1 || exit 2; \
	  echo "What failed beside three other processes is run again, alone: what passes now depends on the machine's load."; \
	  env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none $(ARGS); }

test-fast: $(VENV)/.dev $(PLOTLY) $(BUNDLE) ## what needs no PostgreSQL, browser, SDK, log writer or other process (below 90 seconds)
	@env -u PYTHONDONTWRITEBYTECODE ROLLSCOPE_TEST_EXAMPLES=10 $(BIN)/python -m pytest -q -m "not ($(NOT_FAST))" --ignore=tests/e2e -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-long: $(VENV)/.dev $(PLOTLY) $(BUNDLE) node_modules/.ready ## what `make test` leaves out for its length: more seeds, whole scenarios (10 minutes)
	@$(BIN)/python -m pytest -q -m long -n 2 --dist loadfile $(ARGS)

check: $(VENV)/.dev node_modules/.ready ## ruff, mypy --strict, layers; eslint and tsc for the browser's modules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@node_modules/.bin/eslint dashboard/assets tests/js
	@node_modules/.bin/tsc
	@$(BIN)/python -m pytest -q tests/test_layers.py

docs: $(VENV)/.dev $(DOCS)/.ready ## write the generated reference pages and build the documentation site into .cache/site
	@$(BIN)/python -m bench.docs
	@$(DOCS)/bin/zensical build --strict --clean

bench: $(VENV)/.dev $(WRITERS)/.ready ## speed, each figure beside its reference measured in the same run (JSON lines); bench-alerts is apart
	@for part in commands parse tail store packing rollouts backfill attach steady server; do $(BIN)/python -m bench.$$part || exit 1; done

bench-alerts: $(VENV)/.dev ## alerting: cost of a tick, crossing to webhook beside Prometheus + Alertmanager (4 minutes)
	@$(BIN)/python -m bench.alerts $(ARGS)

bench-scrape: $(VENV)/.dev ## scraping 50, 200 and 1,000 engines: CPU per page, memory, missed scrapes, beside Prometheus (8 minutes)
	@$(BIN)/python -m bench.scrape $(ARGS)

bench-ui: $(VENV)/.dev $(PLOTLY) $(BUNDLE) $(WRITERS)/.ready node_modules/.ready ## looking: first chart, datum to pixel, open tabs, memory, beside TensorBoard and trackio (15 minutes)
	@$(BIN)/python -m bench.ui $(ARGS)

soak: $(VENV)/.dev ## a long run on a simulated clock with faults: rows lost, memory, file size and latencies (1 hour; ARGS="--seconds 300 --database postgres")
	@$(BIN)/python -m bench.soak $(ARGS)

faults: $(VENV)/.dev ## kill -9 at 50 random moments under load, on both databases: no acknowledged row lost or counted twice (10 minutes)
	@$(BIN)/python -m bench.kills $(ARGS)

eval-verdict: $(VENV)/.dev ## is the verdict right? simulated runs against measured truth, recorded real runs, live demos (30 minutes)
	@failed=0; $(BIN)/python -m pytest -q -m long tests/demo/test_verdicts.py || failed=1; \
	for part in "eval_verdict $(ARGS)" real_runs verdict.demo_live; do \
	  $(BIN)/python -m bench.$$part || failed=1; done; exit $$failed

eval-advice: $(VENV)/.dev ## is the advice the best change? made in simulated runs, next to every other free change (12 minutes)
	@$(BIN)/python -m bench.eval_advice $(ARGS)

screenshots: $(VENV)/.dev $(PLOTLY) $(BUNDLE) node_modules/.ready ## every page, light and dark, wide and narrow, from demos whose clock stands still (4 minutes)
	@$(BIN)/python -m bench.screenshots $(ARGS)

lock: $(VENV)/.dev ## resolve the lock files again (names, versions, hashes; no addresses)
	@for name in runtime dev bootstrap sdks sdks-apart writers docs; do $(BIN)/uv pip compile -q --universal --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --python-version 3.11 requirements/$$name.in \
	  -o requirements/$$name.txt || exit 1; done

clean: ## remove everything the other commands made
	rm -rf $(VENV) $(SDKS) $(WRITERS) $(DOCS) dashboard/vendor node_modules .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Rollscope needs Python 3.11 or newer; set PYTHON=/path/to/it")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: requirements/runtime.txt requirements/bootstrap.txt pyproject.toml | $(VENV)/bin/python
	@echo "setting up .venv (once)"; $(BIN)/pip install -qq --require-hashes -r requirements/bootstrap.txt || true
	@$(call INSTALL,$(VENV),--require-hashes -r requirements/runtime.txt)
	@$(call INSTALL,$(VENV),--no-deps --no-build-isolation -e .)
	@touch $@

$(VENV)/.dev: requirements/dev.txt | $(VENV)/.runtime
	@$(call INSTALL,$(VENV),--require-hashes -r requirements/dev.txt)
	@touch $@

# Made anew whenever its lock changes: what a lock no longer names must not be importable.
$(SDKS)/%/.ready: requirements/%.txt | $(VENV)/.runtime
	@echo "setting up $(SDKS)/$* (once)"; $(BIN)/python -m venv --clear --without-pip $(SDKS)/$*
	@$(call INSTALL,$(SDKS)/$*,--require-hashes -r $<)
	@touch $@

$(WRITERS)/.ready: requirements/writers.txt | $(VENV)/.runtime
	@echo "setting up $(WRITERS) (once)"; $(BIN)/python -m venv --clear --without-pip $(WRITERS)
	@$(call INSTALL,$(WRITERS),--require-hashes -r $<)
	@touch $@

$(DOCS)/.ready: requirements/docs.txt | $(VENV)/.runtime
	@echo "setting up $(DOCS) (once)"; $(BIN)/python -m venv --clear --without-pip $(DOCS)
	@$(call INSTALL,$(DOCS),--require-hashes -r $<)
	@touch $@

$(PLOTLY): package-lock.json
	@mkdir -p $(@D) .cache/npm; cp package.json package-lock.json .cache/npm
	@(cd .cache/npm && npm ci --omit=dev --silent --no-audit --no-fund) \
	  && cp .cache/npm/node_modules/plotly.js-basic-dist-min/plotly-basic.min.js $@ \
	  || echo "no small plotly.js from npm: the dashboard will serve the whole one"

$(BUNDLE): $(ASSETS) dashboard/bundle.py package-lock.json | $(VENV)/.runtime $(PLOTLY)
	@$(BIN)/python -m dashboard.bundle .cache/npm/node_modules/.bin/esbuild \
	  || echo "no esbuild from npm: the dashboard will serve its scripts and style sheets one by one"

node_modules/.ready: package-lock.json
	@npm ci --silent --no-audit --no-fund
	@touch $@
