#include "quant/published_source.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "quant/awq.h"
#include "quant/bitsandbytes.h"
#include "quant/compressed_tensors.h"
#include "quant/float_source.h"
#include "quant/fp8.h"
#include "quant/gptq.h"
#include "quant/mxfp4.h"
#include "quant/nvfp4.h"

namespace loramux {
namespace {

// A directory with some or all matrices in a published quantised format: what the file holds decides for each.
class PublishedSource : public FloatSource {
 public:
  PublishedSource(std::shared_ptr<const TensorFile> file, QuantizationConfig config)
      : FloatSource(*file), file_(std::move(file)), config_(std::move(config)) {}

  Result<std::shared_ptr<const StoredMatrix>> FindMatrix(const std::string& name, std::int64_t rows,
                                                         std::int64_t columns) override {
    ASSIGN_OR_RETURN(auto matrix, FindQuantised(name, rows, columns));
    if (matrix != nullptr) return matrix;
    return FloatSource::FindMatrix(name, rows, columns);
  }

  Result<Stacked> FindStacked(const std::string& name, const StackedShape& shape) override {
    if (config_.method == QuantMethod::kMxfp4) {
      ASSIGN_OR_RETURN(auto matrix, FindMxfp4Experts(finder(), name, shape));
      if (matrix != nullptr) return Stacked{std::move(matrix), shape.as_gpt_oss};
    }
    return FloatSource::FindStacked(name, shape);
  }

  Status CheckAllUsed() const override {
    const std::vector<const StoredTensor*> unused = finder().Unused();
    if (std::all_of(unused.begin(), unused.end(), [&](const StoredTensor* tensor) { return HasNoEffect(*tensor); })) {
      return Ok{};
    }
    return FloatSource::CheckAllUsed();
  }

  std::string Description() const override { return Describe(config_); }

 private:
  Result<std::shared_ptr<const StoredMatrix>> FindQuantised(const std::string& name, std::int64_t rows,
                                                            std::int64_t columns) {
    switch (config_.method) {
      case QuantMethod::kGptq:
        return FindGptqMatrix(finder(), config_, name, rows, columns);
      case QuantMethod::kAwq:
        return FindAwqMatrix(finder(), config_, name, rows, columns);
      case QuantMethod::kCompressedTensors:
        return FindCompressedMatrix(finder(), config_, name, rows, columns);
      case QuantMethod::kFp8:
        return FindFp8Matrix(finder(), config_, name, rows, columns);
      case QuantMethod::kModelOpt:
        return FindModelOptMatrix(name, rows, columns);
      case QuantMethod::kBitsAndBytes:
        return FindBitsAndBytesMatrix(finder(), config_, name, rows, columns);
      case QuantMethod::kMxfp4:  // experts alone are: FindStacked
        return std::shared_ptr<const StoredMatrix>();
    }
    CHECK(false);
    return std::shared_ptr<const StoredMatrix>();
  }

  Result<std::shared_ptr<const StoredMatrix>> FindModelOptMatrix(const std::string& name, std::int64_t rows,
                                                                 std::int64_t columns) {
    if (config_.scheme.store == QuantScheme::Store::kFloat8)
      return FindFp8Matrix(finder(), config_, name, rows, columns);
    const StoredTensor* const weight = finder().Peek(name + kModelOptNvfp4.weight);
    if (weight == nullptr || IsWeightDType(weight->dtype)) return std::shared_ptr<const StoredMatrix>();
    finder().FindAny(name + ".input_scale");
    return RequireNvfp4Matrix(finder(), kModelOptNvfp4, name, rows, columns);
  }

  // A known buffer, a scale of keys and values, or the zero bias that AutoGPTQ gives every layer.
  bool HasNoEffect(const StoredTensor& tensor) const {
    const std::string_view name = tensor.name;
    if (name.ends_with(kIgnored)) return true;
    for (const char* scale : {"self_attn.k_scale", "self_attn.v_scale", "self_attn.kv_scale"}) {
      if (config_.kv_scales && name.ends_with(scale)) return true;
    }
    return config_.method == QuantMethod::kGptq && name.ends_with(".bias") && IsWeightDType(tensor.dtype) &&
           std::all_of(tensor.data.begin(), tensor.data.end(), [](std::byte byte) { return byte == std::byte{0}; });
  }

  const std::shared_ptr<const TensorFile> file_;
  const QuantizationConfig config_;
};

}  // namespace

std::unique_ptr<ModelSource> MakePublishedSource(std::shared_ptr<const TensorFile> file, QuantizationConfig config) {
  return std::make_unique<PublishedSource>(std::move(file), std::move(config));
}

}  // namespace loramux
