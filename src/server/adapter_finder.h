// Finds adapters that the registry does not hold yet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/registry.h"
#include "base/result.h"

namespace loramux {

// An adapter that would be opened if somebody asked for it.
struct OfferedAdapter {
  std::string name;
  std::string path;
  std::int64_t created_unix_seconds = 0;
};

// Thread-safe. Both may block on the disk: not for I/O threads.
class AdapterFinder {
 public:
  virtual ~AdapterFinder() = default;
  // As AdapterRegistry::Resolve, but an unknown name is looked for and registered. Errors: kNotFound, or what is wrong
  // with the adapter.
  virtual Result<std::shared_ptr<const AdapterVersion>> Find(std::string_view name) = 0;
  // What Find would find and the registry does not hold, in order of name. May be a little old.
  virtual std::vector<OfferedAdapter> Offered() = 0;
};

}  // namespace loramux
