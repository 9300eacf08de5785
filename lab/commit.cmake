# Writes OUTPUT, the source that names the commit of the checkout SOURCE, unless it says so already.
# Usage: cmake -D SOURCE=... -D OUTPUT=... -P commit.cmake
execute_process(COMMAND git -C "${SOURCE}" describe --always --abbrev=12 --dirty --exclude=* OUTPUT_VARIABLE commit
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "// Written by lab/commit.cmake.
namespace loramux {
extern const char* const kCommit;
const char* const kCommit = \"${commit}\";
}  // namespace loramux
")
