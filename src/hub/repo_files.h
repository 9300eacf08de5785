// What a hub says of a repository: its commit and its files. Untrusted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loramux {

struct RepoFile {
  std::string name;
  std::int64_t bytes = 0;
  std::string digest;  // 64 hexadecimal digits: SHA-256; 40: SHA-1 of git's blob. Also the name in the cache
};

struct RepoFiles {
  std::string commit;           // 40 hexadecimal digits
  std::vector<RepoFile> files;  // those that a server needs, by name
  std::vector<RepoFile> gguf;   // GGUF files, by name: adapters of llama.cpp, or models
  std::int64_t Bytes() const;   // size of all files
};

// Whether it is the configuration of sentence-transformers' pooling, such as "1_Pooling/config.json".
bool IsPoolingConfig(std::string_view name);

// Parses the answer to /api/models/ORG/NAME/revision/REVISION?blobs=true, and keeps the files of the top folder that
// serving needs: weights as safetensors, configuration, tokenizer, chat template; and N_Pooling/config.json. Errors say
// what is missing. If it has no safetensors, it has GGUF files.
Result<RepoFiles> ParseRepoFiles(std::string_view json);

}  // namespace loramux
