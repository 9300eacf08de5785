// What the metadata of a GGUF file say of a model, as the config.json of a Hugging Face directory, which the rest of
// the program reads. Of its tokens: gguf_tokenizer.h.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "formats/gguf_file.h"

namespace loramux {

// Whether the rows of attn_q and attn_k, and their biases, lie in the order of interleaved rotary embeddings: so they
// do in files of the architecture "llama".
bool HasInterleavedHeads(const GgufFile& file);
// Whether its files hold gate and up as one matrix, under the name of up.
bool FusesLayers(const GgufFile& file);
// The layers in the file, those that predict several tokens among them; 0: it does not say.
std::int64_t GgufLayers(const GgufFile& file);
// The same as HasInterleavedHeads of a file that may be an adapter. Error: its architecture is none whose adapters
// loramux reads.
Result<bool> GgufHeadsAreInterleaved(const GgufFile& file);

// The text of a config.json. Errors name the key: an architecture that loramux does not serve; metadata of the
// architecture that it does not know, since they may change what the model computes.
Result<std::string> GgufModelConfig(const GgufFile& file);

}  // namespace loramux
