// The adapters that a fleet should have, by name, as an operator wishes (etcd/, Kubernetes).
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace loramux {

struct CatalogueEntry {
  std::string digest;         // digest of the content that answers must come from; empty: whatever a server has
  std::string source;         // where servers get it from
  std::int64_t replicas = 0;  // servers that should hold it; 0: as its load asks for
};
using Catalogue = std::map<std::string, CatalogueEntry>;

}  // namespace loramux
