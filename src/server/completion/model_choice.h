// Which model a request asks for: a base model, or an adapter by one of the ways in which servers name them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/registry.h"
#include "auth/access.h"
#include "base/result.h"
#include "server/adapters/adapter_finder.h"
#include "server/completion/completion_request.h"

namespace loramux {

// The model that a request asks for.
struct ModelChoice {
  std::string name;                     // name of the base model or of an adapter; it may be unknown
  std::string field;                    // field that named it: "model", or a field of ReadAdapterFields
  std::vector<NamedWeight> parts = {};  // AdapterField::parts
  std::string digest = {};              // digest that its content must have; empty: any
};

// Returns the adapter that AdapterAfter finds behind a name of the base model. Any other name is returned as it is, and
// so is a name that is registered as a whole.
std::string AdapterOf(const AdapterRegistry& registry, const std::string& model);

// Returns the model that the field `model` and the other fields ask for, with the digest that "NAME@DIGEST" pins.
// Error: they ask for different ones.
Result<ModelChoice> ChooseModel(const AdapterRegistry& registry, const std::string& model,
                                const std::optional<AdapterField>& adapter);

// Returns the version to serve; null for the base model. `finder` searches for unknown names, and makes composites.
// Errors are NotServed: the model is unknown or has other content than the pinned, or the API key `caller` does not
// permit it.
Result<std::shared_ptr<const AdapterVersion>> ResolveModel(const AdapterRegistry& registry, AdapterFinder& finder,
                                                           const ApiKey& caller, const ModelChoice& choice);
// Whether ResolveModel would not ask the finder.
bool IsRegistered(const AdapterRegistry& registry, const ApiKey& caller, const ModelChoice& choice);

// The digest of a version's content; "none": it is the base model (null).
std::string_view DigestOf(const AdapterVersion* version);
// Says that a model has other content than `digest`.
std::string OtherContent(std::string_view name, std::string_view digest, const AdapterVersion* version);

// Returns the error of a server that does not know a model, for a request that asks for content with this digest: then
// another server may have it (kUnavailable). Without a digest, or with another code, the error stays as it is.
Error Elsewhere(std::string_view digest, Error error);

// Returns the error about a model that `field` named. An unknown model is 404 in `model` and 400 in other fields.
Error NotServed(std::string_view field, Error error);

}  // namespace loramux
