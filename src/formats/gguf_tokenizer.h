// What a GGUF file says of its tokens, as the JSON files of a Hugging Face directory.
#pragma once

#include <string>

#include "base/result.h"
#include "formats/gguf_file.h"

namespace loramux {

// The text of a tokenizer.json: of byte-level BPE ("gpt2") with a pre-tokenizer that is known, SentencePiece's BPE
// ("llama") and Gemma 4's ("gemma4"), as transformers has it for such models. Errors name the key and say to give
// --tokenizer: another tokenizer or pre-tokenizer; scores that are not those of BPE; tokens that are not UTF-8.
//
// A GGUF file does not say whether an added token eats the white space around it, and whether SentencePiece puts a
// space before text that follows a special token: none does the former, all do the latter, as llama.cpp has it.
Result<std::string> GgufTokenizer(const GgufFile& file);

// The text of a generation_config.json: end tokens, and what the file says of sampling.
Result<std::string> GgufGenerationConfig(const GgufFile& file);

// The text of a tokenizer_config.json: special tokens and chat templates.
Result<std::string> GgufTokenizerConfig(const GgufFile& file);

}  // namespace loramux
