# Fuzz targets for input from the network, from shared memory and from tables: fuzz/*.cc, each a libFuzzer program with
# AddressSanitizer and UBSan (`make fuzz`). They need clang and are built with the engine's sources that they use.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "JAXRING_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++")
endif()
set(_fuzz_flags -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined)
add_library(jaxring_fuzzed STATIC EXCLUDE_FROM_ALL
  ffi/base/crc32c.cc
  ffi/reduce/copy.cc ffi/reduce/dispatch.cc ffi/reduce/kernels_baseline.cc
  ffi/transport/core/doorbell.cc ffi/transport/core/faults.cc ffi/transport/core/link.cc ffi/transport/core/links.cc
  ffi/transport/core/ring.cc ffi/transport/core/shared_memory.cc ffi/transport/core/stream.cc ffi/transport/core/wire.cc
  ffi/quantize/quantize.cc ffi/quantize/quantizers_baseline.cc
  ffi/plan/epilogue.cc ffi/plan/plan.cc ffi/plan/plan_check.cc
  ffi/network/peers/control_frames.cc
  ffi/engine/operation/combine.cc ffi/engine/operation/combine_codes.cc ffi/engine/operation/combine_epilogue.cc ffi/engine/operation/grouped.cc ffi/engine/operation/interpreter.cc
  ffi/engine/operation/lane_messages.cc ffi/engine/operation/operation.cc ffi/engine/operation/pages.cc
  ffi/network/unexpected_messages.cc)
target_link_libraries(jaxring_fuzzed PUBLIC jaxring_flags)
# Only the baseline kernels: those of other instruction sets come from the same templates and take long to compile.
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
