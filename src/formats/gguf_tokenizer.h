// The tokenizer of a GGUF file as the text of a tokenizer.json.
#pragma once

#include <string>

#include "base/result.h"
#include "formats/gguf_file.h"

namespace loramux {

// Byte-level BPE ("gpt2") with one of the pre-tokenizers below, and SentencePiece's BPE ("llama"), which become the
// tokenizer.json that transformers has for such models. Errors name the key and say to give --tokenizer: another
// tokenizer or pre-tokenizer; scores that are not those of BPE; tokens that are not UTF-8.
//
// A GGUF file does not say whether an added token eats the white space around it, and whether SentencePiece puts a
// space before text that follows a special token: none does the former, all do the latter, as llama.cpp has it.
Result<std::string> GgufTokenizer(const GgufFile& file);

}  // namespace loramux
