#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/check.h"
#include "base/prng.h"
#include "model/model_tensors.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

// ---- packing them

// Packs tensors and reports progress.
class Packer {
 public:
  Packer(const Progress& progress, const ModelTensors& tensors) : progress_(progress), total_(MatrixBytes(tensors)) {}

  // Stacks the weights by output rows.
  PackedMatrix Matrix(std::initializer_list<LinearTensors> linears) {
    std::int64_t rows = 0;
    for (const LinearTensors& linear : linears) rows += linear.weight->shape[0];
    PackedMatrix matrix(rows, linears.begin()->weight->shape[1], CommonDType(linears));
    std::int64_t row = 0;
    for (const LinearTensors& linear : linears) {
      PackTensor(*linear.weight, row, matrix);
      row += linear.weight->shape[0];
    }
    return matrix;
  }

 private:
  void PackTensor(const StoredTensor& tensor, std::int64_t first_row, PackedMatrix& matrix) {
    if (tensor.dtype == matrix.dtype()) {
      matrix.PackRows(first_row, tensor.shape[0], tensor.data.data());
    } else {
      const std::vector<float> floats = ToFloats(tensor);
      matrix.PackRows(first_row, tensor.shape[0], reinterpret_cast<const std::byte*>(floats.data()));
    }
    done_ += static_cast<std::int64_t>(tensor.data.size());
    if (progress_) progress_(done_, total_);
  }

  const Progress& progress_;
  std::int64_t done_ = 0;
  const std::int64_t total_;
};

LayerWeights PackLayer(Packer& packer, const LayerTensors& t) {
  LayerWeights w;
  w.qkv = packer.Matrix({t.q, t.k, t.v});
  w.o = packer.Matrix({t.o});
  w.gate_up = packer.Matrix({t.gate, t.up});
  w.down = packer.Matrix({t.down});
  w.qkv_bias = StackedBias({t.q, t.k, t.v});
  w.o_bias = StackedBias({t.o});
  w.gate_up_bias = StackedBias({t.gate, t.up});
  w.down_bias = StackedBias({t.down});
  w.input_norm = ToFloats(*t.input_norm);
  w.post_attention_norm = ToFloats(*t.post_attention_norm);
  if (t.q_norm != nullptr) w.q_norm = ToFloats(*t.q_norm);
  if (t.k_norm != nullptr) w.k_norm = ToFloats(*t.k_norm);
  return w;
}

std::int64_t FloatBytes(std::initializer_list<const std::vector<float>*> vectors) {
  std::int64_t total = 0;
  for (const auto* v : vectors) total += static_cast<std::int64_t>(v->size() * sizeof(float));
  return total;
}

// ---- random weights

// Fills `count` elements with int16 numbers times `scale`, each converted by `convert`.
template <typename Element, typename Convert>
void FillRandom(std::int64_t count, float scale, const Convert& convert, std::byte* out, Prng& prng) {
  for (std::int64_t i = 0; i < count; i += 4) {
    const std::uint64_t bits = prng.Next();
    Element four[4];
    for (int part = 0; part < 4; ++part) {
      four[part] = convert(static_cast<float>(static_cast<std::int16_t>(bits >> (16 * part))) * scale);
    }
    const auto rest = static_cast<std::size_t>(std::min<std::int64_t>(4, count - i));
    std::memcpy(out + static_cast<std::size_t>(i) * sizeof(Element), four, rest * sizeof(Element));
  }
}

void FillRandom(std::int64_t count, float scale, DType dtype, std::byte* out, Prng& prng) {
  if (dtype == DType::kF32)
    FillRandom<float>(
        count, scale, [](float value) { return value; }, out, prng);
  if (dtype == DType::kBF16) FillRandom<std::uint16_t>(count, scale, F32ToBF16, out, prng);
  if (dtype == DType::kF16) FillRandom<std::uint16_t>(count, scale, F32ToF16, out, prng);
}

// Uniform in +-sqrt(3 / k): a product with unit inputs has unit variance.
PackedMatrix RandomMatrix(std::int64_t n, std::int64_t k, DType dtype, Prng& prng) {
  PackedMatrix matrix(n, k, dtype);
  const float scale = std::sqrt(3.0f / static_cast<float>(k)) / 32768.0f;
  std::vector<std::byte> panel(static_cast<std::size_t>(PackedMatrix::kPanel * k) * DTypeSize(dtype));
  for (std::int64_t row = 0; row < n; row += PackedMatrix::kPanel) {
    const std::int64_t rows = std::min(PackedMatrix::kPanel, n - row);
    FillRandom(rows * k, scale, dtype, panel.data(), prng);
    matrix.PackRows(row, rows, panel.data());
  }
  return matrix;
}

std::vector<float> Zeros(bool wanted, std::int64_t n) {
  return std::vector<float>(wanted ? static_cast<std::size_t>(n) : 0, 0.0f);
}

std::vector<float> Ones(std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n), 1.0f); }

LayerWeights RandomLayer(const ModelConfig& c, DType dtype, Prng& prng) {
  LayerWeights w;
  const std::int64_t qkv = c.QDim() + 2 * c.KvDim();
  w.qkv = RandomMatrix(qkv, c.hidden_size, dtype, prng);
  w.o = RandomMatrix(c.hidden_size, c.QDim(), dtype, prng);
  w.gate_up = RandomMatrix(2 * c.intermediate_size, c.hidden_size, dtype, prng);
  w.down = RandomMatrix(c.hidden_size, c.intermediate_size, dtype, prng);
  w.qkv_bias = Zeros(c.attention_qkv_bias, qkv);
  w.o_bias = Zeros(c.attention_output_bias, c.hidden_size);
  w.gate_up_bias = Zeros(c.mlp_bias, 2 * c.intermediate_size);
  w.down_bias = Zeros(c.mlp_bias, c.hidden_size);
  w.input_norm = w.post_attention_norm = Ones(c.hidden_size);
  if (c.qk_norm) w.q_norm = w.k_norm = Ones(c.head_dim);
  return w;
}

}  // namespace

std::int64_t WeightBytes(const ModelWeights& weights) {
  std::int64_t total = static_cast<std::int64_t>(weights.embedding.bytes() + weights.lm_head.bytes()) +
                       FloatBytes({&weights.final_norm});
  for (const LayerWeights& w : weights.layers) {
    total += static_cast<std::int64_t>(w.qkv.bytes() + w.o.bytes() + w.gate_up.bytes() + w.down.bytes());
    total += FloatBytes({&w.qkv_bias, &w.o_bias, &w.gate_up_bias, &w.down_bias, &w.input_norm, &w.post_attention_norm,
                         &w.q_norm, &w.k_norm});
  }
  return total;
}

Result<ModelWeights> PackModelWeights(const ModelConfig& config, const TensorFile& file, const Progress& progress) {
  ASSIGN_OR_RETURN(const ModelTensors tensors, FindModelTensors(config, file));
  Packer packer(progress, tensors);
  ModelWeights weights;
  if (tensors.embedding != nullptr) weights.embedding = packer.Matrix({{tensors.embedding}});
  for (const LayerTensors& layer : tensors.layers) weights.layers.push_back(PackLayer(packer, layer));
  weights.final_norm = ToFloats(*tensors.final_norm);
  weights.lm_head = packer.Matrix({{tensors.lm_head}});
  return weights;
}

ModelWeights RandomModelWeights(const ModelConfig& config, DType dtype, std::uint64_t seed) {
  CHECK(IsWeightDType(dtype));
  Prng prng(seed);
  ModelWeights weights;
  if (!config.tie_word_embeddings) weights.embedding = RandomMatrix(config.vocab_size, config.hidden_size, dtype, prng);
  weights.lm_head = RandomMatrix(config.vocab_size, config.hidden_size, dtype, prng);
  for (std::int64_t i = 0; i < config.num_layers; ++i) weights.layers.push_back(RandomLayer(config, dtype, prng));
  weights.final_norm = Ones(config.hidden_size);
  return weights;
}

}  // namespace loramux
