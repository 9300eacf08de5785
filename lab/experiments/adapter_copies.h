// Makes many adapters of a few: the copies' content differs in one or two bits, so that each is a separate adapter with
// (nearly) the original's answers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace loramux {

inline constexpr std::size_t kMaxAdapterCopies = 128;  // most copies of one original

// Copies the adapters of `originals` (a folder of PEFT folders) with at most `max_bytes` of weights in turn, in order
// of name, until `directory` has `count` of them, and returns their folders. The first round is exact. In the later
// rounds, one value of a lora_A has other low bits; it stays finite and differs in bfloat16 too. Errors: unreadable or
// unwritable files; no adapter that is small enough; more than kMaxAdapterCopies of one.
Result<std::vector<std::filesystem::path>> CopyAdapters(const std::filesystem::path& originals,
                                                        const std::filesystem::path& directory, std::size_t count,
                                                        std::uintmax_t max_bytes);

}  // namespace loramux
