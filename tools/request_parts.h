// What `serve` and `batch` give to the jobs that answer requests: the model's defaults, its pooling, and constrained
// output.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "runtime/runtime.h"
#include "server/openai/embedding_plan.h"
#include "server/openai/openai_request.h"
#include "text/grammar/grammar_compiler.h"
#include "text/tokenizer.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// The flag --generation-config.
Flag GenerationConfigFlag(std::string& target);
// Returns what requests get where they say nothing, and says so in the log. `source` is the flag's value.
Result<RequestDefaults> RequestDefaultsOf(const std::string& source, const std::string& model_dir);

// The flag --pooling.
Flag PoolingFlag(std::string& target);
// Returns how embeddings are made; `pooling` is the flag's value. Warns if the model's files ask for what is not
// computed. Error: an unknown name.
Result<EmbeddingOptions> EmbeddingOptionsOf(const std::string& pooling, const std::string& model_dir);

// Returns null, with a line in the log, for a model whose output cannot be constrained. The tokenizer must outlive it.
std::unique_ptr<GrammarCompiler> MakeGrammarCompiler(const Tokenizer& tokenizer, const Runtime& runtime);

}  // namespace loramux
