# Part of the Makefile: what compiles for GPUs, which needs none.
#
#   GPU_JAX  the jax whose CUDA plugin compiles programs in gpu-programs (0.12.0.1)
GPU_JAX ?= 0.12.0.1

# What test-ptx leaves out: most cases of the tests that take long, and tests that take ThreadSanitizer long.
PTX_SHARE = TEST_SHARE=8
PTX_RACES = -R '^ptx_(engine|epoch_barrier|matrix|multicast)_test$$'

gpu-programs: $(BUILT) ## compile whole programs by JAX's CUDA plugin for four H100s, without any (gets 400 MB; Python 3.12 or later)
	$(SAY) "programs for GPUs, by the CUDA plugin of jax $(GPU_JAX)"
	@case "$$(uname -sm)" in "Linux x86_64" | "Linux aarch64") ;; \
	  *) echo "JAX has no CUDA plugin for $$(uname -sm): no program is compiled for GPUs"; exit 0 ;; esac; \
	cmake --build $(BUILD) --target _native_cuda_fake; \
	plugin=build/gpu-programs/jax-$(GPU_JAX); \
	if [ ! -e $$plugin/.complete ]; then \
	  rm -rf $$plugin; \
	  python -m pip install -q --no-deps --only-binary :all: --target $$plugin \
	    $(foreach name,jax jaxlib jax-cuda13-plugin jax-cuda13-pjrt,$(name)==$(GPU_JAX)); \
	  touch $$plugin/.complete; \
	fi; \
	TEST_CUDA_PLUGIN="$$PWD/$$plugin" TEST_CUDA_FAKE="$$(ls $(abspath $(BUILD))/_native_cuda_fake.*so)" \
	  pytest -q tests/dropin/whole_program/gpu/gpu_jobs.py $(PYTEST_ARGS)

cuda: $(ENVIRONMENT) ## compile the CUDA engine for sm_90 and check its kernels' resources and machine code (needs nvcc)
	@$(call cuda,cuda,90)

cuda-all: $(ENVIRONMENT) ## the same for sm_80, sm_90, sm_100 and sm_120
	@$(call cuda,cuda-all,all)

test-ptx: $(BUILT) $(SCHEDULES) ## the shim's tests of the kernels, as nvcc compiles them: its PTX, translated (needs nvcc)
	$(SAY) "the kernels' PTX on the shim"
	@cmake $(BUILD) -DJAXRING_PTX=ON --log-level=WARNING >/dev/null
	@cmake --build $(BUILD) --target ptx_tests
	@rm -f $(BUILD)/ptx/played
	@$(PTX_SHARE) ctest -j $(JOBS) -L ptx --test-dir $(BUILD) --output-on-failure --no-tests=error
	@python -m tools.ptx.check $(BUILD) --jobs $(JOBS)

test-ptx-races: ## after test-ptx, some of these tests under ThreadSanitizer
	$(SAY) "the kernels' PTX on the shim, thread sanitizer"
	@$(call configure_sanitized,tsan,thread) -DJAXRING_PTX=ON \
	  -DJAXRING_PTX_KERNELS="$(abspath $(BUILD))/libjaxring_cuda_translated.a" >/dev/null
	@cmake --build build/tsan --target ptx_tests
	@$(FIXED_ADDRESSES) env $(PTX_SHARE) ctest -j $(JOBS) -L ptx $(PTX_RACES) --test-dir build/tsan \
	  --output-on-failure --no-tests=error
	@$(FIXED_ADDRESSES) python -m tools.ptx.check build/tsan --races

test-ptx-all: PTX_SHARE =
test-ptx-all: PTX_RACES =
test-ptx-all: test-ptx test-ptx-races ## the same with all cases, and all tests under ThreadSanitizer

# $(call cuda,NAME,ARCHITECTURES): the kernels alone, in build/NAME. The disassembler comes as wheels where CUDA lacks it.
define cuda
printf '\n\033[1m== %s\033[0m\n' "CUDA kernels for $(2)"; \
cmake -S . -B build/$(1) -G Ninja -DJAXRING_PYTHON=OFF -DJAXRING_WERROR=ON -DJAXRING_CUDA=ON \
  "-DJAXRING_CUDA_ARCHITECTURES=$(2)" --log-level=WARNING >/dev/null; \
cmake --build build/$(1) --target jaxring_cuda; \
if ! { command -v cuobjdump && command -v nvdisasm; } >/dev/null; then \
  python -m pip install -q --no-deps --target build/cuda-tools --upgrade nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm; \
  export PATH="$$(dirname "$$(find "$$PWD/build/cuda-tools" -name nvdisasm)"):$$PATH"; \
fi; \
python tools/cuda_resources.py build/$(1) --sass cuobjdump --table docs/cuda-resources.txt
endef
