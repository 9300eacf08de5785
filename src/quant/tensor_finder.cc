#include "quant/tensor_finder.h"

#include <algorithm>

#include "base/message.h"

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

constexpr std::string_view kRoot = "model.";

// The prefixes under which checkpoints hold a text model: as itself, without its root, and as the part of a model of
// text and images of transformers 4 and 5.
struct Place {
  std::string_view root, outside;
};
constexpr Place kPlaces[] = {
    {kRoot, ""}, {"", ""}, {"language_model.model.", "language_model."}, {"model.language_model.", ""}};

// The parts beside a text model, with their projections, and layers that predict further tokens at once.
constexpr std::string_view kOtherParts[] = {"visual.",      "vision_tower.", "vision_model.", "multi_modal_projector.",
                                            "audio_tower.", "embed_vision.", "embed_audio.",  "mtp."};

// Masks and numbers of masks that older versions of transformers saved with GPT-NeoX.
bool IsBuffer(std::string_view name) {
  return name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias");
}

bool IsOfOtherPart(std::string_view name) {
  if (name.starts_with(kRoot)) name.remove_prefix(kRoot.size());
  return std::ranges::any_of(kOtherParts, [&](std::string_view part) { return name.starts_with(part); });
}

// The names of the family whose files have Llama's names, but for parts of layers; null: no such part is there.
const FamilyNames* NamesOfParts(const TensorFile& file) {
  for (const FamilyNames& names : AllFamilyNames()) {
    if (names.norm != std::string(kRoot) + "norm") continue;
    for (const PartName& part : names.parts) {
      if (file.Find(std::string(names.layers) + "0." + std::string(part.theirs) + ".weight") != nullptr) return &names;
    }
  }
  return nullptr;
}

}  // namespace

TensorFinder::TensorFinder(const TensorFile& file) : file_(file), root_(kRoot) {
  for (const Place& place : kPlaces) {
    if (file.Find(std::string(place.root) + "norm.weight") == nullptr) continue;
    root_ = place.root;
    outside_ = place.outside;
    if (root_ == kRoot) names_ = NamesOfParts(file);
    return;
  }
  // Not all of them norm the last layer's result.
  for (const auto part : {&FamilyNames::norm, &FamilyNames::embedding}) {
    for (const FamilyNames& names : AllFamilyNames()) {
      for (const std::size_t missing : {std::size_t{0}, names.layers.find('.') + 1}) {
        names_ = &names;
        missing_root_ = missing;
        if (FindTheirs(std::string(names.*part) + ".weight") != nullptr) return;
      }
    }
  }
  names_ = nullptr;
}

const StoredTensor* TensorFinder::FindTheirs(std::string_view theirs) const {
  const bool begins = theirs.starts_with(names_->layers.substr(0, missing_root_));
  return file_.Find(theirs.substr(begins ? missing_root_ : 0));
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
  if (names_ != nullptr) {
    for (const std::string& theirs : TheirNames(*names_, name)) {
      if (const StoredTensor* const tensor = FindTheirs(theirs)) return tensor;
    }
    return nullptr;
  }
  return file_.Find(name.starts_with(kRoot) ? root_ + name.substr(kRoot.size()) : outside_ + name);
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
    if (tensor->name.ends_with(ignored) || IsBuffer(tensor->name) || IsOfOtherPart(tensor->name)) continue;
    return InvalidArgument("tensor " + Quote(tensor->name) + " " + ShapeToString(tensor->shape) +
                               " is in the weights, but the model that config.json describes has no place for it",
                           tensor->name);
  }
  return Ok{};
}

}  // namespace loramux
