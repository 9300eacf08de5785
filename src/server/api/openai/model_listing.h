// GET /v1/models and /v1/models/{id}: the base model under each of its names, then the adapters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "adapter/registry.h"
#include "auth/access.h"
#include "base/result.h"
#include "server/adapters/adapter_finder.h"

namespace loramux {

// What the listing says about the base model.
struct ModelListing {
  std::string base_root;          // the base model's path as given on the command line
  std::int64_t base_created = 0;  // Unix seconds
  std::int64_t max_model_len = 0;
};

// Returns the JSON body of GET /v1/models. A card of an adapter that may be wrong has the field `warning`; one in 8
// bits `rounding`; one with a chat template, end tokens or defaults of its own has `chat_template`, `eos_token_ids`,
// `generation_config`. Adapters that cannot be served are listed in `broken`, beside `data`, each with the reason.
// Thread-safe. `finder` adds the adapters that it would load on first use; it may block. Models that the
// caller's API key does not permit are left out.
std::string ModelListBody(const AdapterRegistry& registry, const ModelListing& listing,
                          AdapterFinder& finder = NoFinder(), const ApiKey& caller = NoKey());
// Returns the JSON body of GET /v1/models/{id}, with the same parameters. Error: kNotFound for an unknown name.
Result<std::string> ModelBody(const AdapterRegistry& registry, const ModelListing& listing, std::string_view id,
                              AdapterFinder& finder = NoFinder(), const ApiKey& caller = NoKey());

}  // namespace loramux
