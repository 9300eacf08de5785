// What `serve` and `batch` give to the jobs that answer requests: the model's defaults, its pooling, and constrained
// output.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "runtime/runtime.h"
#include "server/completion/adapter_text.h"
#include "server/completion/completion_request.h"
#include "server/completion/embedding_plan.h"
#include "text/grammar/grammar_compiler.h"
#include "text/tokenizer.h"
#include "tools/command_line/command_line.h"
#include "tools/model_flags.h"

namespace loramux {

// The flag --generation-config.
Flag GenerationConfigFlag(std::string& target);
// Returns what requests get where they say nothing, and says so in the log. `source` is the flag's value.
Result<RequestDefaults> RequestDefaultsOf(const std::string& source, const std::string& model_dir);

// Returns what adapters' own defaults come on top of; nullopt: their files do not count.
std::optional<RequestDefaults> DefaultsOfAdapters(const std::string& source, const RequestDefaults& base);

// The flag --pooling.
Flag PoolingFlag(std::string& target);
// Returns how embeddings are made; `pooling` is the flag's value. Warns if the model's files ask for what is not
// computed. Error: an unknown name.
Result<EmbeddingOptions> EmbeddingOptionsOf(const std::string& pooling, const std::string& model_dir);

// Returns one that refuses, with a line in the log, for a model whose output cannot be constrained. The tokenizer must
// outlive it.
std::unique_ptr<GrammarCompiler> MakeGrammarCompiler(const Tokenizer& tokenizer, const Runtime& runtime);

// The templates that the flags choose.
struct ChatTemplates {
  std::optional<ChatTemplate> base;            // the base model's where `for_all` is not
  std::shared_ptr<const OwnTemplate> for_all;  // one for all models; null: no flag names one
  std::map<std::string, std::shared_ptr<const OwnTemplate>, std::less<>> by_name;  // those of single adapters
  // The base model's; null: it has none. Valid as long as this object.
  const ChatTemplate* of_base() const { return base ? &*base : for_all ? &for_all->chat_template : nullptr; }
  // What the base model's conversations are rendered by.
  const ChatTemplate& served() const { return of_base() == nullptr ? ChatTemplate::None() : *of_base(); }
};
// `base_names` are those of the base model. Errors name the flag or the file.
Result<ChatTemplates> LoadChatTemplates(const RuntimeFlags& flags, const std::vector<std::string>& base_names);

// What adapters' texts are measured by; the defaults of the base model are still to be set. The arguments must outlive
// the reader.
AdapterTextOptions AdapterTextOptionsOf(const RuntimeFlags& flags, const Tokenizer& tokenizer,
                                        const ChatTemplates& templates);

}  // namespace loramux
