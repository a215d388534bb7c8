# The extension module jaxring._native and its type stub.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module NumPy OPTIONAL_COMPONENTS Development.SABIModule)
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
                OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

if(JAXRING_FFI_INCLUDE)
  set(_ffi_include "${JAXRING_FFI_INCLUDE}")
else()
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import jaxlib, os; print(os.path.dirname(jaxlib.__file__))"
                  OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE _jaxlib COMMAND_ERROR_IS_FATAL ANY)
  set(_ffi_include "${_jaxlib}/include")
endif()
if(NOT EXISTS "${_ffi_include}/xla/ffi/api/c_api.h")
  message(FATAL_ERROR "No xla/ffi/api/c_api.h under '${_ffi_include}': install jaxlib, or set JAXRING_FFI_INCLUDE")
endif()
foreach(part IN ITEMS MAJOR MINOR)
  file(STRINGS "${_ffi_include}/xla/ffi/api/c_api.h" _line REGEX "define XLA_FFI_API_${part} " LIMIT_COUNT 1)
  string(REGEX REPLACE ".*_${part} +([0-9]+).*" "\\1" _ffi_${part} "${_line}")
endforeach()
set(JAXRING_FFI_API "${_ffi_MAJOR}.${_ffi_MINOR}")
message(STATUS "jaxring: XLA FFI API ${JAXRING_FFI_API}")
if(JAXRING_FFI_API VERSION_GREATER 0.3)
  message(WARNING "XLA FFI API ${JAXRING_FFI_API} is newer than the oldest supported jaxlib's (0.3): "
                  "older versions of jaxlib will refuse this build. Build with jaxlib 0.10.2's headers.")
endif()

# The modules' own sources; both bind plans' tables. A process may load both, and each registers types of its own: so
# the CUDA engine's have a domain of nanobind's to themselves.
set(both_modules ffi/bind/bind_tables.cc)
set(cuda_module_sources ffi/bind/cuda_module.cc ffi/bind/bind_communicator.cc ffi/bind/bind_cuda_plans.cc
  ffi/xla/cuda_handlers.cc ${both_modules})

# The one module uses the other's network by its address: this header says which headers they were compiled from, and by
# what. It is there after configuring, for tools that compile nothing, and is written anew where one of them changes.
set(_network_abi "${CMAKE_BINARY_DIR}/generated/jaxring_network_abi.h")
set(_write_network_abi ${CMAKE_COMMAND} "-DSOURCE=${CMAKE_SOURCE_DIR}/ffi" "-DOUTPUT=${_network_abi}"
    "-DBUILD=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS} ${CMAKE_BUILD_TYPE} ${JAXRING_SANITIZE}"
    -P "${CMAKE_SOURCE_DIR}/cmake/network_abi.cmake")
execute_process(COMMAND ${_write_network_abi} COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE _network_headers CONFIGURE_DEPENDS ffi/base/*.h ffi/network/*.h ffi/transport/core/*.h)
add_custom_command(OUTPUT ${_network_abi} COMMAND ${_write_network_abi} VERBATIM
                   DEPENDS ${_network_headers} ffi/bind/shared_network.h cmake/network_abi.cmake)
add_custom_target(jaxring_network_abi DEPENDS ${_network_abi})

nanobind_add_module(_native NB_STATIC STABLE_ABI NOMINSIZE
  ffi/bind/module.cc ffi/bind/bind_calls.cc ffi/bind/bind_links.cc ffi/bind/bind_plans.cc
  ffi/bind/bind_protobuf.cc ffi/bind/bind_recent.cc ffi/bind/bind_records.cc ffi/bind/bind_signals.cc
  ffi/xla/cpu_handlers.cc ffi/xla/exact_sum_handlers.cc ffi/xla/quantize_handlers.cc ${both_modules})
target_link_libraries(_native PRIVATE jaxring_engine)
target_include_directories(_native SYSTEM PRIVATE "${_ffi_include}" "${NB_DIR}/include" ${Python_NumPy_INCLUDE_DIRS})
add_dependencies(_native jaxring_network_abi)
install(TARGETS _native LIBRARY DESTINATION jaxring COMPONENT python)

# The stub is made by importing the module: where it is cross-compiled, by the target's Python in the emulator.
set(JAXRING_STUB_PYTHON "${Python_EXECUTABLE}" CACHE STRING "Command of the Python that can import the module")
set(Python_EXECUTABLE "${JAXRING_STUB_PYTHON}")
set(JAXRING_STUB "" CACHE FILEPATH "Another build's stub, where no Python here can import the module")
if(JAXRING_STUB)
  add_custom_target(_native_stub DEPENDS _native)
  install(FILES "${JAXRING_STUB}" DESTINATION jaxring COMPONENT python)
else()
  nanobind_add_stub(_native_stub MODULE _native OUTPUT _native.pyi
                    PYTHON_PATH $<TARGET_FILE_DIR:_native> DEPENDS _native)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_native.pyi DESTINATION jaxring COMPONENT python)
endif()

# The CUDA engine's host half on the fake GPU, as a module for the Python tests (target _native_cuda_fake).
nanobind_add_module(_native_cuda_fake EXCLUDE_FROM_ALL NB_STATIC STABLE_ABI NOMINSIZE NB_DOMAIN jaxring_cuda_fake
  ${cuda_module_sources})
target_compile_definitions(_native_cuda_fake PRIVATE JAXRING_FAKE_GPU)
target_link_libraries(_native_cuda_fake PRIVATE jaxring_cuda_fake)
add_dependencies(_native_cuda_fake jaxring_network_abi)
target_include_directories(_native_cuda_fake SYSTEM PRIVATE "${_ffi_include}" "${NB_DIR}/include")

# What a wheel holds.
add_custom_target(jaxring_python DEPENDS _native _native_stub)
if(TARGET jaxring_cuda)
  jaxring_add_cuda_module("${_ffi_include}")
  add_dependencies(jaxring_python _native_cuda)
endif()
