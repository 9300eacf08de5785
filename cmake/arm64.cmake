# The toolchain of the preset arm64: GCC for ARM's 64-bit architecture, with the libraries of build/arm64/sysroot
# (tools/setup.sh arm64). Programs run under qemu; the variable QEMU_CPU says as which processor.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}/../build/arm64/sysroot" ABSOLUTE)
if(NOT EXISTS "${root}/usr/include")
  message(FATAL_ERROR "expected the libraries for arm64 in ${root}, found none. Run tools/setup.sh arm64")
endif()
set(CMAKE_SYSROOT "${root}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${root}")
set(ENV{PKG_CONFIG_LIBDIR} "${root}/usr/lib/aarch64-linux-gnu/pkgconfig:${root}/usr/share/pkgconfig")
# A library that another library needs is in the folders of the sysroot, not of this machine.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L "${root}")
