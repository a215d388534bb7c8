# The host half of the CUDA engine. It needs no CUDA toolkit: gpu_cuda*.cc, which do, go with the kernels into
# _native_cuda; the tests put the fake GPU in its place.
file(GLOB cuda_host_sources CONFIGURE_DEPENDS ffi/cuda/host/*.cc)
list(FILTER cuda_host_sources EXCLUDE REGEX "/gpu_cuda[a-z_]*\\.cc$")
add_library(jaxring_cuda_host STATIC EXCLUDE_FROM_ALL ${cuda_host_sources})
target_link_libraries(jaxring_cuda_host PUBLIC jaxring_engine)
file(GLOB cuda_fake_sources CONFIGURE_DEPENDS ffi/cuda/fake/*.cc)
add_library(jaxring_cuda_fake STATIC EXCLUDE_FROM_ALL ${cuda_fake_sources})
target_link_libraries(jaxring_cuda_fake PUBLIC jaxring_cuda_host)

# jaxring_add_cuda_module(): the extension _native_cuda, with the kernels and a CUDA runtime of its own (static).
function(jaxring_add_cuda_module ffi_include)
  file(REAL_PATH "${JAXRING_NVCC}" nvcc)
  cmake_path(GET nvcc PARENT_PATH bin)
  find_path(JAXRING_CUDA_INCLUDE cuda_runtime_api.h REQUIRED
            PATHS "${bin}/../include" "${bin}/../targets/x86_64-linux/include" "$ENV{CUDA_HOME}/include"
                  /usr/local/cuda/include)
  mark_as_advanced(JAXRING_CUDA_INCLUDE)
  jaxring_add_cuda_library(jaxring_cuda_guard ffi/cuda/host/guard.cu ffi/cuda/host/copy_gates.cu)
  file(GLOB gpu CONFIGURE_DEPENDS ffi/cuda/host/gpu_cuda*.cc)
  nanobind_add_module(_native_cuda NB_STATIC STABLE_ABI NOMINSIZE ffi/cuda/module.cc ffi/cuda/bind_plans.cc
                      ffi/xla/cuda_handlers.cc ${gpu})
  target_include_directories(_native_cuda SYSTEM PRIVATE "${ffi_include}" "${NB_DIR}/include" "${JAXRING_CUDA_INCLUDE}")
  # The host's tests on a real GPU: cuda_host_test with another Gpu.
  add_executable(cuda_gpu_test EXCLUDE_FROM_ALL ffi/tests/cuda_host_test.cc ${gpu})
  target_include_directories(cuda_gpu_test SYSTEM PRIVATE "${JAXRING_CUDA_INCLUDE}")
  target_compile_definitions(cuda_gpu_test PRIVATE JAXRING_REAL_GPU)
  target_compile_options(cuda_gpu_test PRIVATE -UNDEBUG)
  foreach(target IN ITEMS _native_cuda cuda_gpu_test)
    target_link_libraries(${target} PRIVATE jaxring_cuda_host jaxring_cuda jaxring_cuda_guard)
  endforeach()
  install(TARGETS _native_cuda LIBRARY DESTINATION jaxring COMPONENT python)
endfunction()
