#include "quant/bitsandbytes.h"

#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "base/message.h"
#include "formats/json_fields.h"
#include "quant/integer_matrix.h"
#include "quant/quantise.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

constexpr std::int64_t kMostBlock = std::int64_t{1} << 24;

struct NibbleTensors {
  const StoredTensor *weight = nullptr, *map = nullptr;
  const StoredTensor* scales = nullptr;  // scales of blocks: floats, or codes of nested_map
  const StoredTensor *nested_map = nullptr, *nested_scales = nullptr;
  std::int64_t block = 64, nested_block = 256;
  float nested_offset = 0;
};

class NibbleMatrix : public StoredMatrix {
 public:
  NibbleMatrix(const std::string& name, std::int64_t rows, std::int64_t columns, const NibbleTensors& tensors)
      : StoredMatrix(name, rows, columns), tensors_(tensors) {
    for (std::size_t i = 0; i < 16; ++i) {
      map_[i] = LoadAsF32(tensors.map->dtype, tensors.map->data.data(), static_cast<std::int64_t>(i));
    }
  }

  std::int64_t bytes() const override {
    return static_cast<std::int64_t>(tensors_.weight->data.size() + tensors_.scales->data.size());
  }
  WeightFormat format() const override { return WeightFormat::kQ8; }

  void ReadFloats(std::int64_t first, std::int64_t count, float* out) const override {
    const std::int64_t end = (first + count) * columns();
    std::int64_t next_block = 0;
    float scale = 0;
    for (std::int64_t i = first * columns(); i < end; ++i) {
      if (i >= next_block) {
        scale = ScaleOf(i / tensors_.block);
        next_block = (i / tensors_.block + 1) * tensors_.block;
      }
      const auto byte = static_cast<std::uint8_t>(tensors_.weight->data[static_cast<std::size_t>(i / 2)]);
      *out++ = map_[i % 2 == 0 ? byte >> 4 : byte & 0xf] * scale;
    }
  }

  GroupedRows ReadGroups(std::int64_t first, std::int64_t count) const override {
    std::vector<float> floats(static_cast<std::size_t>(count * columns()));
    ReadFloats(first, count, floats.data());
    return Quantise(format(), floats.data(), count, columns());
  }

 private:
  float ScaleOf(std::int64_t block) const {
    const std::byte* const data = tensors_.scales->data.data();
    if (tensors_.nested_map == nullptr) return LoadAsF32(tensors_.scales->dtype, data, block);
    const float of_map =
        LoadAsF32(tensors_.nested_map->dtype, tensors_.nested_map->data.data(), static_cast<std::int64_t>(data[block]));
    const float of_block =
        LoadAsF32(tensors_.nested_scales->dtype, tensors_.nested_scales->data.data(), block / tensors_.nested_block);
    return of_map * of_block + tensors_.nested_offset;
  }

  const NibbleTensors tensors_;
  float map_[16] = {};
};

std::int64_t CountBlocks(std::int64_t count, std::int64_t block) { return (count + block - 1) / block; }

// What the JSON in a quant_state says.
struct QuantState {
  std::int64_t block = 0, nested_block = 0;
  float nested_offset = 0;
};

Result<QuantState> ParseQuantState(const StoredTensor& tensor, std::int64_t rows, std::int64_t columns) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 10;
  const std::string label = "tensor " + Quote(tensor.name);
  if (tensor.dtype != DType::kU8 || tensor.data.size() > kMostBytes) {
    return InvalidArgument(label + ": expected a JSON object as at most " + std::to_string(kMostBytes) +
                               " bytes of type U8, found " + std::to_string(tensor.data.size()) + " bytes of type " +
                               DTypeName(tensor.dtype),
                           tensor.name);
  }
  const std::string_view text(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(text, label));
  const JsonFields fields(object, label + ": ");
  const nlohmann::json* shape = fields.Find("shape");
  if (shape == nullptr || *shape != nlohmann::json::array({rows, columns})) {
    return InvalidArgument(label + ": shape: expected [" + std::to_string(rows) + ", " + std::to_string(columns) +
                               "] as config.json says, found " + (shape == nullptr ? "none" : Printable(shape->dump())),
                           tensor.name);
  }
  QuantState state;
  ASSIGN_OR_RETURN(state.block, fields.RequiredInt("blocksize", 1, kMostBlock));
  ASSIGN_OR_RETURN(state.nested_block, fields.IntOr("nested_blocksize", 1, kMostBlock, 0));
  ASSIGN_OR_RETURN(const auto offset, fields.Number("nested_offset"));
  if (offset && std::fabs(*offset) > 65504) return fields.Bad("nested_offset", "a number of at most 65,504");
  state.nested_offset = static_cast<float>(offset.value_or(0));
  return state;
}

// The scales of `blocks` blocks, which may be quantised themselves.
Status FindNibbleScales(TensorFinder& tensors, const std::string& weight, const QuantState& state, std::int64_t blocks,
                        NibbleTensors& t) {
  const std::string absmax = weight + ".absmax";
  if (state.nested_block == 0) {
    ASSIGN_OR_RETURN(t.scales, tensors.RequireTyped(absmax, {{blocks}}, kFloatTypes));
    return CheckFinite(*t.scales);
  }
  t.nested_block = state.nested_block;
  t.nested_offset = state.nested_offset;
  ASSIGN_OR_RETURN(t.scales, tensors.RequireTyped(absmax, {{blocks}}, {DType::kU8}));
  ASSIGN_OR_RETURN(t.nested_map, tensors.RequireTyped(weight + ".nested_quant_map", {{256}}, kFloatTypes));
  ASSIGN_OR_RETURN(t.nested_scales, tensors.RequireTyped(weight + ".nested_absmax",
                                                         {{CountBlocks(blocks, t.nested_block)}}, kFloatTypes));
  RETURN_IF_ERROR(CheckFinite(*t.nested_map));
  return CheckFinite(*t.nested_scales);
}

Result<std::shared_ptr<const StoredMatrix>> RequireNibbles(TensorFinder& tensors, const std::string& weight,
                                                           std::int64_t rows, std::int64_t columns) {
  const std::string prefix = weight + ".quant_state.bitsandbytes__";
  const StoredTensor* stored = tensors.FindAny(prefix + "nf4");
  if (stored == nullptr) stored = tensors.FindAny(prefix + "fp4");
  if (stored == nullptr) {
    return InvalidArgument("tensor " + Quote(prefix + "nf4") +
                               " is missing from the weights; 4 bits by bitsandbytes need "
                               "it (files of transformers before 4.37 lack it: load and save the model anew)",
                           prefix + "nf4");
  }
  ASSIGN_OR_RETURN(const QuantState state, ParseQuantState(*stored, rows, columns));
  NibbleTensors t;
  t.block = state.block;
  t.weight = tensors.FindAny(weight);
  const std::int64_t count = rows * columns, bytes = (count + 1) / 2;
  if (static_cast<std::int64_t>(t.weight->data.size()) != bytes) {
    return InvalidArgument("tensor " + Quote(weight) + ": expected " + std::to_string(bytes) + " bytes for [" +
                               std::to_string(rows) + ", " + std::to_string(columns) + "] in 4 bits, found " +
                               std::to_string(t.weight->data.size()),
                           weight);
  }
  ASSIGN_OR_RETURN(t.map, tensors.RequireTyped(weight + ".quant_map", {{16}}, kFloatTypes));
  RETURN_IF_ERROR(CheckFinite(*t.map));
  RETURN_IF_ERROR(FindNibbleScales(tensors, weight, state, CountBlocks(count, t.block), t));
  return std::shared_ptr<const StoredMatrix>(std::make_shared<NibbleMatrix>(weight, rows, columns, t));
}

Result<std::shared_ptr<const StoredMatrix>> RequireScaledInt8(TensorFinder& tensors, const std::string& name,
                                                              std::int64_t rows, std::int64_t columns) {
  IntegerLayout layout;
  layout.bits = 8;
  layout.group_size = columns;
  Int8Tensors t;
  t.factor = 1.0f / 127;
  ASSIGN_OR_RETURN(t.weight, tensors.RequireTyped(name + ".weight", {{rows, columns}}, {DType::kI8}));
  ASSIGN_OR_RETURN(t.scales, tensors.RequireTyped(name + ".SCB", {{rows}}, kFloatTypes));
  RETURN_IF_ERROR(CheckScales(*t.scales));
  ASSIGN_OR_RETURN(const StoredTensor* order, tensors.FindTyped(name + ".weight_format", {{}, {1}}, {DType::kU8}));
  if (order != nullptr && order->data[0] != std::byte{0}) {
    return Unsupported("tensor " + Quote(order->name) + ": expected 0 (rows in order), found " +
                           std::to_string(static_cast<int>(order->data[0])) +
                           "; save the model with a newer bitsandbytes",
                       order->name);
  }
  return std::shared_ptr<const StoredMatrix>(MakeInt8Matrix(name + ".weight", rows, columns, std::move(layout), t));
}

}  // namespace

Result<std::shared_ptr<const StoredMatrix>> FindBitsAndBytesMatrix(TensorFinder& tensors,
                                                                   const QuantizationConfig& config,
                                                                   const std::string& name, std::int64_t rows,
                                                                   std::int64_t columns) {
  const std::string weight = name + ".weight";
  if (tensors.Peek(weight) == nullptr) return std::shared_ptr<const StoredMatrix>();
  if (config.scheme.bits == 8) {
    if (tensors.Peek(name + ".SCB") == nullptr) return std::shared_ptr<const StoredMatrix>();
    return RequireScaledInt8(tensors, name, rows, columns);
  }
  if (tensors.Peek(weight + ".absmax") == nullptr) return std::shared_ptr<const StoredMatrix>();
  return RequireNibbles(tensors, weight, rows, columns);
}

}  // namespace loramux
