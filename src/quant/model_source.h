// The weights of a base model on disk, whatever the format: one interface for the code that finds a model's tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "quant/stored_matrix.h"

namespace loramux {

// Hands out the tensors of a model by their Hugging Face names, and records which ones were requested. Owns the files;
// what it hands out refers to them. Not thread-safe.
class ModelSource {
 public:
  virtual ~ModelSource() = default;

  // The matrix of a layer: `name` is that of the layer ("model.layers.0.mlp.up_proj", "lm_head", "model.embed_tokens"),
  // without ".weight". Null if there is none. Errors name the tensor (Error::param): another shape, a format that is
  // not supported, with the nearest that is.
  virtual Result<std::shared_ptr<const StoredMatrix>> FindMatrix(const std::string& name, std::int64_t rows,
                                                                 std::int64_t columns) = 0;
  // The matrices of all experts of a layer, [rows, columns] each, as the rows of one, expert after expert. Null if
  // there are none under this name ("model.layers.0.mlp.experts.gate_up_proj").
  struct Stacked {
    std::shared_ptr<const StoredMatrix> matrix;
    bool alternating = false;  // rows of gate and up alternate within each expert
  };
  struct StackedShape {
    std::int64_t experts = 0, rows = 0, columns = 0;
    bool as_gpt_oss = false;  // a checkpoint in floats has each matrix transposed, and gate and up alternate
  };
  virtual Result<Stacked> FindStacked(const std::string& /*name*/, const StackedShape& /*shape*/) { return Stacked{}; }
  // The biases of such matrices, expert after expert. Error also: there are none.
  virtual Result<std::vector<float>> RequireStackedBias(const std::string& name, const StackedShape& shape) {
    return RequireVector(name + ".bias", shape.experts * shape.rows);
  }
  // A norm or a bias by its whole name ("model.norm.weight"); nullopt if there is none. Errors as above.
  virtual Result<std::optional<std::vector<float>>> FindVector(const std::string& name, std::int64_t size) = 0;
  // The weights of a convolution of each channel alone, [channels, width] without the dimension between. Errors as
  // above; there is none.
  virtual Result<std::vector<float>> RequireConv(const std::string& name, std::int64_t channels, std::int64_t width);
  // Error: a tensor was never requested and would silently have no effect.
  virtual Status CheckAllUsed() const = 0;
  // Whether the tensors were saved from a model without an output layer (transformers' AutoModel): their names lack
  // "model.". Such a file need not hold an lm_head.
  virtual bool WithoutHead() const { return false; }
  // Whether a matrix of queries, keys and values in one lies as the family's own checkpoints have it (FusesByHeads).
  // false: all queries, then all keys, then all values.
  virtual bool FusesAsPublished() const { return true; }
  // The format of quantised weights, for reports: "gptq, 4 bits in groups of 128". Empty: floats.
  virtual std::string Description() const { return ""; }

  // Error also: there is none.
  Result<std::shared_ptr<const StoredMatrix>> RequireMatrix(const std::string& name, std::int64_t rows,
                                                            std::int64_t columns);
  Result<std::vector<float>> RequireVector(const std::string& name, std::int64_t size);
};

// A GGUF file (FILE.gguf), or a Hugging Face directory: safetensors with weights in floats or, as `quantization_config`
// in its config.json says, in a published quantised format. Errors: those of the files; a quantised format that is not
// supported, or that only quantize_config.json names.
Result<std::unique_ptr<ModelSource>> OpenModelSource(const std::filesystem::path& directory);

// Weights in floats. `file` outlives it.
std::unique_ptr<ModelSource> MakeFloatSource(const TensorFile& file);

}  // namespace loramux
