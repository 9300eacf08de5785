# The Debian package: `make deb`, or `cpack` in a build directory. The maintainer scripts are in deploy/debian.

install(FILES "${CMAKE_SOURCE_DIR}/deploy/systemd/loramux.service" DESTINATION lib/systemd/system)
install(FILES "${CMAKE_SOURCE_DIR}/deploy/debian/serve.toml" DESTINATION /etc/loramux)
install(FILES "${CMAKE_SOURCE_DIR}/README.md" "${CMAKE_SOURCE_DIR}/CHANGELOG.md" "${CMAKE_SOURCE_DIR}/CONTRIBUTING.md"
              "${CMAKE_SOURCE_DIR}/SECURITY.md"
              "${CMAKE_SOURCE_DIR}/deploy/debian/copyright" DESTINATION share/doc/loramux)
install(DIRECTORY "${CMAKE_SOURCE_DIR}/docs" DESTINATION share/doc/loramux
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")

# The package alone: a Debian changelog with the version, compressed without a time in it; the manual page and the
# completions, which the program prints (tools/CMakeLists.txt).
set(package_files "${CMAKE_BINARY_DIR}/package")
configure_file("${CMAKE_SOURCE_DIR}/deploy/debian/changelog.in" "${package_files}/changelog" @ONLY)
find_program(GZIP_PROGRAM gzip REQUIRED)
execute_process(COMMAND "${GZIP_PROGRAM}" -9nkf "${package_files}/changelog" COMMAND_ERROR_IS_FATAL ANY)
install(FILES "${package_files}/changelog.gz" DESTINATION share/doc/loramux)
install(FILES "${CMAKE_BINARY_DIR}/tools/reference/loramux.1.gz" DESTINATION share/man/man1)
install(FILES "${CMAKE_BINARY_DIR}/tools/reference/loramux.bash" DESTINATION share/bash-completion/completions RENAME loramux)
install(FILES "${CMAKE_BINARY_DIR}/tools/reference/_loramux" DESTINATION share/zsh/vendor-completions)
install(FILES "${CMAKE_BINARY_DIR}/tools/reference/loramux.fish" DESTINATION share/fish/vendor_completions.d)

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
# The program is stripped; its debug information goes to loramux-dbgsym.
set(CPACK_STRIP_FILES FALSE)   # CPack strips what it takes the debug information from
set(CPACK_DEBIAN_DEBUGINFO_PACKAGE ON)
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
