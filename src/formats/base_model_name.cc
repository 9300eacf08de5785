#include "formats/base_model_name.h"

#include <algorithm>
#include <cctype>

#include "formats/json_fields.h"
#include "formats/model_files.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxModelConfigBytes = std::size_t{1} << 20;
constexpr std::string_view kCacheFolder = "models--";

std::string_view LastPart(std::string_view name, std::string_view separator) {
  const auto at = name.rfind(separator);
  return at == std::string_view::npos ? name : name.substr(at + separator.size());
}

std::string_view WithoutTail(std::string_view name) {
  while (name.ends_with('/') || name.ends_with("/.")) name.remove_suffix(1);
  return name;
}

std::string ShortName(std::string_view name) {
  name = WithoutTail(name);
  const auto cache = name.rfind(kCacheFolder);
  if (cache != std::string_view::npos && (cache == 0 || name[cache - 1] == '/')) {
    name = name.substr(cache + kCacheFolder.size());
    name = LastPart(name.substr(0, name.find('/')), "--");
  }
  std::string shorter(LastPart(name, "/"));
  std::transform(shorter.begin(), shorter.end(), shorter.begin(), [](unsigned char c) { return std::tolower(c); });
  return shorter;
}

}  // namespace

bool SameModelName(std::string_view a, std::string_view b) { return ShortName(a) == ShortName(b); }

std::vector<std::string> NamesOfModel(const std::filesystem::path& directory) {
  std::vector<std::string> names = {directory.string()};
  std::error_code error;
  const auto real = std::filesystem::canonical(directory, error);
  if (!error) names.push_back(real.string());
  const auto text = ReadModelFile(directory / "config.json", kMaxModelConfigBytes);
  if (!text.ok()) return names;
  const auto config = ParseJsonObject(*text, "config.json");
  if (!config.ok()) return names;
  const auto name = JsonFields(*config, "config.json: ").String("_name_or_path");
  if (name.ok() && *name && !(*name)->empty()) names.push_back(**name);
  return names;
}

}  // namespace loramux
