# Fuzz targets of what is read off a wire, from shared memory and from tables: fuzz/*.cc, each a libFuzzer program with
# AddressSanitizer and UBSan (`make fuzz`). They need clang, and only those sources of the engine that they use.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "JAXRING_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++")
endif()
set(_fuzz_flags -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined)
add_library(jaxring_fuzzed STATIC EXCLUDE_FROM_ALL
  ffi/engine/combine.cc ffi/engine/control_frames.cc ffi/engine/grouped.cc ffi/engine/interpreter.cc
  ffi/engine/lane_messages.cc ffi/engine/operation.cc ffi/engine/pages.cc ffi/engine/plan.cc ffi/engine/plan_check.cc ffi/engine/stash.cc
  ffi/reduce/copy.cc ffi/reduce/dispatch.cc ffi/reduce/kernels_baseline.cc
  ffi/transport/bell.cc ffi/transport/crc32c.cc ffi/transport/faults.cc ffi/transport/link.cc ffi/transport/links.cc ffi/transport/ring.cc ffi/transport/shared_memory.cc ffi/transport/stream.cc ffi/transport/wire.cc)
target_link_libraries(jaxring_fuzzed PUBLIC jaxring_flags)
# The kernels of other instruction sets come from the same templates, and take long to compile.
target_compile_definitions(jaxring_fuzzed PRIVATE JAXRING_BASELINE_ONLY)
target_compile_options(jaxring_fuzzed PUBLIC ${_fuzz_flags} PRIVATE -fsanitize=fuzzer-no-link)
target_link_options(jaxring_fuzzed PUBLIC ${_fuzz_flags})
add_custom_target(fuzz_targets)
file(GLOB fuzz_sources CONFIGURE_DEPENDS fuzz/*.cc)
foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM name)
  add_executable(fuzz_${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(fuzz_${name} PRIVATE jaxring_fuzzed)
  target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(fuzz_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/targets OUTPUT_NAME ${name})
  add_dependencies(fuzz_targets fuzz_${name})
endforeach()
