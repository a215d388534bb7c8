# The host half of the CUDA engine. It needs no CUDA toolkit: only the sources of host/gpu/cuda do, which are linked with
# the kernels into _native_cuda. The tests use the fake GPU instead.
file(GLOB_RECURSE cuda_host_sources CONFIGURE_DEPENDS ffi/cuda/host/*.cc)
list(FILTER cuda_host_sources EXCLUDE REGEX "/host/gpu/")
add_library(jaxring_cuda_host STATIC EXCLUDE_FROM_ALL ${cuda_host_sources})
target_link_libraries(jaxring_cuda_host PUBLIC jaxring_engine)
# Names for profilers, by headers alone: without the toolkit there are none.
find_path(JAXRING_NVTX_INCLUDE nvtx3/nvToolsExt.h PATHS "$ENV{CUDA_HOME}/include" /usr/local/cuda/include)
mark_as_advanced(JAXRING_NVTX_INCLUDE)
if(JAXRING_NVTX_INCLUDE)
  target_include_directories(jaxring_cuda_host SYSTEM PRIVATE "${JAXRING_NVTX_INCLUDE}")
  target_compile_definitions(jaxring_cuda_host PRIVATE JAXRING_NVTX)
endif()
# The kernels' source on the shim, built once for all tests and the fake GPU. It takes the compiler longest by far, and
# half as long with -O1, with which the tests take as long.
file(GLOB cuda_shim_sources CONFIGURE_DEPENDS ffi/cuda/sim/simt/*.cc ffi/cuda/sim/shim/*.cc ffi/cuda/experimental/*.cc)
add_library(jaxring_cuda_shim STATIC EXCLUDE_FROM_ALL ${cuda_shim_sources})
target_link_libraries(jaxring_cuda_shim PUBLIC jaxring_flags)
file(GLOB cuda_fake_sources CONFIGURE_DEPENDS ffi/cuda/sim/fake/*.cc)
add_library(jaxring_cuda_fake STATIC EXCLUDE_FROM_ALL ${cuda_fake_sources})
target_link_libraries(jaxring_cuda_fake PUBLIC jaxring_cuda_host jaxring_cuda_shim)
foreach(library IN ITEMS jaxring_cuda_shim jaxring_cuda_fake)
  target_compile_options(${library} PRIVATE -O1)
endforeach()

# jaxring_add_cuda_module(): the extension _native_cuda, with the kernels and a CUDA runtime of its own (static).
function(jaxring_add_cuda_module ffi_include)
  file(REAL_PATH "${JAXRING_NVCC}" nvcc)
  cmake_path(GET nvcc PARENT_PATH bin)
  find_path(JAXRING_CUDA_INCLUDE cuda_runtime_api.h REQUIRED
            PATHS "${bin}/../include" "${bin}/../targets/x86_64-linux/include" "$ENV{CUDA_HOME}/include"
                  /usr/local/cuda/include)
  mark_as_advanced(JAXRING_CUDA_INCLUDE)
  jaxring_add_cuda_library(jaxring_cuda_small ffi/cuda/host/gpu/cuda/empty_kernel.cu
                           ffi/cuda/experimental/copy_barrier.cu)
  file(GLOB gpu CONFIGURE_DEPENDS ffi/cuda/host/gpu/cuda/*.cc)
  add_library(jaxring_cuda_gpu STATIC EXCLUDE_FROM_ALL ${gpu})
  target_include_directories(jaxring_cuda_gpu SYSTEM PUBLIC "${JAXRING_CUDA_INCLUDE}")
  target_link_libraries(jaxring_cuda_gpu PUBLIC jaxring_cuda_host jaxring_cuda jaxring_cuda_small)
  nanobind_add_module(_native_cuda NB_STATIC STABLE_ABI NOMINSIZE NB_DOMAIN jaxring_cuda ${cuda_module_sources})
  target_include_directories(_native_cuda SYSTEM PRIVATE "${ffi_include}" "${NB_DIR}/include")
  target_link_libraries(_native_cuda PRIVATE jaxring_cuda_gpu)
  add_dependencies(_native_cuda jaxring_network_abi)
  # The host's tests on a real GPU: the same with another Gpu.
  foreach(name IN ITEMS "" memory_)
    add_executable(cuda_gpu_${name}test EXCLUDE_FROM_ALL ffi/tests/cuda/host/cuda_host_${name}test.cc)
    target_compile_definitions(cuda_gpu_${name}test PRIVATE JAXRING_REAL_GPU)
    target_compile_options(cuda_gpu_${name}test PRIVATE -UNDEBUG)
    target_link_libraries(cuda_gpu_${name}test PRIVATE jaxring_test_support jaxring_cuda_gpu)
  endforeach()
  install(TARGETS _native_cuda LIBRARY DESTINATION jaxring COMPONENT python)
endfunction()
