// Many adapters made of few: copies whose content differs in one bit or two, so that each counts as an adapter of its
// own and answers (nearly) as the original does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace loramux {

inline constexpr std::size_t kMaxAdapterCopies = 128;  // of one original

// Copies the adapters of `originals` (a folder of PEFT folders) with at most `max_bytes` of weights in turn, in order
// of name, until `directory` has `count` of them; returns their folders. The first round is exact. In the others one
// value of a lora_A has other low bits; it stays finite, and other in bfloat16 too. Errors: what cannot be read or
// written; no adapter that is small enough; more than kMaxAdapterCopies of one.
Result<std::vector<std::filesystem::path>> CopyAdapters(const std::filesystem::path& originals,
                                                        const std::filesystem::path& directory, std::size_t count,
                                                        std::uintmax_t max_bytes);

}  // namespace loramux
