#include "tools/doctor/system_files.h"

#include <algorithm>
#include <charconv>
#include <fstream>

namespace loramux {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{4} << 20;
constexpr std::size_t kMaxNames = 4096;
constexpr std::int64_t kMaxListed = 65536;

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

std::filesystem::path SystemFiles::Under(std::string_view path) const {
  return root_ / path.substr(std::min(path.find_first_not_of('/'), path.size()));
}

std::optional<std::string> SystemFiles::Read(std::string_view path) const {
  std::ifstream file(Under(path), std::ios::binary);  // most of these files say that their size is 0
  if (!file) return std::nullopt;
  std::string text;
  std::string block(64 << 10, '\0');
  while (text.size() < kMaxFileBytes) {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
    if (!file) break;
  }
  if (file.bad()) return std::nullopt;  // a folder, or a file that the kernel refuses to read
  text.resize(std::min(text.size(), kMaxFileBytes));
  return text;
}

std::optional<std::string> SystemFiles::FirstLine(std::string_view path) const {
  const std::optional<std::string> text = Read(path);
  if (!text) return std::nullopt;
  const std::string_view line = Trimmed(std::string_view(*text).substr(0, text->find('\n')));
  if (line.empty()) return std::nullopt;
  return std::string(line);
}

std::vector<std::string> SystemFiles::Names(std::string_view folder) const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entries(Under(folder), error);
  for (; !error && entries != std::filesystem::directory_iterator() && names.size() < kMaxNames;
       entries.increment(error)) {
    names.push_back(entries->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> Pieces(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (true) {
    const std::size_t end = std::min(text.find(separator), text.size());
    pieces.push_back(Trimmed(text.substr(0, end)));
    if (end == text.size()) return pieces;
    text.remove_prefix(end + 1);
  }
}

std::optional<std::int64_t> CountOf(std::string_view text) {
  text = Trimmed(text);
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 0) return std::nullopt;
  return count;
}

std::optional<std::string_view> ValueOf(std::string_view text, std::string_view key) {
  for (const std::string_view line : Pieces(text, '\n')) {
    if (!line.starts_with(key)) continue;
    std::string_view rest = line.substr(key.size());
    if (rest.empty() || (!IsSpace(rest.front()) && rest.front() != ':')) continue;
    rest = Trimmed(rest);
    if (rest.starts_with(':')) rest.remove_prefix(1);
    return Trimmed(rest);
  }
  return std::nullopt;
}

std::optional<std::int64_t> CountOfList(std::string_view list) {
  std::int64_t count = 0;
  for (const std::string_view range : Pieces(list, ',')) {
    const std::size_t dash = std::min(range.find('-'), range.size());
    const std::optional<std::int64_t> first = CountOf(range.substr(0, dash));
    const std::optional<std::int64_t> last = dash == range.size() ? first : CountOf(range.substr(dash + 1));
    if (!first || !last || *last < *first || *last - *first >= kMaxListed) return std::nullopt;
    count += *last - *first + 1;
    if (count > kMaxListed) return std::nullopt;
  }
  return count;
}

}  // namespace loramux
