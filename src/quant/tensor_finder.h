// Finds the tensors of a file of weights by name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "formats/model_family.h"
#include "formats/safetensors.h"

namespace loramux {

// The types of floats.
inline constexpr std::initializer_list<DType> kFloatTypes = {DType::kF32, DType::kBF16, DType::kF16};

// Hands out the tensors of a file and records which ones were requested. Finds "model.NAME" as "NAME" in the file of a
// model without an output layer (`bare`), and all names in the text part of a model of text and images, under the
// prefixes that transformers gives them. The file outlives it. Not thread-safe.
class TensorFinder {
 public:
  using Shape = std::vector<std::int64_t>;

  explicit TensorFinder(const TensorFile& file);

  // Returns null if there is none. Error: it has another shape, or a type that weights cannot have.
  Result<const StoredTensor*> Find(const std::string& name, const Shape& shape);
  // Error also: there is none.
  Result<const StoredTensor*> Require(const std::string& name, const Shape& shape);
  // The same for a tensor of one of `types`, which need not be floats, and of one of `shapes`.
  Result<const StoredTensor*> FindTyped(const std::string& name, std::initializer_list<Shape> shapes,
                                        std::initializer_list<DType> types);
  Result<const StoredTensor*> RequireTyped(const std::string& name, std::initializer_list<Shape> shapes,
                                           std::initializer_list<DType> types);
  // Find a tensor of any shape and type; null if there is none. Peek does not count it as requested.
  const StoredTensor* FindAny(const std::string& name);
  const StoredTensor* Peek(const std::string& name) const;
  // Whether the names are those of a model without an output layer ("layers.0...", not "model.layers.0...").
  bool bare() const { return root_.empty(); }
  // The tensors that were never requested, in the order of the file.
  std::vector<const StoredTensor*> Unused() const;
  // Error: a tensor was never requested and would silently have no effect. Names that end in `ignored` may stay, and
  // those of the parts of a model that read images and sound.
  Status CheckAllUsed(std::string_view ignored) const;

 private:
  const StoredTensor* FindTheirs(std::string_view theirs) const;

  const TensorFile& file_;
  std::string root_;                    // what the file has for "model."
  std::string outside_;                 // what its names without "model." begin with
  const FamilyNames* names_ = nullptr;  // names of a family, if they are not Llama's
  std::size_t missing_root_ = 0;        // how much of their beginning the file leaves out
  std::unordered_set<const StoredTensor*> used_;
};

}  // namespace loramux
