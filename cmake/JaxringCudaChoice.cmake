# Decides whether the CUDA engine is built, and for which GPUs. JaxringCuda.cmake includes it, and tests run it as a
# script (cmake -P); it defines no targets.
#
#   JAXRING_CUDA                 AUTO: where there is an nvcc, and a GPU or a list of architectures; ON: in any case; OFF
#   JAXRING_CUDA_ARCHITECTURES   a list such as 80;90, or all; empty: what the GPUs of this machine need, or sm_90 where
#                                there is none
#   JAXRING_PTX                  nvcc is looked for in any case
#
# Sets JAXRING_NVCC, JAXRING_CUDA_VERSION (nvcc's; empty: the CUDA engine is not built) and JAXRING_CUDA_BUILT_FOR.
set(_all 80 90 100 120)  # what `make cuda-all` checks
set(_oldest 80)
set(_without_gpu 90)
set(_takes "about 2 minutes of CPU time, and 1 more for each further architecture")

# What the record of experimental parts says of the engine: ONE_GPU, unless the line of "cuda" says nothing.
set(_mark "")
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../jaxring/plan/gpu/experimental.py" _record REGEX "^ONE_GPU = |^    \"cuda\": ONE_GPU")
if(_record MATCHES "ONE_GPU = \"([^\"]+)\".*\"cuda\": ONE_GPU")
  set(_mark " (${CMAKE_MATCH_1})")
endif()

set(JAXRING_CUDA_VERSION "")
set(JAXRING_CUDA_BUILT_FOR "")
if(NOT JAXRING_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "JAXRING_CUDA is '${JAXRING_CUDA}': choose AUTO, ON or OFF")
endif()
if(NOT "${JAXRING_CUDA_ARCHITECTURES}" MATCHES "^(all|[0-9]+[af]?(;[0-9]+[af]?)*)?$")
  message(FATAL_ERROR "JAXRING_CUDA_ARCHITECTURES is '${JAXRING_CUDA_ARCHITECTURES}': choose all, or a list such as 80;90")
endif()

# nvcc, and its version.
if(NOT JAXRING_CUDA STREQUAL "OFF" OR JAXRING_PTX)
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
  if(JAXRING_NVCC)
    execute_process(COMMAND ${JAXRING_NVCC} --version OUTPUT_VARIABLE _says ERROR_QUIET RESULT_VARIABLE _code)
    if(_code STREQUAL "0" AND _says MATCHES "release ([0-9]+\\.[0-9]+)")
      set(JAXRING_CUDA_VERSION "${CMAKE_MATCH_1}")
    endif()
  endif()
endif()

# The compute capabilities of the GPUs here, without their points, and why nothing is built for them, if so.
set(_gpus "")
set(_no_gpu "no GPU")
if(JAXRING_CUDA_VERSION)
  find_program(_nvidia_smi nvidia-smi NO_CACHE)
  if(NOT _nvidia_smi)
    set(_no_gpu "no GPU (there is no nvidia-smi)")
  else()
    execute_process(COMMAND ${_nvidia_smi} --query-gpu=compute_cap --format=csv,noheader TIMEOUT 60
                    OUTPUT_VARIABLE _says ERROR_QUIET RESULT_VARIABLE _code)
    if(_code STREQUAL "0")
      string(REGEX MATCHALL "[0-9]+\\.[0-9]+" _found "${_says}")
      execute_process(COMMAND ${JAXRING_NVCC} --list-gpu-code OUTPUT_VARIABLE _says ERROR_QUIET)
      string(REGEX MATCHALL "sm_[0-9]+" _known "${_says}")
      list(TRANSFORM _known REPLACE "sm_" "")
      foreach(capability IN LISTS _found)
        string(REPLACE "." "" number "${capability}")
        if(number LESS _oldest)
          set(_no_gpu "no GPU of compute capability 8.0 or later (one is of ${capability})")
          continue()
        endif()
        # The newest that nvcc knows, whose PTX a newer GPU runs, too.
        set(best "")
        foreach(each IN LISTS _known)
          if(each LESS_EQUAL number AND (best STREQUAL "" OR each GREATER best))
            set(best ${each})
          endif()
        endforeach()
        if(best)
          list(APPEND _gpus ${best})
        endif()
      endforeach()
      list(REMOVE_DUPLICATES _gpus)
      list(SORT _gpus COMPARE NATURAL)
    endif()
  endif()
endif()

set(_nvcc "nvcc ${JAXRING_CUDA_VERSION} (${JAXRING_NVCC})")
if(JAXRING_CUDA STREQUAL "OFF")
  set(JAXRING_CUDA_VERSION "")
  message(STATUS "jaxring: CPU engine only: JAXRING_CUDA is OFF")
elseif(NOT JAXRING_CUDA_VERSION)
  if(JAXRING_CUDA STREQUAL "ON")
    message(FATAL_ERROR "JAXRING_CUDA=ON, but no working nvcc in PATH, CUDA_HOME or the nvidia-cuda-nvcc wheel")
  endif()
  message(STATUS "jaxring: CPU engine only: there is no nvcc that works")
elseif(JAXRING_CUDA STREQUAL "AUTO" AND NOT _gpus AND "${JAXRING_CUDA_ARCHITECTURES}" STREQUAL "")
  set(JAXRING_CUDA_VERSION "")
  message(STATUS "jaxring: CPU engine only: there is ${_nvcc}, but ${_no_gpu}. JAXRING_CUDA=ON builds the CUDA "
                 "engine${_mark} all the same, for sm_${_without_gpu} or what JAXRING_CUDA_ARCHITECTURES says (all, or a "
                 "list such as 80;90), which takes ${_takes}. With pip: -C cmake.define.JAXRING_CUDA=ON")
else()
  if("${JAXRING_CUDA_ARCHITECTURES}" STREQUAL "all")
    set(JAXRING_CUDA_BUILT_FOR ${_all})
  elseif(NOT "${JAXRING_CUDA_ARCHITECTURES}" STREQUAL "")
    set(JAXRING_CUDA_BUILT_FOR ${JAXRING_CUDA_ARCHITECTURES})
  elseif(_gpus)
    set(JAXRING_CUDA_BUILT_FOR ${_gpus})
  else()
    set(JAXRING_CUDA_BUILT_FOR ${_without_gpu})
  endif()
  list(JOIN JAXRING_CUDA_BUILT_FOR ", sm_" _names)
  message(STATUS "jaxring: CPU engine, and the CUDA engine${_mark} by ${_nvcc} for sm_${_names}, which takes ${_takes}. "
                 "JAXRING_CUDA=OFF leaves it out; JAXRING_CUDA_ARCHITECTURES (all, or a list such as 80;90) builds it "
                 "for other GPUs than this machine's. With pip: -C cmake.define.JAXRING_CUDA=OFF")
endif()
