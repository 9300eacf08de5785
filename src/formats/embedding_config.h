// How the embeddings of a model are made, as sentence-transformers writes it: modules.json and the configuration of its
// pooling module.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// Which hidden states of a prompt make its embedding.
enum class Pooling : std::uint8_t {
  kLast,  // the state of the last token
  kMean,  // the mean over all tokens
};

// The defaults are for models that say nothing, as in vLLM.
struct EmbeddingConfig {
  Pooling pooling = Pooling::kLast;
  bool normalize = true;  // to the Euclidean length 1
  bool operator==(const EmbeddingConfig&) const = default;
};

// What a modules.json says.
struct EmbeddingModules {
  std::string pooling_folder;  // folder of the pooling module's config.json: one plain name, such as "1_Pooling"
  bool normalize = false;
  bool operator==(const EmbeddingModules&) const = default;
};

// Parse a modules.json, and the config.json of a pooling module. Errors name what loramux does not compute: modules
// other than Transformer, Pooling and Normalize, and pooling other than mean and last token. `label` names the source
// in errors.
Result<EmbeddingModules> ParseEmbeddingModules(std::string_view json, const std::string& label);
Result<Pooling> ParsePoolingConfig(std::string_view json, const std::string& label);

// Reads the file of this path in a directory. Error kNotFound: there is none.
using ReadConfigFile = std::function<Result<std::string>(const std::filesystem::path& path)>;

// Reads the configuration of the model or adapter in `directory`. nullopt: it has no modules.json. Errors: those of
// parsing, and that `read` has one. They name files without their folder, because clients may see them.
Result<std::optional<EmbeddingConfig>> LoadEmbeddingConfig(const std::filesystem::path& directory,
                                                           const ReadConfigFile& read);
// The same with the files as they are on the disk.
Result<std::optional<EmbeddingConfig>> LoadEmbeddingConfig(const std::filesystem::path& directory);

// Returns "last" or "mean", and the value of one of these names.
std::string_view PoolingName(Pooling pooling);
std::optional<Pooling> FindPooling(std::string_view name);

}  // namespace loramux
