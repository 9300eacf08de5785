#include "server/completion/adapter_text.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/message.h"
#include "formats/model_files.h"
#include "hub/file_digest.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerFile = "tokenizer.json";
constexpr const char* kGenerationFile = "generation_config.json";
constexpr std::size_t kMaxCompared = 1024;  // outcomes that are kept
constexpr std::size_t kShownTokens = 4;

bool Contains(const std::vector<std::string>& texts, std::string_view text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

std::string Shown(const std::vector<std::string>& tokens) {
  std::string text;
  for (std::size_t i = 0; i < std::min(tokens.size(), kShownTokens); ++i) {
    text += (i > 0 ? ", " : "") + Quote(tokens[i]);
  }
  return tokens.size() > kShownTokens ? fmt::format("{} and {} more", text, tokens.size() - kShownTokens) : text;
}

std::string Warning(const TokenizerDifference& difference, bool own_tokenizer) {
  if (difference.only_own.empty()) return {};
  return "its tokenizer has tokens that the base model does not have: " + Shown(difference.only_own) +
         (own_tokenizer ? "; it brings no rows for them, so a prompt with one is refused"
                        : "; without a tokenizer.json, the base model's tokenizer reads its prompts");
}

// Whether the model has the token's rows, or the adapter brings them.
bool HasRows(const ModelConfig& model, std::span<const OwnPart> own, TokenId id) {
  if (id < model.BaseTokens()) return true;
  return std::ranges::any_of(own, [id](const OwnPart& part) {
    return part.kind == OwnKind::kEmbedding && std::ranges::binary_search(part.rows, id, {}, &OwnRow::token);
  });
}

Error NeedsToken(const fs::path& directory, const std::string& what, const std::string& token, bool only_own) {
  return InvalidArgument(
      fmt::format("{}: {} needs the token {}, which {} does not have: expected a tokenizer.json with it beside the "
                  "weights, and its rows of embed_tokens and lm_head in them (save_embedding_layers=True)",
                  directory.string(), what, Quote(token), only_own ? "the base model" : "the adapter's tokenizer"),
      "lora_path");
}

}  // namespace

std::shared_ptr<const OwnTemplate> MakeOwnTemplate(ChatTemplate chat_template) {
  const auto formats = ChooseFormats(chat_template, "auto", "auto");
  CHECK(formats.ok());  // both names are known
  return std::make_shared<const OwnTemplate>(OwnTemplate{std::move(chat_template), *formats});
}

const ChatTemplate* TemplateOf(const ChatTemplate* base, const AdapterVersion* adapter) {
  const bool own = adapter != nullptr && adapter->text != nullptr && adapter->text->own != nullptr;
  return own ? &adapter->text->own->chat_template : base;
}

RequestDefaults WithDefaults(RequestDefaults base, const GenerationDefaults& own) {
  SamplingParams& sampling = base.sampling;
  sampling.temperature = own.temperature.value_or(sampling.temperature);
  sampling.top_p = own.top_p.value_or(sampling.top_p);
  sampling.top_k = own.top_k.value_or(sampling.top_k);
  sampling.min_p = own.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = own.repetition_penalty.value_or(sampling.repetition_penalty);
  if (own.max_new_tokens) base.max_output_tokens = own.max_new_tokens;
  return base;
}

const Tokenizer& TokenizerOf(const Tokenizer& base, const AdapterVersion* adapter) {
  const bool own = adapter != nullptr && adapter->text != nullptr && adapter->text->tokenizer != nullptr;
  return own ? adapter->text->tokenizer->tokenizer() : base;
}

Result<GrammarCompiler*> OwnTokenizer::Grammars(const GrammarCompiler& base, std::int64_t vocab_size) const {
  if (tokenizer_.VocabSize() > vocab_size) {
    return Unsupported(
        fmt::format("structured output: the adapter's tokenizer has token ids up to {}, expected at most "
                    "{}; start the server with more --adapter-tokens",
                    tokenizer_.VocabSize() - 1, vocab_size - 1));
  }
  const std::lock_guard lock(mutex_);
  if (grammars_ == nullptr) {
    ASSIGN_OR_RETURN(grammars_, GrammarCompiler::Create(tokenizer_, base.eos()));
  }
  return grammars_.get();
}

// Each file is read once; their names and contents make the digest.
struct AdapterTextReader::Files {
  Files(const fs::path& folder, const OpenedFileCheck& opened) : directory(folder), check(opened) {}

  Result<std::string> Read(const fs::path& path) {
    const bool tokenizer = path.filename() == kTokenizerFile;
    const auto known = texts.find(path.string());
    if (known != texts.end()) return known->second;
    Result<std::string> text =
        ReadAdapterText(path, tokenizer ? kMaxAdapterTokenizerBytes : kMaxAdapterTextBytes, check);
    if (!text.ok()) {
      if (text.error().code == ErrorCode::kNotFound) return texts.emplace(path.string(), text).first->second;
      return text;
    }
    digests[path.filename().string()] = Sha256Hex(*text);
    if (tokenizer) return text;  // large, and wanted once
    return texts.emplace(path.string(), std::move(text)).first->second;
  }
  ReadTextPath Reader() {
    return [this](const fs::path& path) { return Read(path); };
  }
  std::string Digest() const {
    std::string all;
    for (const auto& [name, digest] : digests) all += name + ' ' + digest + '\n';
    return all.empty() ? all : Sha256Hex(all);
  }

  const fs::path& directory;
  const OpenedFileCheck& check;
  std::map<std::string, Result<std::string>> texts;
  std::map<std::string, std::string> digests;
};

AdapterTextReader::AdapterTextReader(AdapterTextOptions options)
    : options_(std::move(options)), base_tokens_(LoadSpecialTokens(options_.directory, ReadTokenizerFile)) {}

AdapterRegistry::Complete AdapterTextReader::Hook() {
  return [this](const ModelConfig& model, AdapterVersion& version, const fs::path& directory,
                const OpenedFileCheck& check) -> Status {
    ASSIGN_OR_RETURN(version.text, Read(model, version.name, directory, check, version.file.own));
    if (version.text == nullptr) return Ok{};
    version.text_digest = version.text->digest;
    if (version.text->warning.empty()) return Ok{};
    version.warning += (version.warning.empty() ? "" : "; ") + version.text->warning;
    return Ok{};
  };
}

Result<std::shared_ptr<const AdapterText>> AdapterTextReader::Read(const ModelConfig& model, const std::string& name,
                                                                   const fs::path& directory,
                                                                   const OpenedFileCheck& check,
                                                                   std::span<const OwnPart> own) {
  Files files(directory, check);
  AdapterText text;
  ASSIGN_OR_RETURN(const TokenizerDifference difference, Compare(files, model, own, text));
  text.warning = Warning(difference, text.tokenizer != nullptr);
  RETURN_IF_ERROR(ReadTemplate(files, name, difference, text));
  RETURN_IF_ERROR(ReadEndTokens(files, model, difference, text));
  RETURN_IF_ERROR(ReadDefaults(files, model, text));
  text.digest = files.Digest();
  if (text.digest.empty() && text.own == nullptr) return std::shared_ptr<const AdapterText>();
  return std::make_shared<const AdapterText>(std::move(text));
}

Result<AdapterTextReader::Compared> AdapterTextReader::CompareOnce(const std::string& json, const std::string& digest,
                                                                   const std::string& label) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = compared_.find(digest); known != compared_.end()) {
      const auto& [difference, own] = known->second;
      Compared compared{difference, own.lock()};
      if (compared.own != nullptr || !difference.IsRead()) return compared;
    }
  }
  ASSIGN_OR_RETURN(Tokenizer own, Tokenizer::Parse(json, label));
  Compared compared{CompareTokenizers(*options_.tokenizer, own), nullptr};
  if (compared.difference.IsRead()) compared.own = std::make_shared<const OwnTokenizer>(std::move(own));
  const std::lock_guard lock(mutex_);
  if (compared_.size() >= kMaxCompared) compared_.clear();
  compared_[digest] = {compared.difference, compared.own};
  return compared;
}

Result<TokenizerDifference> AdapterTextReader::Compare(Files& files, const ModelConfig& model,
                                                       std::span<const OwnPart> own, AdapterText& text) {
  const fs::path path = files.directory / kTokenizerFile;
  auto json = files.Read(path);
  if (!json.ok() && json.error().code != ErrorCode::kNotFound) return std::move(json).error();
  TokenizerDifference difference;
  if (!json.ok()) {
    ASSIGN_OR_RETURN(difference, CompareAddedTokens(*options_.tokenizer, files.directory, files.Reader()));
  } else {
    ASSIGN_OR_RETURN(Compared compared, CompareOnce(*json, files.digests.at(kTokenizerFile), path.string()));
    difference = std::move(compared.difference);
    text.tokenizer = std::move(compared.own);
  }
  if (text.tokenizer != nullptr) {
    const Tokenizer& tokenizer = text.tokenizer->tokenizer();
    std::erase_if(difference.only_own,
                  [&](const std::string& token) { return HasRows(model, own, tokenizer.TokenToId(token)); });
    difference.only_base.clear();
    difference.split.clear();
  }
  if (difference.conflict.empty()) return difference;
  return InvalidArgument(files.directory.string() + ": the adapter's tokenizer is not the base model's: expected the " +
                             "same ids, found that " + difference.conflict +
                             "; serve the adapter with its own base model, or remove its tokenizer's files if it was " +
                             "trained with this one",
                         "lora_path");
}

std::shared_ptr<const OwnTemplate> AdapterTextReader::Shared(ChatTemplate chat_template) {
  const std::lock_guard lock(mutex_);
  std::erase_if(templates_, [](const auto& kept) { return kept.expired(); });
  for (const auto& kept : templates_) {
    auto own = kept.lock();
    if (own != nullptr && own->chat_template.Equals(chat_template)) return own;
  }
  auto own = MakeOwnTemplate(std::move(chat_template));
  templates_.push_back(own);
  return own;
}

Status AdapterTextReader::ReadTemplate(Files& files, const std::string& name, const TokenizerDifference& difference,
                                       AdapterText& text) {
  constexpr const char* kFlag = "--chat-template";
  const auto given = options_.by_name.find(name);
  text.own = given == options_.by_name.end() ? options_.for_all : given->second;
  if (text.own != nullptr) {
    text.template_name = kFlag;
    return Ok{};
  }
  ASSIGN_OR_RETURN(auto own, ChatTemplate::LoadOfAdapter(files.directory, files.Reader(), options_.directory));
  if (!own) return Ok{};
  own->SetContentFormat(options_.content_format);
  if (options_.chat_template != nullptr && own->Equals(*options_.chat_template)) return Ok{};
  ASSIGN_OR_RETURN(const auto special, LoadSpecialTokens(files.directory, files.Reader()));
  for (const auto* tokens : {&difference.only_own, &difference.only_base}) {
    for (const std::string& token : *tokens) {
      const auto writes = [&](const auto& entry) { return entry.second == token && own->Mentions(entry.first); };
      if (!own->Mentions(token) && std::none_of(special.begin(), special.end(), writes)) continue;
      return NeedsToken(files.directory, "its chat template", token, tokens == &difference.only_own);
    }
  }
  text.template_name = fs::path(own->label()).filename().string();
  text.own = Shared(std::move(*own));
  return Ok{};
}

// What the tokenizer calls its end counts where the base model's tokenizer calls another token so.
Status AdapterTextReader::ReadEndTokens(Files& files, const ModelConfig& model, const TokenizerDifference& difference,
                                        AdapterText& text) const {
  std::vector<TokenId> ends;
  const fs::path path = files.directory / kGenerationFile;
  if (auto json = files.Read(path); json.ok()) {
    ASSIGN_OR_RETURN(ends, ParseEosTokens(*json, path.string(), model.vocab_size));
  } else if (json.error().code != ErrorCode::kNotFound) {
    return std::move(json).error();
  }
  ASSIGN_OR_RETURN(const auto own, LoadSpecialTokens(files.directory, files.Reader()));
  if (!base_tokens_.ok()) return base_tokens_.error();
  const auto end = own.find("eos_token"), usual = base_tokens_->find("eos_token");
  if (end != own.end() && (usual == base_tokens_->end() || end->second != usual->second)) {
    const Tokenizer& tokenizer = text.tokenizer == nullptr ? *options_.tokenizer : text.tokenizer->tokenizer();
    const TokenId id = tokenizer.TokenToId(end->second);
    if (id < 0 || Contains(difference.only_own, end->second))
      return NeedsToken(files.directory, "the end of its answers", end->second, /*only_own=*/true);
    ends.push_back(id);
  }
  for (const TokenId id : ends) {
    const auto has = [id](const std::vector<TokenId>& list) {
      return std::find(list.begin(), list.end(), id) != list.end();
    };
    if (!has(model.eos_token_ids) && !has(text.end_tokens)) text.end_tokens.push_back(id);
  }
  return Ok{};
}

Status AdapterTextReader::ReadDefaults(Files& files, const ModelConfig& model, AdapterText& text) const {
  if (!options_.defaults) return Ok{};
  const fs::path path = files.directory / kGenerationFile;
  const auto json = files.Read(path);
  if (!json.ok()) return Ok{};  // ReadEndTokens has looked
  ASSIGN_OR_RETURN(text.own_defaults, ParseGenerationDefaults(*json, path.string()));
  if (text.own_defaults == GenerationDefaults()) return Ok{};
  text.defaults = std::make_shared<const RequestDefaults>(WithDefaults(*options_.defaults, text.own_defaults));
  return Ok{};
}

}  // namespace loramux
