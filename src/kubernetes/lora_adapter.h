// LoraAdapter objects of Kubernetes: deploy/kubernetes/loramux/crds has their schema. What the API server says is
// checked again, because another version of the schema may be installed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "etcd/catalogue.h"

namespace loramux {

// Where the objects of a namespace are: /apis/loramux.io/v1alpha1/namespaces/SPACE/loraadapters.
std::string LoraAdaptersPath(const std::string& space);

// The status of an object, without the times of its condition.
struct LoraAdapterStatus {
  std::int64_t observed_generation = 0, catalogue_generation = 0;
  std::int64_t loaded = 0, failed = 0;  // servers
  std::string ready;                    // "True", "False" or "Unknown"; empty: there is no status yet
  std::string reason, message;
  friend bool operator==(const LoraAdapterStatus&, const LoraAdapterStatus&) = default;
};

struct LoraAdapterObject {
  std::string object;   // its name in the namespace
  std::string created;  // RFC 3339; the text sorts as the times do
  std::int64_t generation = 0;
  std::string name;     // name of the model in requests
  FleetAdapter wanted;  // without a generation
  std::string invalid;  // why it cannot be served; empty: it can
  LoraAdapterStatus status;
  std::string ready_since;  // RFC 3339: the time of the condition
};

struct LoraAdapterList {
  std::vector<LoraAdapterObject> objects;
  std::string resource_version;
};
// Error: not such a list. An object whose spec is wrong is in it, with `invalid`.
Result<LoraAdapterList> ParseLoraAdapterList(std::string_view json);

// A line of a watch.
struct LoraAdapterEvent {
  enum class Kind { kChanged, kDeleted, kBookmark, kGone, kError };  // kGone: list again
  Kind kind = Kind::kError;
  LoraAdapterObject object;
  std::string resource_version;
  std::string error;
};
Result<LoraAdapterEvent> ParseLoraAdapterEvent(std::string_view line);

// The merge patch that sets an object's status. `now`: RFC 3339; the condition keeps its time where its status stays.
std::string StatusPatch(const LoraAdapterObject& object, const LoraAdapterStatus& status, const std::string& now);

// "2026-01-31T00:00:00Z".
std::string Rfc3339(std::int64_t unix_seconds);

}  // namespace loramux
