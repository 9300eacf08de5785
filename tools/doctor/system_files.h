// The files that a system describes itself with: /proc, /sys and the cgroups. Tests give a folder of their own as the
// root. What the files hold is not trusted: a container's host, or a fake one, writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loramux {

class SystemFiles {
 public:
  explicit SystemFiles(std::filesystem::path root = "/") : root_(std::move(root)) {}

  // The first 4 MiB of the file at an absolute path as "/proc/meminfo". nullopt: it cannot be read.
  std::optional<std::string> Read(std::string_view path) const;
  // The file's first line without space at its ends. nullopt: it cannot be read, or is empty.
  std::optional<std::string> FirstLine(std::string_view path) const;
  // The names in a folder, sorted, at most 4096. Empty: it cannot be read.
  std::vector<std::string> Names(std::string_view folder) const;

 private:
  std::filesystem::path Under(std::string_view path) const;

  std::filesystem::path root_;
};

// The text without space, tabs and line ends at its ends.
std::string_view Trimmed(std::string_view text);
// The pieces between separators, trimmed; empty ones too.
std::vector<std::string_view> Pieces(std::string_view text, char separator);
// A whole number of at least 0 that is all of the trimmed text. nullopt: anything else, or one that is too large.
std::optional<std::int64_t> CountOf(std::string_view text);
// What follows "KEY:" (or "KEY" and a space) in the first line that begins with the key. nullopt: there is none.
std::optional<std::string_view> ValueOf(std::string_view text, std::string_view key);
// How many numbers a list as "0-3,8,10-11" has. nullopt: another text, or more than 65,536 numbers.
std::optional<std::int64_t> CountOfList(std::string_view list);

}  // namespace loramux
