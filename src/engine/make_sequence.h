// A request of a client becomes a sequence of the engine: checks, limits and defaults.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "adapter/registry.h"
#include "base/result.h"
#include "engine/engine.h"
#include "engine/generation.h"
#include "engine/sequence.h"

namespace loramux {

// The first of the tokens that neither the base model, with `vocab_size` tokens, nor the adapter embeds. `version`:
// null: the base model alone.
std::optional<TokenId> FindUnknownToken(std::span<const TokenId> tokens, std::int64_t vocab_size,
                                        const AdapterVersion* version);

// The sequence of `input`, without an id. `version`: of its adapter; null: the base model. `limit`: positions that the
// model and the memory beside the adapter allow. Errors: an empty prompt, a token id out of range, a prompt with its
// max_tokens beyond the limit (which of the two limits it is, and what to do).
Result<std::unique_ptr<Sequence>> MakeSequence(const EngineOptions& options, GenerationRequest input,
                                               std::shared_ptr<const AdapterVersion> version, std::int64_t limit);

}  // namespace loramux
