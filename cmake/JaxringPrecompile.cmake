# jaxring_precompile_headers(OWNER TARGET...): precompiles the standard library's headers once for all of these targets,
# which have the owner's flags. Without a warm compiler cache these headers are a quarter of the compiler's work.
function(jaxring_precompile_headers owner)
  target_precompile_headers(${owner} PRIVATE <algorithm> <array> <atomic> <chrono> <condition_variable> <cstring> <deque>
    <fstream> <functional> <iostream> <map> <memory> <mutex> <optional> <random> <set> <sstream> <string> <thread>
    <unordered_map> <vector>)
  foreach(target IN LISTS ARGN)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endforeach()
endfunction()
