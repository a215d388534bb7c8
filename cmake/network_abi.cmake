# A script: writes OUTPUT, which names what the headers of the network under SOURCE are, for modules that share one.
file(GLOB headers "${SOURCE}/base/*.h" "${SOURCE}/network/*.h" "${SOURCE}/network/peers/*.h"
     "${SOURCE}/transport/core/*.h" "${SOURCE}/bind/shared_network.h")
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
