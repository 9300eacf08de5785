#include "quant/tensor_finder.h"

#include <algorithm>

#include "formats/message.h"

namespace loramux {
namespace {

// "F16, BF16 or F32"
template <typename Items, typename Text>
std::string Alternatives(const Items& items, const Text& text) {
  std::string list;
  std::size_t left = items.size();
  for (const auto& item : items) {
    list += text(item);
    if (--left > 0) list += left == 1 ? " or " : ", ";
  }
  return list;
}

}  // namespace

Result<const StoredTensor*> TensorFinder::Find(const std::string& name, const Shape& shape) {
  const StoredTensor* tensor = FindAny(name);
  if (tensor == nullptr) return tensor;
  if (tensor->shape != shape) {
    return InvalidArgument("tensor " + Quote(name) + " has shape " + ShapeToString(tensor->shape) +
                               ", but config.json asks for " + ShapeToString(shape),
                           name);
  }
  if (!IsWeightDType(tensor->dtype)) {
    return Unsupported(
        "tensor " + Quote(name) + " has type " + DTypeName(tensor->dtype) + "; weights must be F32, BF16 or F16", name);
  }
  return tensor;
}

Result<const StoredTensor*> TensorFinder::Require(const std::string& name, const Shape& shape) {
  ASSIGN_OR_RETURN(const StoredTensor* tensor, Find(name, shape));
  if (tensor == nullptr) {
    return InvalidArgument(
        "tensor " + Quote(name) + " of shape " + ShapeToString(shape) + " is missing from the weights", name);
  }
  return tensor;
}

Result<const StoredTensor*> TensorFinder::FindTyped(const std::string& name, std::initializer_list<Shape> shapes,
                                                    std::initializer_list<DType> types) {
  const StoredTensor* tensor = FindAny(name);
  if (tensor == nullptr) return tensor;
  if (std::find(shapes.begin(), shapes.end(), tensor->shape) == shapes.end()) {
    return InvalidArgument("tensor " + Quote(name) + " has shape " + ShapeToString(tensor->shape) +
                               ", but config.json asks for " +
                               Alternatives(shapes, [](const Shape& shape) { return ShapeToString(shape); }),
                           name);
  }
  if (std::find(types.begin(), types.end(), tensor->dtype) == types.end()) {
    return Unsupported("tensor " + Quote(name) + " has type " + DTypeName(tensor->dtype) +
                           "; the format that config.json names has " +
                           Alternatives(types, [](DType type) { return std::string(DTypeName(type)); }),
                       name);
  }
  return tensor;
}

Result<const StoredTensor*> TensorFinder::RequireTyped(const std::string& name, std::initializer_list<Shape> shapes,
                                                       std::initializer_list<DType> types) {
  ASSIGN_OR_RETURN(const StoredTensor* tensor, FindTyped(name, shapes, types));
  if (tensor != nullptr) return tensor;
  return InvalidArgument("tensor " + Quote(name) + " of shape " +
                             Alternatives(shapes, [](const Shape& shape) { return ShapeToString(shape); }) +
                             " is missing from the weights; the format that config.json names needs it",
                         name);
}

const StoredTensor* TensorFinder::Peek(const std::string& name) const {
  constexpr std::string_view kInner = "model.";
  const bool inner = bare_ && name.starts_with(kInner);
  return file_.Find(inner ? std::string_view(name).substr(kInner.size()) : std::string_view(name));
}

const StoredTensor* TensorFinder::FindAny(const std::string& name) {
  const StoredTensor* tensor = Peek(name);
  if (tensor != nullptr) used_.insert(tensor);
  return tensor;
}

std::vector<const StoredTensor*> TensorFinder::Unused() const {
  std::vector<const StoredTensor*> unused;
  for (const StoredTensor& tensor : file_.tensors()) {
    if (!used_.contains(&tensor)) unused.push_back(&tensor);
  }
  return unused;
}

Status TensorFinder::CheckAllUsed(std::string_view ignored) const {
  for (const StoredTensor* tensor : Unused()) {
    if (tensor->name.ends_with(ignored)) continue;
    return InvalidArgument("tensor " + Quote(tensor->name) + " " + ShapeToString(tensor->shape) +
                               " is in the weights, but the model that config.json describes has no place for it",
                           tensor->name);
  }
  return Ok{};
}

}  // namespace loramux
