// What an adapter's folder says of text beside its weights: the chat template, the tokens that end an answer and the
// defaults of sampling that it was trained with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapter/registry.h"
#include "base/result.h"
#include "formats/generation_defaults.h"
#include "server/completion/completion_request.h"
#include "server/output/detect.h"
#include "text/chat_template.h"
#include "text/grammar/grammar_compiler.h"
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

// A tokenizer other than the base model's, with what compiles grammars for its tokens. Thread-safe.
class OwnTokenizer {
 public:
  explicit OwnTokenizer(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  const Tokenizer& tokenizer() const { return tokenizer_; }
  // Made at the first call, which takes up to a second; it lives as long as this. `base` is the base model's: the
  // tokens that end a text are the same. Errors: those of GrammarCompiler::Create; a token is beyond `vocab_size`.
  Result<GrammarCompiler*> Grammars(const GrammarCompiler& base, std::int64_t vocab_size) const;

 private:
  const Tokenizer tokenizer_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<GrammarCompiler> grammars_;
};

// The texts of one generation of an adapter. Immutable.
struct AdapterText {
  std::shared_ptr<const OwnTokenizer> tokenizer;  // null: the base model's, with which its own agrees
  std::shared_ptr<const OwnTemplate> own;         // null: the base model's
  std::string template_name;                      // file of the template, or "--chat-template"; empty: the base model's
  std::vector<TokenId> end_tokens;                // end an answer beside the base model's
  GenerationDefaults own_defaults;                // as in its generation_config.json
  std::shared_ptr<const RequestDefaults> defaults;  // those on top of the base model's; null: the base model's alone
  std::string warning;                              // what is missing of its tokenizer; empty: nothing
  std::string digest;                               // digest of the files
};

// Returns the template of an adapter, or `base` where it has none of its own. Null: of the base model; there is none.
const ChatTemplate* TemplateOf(const ChatTemplate* base, const AdapterVersion* adapter);

// Returns the tokenizer of an adapter, or `base` where it has none of its own. Null: of the base model.
const Tokenizer& TokenizerOf(const Tokenizer& base, const AdapterVersion* adapter);

// What the texts of adapters are measured by. `tokenizer` and `chat_template` must outlive the reader.
struct AdapterTextOptions {
  const Tokenizer* tokenizer = nullptr;
  std::filesystem::path directory;                       // folder of the base model's tokenizer
  const ChatTemplate* chat_template = nullptr;           // template of the base model; null: it has none
  ContentFormat content_format = ContentFormat::kAuto;   // format of the content in adapters' own templates
  std::shared_ptr<const OwnTemplate> for_all = nullptr;  // in place of adapters' own (--chat-template FILE)
  std::map<std::string, std::shared_ptr<const OwnTemplate>, std::less<>> by_name = {};  // --chat-template NAME=FILE
  // Of the base model; adapters' own come on top. nullopt: adapters have none of their own (--generation-config).
  std::optional<RequestDefaults> defaults = {};
};

// Largest files that it reads, in bytes.
inline constexpr std::size_t kMaxAdapterTokenizerBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxAdapterTextBytes = std::size_t{16} << 20;

// Reads and checks the texts of adapters. Keeps equal templates and tokenizers, and the outcome of comparing them,
// once. Thread-safe.
class AdapterTextReader {
 public:
  explicit AdapterTextReader(AdapterTextOptions options);

  // Reads the folder of the adapter `name` of `model`; `check` is asked about each file. Null: nothing is of its own.
  //
  // Its tokenizer.json reads its prompts if it differs from the base model's; without one the base model's reads them.
  // `own` are the rows that it brings. A warning names tokens without a row, and it is an error if the template or the
  // end of answers needs one. Other errors: a token has different ids; a file that is too large or malformed.
  Result<std::shared_ptr<const AdapterText>> Read(const ModelConfig& model, const std::string& name,
                                                  const std::filesystem::path& directory, const OpenedFileCheck& check,
                                                  std::span<const OwnPart> own = {});
  // AdapterRegistry::Options::complete.
  AdapterRegistry::Complete Hook();

 private:
  struct Files;  // files of one folder
  // The outcome of comparing a tokenizer with the base model's.
  struct Compared {
    TokenizerDifference difference;
    std::shared_ptr<const OwnTokenizer> own;  // null: it agrees, or conflicts
  };
  Result<Compared> CompareOnce(const std::string& json, const std::string& digest, const std::string& label);
  // What the texts must do without.
  Result<TokenizerDifference> Compare(Files& files, const ModelConfig& model, std::span<const OwnPart> own,
                                      AdapterText& text);
  Status ReadTemplate(Files& files, const std::string& name, const TokenizerDifference& difference, AdapterText& text);
  Status ReadEndTokens(Files& files, const ModelConfig& model, const TokenizerDifference& difference,
                       AdapterText& text) const;
  Status ReadDefaults(Files& files, const ModelConfig& model, AdapterText& text) const;
  std::shared_ptr<const OwnTemplate> Shared(ChatTemplate chat_template);

  const AdapterTextOptions options_;
  const Result<std::map<std::string, std::string, std::less<>>> base_tokens_;  // LoadSpecialTokens
  std::mutex mutex_;
  std::vector<std::weak_ptr<const OwnTemplate>> templates_;
  // By the SHA-256 of tokenizer.json. An own tokenizer lives as long as its adapters.
  std::map<std::string, std::pair<TokenizerDifference, std::weak_ptr<const OwnTokenizer>>> compared_;
};

}  // namespace loramux
