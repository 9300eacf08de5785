// Finds the tensors of a file of weights by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "formats/safetensors.h"

namespace loramux {

// Hands out the tensors of a file and records which ones were requested. The file outlives it. Not thread-safe.
class TensorFinder {
 public:
  using Shape = std::vector<std::int64_t>;

  explicit TensorFinder(const TensorFile& file) : file_(file) {}

  // Returns null if there is none. Error: it has another shape, or a type that weights cannot have.
  Result<const StoredTensor*> Find(const std::string& name, const Shape& shape);
  // Of any shape and type; null if there is none.
  const StoredTensor* FindAny(const std::string& name);
  // Error also: there is none.
  Result<const StoredTensor*> Require(const std::string& name, const Shape& shape);
  // Error: a tensor was never requested and would silently have no effect. Names that end in `ignored` may stay.
  Status CheckAllUsed(std::string_view ignored) const;

 private:
  const TensorFile& file_;
  std::unordered_set<const StoredTensor*> used_;
};

}  // namespace loramux
