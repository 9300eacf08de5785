# Whether the plugin for ranks on MPI is built (src/collective/mpi): LORAMUX_WITH_MPI. It alone needs MPI.
set(LORAMUX_WITH_MPI OFF)
if(LORAMUX_BUILD_MPI STREQUAL "AUTO" AND (LORAMUX_SANITIZE OR NOT LORAMUX_BUILD_PROGRAM))
  return()   # MPI's own libraries are not built with a sanitizer
endif()
if(LORAMUX_BUILD_MPI)
  pkg_check_modules(MPI QUIET IMPORTED_TARGET ompi-c)   # Open MPI's name of its C library
  if(MPI_FOUND)
    set(LORAMUX_WITH_MPI ON)
  elseif(NOT LORAMUX_BUILD_MPI STREQUAL "AUTO")
    message(FATAL_ERROR "LORAMUX_BUILD_MPI: expected Open MPI's headers (ompi-c.pc), and they are not installed. Run "
                        "tools/setup.sh mpi")
  endif()
endif()
