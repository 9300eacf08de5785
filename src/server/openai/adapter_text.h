// What an adapter's folder says of text beside its weights: the chat template, the tokens that end an answer and the
// defaults of sampling that it was trained with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "adapter/registry.h"
#include "base/result.h"
#include "formats/generation_defaults.h"
#include "server/openai/openai_request.h"
#include "server/output/detect.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/tokenizer_difference.h"

namespace loramux {

// Returns `base` with what `own` sets in place of it.
RequestDefaults WithDefaults(RequestDefaults base, const GenerationDefaults& own);

// A chat template other than the base model's, and how a model with it writes calls and reasoning.
struct OwnTemplate {
  ChatTemplate chat_template;
  OutputFormats formats;
};

// Finds out the formats from the template.
std::shared_ptr<const OwnTemplate> MakeOwnTemplate(ChatTemplate chat_template);

// Of one generation of an adapter. Immutable.
struct AdapterText {
  std::shared_ptr<const OwnTemplate> own;           // null: the base model's
  std::string template_name;                        // of its file, or "--chat-template"; empty: the base model's
  std::vector<TokenId> end_tokens;                  // end an answer beside the base model's
  GenerationDefaults own_defaults;                  // as in its generation_config.json
  std::shared_ptr<const RequestDefaults> defaults;  // those on top of the base model's; null: the base model's alone
  std::string warning;                              // how its tokenizer differs from the base model's; empty: it agrees
  std::string digest;                               // of the files
};

// Returns the template of an adapter, or `base` where it has none of its own. Null: of the base model; there is none.
const ChatTemplate* TemplateOf(const ChatTemplate* base, const AdapterVersion* adapter);

// What the texts of adapters are measured by. `tokenizer` and `chat_template` must outlive the reader.
struct AdapterTextOptions {
  const Tokenizer* tokenizer = nullptr;
  std::filesystem::path directory;                       // of the base model's tokenizer
  const ChatTemplate* chat_template = nullptr;           // of the base model; null: it has none
  ContentFormat content_format = ContentFormat::kAuto;   // of adapters' own templates
  std::shared_ptr<const OwnTemplate> for_all = nullptr;  // in place of adapters' own (--chat-template FILE)
  std::map<std::string, std::shared_ptr<const OwnTemplate>, std::less<>> by_name = {};  // --chat-template NAME=FILE
  // Of the base model; adapters' own come on top. nullopt: adapters have none of their own (--generation-config).
  std::optional<RequestDefaults> defaults = {};
};

// Largest files that it reads, in bytes.
inline constexpr std::size_t kMaxAdapterTokenizerBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxAdapterTextBytes = std::size_t{16} << 20;

// Reads and checks the texts of adapters. Keeps equal templates, and the outcome of comparing equal tokenizers, once.
// Thread-safe.
class AdapterTextReader {
 public:
  explicit AdapterTextReader(AdapterTextOptions options);

  // Reads the folder of the adapter `name` of `model`; `check` is asked about each file. Null: nothing is of its own.
  //
  // Its tokenizer is compared with the base model's, which reads all prompts. Errors: a token has different ids; the
  // template, or the end of answers, needs a token that the other tokenizer does not have; a file that is too large or
  // malformed. Other differences are a warning.
  Result<std::shared_ptr<const AdapterText>> Read(const ModelConfig& model, const std::string& name,
                                                  const std::filesystem::path& directory, const OpenedFileCheck& check);
  // AdapterRegistry::Options::complete.
  AdapterRegistry::Complete Hook();

 private:
  struct Files;  // of one folder
  Result<TokenizerDifference> CompareOnce(const std::string& json, const std::string& digest, const std::string& label);
  Result<TokenizerDifference> Compare(Files& files);
  Status ReadTemplate(Files& files, const std::string& name, const TokenizerDifference& difference, AdapterText& text);
  Status ReadEndTokens(Files& files, const ModelConfig& model, const TokenizerDifference& difference,
                       AdapterText& text) const;
  Status ReadDefaults(Files& files, const ModelConfig& model, AdapterText& text) const;
  std::shared_ptr<const OwnTemplate> Shared(ChatTemplate chat_template);

  const AdapterTextOptions options_;
  const Result<std::map<std::string, std::string, std::less<>>> base_tokens_;  // LoadSpecialTokens
  std::mutex mutex_;
  std::vector<std::weak_ptr<const OwnTemplate>> templates_;
  std::map<std::string, TokenizerDifference> compared_;  // by the SHA-256 of tokenizer.json
};

}  // namespace loramux
