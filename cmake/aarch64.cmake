# Cross-compiles for 64-bit Arm Linux by Debian's compiler (g++-aarch64-linux-gnu); tests run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(JAXRING_AARCH64_ROOT /usr/aarch64-linux-gnu CACHE PATH "Root whose shared libraries programs under qemu-user load")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES JAXRING_AARCH64_ROOT)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${JAXRING_AARCH64_ROOT})
