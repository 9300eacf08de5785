// Finds adapters that are not in the registry yet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/registry.h"
#include "base/result.h"

namespace loramux {

// An adapter that is not registered, but that a request for its name would load.
struct OfferedAdapter {
  std::string name;
  std::string path;
  // When the folder was last modified.
  std::int64_t created_unix_seconds = 0;
  // Classes of its head; 0: it has none, and generates text.
  std::int64_t classes = 0;
};

// An adapter that cannot be served.
struct BrokenAdapter {
  std::string name;
  std::string path;
  std::string reason;
};

// Thread-safe. Both methods may block on the disk: do not call them on I/O threads.
class AdapterFinder {
 public:
  virtual ~AdapterFinder() = default;
  // Like AdapterRegistry::Resolve, but searches for an unknown name and registers the adapter found. Errors: kNotFound,
  // or the reason why the adapter cannot be served.
  virtual Result<std::shared_ptr<const AdapterVersion>> Find(std::string_view name) = 0;
  // Returns the adapters that Find would find and the registry does not hold, sorted by name. May be a few seconds old.
  virtual std::vector<OfferedAdapter> Offered() = 0;
  // Returns the adapters that Find knows and cannot serve, sorted by name. May be a few seconds old.
  virtual std::vector<BrokenAdapter> Broken() { return {}; }
  // As AdapterRegistry::Compose. Errors name no paths.
  virtual Result<std::shared_ptr<const AdapterVersion>> Compose(const std::vector<WeightedAdapter>& parts);
};

// Returns a message about the adapter `name` at `path` as clients may read it: with the name in the place of the path,
// which tells how the server's disk is laid out.
std::string WithoutPath(std::string message, std::string_view path, std::string_view name);

// Finds nothing: only registered adapters are served. Lives as long as the program.
AdapterFinder& NoFinder();

// Returns the error "The model `x` does not exist.", for the field "model".
Error UnknownModel(std::string_view name);

}  // namespace loramux
