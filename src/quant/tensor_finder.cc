#include "quant/tensor_finder.h"

#include "formats/message.h"

namespace loramux {

const StoredTensor* TensorFinder::FindAny(const std::string& name) {
  const StoredTensor* tensor = file_.Find(name);
  if (tensor != nullptr) used_.insert(tensor);
  return tensor;
}

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

Status TensorFinder::CheckAllUsed(std::string_view ignored) const {
  for (const StoredTensor& tensor : file_.tensors()) {
    if (used_.contains(&tensor) || tensor.name.ends_with(ignored)) continue;
    return InvalidArgument("tensor " + Quote(tensor.name) + " " + ShapeToString(tensor.shape) +
                               " is in the weights, but the model that config.json describes has no place for it",
                           tensor.name);
  }
  return Ok{};
}

}  // namespace loramux
