# Writes OUTPUT, the source of PageFiles (src/server/page/page_files.h), from the files in FOLDER.
# Usage: cmake -D FOLDER=... -D OUTPUT=... -P embed_files.cmake
file(GLOB files LIST_DIRECTORIES false "${FOLDER}/*.html" "${FOLDER}/*.css" "${FOLDER}/*.js" "${FOLDER}/*.svg")
list(SORT files)
set(arrays "")
set(table "")
set(number 0)
foreach(file IN LISTS files)
  get_filename_component(name "${file}" NAME)
  file(READ "${file}" hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "constexpr unsigned char kFile${number}[] = {${bytes}0};\n")
  string(APPEND table "    {\"${name}\", {reinterpret_cast<const char*>(kFile${number}), sizeof(kFile${number}) - 1}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE "${OUTPUT}.new" "// Written by cmake/embed_files.cmake.
#include \"server/page/page_files.h\"

#include <array>

namespace loramux {
namespace {

${arrays}
}  // namespace

std::span<const PageFile> PageFiles() {
  static const std::array<PageFile, ${number}> files = {{
${table}  }};
  return files;
}

}  // namespace loramux
")
file(RENAME "${OUTPUT}.new" "${OUTPUT}")
