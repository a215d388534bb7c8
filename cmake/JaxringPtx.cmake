# The kernels as nvcc compiles them, on the tests' SIMT machine: nvcc's PTX, translated to C++ (tools/ptx) and linked
# instead of the kernels' source. Defines the tests ptx_*, which are the shim's tests with it, and their target ptx_tests.
#
# JAXRING_PTX_KERNELS names the archive of translated kernels of another build folder, which then serves here, too: they
# are compiled without this folder's flags, since all their accesses to memory are calls into ffi/cuda/sim/ptx.
set(JAXRING_PTX_KERNELS "" CACHE FILEPATH "Translated kernels of another build folder (with JAXRING_PTX)")
set(_folder ${CMAKE_BINARY_DIR}/ptx)
file(MAKE_DIRECTORY ${_folder})

if(JAXRING_PTX_KERNELS)
  add_library(jaxring_cuda_translated STATIC IMPORTED)
  set_target_properties(jaxring_cuda_translated PROPERTIES IMPORTED_LOCATION ${JAXRING_PTX_KERNELS})
else()
  if(NOT JAXRING_NVCC)
    message(FATAL_ERROR "JAXRING_PTX=ON needs nvcc: install nvidia-cuda-nvcc from PyPI, or leave JAXRING_PTX off")
  endif()
  # clang takes half of GCC's time for such long functions, and what it makes is as quick.
  find_program(JAXRING_PTX_CXX NAMES clang++ "${CMAKE_CXX_COMPILER}" REQUIRED)
  find_program(JAXRING_PTX_PYTHON NAMES python3 python HINTS "$ENV{VIRTUAL_ENV}/bin" REQUIRED)
  mark_as_advanced(JAXRING_PTX_CXX JAXRING_PTX_PYTHON)
  file(GLOB _translator CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/ptx/*.py)
  set(_objects "")

  # jaxring_translate(SOURCE FILES): that many C++ files, which are compiled side by side.
  function(jaxring_translate source files)
    cmake_path(GET source STEM stem)
    set(ptx ${_folder}/${stem}.ptx)
    # As JaxringCuda.cmake compiles the kernels. Small pieces, so that small tests need many.
    add_custom_command(
      OUTPUT ${ptx}
      COMMAND ${JAXRING_NVCC} -arch=compute_90 -ptx -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr
              "-DJAXRING_CUDA_TARGETS=\"sm_90 compute_90\"" -DJAXRING_BULK_PIECE=32 -DJAXRING_FEW_STAGED -I${CMAKE_SOURCE_DIR}/ffi
              -MD -MF ${ptx}.d -o ${ptx} ${CMAKE_SOURCE_DIR}/${source}
      DEPENDS ${source} DEPFILE ${ptx}.d COMMENT "Compiling ${source} to PTX" VERBATIM)
    set(texts "")
    math(EXPR last "${files} - 1")
    foreach(i RANGE ${last})
      set(text ${_folder}/${stem}_${i}.cc)
      set(object ${_folder}/${stem}_${i}.o)
      list(APPEND texts ${text})
      list(APPEND _objects ${object})
      add_custom_command(
        OUTPUT ${object}
        COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${JAXRING_PTX_CXX} -std=c++20 -O1 -w -ffp-contract=off
                -I${CMAKE_SOURCE_DIR}/ffi -MD -MF ${object}.d -c -o ${object} ${text}
        DEPENDS ${text} DEPFILE ${object}.d COMMENT "Compiling ${stem}_${i}.cc, translated from PTX" VERBATIM)
    endforeach()
    add_custom_command(
      OUTPUT ${texts}
      COMMAND ${JAXRING_PTX_PYTHON} -m tools.ptx ${ptx} ${_folder}/${stem} ${files}
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} DEPENDS ${ptx} ${_translator} COMMENT "Translating ${stem}.ptx" VERBATIM)
    set(_objects ${_objects} PARENT_SCOPE)
  endfunction()
  jaxring_translate(ffi/cuda/kernels/lane_kernels.cu 6)
  jaxring_translate(ffi/cuda/kernels/epilogue_kernels.cu 2)
  jaxring_translate(ffi/cuda/kernels/direct.cu 3)
  jaxring_translate(ffi/cuda/kernels/one_shot.cu 2)
  jaxring_translate(ffi/cuda/kernels/staged_kernels.cu 1)
  jaxring_translate(ffi/cuda/kernels/messages.cu 1)
  jaxring_translate(ffi/cuda/experimental/multicast.cu 1)
  jaxring_translate(ffi/cuda/experimental/copy_barrier.cu 1)
  add_library(jaxring_cuda_translated STATIC EXCLUDE_FROM_ALL ${_objects})
  set_source_files_properties(${_objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set_target_properties(jaxring_cuda_translated PROPERTIES LINKER_LANGUAGE CXX)
endif()

file(GLOB _shim CONFIGURE_DEPENDS ffi/cuda/sim/simt/*.cc ffi/cuda/sim/ptx/*.cc ffi/cuda/experimental/*.cc)
add_library(jaxring_cuda_ptx STATIC EXCLUDE_FROM_ALL ${_shim})
target_link_libraries(jaxring_cuda_ptx PUBLIC jaxring_flags jaxring_cuda_translated)
target_link_libraries(jaxring_cuda_translated INTERFACE jaxring_cuda_ptx)  # each calls the other

# The fake GPU with these kernels: its tests alone play those of messages, ragged sizes and the copy engine.
add_library(jaxring_cuda_fake_ptx STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:jaxring_cuda_fake>)
target_link_libraries(jaxring_cuda_fake_ptx PUBLIC jaxring_cuda_host jaxring_cuda_ptx)

add_custom_target(ptx_tests)

# jaxring_ptx_test(NAME CASES...): the test cuda_NAME_test. Its objects are the same: what differs is what they are linked
# with.
function(jaxring_ptx_test name)
  add_executable(ptx_${name}_test EXCLUDE_FROM_ALL $<TARGET_OBJECTS:cuda_${name}_test>)
  if(name MATCHES "^host_")
    target_link_libraries(ptx_${name}_test PRIVATE jaxring_test_support jaxring_cuda_fake_ptx)
  else()
    target_link_libraries(ptx_${name}_test PRIVATE jaxring_test_support jaxring_cuda_ptx)
  endif()
  set_target_properties(ptx_${name}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/native_tests
                        POSITION_INDEPENDENT_CODE OFF)
  add_test(NAME ptx_${name}_test COMMAND ptx_${name}_test ${ARGN})
  set_tests_properties(ptx_${name}_test PROPERTIES TIMEOUT 900 LABELS ptx
                       ENVIRONMENT "PTX_PLAYED=${CMAKE_BINARY_DIR}/ptx/played")
  add_dependencies(ptx_tests ptx_${name}_test)
endfunction()
file(GLOB _tests CONFIGURE_DEPENDS ffi/tests/cuda/cuda_*_test.cc)
list(FILTER _tests EXCLUDE REGEX "/cuda_(keys|staging)_test\\.cc$")  # of no kernel, and see below
foreach(source IN LISTS _tests)
  string(REGEX REPLACE ".*/cuda_(.*)_test\\.cc$" "\\1" name ${source})
  jaxring_ptx_test(${name})
endforeach()
jaxring_ptx_test(staging "results are right, whichever ranks copy" "mutations of the meeting of lanes")
jaxring_ptx_test(host_messages "one process")
jaxring_ptx_test(host_memory copies_one_process)
