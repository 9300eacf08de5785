# The Debian package: `make deb`, or `cpack` in a build directory. The maintainer scripts are in deploy/debian.

install(FILES "${CMAKE_SOURCE_DIR}/deploy/systemd/loramux.service" DESTINATION lib/systemd/system)
install(FILES "${CMAKE_SOURCE_DIR}/deploy/debian/serve.toml" DESTINATION /etc/loramux)
install(FILES "${CMAKE_SOURCE_DIR}/README.md" "${CMAKE_SOURCE_DIR}/docs/guide/install.md"
              "${CMAKE_SOURCE_DIR}/deploy/debian/copyright" DESTINATION share/doc/loramux)

# The package alone: a Debian changelog with the version, and the manual page, both compressed without a time in them.
set(package_files "${CMAKE_BINARY_DIR}/package")
configure_file("${CMAKE_SOURCE_DIR}/deploy/debian/changelog.in" "${package_files}/changelog" @ONLY)
configure_file("${CMAKE_SOURCE_DIR}/deploy/debian/loramux.1.in" "${package_files}/loramux.1" @ONLY)
find_program(GZIP_PROGRAM gzip REQUIRED)
foreach(text changelog loramux.1)
  execute_process(COMMAND "${GZIP_PROGRAM}" -9nkf "${package_files}/${text}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
install(FILES "${package_files}/changelog.gz" DESTINATION share/doc/loramux)
install(FILES "${package_files}/loramux.1.gz" DESTINATION share/man/man1)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME loramux)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_CONTACT "The loramux authors <loramux@users.noreply.github.com>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "server for one language model with many LoRA adapters")
set(CPACK_PACKAGE_DESCRIPTION "\
loramux serves a base language model with hundreds of LoRA adapters behind an
OpenAI-compatible API: requests of different adapters share every batch,
adapters and KV cache share one page pool, and adapters come from disk when
they are asked for.
.
The service is installed disabled: it needs a model, which
/etc/loramux/serve.toml names.")
set(CPACK_STRIP_FILES TRUE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)   # loramux_<version>_<architecture>.deb
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS TRUE)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "adduser, init-system-helpers")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "")
foreach(script postinst prerm postrm conffiles)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${CMAKE_SOURCE_DIR}/deploy/debian/${script}")
endforeach()
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
                                                WORLD_READ WORLD_EXECUTE)
include(CPack)
