#include "formats/model_files.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include "formats/file.h"
#include "formats/gguf_config.h"
#include "formats/gguf_file.h"
#include "formats/gguf_tokenizer.h"
#include "formats/json_fields.h"

namespace loramux {
namespace {

struct VirtualFile {
  std::string_view name;
  Result<std::string> (*text)(const GgufFile&);
};
constexpr VirtualFile kFilesOfGguf[] = {
    {"config.json", GgufModelConfig},
    {"generation_config.json", GgufGenerationConfig},
    {"tokenizer.json", GgufTokenizer},
    {"tokenizer_config.json", GgufTokenizerConfig},
};

}  // namespace

bool IsGgufModel(const std::filesystem::path& model) {
  std::error_code ignored;
  return IsGgufPath(model) && !std::filesystem::is_directory(model, ignored);
}

Result<std::string> ReadModelFile(const std::filesystem::path& path, std::size_t max_bytes) {
  const std::filesystem::path model = path.parent_path();
  const std::string name = path.filename().string();
  if (!IsGgufModel(model)) {
    ASSIGN_OR_RETURN(std::string text, ReadTextFile(path, max_bytes));
    return name == "config.json" ? WithoutInfinity(text) : std::move(text);
  }
  const auto* const found = std::find_if(std::begin(kFilesOfGguf), std::end(kFilesOfGguf),
                                         [&](const VirtualFile& file) { return file.name == name; });
  if (found == std::end(kFilesOfGguf)) return NotFound("no such file: " + path.string(), path.string());
  ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model));
  ASSIGN_OR_RETURN(std::string text, found->text(file));
  if (text.size() <= max_bytes) return text;
  return InvalidArgument(path.string() + ": expected at most " + std::to_string(max_bytes) + " bytes of text, found " +
                             std::to_string(text.size()),
                         path.string());
}

}  // namespace loramux
