// What becomes of requests on an adapter version whose name another version has taken (Engine::Retarget).
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "adapter/registry.h"
#include "base/ids.h"
#include "base/result.h"

namespace loramux {

// What follows a version: another one, or the end of its requests.
struct Successor {
  std::weak_ptr<const AdapterVersion> next;  // its requests go on here. Once it is gone they stay where they are
  bool ends = false;                         // they end: aborted, or with `why`
  std::optional<Error> why;
};

// The versions that have a successor and that requests may still name, each with its last one. Not thread-safe.
class Successors {
 public:
  // `next` takes the place of `old`, also as the successor of others. Null: the requests on `old` are aborted, and
  // those on composites that have it as a part. If the requests on `old` cannot go on with `next`, they end with an
  // error. Forgets versions that `registry` knows no longer. REQUIRES: they are different.
  void Set(const AdapterVersion& old, const std::shared_ptr<const AdapterVersion>& next,
           const AdapterRegistry& registry);

  // The successor of this generation, and of a version, which may be a composite. Null: its requests end on it.
  const Successor* Of(AdapterGeneration generation) const;
  const Successor* Of(const AdapterVersion& version) const;
  bool empty() const { return by_old_.empty(); }

 private:
  std::map<AdapterGeneration, Successor> by_old_;
};

}  // namespace loramux
