# The kernels as nvcc compiles them, on the tests' SIMT machine: nvcc's PTX, translated to C++ (tools/ptx) and linked
# instead of the kernels' source. Defines jaxring_cuda_ptx and the tests ptx_*, which are the shim's tests with it.
if(NOT JAXRING_NVCC)
  message(FATAL_ERROR "JAXRING_PTX=ON needs nvcc and JAXRING_CUDA=ON: install nvidia-cuda-nvcc from PyPI, or leave "
                      "JAXRING_PTX off")
endif()
find_program(JAXRING_PTX_PYTHON NAMES python3 python REQUIRED)
mark_as_advanced(JAXRING_PTX_PYTHON)
set(_folder ${CMAKE_BINARY_DIR}/ptx)
file(MAKE_DIRECTORY ${_folder})
file(GLOB _translator CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/ptx/*.py)
set(_ptx_sources "")

# jaxring_translate(SOURCE FILES): that many C++ files, which are compiled side by side.
function(jaxring_translate source files)
  cmake_path(GET source STEM stem)
  set(ptx ${_folder}/${stem}.ptx)
  # As JaxringCuda.cmake compiles the kernels. Small pieces, so that small tests need many.
  add_custom_command(
    OUTPUT ${ptx}
    COMMAND ${JAXRING_NVCC} -arch=compute_90 -ptx -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr
            "-DJAXRING_CUDA_TARGETS=\"sm_90 compute_90\"" -DJAXRING_BULK_PIECE=32 -I${CMAKE_SOURCE_DIR}/ffi
            -MD -MF ${ptx}.d -o ${ptx} ${CMAKE_SOURCE_DIR}/${source}
    DEPENDS ${source} DEPFILE ${ptx}.d COMMENT "Compiling ${source} to PTX" VERBATIM)
  set(outputs "")
  math(EXPR last "${files} - 1")
  foreach(i RANGE ${last})
    list(APPEND outputs ${_folder}/${stem}_${i}.cc)
  endforeach()
  add_custom_command(
    OUTPUT ${outputs}
    COMMAND ${JAXRING_PTX_PYTHON} -m tools.ptx ${ptx} ${_folder}/${stem} ${files}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} DEPENDS ${ptx} ${_translator} COMMENT "Translating ${stem}.ptx" VERBATIM)
  set(_ptx_sources ${_ptx_sources} ${outputs} PARENT_SCOPE)
endfunction()
jaxring_translate(ffi/cuda/kernels/lane_kernels.cu 6)
jaxring_translate(ffi/cuda/kernels/direct.cu 4)
jaxring_translate(ffi/cuda/kernels/one_shot.cu 4)
jaxring_translate(ffi/cuda/kernels/messages.cu 1)
jaxring_translate(ffi/cuda/experimental/multicast.cu 1)
jaxring_translate(ffi/cuda/experimental/copy_barrier.cu 1)

# Without the flags of other sources: all accesses to memory are in ffi/cuda/sim/ptx.
add_library(jaxring_cuda_translated OBJECT EXCLUDE_FROM_ALL ${_ptx_sources})
target_include_directories(jaxring_cuda_translated PRIVATE ${CMAKE_SOURCE_DIR}/ffi)
target_compile_options(jaxring_cuda_translated PRIVATE -O1 -w -ffp-contract=off)
file(GLOB _shim CONFIGURE_DEPENDS ffi/cuda/sim/simt/*.cc ffi/cuda/sim/ptx/*.cc ffi/cuda/experimental/*.cc)
add_library(jaxring_cuda_ptx STATIC EXCLUDE_FROM_ALL ${_shim} $<TARGET_OBJECTS:jaxring_cuda_translated>)
target_link_libraries(jaxring_cuda_ptx PUBLIC jaxring_flags)

add_custom_target(ptx_tests)
file(GLOB _tests CONFIGURE_DEPENDS ffi/tests/cuda/cuda_*_test.cc)
list(FILTER _tests EXCLUDE REGEX "/cuda_keys_test\\.cc$")  # of no kernel
foreach(source IN LISTS _tests)
  cmake_path(GET source STEM name)
  string(REGEX REPLACE "^cuda_" "ptx_" name ${name})
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${name} PRIVATE jaxring_test_support jaxring_cuda_ptx)
  target_compile_options(${name} PRIVATE -UNDEBUG)
  if(precompiled)
    target_precompile_headers(${name} REUSE_FROM ${precompiled})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/native_tests
                        POSITION_INDEPENDENT_CODE OFF)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 LABELS ptx)
  add_dependencies(ptx_tests ${name})
endforeach()
