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

// Words at the end of a name that say how the weights are stored, or by which tool. Numbers of bits stand beside them.
constexpr std::string_view kFormatWords[] = {
    "bnb",     "gptq",  "awq",    "autoawq",     "gguf",      "ggml",    "mlx",  "exl2", "exl3", "hqq",
    "eetq",    "aqlm",  "nf4",    "fp4",         "fp8",       "fp16",    "fp32", "f16",  "f32",  "bf16",
    "float16", "mxfp4", "mxfp8",  "nvfp4",       "int4",      "int8",    "4bit", "dwq",  "hf",   "i1",
    "gs32",    "gs64",  "gs128",  "dynamic",     "quantized", "unsloth", "q4",   "q8",   "ud",   "static",
    "8bit",    "ct",    "marlin", "safetensors", "imatrix",   "onnx"};

// Whether a word is one of them, or gives bits as "6bit", "w4a16", "q4" or "iq3" does.
bool SaysFormat(std::string_view word) {
  if (std::find(std::begin(kFormatWords), std::end(kFormatWords), word) != std::end(kFormatWords)) return true;
  constexpr const char* kDigits = "0123456789.";
  const auto only_digits = [&](std::string_view text) {
    return !text.empty() && text.find_first_not_of(kDigits) == std::string_view::npos;
  };
  for (const std::string_view unit : {"bit", "bits", "bpw"}) {
    if (word.ends_with(unit) && only_digits(word.substr(0, word.size() - unit.size()))) return true;
  }
  if (word.starts_with("iq") || word.starts_with("tq")) return only_digits(word.substr(2));
  if (word.starts_with("q")) return only_digits(word.substr(1));
  const auto a = word.find('a');
  return word.starts_with("w") && a != std::string_view::npos && only_digits(word.substr(1, a - 1)) &&
         only_digits(word.substr(a + 1));
}

// Removes "-K-M", "-0" and "-XL" of llama.cpp's formats behind "-Q4"; returns whether the format stands there.
bool EndsWithGgufType(std::string_view& name) {
  std::string_view rest = name;
  for (int part = 0; part < 3; ++part) {
    const auto dash = rest.find_last_of("-.");
    if (dash == std::string_view::npos || dash == 0) return false;
    const std::string_view word = rest.substr(dash + 1);
    const bool type = word.size() >= 2 && (word[0] == 'q' || word.starts_with("iq") || word.starts_with("tq"));
    rest = rest.substr(0, dash);
    if (type && SaysFormat(word)) return name = rest, true;
    if (word.size() > 3) return false;  // no "k", "m", "xxs" or "0"
  }
  return false;
}

// The name without its owner's prefix and what says how its weights are stored: all are forms of one model.
std::string WithoutFormat(std::string_view name) {
  if (name.ends_with(".gguf")) name.remove_suffix(std::string_view(".gguf").size());
  constexpr std::string_view kOwner = "meta-";
  if (name.starts_with(kOwner) && name.size() > kOwner.size()) name.remove_prefix(kOwner.size());
  while (true) {
    if (EndsWithGgufType(name)) continue;
    auto dash = name.find_last_of('-');
    // "quantized.w4a16"
    if (const auto dot = name.find_last_of('.'); dot != std::string_view::npos && SaysFormat(name.substr(dot + 1)) &&
                                                 (dash == std::string_view::npos || dot > dash) &&
                                                 name[dot + 1] > '9') {
      dash = dot;
    }
    if (dash == std::string_view::npos || dash == 0 || !SaysFormat(name.substr(dash + 1))) return std::string(name);
    name = name.substr(0, dash);
  }
}

std::string ShortName(std::string_view name) {
  name = WithoutTail(name);
  const auto cache = name.rfind(kCacheFolder);
  if (cache != std::string_view::npos && (cache == 0 || name[cache - 1] == '/')) {
    name = name.substr(cache + kCacheFolder.size());
    name = LastPart(name.substr(0, name.find('/')), "--");
  }
  std::string shorter(LastPart(name, "/"));
  std::transform(shorter.begin(), shorter.end(), shorter.begin(),
                 [](unsigned char c) { return c == ' ' || c == '_' ? '-' : static_cast<char>(std::tolower(c)); });
  return WithoutFormat(shorter);
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
