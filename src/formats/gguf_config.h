// What the metadata of a GGUF file say of a model, as the config.json of a Hugging Face directory, which the rest of
// the program reads. Of its tokens: gguf_tokenizer.h.
#pragma once

#include <string>

#include "base/result.h"
#include "formats/gguf_file.h"

namespace loramux {

// The text of a config.json. Errors name the key: an architecture that loramux does not serve; metadata of the
// architecture that it does not know, since they may change what the model computes.
Result<std::string> GgufModelConfig(const GgufFile& file);

}  // namespace loramux
