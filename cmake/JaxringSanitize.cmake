# The native tests under a sanitizer: -DJAXRING_SANITIZE=address, thread or undefined, without Python.
if(NOT JAXRING_SANITIZE MATCHES "^(address|thread|undefined)$")
  message(FATAL_ERROR "JAXRING_SANITIZE is '${JAXRING_SANITIZE}': choose address, thread or undefined")
endif()
if(JAXRING_PYTHON)
  message(FATAL_ERROR "JAXRING_SANITIZE is for the native tests: set JAXRING_PYTHON=OFF and JAXRING_BUILD_TESTS=ON")
endif()
# One set of flags for libraries and tests, so that they can share precompiled headers.
set(CMAKE_CXX_FLAGS_RELEASE "-O1")
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
set(_sanitize -fsanitize=${JAXRING_SANITIZE} -fno-omit-frame-pointer -g1)
if(JAXRING_SANITIZE STREQUAL "address")
  # They go well together, but for what an address of zero shows by itself, and what costs half of the compiler's time:
  # the fuzz targets, which read what others write, are checked for it, and so is everything by `make ubsan`.
  list(APPEND _sanitize -fsanitize=undefined -fno-sanitize=null,object-size,vptr,alignment,pointer-overflow)
endif()
if(NOT JAXRING_SANITIZE STREQUAL "thread")
  list(APPEND _sanitize -fno-sanitize-recover=undefined)
endif()
# The same run counts which lines it executes (make coverage-report): --coverage, and a dump at _Exit, by which the tests'
# processes end.
if(JAXRING_COVERAGE)
  list(APPEND _sanitize --coverage)
  target_compile_definitions(jaxring_flags INTERFACE JAXRING_COVERAGE)
  target_link_options(jaxring_flags INTERFACE -Wl,--wrap=_Exit)
endif()
target_compile_options(jaxring_flags INTERFACE ${_sanitize})
target_link_options(jaxring_flags INTERFACE ${_sanitize})
