# `make help` lists what there is. Everything lives in $(VENV) and build/; nothing is installed elsewhere.
#
#   PYTHON  the Python to start from (3.11 or later)     VENV  where its environment goes
#   JAX     an exact jax version, e.g. 0.10.2            PYTEST_ARGS, DEMO_ARGS  handed on
#   JOBS    compilers and tests that run side by side (2); those of pytest and native-test, which wait a lot, some more
#   FUZZ_SECONDS  how long each fuzz target runs (600)
#   RDMA_ARGS  --short, --flow or --measure, for test-rdma
#   COVERAGE  ON: `make pytest` and `make asan` count executed lines, for `make coverage-report` (OFF)
#   UNITY   OFF: compile every source by itself, for work on the C++ code (ON)
#   PYTHONS  the Pythons for which wheels and package-test make and install wheels (PYTHON)
#   CUDA_ARCHITECTURES  of package-cuda: all, or a list such as 80;90 (all)
#   CUDA    ON: build _native_cuda too (needs nvcc; minutes), for this machine's GPUs; AUTO: where there are some
PYTHON ?= python3
VENV ?= .venv
JAX ?=
PYTEST_ARGS ?=
CUDA ?= OFF
DEMO_ARGS ?=
RDMA_ARGS ?=
JOBS ?= 2
PYTHONS ?= $(PYTHON)
CUDA_ARCHITECTURES ?= all
IMAGES ?= cpu cuda
FUZZ_SECONDS ?= 600
UNITY ?= ON
COVERAGE ?= OFF
CXX ?= g++

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# Of the package's build; pip 23.0, which Debian 12 has, does not know the short form.
DEFINE := --config-settings cmake.define

BIN := $(VENV)/bin
BUILD := build/$(notdir $(VENV))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PATH := $(abspath $(BIN)):$(PATH)
# Tests start Python many hundreds of times: what is imported is compiled once, and most starts are forks of a process
# with the same such variables (tests/starting), whatever the caller's environment says.
unexport PYTHONPATH PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED

# ThreadSanitizer of older compilers cannot start where the kernel randomises addresses widely.
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)

FFI := $(shell find ffi cmake -type f -not -path 'ffi/tests/*' 2>/dev/null)
CXX_FILES = $(shell git ls-files -co --exclude-standard 'ffi/*.cc' 'ffi/*.cu' 'ffi/*.h' 'fuzz/*.cc' 'fuzz/*.h')
ENVIRONMENT := $(VENV)/.environment$(if $(JAX),-jax-$(JAX))
BUILT := $(VENV)/.built$(if $(JAX),-jax-$(JAX))
# What the native tests play; made by the planner.
SCHEDULES := build/schedules.bin
export TEST_SCHEDULES := $(abspath $(SCHEDULES))
# What an emulated processor does not run: tests of the CUDA kernels' source on fibers, which say nothing of the processor
# and take long; failures by deadlines of a second, in which four emulated processes get nowhere on a busy machine; and
# what the kernel says of a TCP connection, of which qemu-user passes on four bytes.
NOT_EMULATED := '^(cuda_[^h].*|failure_matrix_test|tcp_totals_test)$$'
SAY = @printf '\n\033[1m== %s\033[0m\n'

.PHONY: help demo fuzz test test-all ci-tools checked-and-built native-build test-rdma test-aarch64 gpu-programs lint tidy tidy-library tidy-tests format types pytest pytest-versions pytest-newer newest native-test seeds counts tsan asan ubsan coverage coverage-report docs site-pictures site-search images package-cuda cuda cuda-all test-ptx test-ptx-races test-ptx-all wheels package-test package-wheels package-installed module aarch64-build tsan-build asan-build ubsan-build fuzz-build test-ray clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(BUILT) ## train a language model data parallel with jaxring, then with lax.psum (under 5 minutes)
	$(SAY) "demo: 4 processes x 2 devices"
	@mkdir -p out
	@jaxring run -n 4 --devices-per-process 2 --output rank0 examples/train_lm.py --plot out/loss.png $(DEMO_ARGS)

test: PYTEST_MARKS = -m "not slow"
test: NATIVE = engine_tests
test: lint checked-and-built native-test pytest ## lint, formatting, types, tests, but for those of many ranks and of the GPU kernels by themselves
	$(SAY) "all tests passed"

test-all: lint ci-tools checked-and-built native-test pytest ## the same with all tests
	$(SAY) "all tests passed"

# What slow tests and coverage need beside the environment, which takes a third longer with it.
ci-tools: $(ENVIRONMENT)
	@python -c 'import basedpyright, gcovr, kubernetes_validate' 2>/dev/null || \
	  python -m pip install -q --no-compile -r <(python tools/requirements.py ci)

# mypy takes one core for half a minute, in which the others compile.
checked-and-built: $(BUILT)
	@$(MAKE) --no-print-directory -j2 types native-build NATIVE=$(NATIVE)

lint: $(ENVIRONMENT) ## ruff, clang-format and spelling, without changing files
	$(SAY) "lint and format"
	@ruff check .
	@ruff format --check .
	@if [ -n "$(CXX_FILES)" ]; then clang-format --dry-run -Werror $(CXX_FILES); fi
	@codespell $$(git ls-files -co --exclude-standard -- '*.py' '*.pyi' '*.h' '*.cc' '*.cu' '*.md' '*.sh' '*.toml' '*.yml' '*.yaml' '*.mk' Makefile)

# What clang-tidy reads: files, and units of several files. Two tests for the RDMA guest include a header that make
# test-rdma installs: they are left out where it is missing.
UNITS := build/tidy/CMakeFiles
TIDY_library := ffi/(?!tests/)|$(UNITS)/(jaxring_(?!test_)|_native).*/Unity/
TIDY_tests := ffi/tests/$(if $(wildcard /usr/include/rdma/rdma_cma.h),,(?!transport/rdma/(verbs_abi_layout|write_source)\.))|$(UNITS)/jaxring_test_.*/Unity/

tidy: tidy-library tidy-tests ## clang-tidy on the C++ code, with the checks of .clang-tidy

tidy-library tidy-tests: tidy-%: $(ENVIRONMENT)
	$(SAY) "clang-tidy: $*"
	@headers=$$(python tools/ffi_headers.py $(VENV)/headers); \
	cmake -S . -B build/tidy -G Ninja -DPython_EXECUTABLE="$(abspath $(BIN))/python" -DJAXRING_BUILD_TESTS=ON \
	  -DJAXRING_UNITY=$(UNITY) -DJAXRING_CUDA=OFF -DJAXRING_FFI_INCLUDE="$$headers" --log-level=WARNING >/dev/null
	@run-clang-tidy.py -p build/tidy -j $(JOBS) -quiet -hide-progress '$(CURDIR)/($(TIDY_$*))'

format: $(ENVIRONMENT) ## rewrite all sources and pages in the project's format, and the tables of docs/settings.md and docs/reference/
	@python tools/settings_page.py
	@python -m tools.reference_pages
	@python tools/markdown_lines.py
	@ruff check --fix .
	@ruff format .
	@if [ -n "$(CXX_FILES)" ]; then clang-format -i $(CXX_FILES); fi

module: $(BUILT) ## the environment, with the package built in it

types: $(BUILT) ## mypy, strict
	$(SAY) "types"
	@# The stub names a type of Python 3.13 there; types are checked as of the oldest Python.
	@sed 's/types\.CapsuleType/object/' $(BUILD)/_native.pyi > jaxring/_native.pyi
	@mypy

PYTEST = pytest -n $$(($(JOBS) + 2)) --dist worksteal $(if $(filter ON,$(COVERAGE)),--cov --cov-report=) \
  $(PYTEST_MARKS) $(PYTEST_ARGS)
VERSIONS = Python tests: $$(python -c 'import sys, jax, jaxlib; print("Python %d.%d," % sys.version_info[:2], "jax", jax.__version__)')

pytest: $(BUILT) ## Python tests (PYTEST_ARGS="-k name -x")
	$(SAY) "$(VERSIONS)"
	@cmake --build $(BUILD) --target _native_cuda_fake net_plugin
	@TEST_NET_PLUGIN="$(abspath $(BUILD))/libnet_plugin.so" \
	  TEST_CUDA_FAKE="$$(ls $(abspath $(BUILD))/_native_cuda_fake.*so)" \
	  TEST_ONCE="$(ONCE) $(ONCE_OF_A_FILE)" \
	  $(PYTEST)

# Tests of the engine, of what lies beside it, and of the tests themselves: they use few of Python's and jax's names, and
# all of these are used by other tests, too. What is traced, lowered, differentiated or typed is not among them.
ONCE := bench benchmarks cli gpu hosts layers package plan settings simulate stress topology trace world \
  docs/test_commands.py docs/test_reference.py examples/test_train_lm.py examples/test_recover_lm.py \
  runtime/cuda runtime/signals runtime/programs/test_ending.py runtime/programs/test_recompiled.py \
  tools/test_ci.py tools/test_ffi_headers.py \
  $(addprefix collectives/test_,communicator.py failures.py huge.py no_memory.py one_process.py processes.py)
ONCE_OF_A_FILE := random/test_random.py::test_an_abort_of_ours_has_failed \
  runtime/programs/test_programs.py::test_a_process_ends user/test_types.py::test_mypy \
  user/test_types.py::test_pyright

pytest-versions pytest-newer: PYTEST_MARKS = -m "not slow" $(ONCE:%=--ignore=tests/%) $(ONCE_OF_A_FILE:%=--deselect=tests/%)
pytest-versions: $(BUILT) ## the quicker Python tests of what depends on the versions of Python and jax
	$(SAY) "$(VERSIONS)"
	@$(PYTEST)

# The module is built against the oldest jaxlib, so it serves a newer one in the same environment. That has another jax
# than its name says from then on, so the next `make` makes it anew.
pytest-newer: $(BUILT) ## the same with jax NEWER in the environment that JAX has
	@rm -f $(ENVIRONMENT)
	@python -m pip install -q jax==$(NEWER) jaxlib==$(NEWER)
	$(SAY) "$(VERSIONS)"
	@$(PYTEST)

# From an empty environment, and then once more by itself: other requirements may hold an older jax.
newest: ## install the newest jax in .venv-newest, run these tests with it, and say what it has changed
	$(SAY) "newest jax"
	@rm -rf .venv-newest build/newest.xml
	@$(MAKE) .venv-newest/.environment VENV=.venv-newest JAX=
	@.venv-newest/bin/python -m pip install -q --upgrade jax jaxlib
	@$(MAKE) pytest-versions VENV=.venv-newest JAX= PYTEST_ARGS="--junitxml=build/newest.xml $(PYTEST_ARGS)" || true
	@.venv-newest/bin/python tools/newest.py build/newest.xml

# engine_tests: those of the engine and of the CUDA engine's host half; native_tests: those of the kernels, too.
NATIVE = native_tests

native-build: $(BUILT)
	@cmake --build $(BUILD) --target $(NATIVE)

native-test: native-build $(SCHEDULES) ## the engine's C++ tests, and those of the GPU kernels
	$(SAY) "native tests"
	@ctest -j $$(($(JOBS) + 2)) --test-dir $(BUILD) -LE 'ptx$(if $(filter engine_tests,$(NATIVE)),|kernels)' \
	  --output-on-failure --no-tests=error $(CTEST_ARGS)
	@if ctest --test-dir $(BUILD) -N -R '^kernels_without_avx$$' | grep -x 'Total Tests: 0' >/dev/null; then \
	  echo "Without the test on a CPU without AVX: it needs x86-64 and qemu-x86_64 (Debian: qemu-user)."; fi

test-rdma: $(BUILT) $(SCHEDULES) ## the verbs transport on soft-RoCE and soft-iWARP, in a guest (RDMA_ARGS=--short, --flow, --measure)
	$(SAY) "RDMA tests"
	@tests/rdma/guest/make.sh build/rdma
	@cmake $(BUILD) >/dev/null
	@cmake --build $(BUILD) --target verbs_guest verbs_moves verbs_echo write_source engine_test engine_order_test engine_p2p_test \
	  engine_failure_test engine_leaving_test engine_refusal_test failure_matrix_test memory_matrix_test faults_test \
	  cuda_host_messages_test cuda_host_test _native_cuda_fake
	@python -m tests.rdma.rdma_jobs build/rdma/bits.json
	@TEST_TCP_BITS="$(abspath build/rdma/bits.json)" TEST_CUDA_FAKE="$$(ls $(abspath $(BUILD))/_native_cuda_fake.*so)" \
	  GUEST_TIMEOUT=3600 tests/rdma/guest/run.sh build/rdma \
	  tests/rdma/lane.sh $(abspath $(BUILD))/native_tests $(abspath build/rdma/pyverbs) $(RDMA_ARGS)

aarch64-build: $(ENVIRONMENT)
	$(SAY) "64-bit Arm: build"
	@tests/aarch64/root.sh build/aarch64
	@cmake -S . -B build/aarch64/native -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake \
	  -DJAXRING_AARCH64_ROOT="$(abspath build/aarch64/root)" -DJAXRING_PYTHON=OFF -DJAXRING_BUILD_TESTS=ON \
	  -DJAXRING_UNITY=$(UNITY) -DJAXRING_WERROR=ON -DJAXRING_CUDA=OFF --log-level=WARNING >/dev/null
	@cmake --build build/aarch64/native --target native_tests
	@tests/aarch64/wheel.sh build/aarch64

test-aarch64: $(BUILT) $(SCHEDULES) aarch64-build ## the native tests and a job of JAX on 64-bit Arm, under qemu-user (Debian; needs g++-aarch64-linux-gnu, qemu-user)
	$(SAY) "64-bit Arm"
	@ctest -j $(JOBS) --test-dir build/aarch64/native --output-on-failure --no-tests=error -E $(NOT_EMULATED)
	@tests/aarch64/jobs.sh build/aarch64

test-ray: $(BUILT) ## a job in Ray's actors on this machine (downloads 80 MB; about a minute)
	$(SAY) "Ray"
	@[ -e build/ray/ray ] || python -m pip install -q --target build/ray 'ray>=2.40'
	@PYTHONPATH="$(abspath build/ray)" JAX_PLATFORMS=cpu RAY_AUTH_MODE=disabled RAY_ADDRESS= \
	  python examples/clusters/on_ray.py --processes 2

seeds: $(BUILT) $(SCHEDULES) ## 100,000 seeded schedules of the engine in virtual time (about a minute)
	$(SAY) "seeds"
	@cmake --build $(BUILD) --target simulation_test
	@TEST_SEEDS=100000 $(BUILD)/native_tests/simulation_test

counts: $(BUILT) $(SCHEDULES) ## instructions, accesses to memory and system calls of an all-reduce (needs valgrind, strace)
	$(SAY) "counts"
	@cmake --build $(BUILD) --target engine_counts
	@python tools/engine_counts.py $(BUILD)/native_tests/engine_counts --table docs/engine-counts.txt

tsan: tsan-build $(SCHEDULES) ## the same under ThreadSanitizer
	@$(call test_sanitized,tsan,thread)

asan: asan-build $(SCHEDULES) ## the same under AddressSanitizer and LeakSanitizer
	@$(call test_sanitized,asan,address)

ubsan: ubsan-build $(SCHEDULES) ## the same under UndefinedBehaviorSanitizer
	@$(call test_sanitized,ubsan,undefined)

tsan-build: $(ENVIRONMENT)
	@$(call build_sanitized,tsan,thread)

asan-build: $(ENVIRONMENT)
	@$(call build_sanitized,asan,address)

ubsan-build: $(ENVIRONMENT)
	@$(call build_sanitized,ubsan,undefined)

docs: $(ENVIRONMENT) ## the documentation as a site, in build/site; a warning is an error
	$(SAY) "docs"
	@[ -x $(BIN)/mkdocs ] || python -m pip install -q -r <(python tools/requirements.py docs)
	@NO_MKDOCS_2_WARNING=1 mkdocs build --strict
	@echo "build/site/index.html: $$(find build/site -name '*.html' | wc -l) pages"

site-pictures: docs ## docs/screenshots/site-*.png: the site in headless Chromium, and whether its pages fit (needs chromium)
	@python tools/site_pictures.py

site-search: docs ## whether the site's search box finds the page that answers a question first (needs chromium)
	@python -m tools.site_search

coverage: ## lines that the Python tests (not the slow ones) and the native tests execute; needs Python 3.12 or later
	@$(MAKE) pytest COVERAGE=ON PYTEST_ARGS='-m "not slow" $(PYTEST_ARGS)'
	@$(MAKE) asan COVERAGE=ON
	@$(MAKE) coverage-report

coverage-report: ci-tools ## percentages and pages (build/coverage) of what COVERAGE=ON has counted
	$(SAY) "coverage"
	@mkdir -p build/coverage/cxx
	@gcovr -j $(JOBS) --json-summary build/coverage/cxx.json --html-details build/coverage/cxx/index.html build/asan
	@python tools/coverage_report.py

fuzz: $(BUILT) fuzz-build ## every reader of what others write against inputs made to break it (needs clang; FUZZ_SECONDS each)
	$(SAY) "fuzz targets, $(FUZZ_SECONDS) s each"
	@python -c 'import atheris' 2>/dev/null || python -m pip install -q 'atheris==3.0.*'
	@python tools/fuzz.py build/fuzz $(FUZZ_SECONDS) --jobs $(JOBS)

fuzz-build: $(ENVIRONMENT)
	$(SAY) "fuzz targets: build"
	@cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DJAXRING_PYTHON=OFF -DJAXRING_FUZZ=ON \
	  -DJAXRING_UNITY=$(UNITY) \
	  -DJAXRING_WERROR=ON -DJAXRING_CUDA=OFF --log-level=WARNING >/dev/null
	@cmake --build build/fuzz --target fuzz_targets

wheels: $(ENVIRONMENT) ## a source distribution and manylinux wheels by each of PYTHONS, checked, in dist/ (CUDA=ON: with the CUDA engine)
	$(SAY) "wheels"
	@[ -n "$(ROOT)" ] || rm -rf dist
	@JAXRING_CUDA=$(CUDA) tools/wheels.sh dist $(PYTHONS)

package-test: $(ENVIRONMENT) ## make wheels by PYTHONS, install one in an empty environment of each, run README's commands with it
	@$(MAKE) package-wheels
	@$(MAKE) package-installed

package-wheels: $(ENVIRONMENT)
	$(SAY) "package: wheels"
	@rm -rf build/package
	@JAXRING_CUDA=$(CUDA) tools/wheels.sh build/package/dist $(PYTHONS)

package-installed: $(ENVIRONMENT)
	$(SAY) "package: installed"
	@tests/package/clean.sh build/package $(PYTHONS)
	@tests/package/in_checkout.sh build/package

package-cuda: $(ENVIRONMENT) ## make a wheel with both engines by nvcc, check it, install it, use it without a GPU (many minutes)
	$(SAY) "package: wheels with the CUDA engine for $(CUDA_ARCHITECTURES)"
	@rm -rf build/package-cuda
	@JAXRING_CUDA=ON JAXRING_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)" tools/wheels.sh build/package-cuda/dist $(PYTHONS)
	@tests/package/clean.sh build/package-cuda $(PYTHONS)
	@build/package-cuda/venv/bin/jaxring --version | grep 'and CUDA engine'
	@build/package-cuda/venv/bin/python -c 'import jaxring._native_cuda; print("the CUDA engine imports")'

images: ## the images of examples/clusters, and a job in each (IMAGES=cpu: that one; needs docker, podman or buildah)
	$(SAY) "images: $(IMAGES)"
	@tools/images.sh $(IMAGES)

clean: ## remove environments, builds and outputs
	rm -rf .venv* build dist out .mypy_cache .pytest_cache .ruff_cache jaxring/_native.pyi

configure_sanitized = cmake -S . -B build/$(1) -G Ninja -DJAXRING_PYTHON=OFF -DJAXRING_BUILD_TESTS=ON \
  -DJAXRING_UNITY=$(UNITY) -DJAXRING_SANITIZE=$(2) -DJAXRING_COVERAGE=$(if $(filter asan,$(1)),$(COVERAGE),OFF) \
  -DJAXRING_CUDA=OFF --log-level=WARNING

# $(call build_sanitized,NAME,SANITIZER): the engine and its tests without Python, in build/NAME. Warnings are no errors:
# what sanitizers add to the code makes GCC see overruns that are none.
define build_sanitized
printf '\n\033[1m== %s\033[0m\n' "native tests, $(2) sanitizer: build"; \
$(call configure_sanitized,$(1),$(2)) -DJAXRING_PTX=OFF >/dev/null; \
cmake --build build/$(1) --target native_tests
endef

define test_sanitized
printf '\n\033[1m== %s\033[0m\n' "native tests, $(2) sanitizer"; \
find build/$(1) -name '*.gcda' -delete; \
$(FIXED_ADDRESSES) ctest -j $(JOBS) --test-dir build/$(1) --output-on-failure --no-tests=error
endef

$(SCHEDULES): $(ENVIRONMENT) tools/dump_schedules.py $(shell find jaxring/plan -name '*.py')
	@python tools/dump_schedules.py $@

# Build requirements other than jaxlib, whose headers come from tools/ffi_headers.py: the jaxlib that runs here may
# be newer than the one to build against.
$(ENVIRONMENT): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "There is no '$(PYTHON)' here: install Python 3.11 or later, or say PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("jaxring needs Python 3.11 or later; $(PYTHON) is %d.%d. Say which to use: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	@command -v $(CXX) >/dev/null || { echo "There is no C++ compiler '$(CXX)' here: install g++ 12 or clang 15 or later, or say CXX=..."; exit 1; }
	$(SAY) "environment: $(VENV), $$($(PYTHON) --version)$(if $(JAX), with jax $(JAX))"
	@if [ -e $(VENV) ] && [ ! -e $(VENV)/.made-by-jaxring ]; then echo "$(VENV) is not an environment of this Makefile's making: choose another with VENV=..."; exit 1; fi
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module does not work: on Debian and Ubuntu, apt install python3-venv"; exit 1; }
	@touch $(VENV)/.made-by-jaxring
	@python tools/requirements.py > $(VENV)/requirements.txt
	@# What is imported is compiled then, a third of what there is.
	@python -m pip install -q --no-compile -r $(VENV)/requirements.txt $(if $(JAX),jax==$(JAX) jaxlib==$(JAX))
	@touch $@

$(BUILT): $(ENVIRONMENT) CMakeLists.txt $(FFI)
	$(SAY) "build: native engine"
	@headers=$$(python tools/ffi_headers.py $(VENV)/headers); \
	python -m pip install -q --no-build-isolation --no-deps --editable . --config-settings build-dir=$(BUILD) \
	  $(DEFINE).JAXRING_WERROR=ON $(DEFINE).JAXRING_BUILD_TESTS=ON $(DEFINE).JAXRING_CUDA=$(CUDA) \
	  $(DEFINE).JAXRING_UNITY=$(UNITY) $(DEFINE).JAXRING_FFI_INCLUDE="$$headers"
	@touch $@

include tools/gpu.mk
