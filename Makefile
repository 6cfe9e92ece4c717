# `make demo` and `make test` each do everything on a fresh Debian machine with Python 3.11+; `make setup` only installs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS := 1

.PHONY: setup system demo test lint types sanitize wheel pages results-check mutants torture clean

setup: $(VENV)/.installed system

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Chromium renders the report in one test. Where it cannot be installed, that test is skipped and says so.
system:
	@command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || { \
	  if command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ]; then \
	    echo "installing Chromium for the report test"; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
	      || echo "Chromium could not be installed: the report test will be skipped (try: apt-get install chromium)"; \
	  else echo "Chromium is missing: the report test will be skipped (install it with: sudo apt-get install chromium)"; fi; }

demo: $(VENV)/.installed
	$(BIN)/hvcl demo

# one thread in each process: two that share two cores wait for each other's threads
test: setup lint types
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -q -n 2

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed
	$(BIN)/mypy

# a wheel with compiled libraries, in dist/; without a C compiler one without
wheel: $(VENV)/.installed
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

# the compiled code under AddressSanitizer and UBSan, by gcc. Without the search for leaks: Python and torch keep memory to the end.
SANITIZED := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g
sanitize: export CC := gcc
sanitize: $(VENV)/.installed
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	  $(BIN)/python -c "import sys; from pathlib import Path; from hvcl.ops import build, library; \
	    build.compile_library(Path(sys.argv[1]), library.best_instructions(), build.find_compiler(), tuple(sys.argv[2:]))" \
	    "$$folder/hvcl.so" $(SANITIZED) && \
	  HVCL_LIBRARY="$$folder/hvcl.so" LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(BIN)/python -m pytest -q --capture=sys tests/ops tests/layers tests/safety $(ARGS)

# README's overview and the pages of docs/ that are made from results/ and experiments/
pages: $(VENV)/.installed
	@for page in results exact generative reproduction; do $(BIN)/python -m tools.$${page}_page$$([ $$page = results ] && echo s) --write || exit 1; done

# runs a few of the committed figures again; needs their data under $$HVCL_DATA
results-check: $(VENV)/.installed
	$(BIN)/hvcl check results --sample 3 $(ARGS)

# are small changes of the code noticed by the tests? A fixed sample a module, hours; ARGS="--rooms runs --sample 2" for fewer
mutants: $(VENV)/.installed
	$(BIN)/python -m tools.mutants $(ARGS)

# kills and odd command lines, for an hour; ARGS="--minutes 5" for less
torture: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.torture $(ARGS)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

# -- benchmarks: in an environment of their own, with the peers; ARGS="--quick" for a look -----------------------------------
.PHONY: bench-runs bench-setup bench-layers bench-breakdown bench-harness bench-features bench-replay bench-serving bench-rl bench-plot bench-clean
BENCH := .venv-bench
# Avalanche and the peers come without their dependencies, which would bring another torch; what they need is listed after them.
BENCH_PEERS := avalanche-lib bayesian-torch blitz-bayesian-pytorch stable-baselines3 torchbnn torchvision
BENCH_NEEDS := cloudpickle dill gdown GPUtil matplotlib pillow psutil pytorchcv qpsolvers tensorboard torchmetrics tqdm

bench-setup: $(BENCH)/.installed

$(BENCH)/.installed: pyproject.toml constraints.txt benchmarks/constraints.txt
	$(PYTHON) -m venv $(BENCH)
	@echo '*' >$(BENCH)/.gitignore
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --constraint benchmarks/constraints.txt \
	  --editable '.[rl,bullet,mujoco]' $(BENCH_NEEDS)
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --constraint benchmarks/constraints.txt \
	  --no-deps $(BENCH_PEERS)
	@touch $@

bench-layers: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/layers.py $(ARGS)

bench-breakdown: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/breakdown.py $(ARGS)

bench-harness: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/harness.py $(ARGS)

bench-features: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/features.py $(ARGS)

bench-rl: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/rl.py $(ARGS)

bench-replay: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/replay.py $(ARGS)

bench-serving: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/serving.py $(ARGS)

bench-runs: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/runs.py $(ARGS)

bench-plot: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/plot.py

bench-clean:
	rm -rf $(BENCH)
