# Finds nvcc: JAXRING_CUDA=AUTO looks and goes on without, ON stops the build without it, OFF does not look.
# Sets JAXRING_NVCC and JAXRING_CUDA_VERSION (empty without CUDA). There are no CUDA sources yet: the version is
# recorded for jaxring's build information and nothing is compiled with nvcc.
set(JAXRING_CUDA_VERSION "")
if(NOT JAXRING_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "JAXRING_CUDA is '${JAXRING_CUDA}': choose AUTO, ON or OFF")
endif()

if(NOT JAXRING_CUDA STREQUAL "OFF")
  # The nvidia-cuda-nvcc wheels keep nvcc under site-packages/nvidia/<cuNN or cuda_nvcc>/bin.
  find_program(_python NAMES python3 python HINTS "$ENV{VIRTUAL_ENV}/bin" NO_CACHE)
  if(DEFINED Python_EXECUTABLE)
    set(_python "${Python_EXECUTABLE}")
  endif()
  set(_wheel_dirs "")
  if(_python)
    execute_process(
      COMMAND ${_python} -c "import glob, site, sysconfig
roots = {sysconfig.get_path('purelib'), *site.getsitepackages()}
print(';'.join(sorted(d for r in roots for d in glob.glob(r + '/nvidia/*/bin'))))"
      OUTPUT_VARIABLE _wheel_dirs OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  find_program(JAXRING_NVCC NAMES nvcc HINTS "$ENV{CUDA_HOME}/bin" PATHS ${_wheel_dirs} /usr/local/cuda/bin)
  mark_as_advanced(JAXRING_NVCC)
  if(JAXRING_NVCC)
    execute_process(COMMAND ${JAXRING_NVCC} --version OUTPUT_VARIABLE _nvcc_says ERROR_QUIET RESULT_VARIABLE _nvcc_rc)
    if(_nvcc_rc EQUAL 0 AND _nvcc_says MATCHES "release ([0-9]+\\.[0-9]+)")
      set(JAXRING_CUDA_VERSION "${CMAKE_MATCH_1}")
    endif()
  endif()
endif()

if(JAXRING_CUDA_VERSION)
  message(STATUS "jaxring: CUDA ${JAXRING_CUDA_VERSION} (${JAXRING_NVCC}); the CUDA engine has no sources yet")
elseif(JAXRING_CUDA STREQUAL "ON")
  message(FATAL_ERROR "JAXRING_CUDA=ON, but no working nvcc in PATH, CUDA_HOME or the nvidia-cuda-nvcc wheel")
elseif(JAXRING_CUDA STREQUAL "AUTO")
  message(STATUS "jaxring: no nvcc found, CPU engine only")
else()
  message(STATUS "jaxring: CUDA is off, CPU engine only")
endif()
