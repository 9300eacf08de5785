// The weights of a GGUF file as a ModelSource.
#pragma once

#include <filesystem>
#include <memory>

#include "base/result.h"
#include "formats/gguf_file.h"
#include "quant/model_source.h"

namespace loramux {

// Opens FILE.gguf. Errors: those of the file and of its metadata (formats/gguf_config.h).
Result<std::unique_ptr<ModelSource>> OpenGgufSource(const std::filesystem::path& path);

// The same of a file in memory.
Result<std::unique_ptr<ModelSource>> MakeGgufSource(GgufFile file);

}  // namespace loramux
