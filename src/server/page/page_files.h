// The files of the page, as the build put them into the program (cmake/embed_files.cmake).
#pragma once

#include <span>
#include <string_view>

namespace loramux {

// A file of src/server/page/web.
struct PageFile {
  std::string_view name;  // without folders, such as "app.js"
  std::string_view content;
};

// Returns all of them, by name.
std::span<const PageFile> PageFiles();

}  // namespace loramux
