# A script: writes OUTPUT, a header with a hash of BUILD and of the headers under SOURCE that two modules share objects
# by. tests/layers/test_cpp_layers.py holds that these are all that bind/shared_network.h includes, directly or not.
file(GLOB_RECURSE headers "${SOURCE}/base/*.h" "${SOURCE}/network/*.h" "${SOURCE}/transport/core/*.h"
     "${SOURCE}/bind/shared_network.h")
set(all "${BUILD}")
foreach(header IN LISTS headers)
  file(SHA256 "${header}" hash)
  string(APPEND all " ${hash}")
endforeach()
string(SHA256 abi "${all}")
string(SUBSTRING "${abi}" 0 16 abi)
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "// Written by CMake; do not edit.
#pragma once

#define JAXRING_NETWORK_ABI \"@abi@\"
" @ONLY)
