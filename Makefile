# The two commands of the README are `make demo` and `make test`; both install what they need on Debian 12.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NIXL := nixl-cu12==1.5.1
# Programs the tests run: the lab's own list, a real Prometheus, a real browser.
TEST_PACKAGES = $(shell cat tests/lab/packages.txt) prometheus linux-libc-dev chromium tmux
# For the compiled loop of latency measurements, and the fake RDMA device of its tests.
COMPILER := gcc libc6-dev libibverbs-dev

.PHONY: demo test test-fast lint lab-shell bench format schemas dashboards preview clean

# Two network namespaces need root and `ip`; without them the demo runs over loopback and says so.
demo: $(VENV)/.demo
	[ "$$(id -u)" -ne 0 ] || ./tools/apt-install iproute2 util-linux
	$(BIN)/kvdiag demo --fault random

# Real programs and emulated machines share two cores with whatever else runs: a test that fails there gets one more try,
# and the report says so.
test: $(VENV)/.dev lint
	./tools/apt-install $(TEST_PACKAGES)
	$(BIN)/pytest --numprocesses auto -m "not component and not lab"; fast=$$?; \
	    $(BIN)/pytest --numprocesses 2 --dist loadgroup --reruns 1 -m "component or lab" && exit $$fast

test-fast: $(VENV)/.dev
	$(BIN)/pytest --numprocesses auto -m "not component and not lab"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m kvdiag.schemas --check
	$(BIN)/python -m kvdiag_exporters.metrics_page --check docs/metrics.md
	$(BIN)/python dashboards/build.py --check

lab-shell: $(VENV)/.dev
	./tools/apt-install $(TEST_PACKAGES)
	$(BIN)/python tests/lab/shell.py $(LAB_ARGS)

bench: $(VENV)/.dev
	./tools/apt-install $(TEST_PACKAGES)
	$(BIN)/python -m benchmarks.perftest_compare $(BENCH_ARGS)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schemas: $(VENV)/.dev
	$(BIN)/python -m kvdiag.schemas

# Screenshots of the dashboards, drawn without a Grafana server, and of the report.
preview: $(VENV)/.dev
	./tools/apt-install $(TEST_PACKAGES) pngquant fonts-inter
	command -v npm >/dev/null || ./tools/apt-install nodejs npm
	$(BIN)/python -m dashboards.preview
	$(BIN)/python tools/report_screenshots.py

dashboards: $(VENV)/.dev
	$(BIN)/python dashboards/build.py

clean:
	rm -rf $(VENV) .lab build dist kvdiag-demo .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	./tools/make-venv $(PYTHON) $(VENV)

# NIXL's wheel asks for torch, which it does not need on a CPU: it is installed without its dependencies.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[probes,exporter,analysis,report]'
	$(BIN)/pip install --quiet --no-deps '$(NIXL)' || echo 'note: no NIXL wheel for this platform; the demo will use the TCP transport' >&2
	touch $@

$(VENV)/.dev: pyproject.toml probes/kvdiag_probes/latency_loops.c tools/compile_loops.py | $(BIN)/python
	[ "$$(id -u)" -ne 0 ] || ./tools/apt-install $(COMPILER)
	$(BIN)/pip install --quiet --editable '.[probes,exporter,analysis,dev]'
	$(BIN)/pip install --quiet --no-deps '$(NIXL)'
	touch $@
