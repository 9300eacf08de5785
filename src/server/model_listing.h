// GET /v1/models and /v1/models/{id}: the base model under its names, then the adapters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "adapter/registry.h"
#include "base/result.h"
#include "server/adapter_finder.h"

namespace loramux {

struct ApiKey;

struct ModelListing {
  std::string base_root;          // the base model's path, as the operator gave it
  std::int64_t base_created = 0;  // Unix seconds
  std::int64_t max_model_len = 0;
};

// Both return the JSON body. Thread-safe. `finder` (null: none) adds what would be found by its name; it may block.
// With a `caller`, models that its API key may not use do not exist.
std::string ModelListBody(const AdapterRegistry& registry, const ModelListing& listing, AdapterFinder* finder = nullptr,
                          const ApiKey* caller = nullptr);
// kNotFound for an unknown name.
Result<std::string> ModelBody(const AdapterRegistry& registry, const ModelListing& listing, std::string_view id,
                              AdapterFinder* finder = nullptr, const ApiKey* caller = nullptr);

// "The model `x` does not exist.", for the field "model".
Error UnknownModel(std::string_view name);

}  // namespace loramux
