# The host half of the CUDA engine. It needs no CUDA toolkit: gpu_cuda.cc, which does, goes with the kernels into
# _native_cuda; the tests put the fake GPU in its place.
file(GLOB cuda_host_sources CONFIGURE_DEPENDS ffi/cuda/host/*.cc)
list(FILTER cuda_host_sources EXCLUDE REGEX "/gpu_cuda\\.cc$")
add_library(jaxring_cuda_host STATIC EXCLUDE_FROM_ALL ${cuda_host_sources})
target_link_libraries(jaxring_cuda_host PUBLIC jaxring_engine)
file(GLOB cuda_fake_sources CONFIGURE_DEPENDS ffi/cuda/fake/*.cc)
add_library(jaxring_cuda_fake STATIC EXCLUDE_FROM_ALL ${cuda_fake_sources})
target_link_libraries(jaxring_cuda_fake PUBLIC jaxring_cuda_host)
