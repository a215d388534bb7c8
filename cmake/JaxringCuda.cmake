# The CUDA engine's kernels, where they are built (JaxringCudaChoice.cmake). Defines jaxring_cuda, a library with the
# kernels of ffi/cuda and a static cudart. It is only built if another target links it or if it is named.
#
# nvcc is called directly, not as one of CMake's languages: a wheel's nvcc has no layout that CMake would recognise.
include(JaxringCudaChoice)
mark_as_advanced(JAXRING_NVCC)

# jaxring_add_cuda_library(NAME SOURCES...): machine code for each architecture, and PTX for the last, so that later
# devices run it, too. ptxas's report on every kernel's resources goes to <source>.ptxas, for tools/cuda_resources.py.
function(jaxring_add_cuda_library name)
  file(REAL_PATH "${JAXRING_NVCC}" nvcc)
  cmake_path(GET nvcc PARENT_PATH bin)
  cmake_path(GET bin PARENT_PATH root)
  find_library(JAXRING_CUDART NAMES cudart_static PATHS "${root}" "$ENV{CUDA_HOME}" /usr/local/cuda
               PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib targets/sbsa-linux/lib NO_DEFAULT_PATH)
  mark_as_advanced(JAXRING_CUDART)
  if(NOT JAXRING_CUDART)
    if(JAXRING_CUDA STREQUAL "ON")
      message(FATAL_ERROR "JAXRING_CUDA=ON, but there is no libcudart_static.a beside ${JAXRING_NVCC}")
    endif()
    message(STATUS "jaxring: no libcudart_static.a beside ${JAXRING_NVCC}, CPU engine only")
    return()
  endif()
  set(targets "")
  foreach(arch IN LISTS JAXRING_CUDA_BUILT_FOR)
    list(APPEND targets -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  list(GET JAXRING_CUDA_BUILT_FOR -1 last)
  list(APPEND targets -gencode=arch=compute_${last},code=compute_${last})
  list(JOIN JAXRING_CUDA_BUILT_FOR " sm_" names)
  # No contraction: results must be those of the CPU engine. Warnings are errors where they are for the other sources.
  set(flags -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -Xcompiler=-fPIC,-fvisibility=hidden,-Wall
      "-DJAXRING_CUDA_TARGETS=\"sm_${names} compute_${last}\"" -I${CMAKE_SOURCE_DIR}/ffi)
  if(JAXRING_WERROR)
    list(APPEND flags -Werror=all-warnings)
  endif()
  set(objects "")
  foreach(source IN LISTS ARGN)
    cmake_path(GET source STEM stem)
    set(object ${CMAKE_BINARY_DIR}/cuda/${stem}.o)
    list(APPEND objects ${object})
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
      COMMAND ${JAXRING_NVCC} ${targets} ${flags} -Xptxas=-v -MD -MF ${object}.d -c -o ${object}
              ${CMAKE_SOURCE_DIR}/${source} > ${object}.ptxas 2>&1 || sh -c "cat $1 && false" sh ${object}.ptxas
      DEPENDS ${source} DEPFILE ${object}.d COMMENT "Compiling ${source} with nvcc" VERBATIM)
  endforeach()
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  target_link_libraries(${name} INTERFACE ${JAXRING_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt)
endfunction()

if(JAXRING_CUDA_VERSION)
  jaxring_add_cuda_library(jaxring_cuda ffi/cuda/kernels/lane_kernels.cu ffi/cuda/kernels/epilogue_kernels.cu
                           ffi/cuda/kernels/direct.cu ffi/cuda/kernels/one_shot.cu ffi/cuda/kernels/staged_kernels.cu ffi/cuda/kernels/messages.cu
                           ffi/cuda/experimental/multicast.cu)
endif()
