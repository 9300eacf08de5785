// The source of weights in floats, and the base of those that also hold other matrices. Internal to quant.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/safetensors.h"
#include "quant/model_source.h"
#include "quant/stored_matrix.h"
#include "quant/tensor_finder.h"

namespace loramux {

// A safetensors file or directory with weights in floats. `file` outlives it.
class FloatSource : public ModelSource {
 public:
  explicit FloatSource(const TensorFile& file) : finder_(file) {}

  Result<std::shared_ptr<const StoredMatrix>> FindMatrix(const std::string& name, std::int64_t rows,
                                                         std::int64_t columns) override {
    ASSIGN_OR_RETURN(const StoredTensor* tensor, finder_.Find(name + ".weight", {rows, columns}));
    std::shared_ptr<const StoredMatrix> matrix;
    if (tensor != nullptr) matrix = MakeFloatMatrix(*tensor);
    return matrix;
  }

  // The tensor "NAME" or "NAME.weight" [experts, rows, columns].
  Result<Stacked> FindStacked(const std::string& name, const StackedShape& shape) override {
    for (const char* suffix : {"", ".weight"}) {
      const auto stored = shape.as_gpt_oss ? TensorFinder::Shape{shape.experts, shape.columns, shape.rows}
                                           : TensorFinder::Shape{shape.experts, shape.rows, shape.columns};
      ASSIGN_OR_RETURN(const StoredTensor* tensor, finder_.Find(name + suffix, stored));
      if (tensor == nullptr) continue;
      return Stacked{shape.as_gpt_oss ? MakeTransposedMatrices(*tensor) : MakeFloatMatrix(*tensor), shape.as_gpt_oss};
    }
    return Stacked{};
  }

  // The tensor "NAME_bias" [experts, rows].
  Result<std::vector<float>> RequireStackedBias(const std::string& name, const StackedShape& shape) override {
    ASSIGN_OR_RETURN(const StoredTensor* tensor, finder_.Require(name + "_bias", {shape.experts, shape.rows}));
    return ToFloats(*tensor);
  }

  Result<std::optional<std::vector<float>>> FindVector(const std::string& name, std::int64_t size) override {
    ASSIGN_OR_RETURN(const StoredTensor* tensor, finder_.Find(name, {size}));
    std::optional<std::vector<float>> values;
    if (tensor != nullptr) values = ToFloats(*tensor);
    return values;
  }

  Result<std::vector<float>> RequireConv(const std::string& name, std::int64_t channels, std::int64_t width) override {
    ASSIGN_OR_RETURN(const StoredTensor* tensor, finder_.Require(name, {channels, 1, width}));
    return ToFloats(*tensor);
  }

  Status CheckAllUsed() const override { return finder_.CheckAllUsed(kIgnored); }
  bool WithoutHead() const override { return finder_.bare(); }

 protected:
  // The ends of the names of buffers that older versions of transformers saved.
  static constexpr std::string_view kIgnored = "rotary_emb.inv_freq";

  TensorFinder& finder() { return finder_; }
  const TensorFinder& finder() const { return finder_; }

 private:
  TensorFinder finder_;
};

}  // namespace loramux
