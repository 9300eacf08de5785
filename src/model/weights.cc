#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/machine_memory.h"
#include "base/prng.h"
#include "model/alibi.h"
#include "model/model_tensors.h"
#include "model/packer.h"
#include "model/part_tensors.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

// ---- packing them

ModelWeights::Norm NormOf(const NormTensors& t) { return {t.weight, t.bias}; }

// What experts beside a block have besides.
void PackBeside(const LayerTensors& t, LayerWeights& w) {
  w.router_norm = NormOf(t.router_norm);
  // The router's input is divided by the root of its width, too.
  const float of_router = 1.0f / std::sqrt(static_cast<float>(w.router_norm.weight.size()));
  for (float& weight : w.router_norm.weight) weight *= of_router;
  w.block_output_norm = NormOf(t.block_output_norm);
  w.experts_norm = NormOf(t.experts_norm);
  w.experts_output_norm = NormOf(t.experts_output_norm);
  w.expert_scales = t.expert_scales;
}

// What attention or a recurrence is made of, or both.
void PackMixer(Packer& packer, const LayerTensors& t, std::optional<WeightFormat> format, LayerWeights& w) {
  if (t.in_all.weight != nullptr) {
    w.states = {t.conv, t.rate, t.dt_bias, t.state_norm, t.conv_bias, t.skip};
  }
  if (t.in_all.weight != nullptr && t.q.weight == nullptr) {
    w.qkv = packer.Matrix({t.in_all}, format);
  } else if (t.in_qkv.weight != nullptr) {
    w.qkv = packer.Matrix({t.in_qkv, t.in_z}, format);
    // What decides is small, and is kept in floats.
    const bool quantised = IsQuantised(t.in_b.weight->format()) || IsQuantised(t.in_a.weight->format());
    w.state_gates =
        packer.Matrix({t.in_b, t.in_a}, quantised ? std::optional<WeightFormat>(WeightFormat::kF32) : std::nullopt);
    w.states = {t.conv, t.rate, t.dt_bias, t.state_norm, {}, {}};
  } else if (t.q.weight != nullptr) {
    const bool has_keys = t.k.weight != nullptr;
    w.qkv = has_keys ? packer.Matrix({t.q, t.k, t.v}, format) : packer.Matrix({t.q}, format);
  }
  if (t.o.weight != nullptr) w.o = packer.Matrix({t.o}, format);
  if (t.state_out.weight != nullptr) {
    w.state_in = packer.Matrix({t.in_all}, format);
    w.state_out = packer.Matrix({t.state_out}, format);
    w.state_in_bias = t.in_all.bias;
    w.state_out_bias = t.state_out.bias;
  }
  w.qkv_bias = t.state_out.weight != nullptr ? StackedBias({t.q, t.k, t.v}) : StackedBias({t.in_all, t.q, t.k, t.v});
  w.o_bias = StackedBias({t.o});
}

LayerWeights PackLayer(Packer& packer, const LayerTensors& t, std::optional<WeightFormat> format) {
  LayerWeights w;
  PackMixer(packer, t, format, w);
  const auto matrix = [&](std::initializer_list<LinearTensors> linears) { return packer.Matrix(linears, format); };
  if (t.down.weight != nullptr) {
    w.gate_up = WithGateUp(t, matrix);
    w.down = matrix({t.down});
    w.gate_up_bias = WithGateUp(t, StackedBias);
    w.down_bias = t.down.bias;
  }
  for (const BlockTensors& expert : t.experts) {
    w.expert_gate_up.push_back(WithGateUp(expert, matrix));
    w.expert_down.push_back(matrix({expert.down}));
    if (expert.down.bias.empty()) continue;
    w.expert_gate_up_bias.push_back(WithGateUp(expert, StackedBias));
    w.expert_down_bias.push_back(expert.down.bias);
  }
  // As small, and kept as they are.
  if (t.router.weight != nullptr) w.router = packer.Matrix({t.router}, std::nullopt);
  if (t.shared_gate.weight != nullptr) w.shared_gate = packer.Matrix({t.shared_gate}, std::nullopt);
  w.router_bias = t.router.bias;
  PackBeside(t, w);
  w.sinks = t.sinks;
  w.route_bias = t.route_bias;
  w.input_norm = NormOf(t.input_norm);
  w.attention_output_norm = NormOf(t.attention_output_norm);
  w.mlp_norm = NormOf(t.mlp_norm);
  w.mlp_output_norm = NormOf(t.mlp_output_norm);
  w.q_norm = NormOf(t.q_norm);
  w.k_norm = NormOf(t.k_norm);
  w.v_norm = NormOf(t.v_norm);
  if (!t.scale.empty()) w.scale = t.scale.front();
  if (t.input_gate.weight != nullptr) {
    w.input_gate = matrix({t.input_gate});
    w.input_projection = matrix({t.input_projection});
    w.layer_input_norm = NormOf(t.layer_input_norm);
  }
  return w;
}

std::int64_t FloatBytes(std::initializer_list<const ModelWeights::Norm*> norms) {
  std::int64_t total = 0;
  for (const auto* norm : norms) {
    total += static_cast<std::int64_t>((norm->weight.size() + norm->bias.size()) * sizeof(float));
  }
  return total;
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
GroupedRows RandomGroups(WeightFormat format, std::int64_t rows, std::int64_t k, Prng& prng) {
  GroupedRows out(format, rows, k);
  const float limit = std::sqrt(3.0f / static_cast<float>(k));
  const bool wide = format == WeightFormat::kQ8;
  std::fill(out.scales.begin(), out.scales.end(), wide ? limit / 127 : 2 * limit / 15);
  std::fill(out.minimums.begin(), out.minimums.end(), wide ? -128 * limit / 127 : -limit);
  for (std::size_t i = 0; i < out.codes.size(); i += 8) {
    const std::uint64_t bits = prng.Next();
    for (std::size_t t = 0; t < 8; ++t) {
      const auto byte = static_cast<std::uint8_t>(bits >> (8 * t));
      out.codes[i + t] = wide ? std::max<std::uint8_t>(1, byte) : byte & 0xf;
    }
  }
  return out;
}

PackedMatrix RandomMatrix(std::int64_t n, std::int64_t k, WeightFormat format, Prng& prng) {
  PackedMatrix matrix(n, k, format);
  const float scale = std::sqrt(3.0f / static_cast<float>(k)) / 32768.0f;
  std::vector<std::byte> panel(IsQuantised(format) ? 0 : PackedMatrix::kPanel * WeightRowBytes(format, k));
  for (std::int64_t row = 0; row < n; row += PackedMatrix::kPanel) {
    const std::int64_t rows = std::min(PackedMatrix::kPanel, n - row);
    if (IsQuantised(format)) {
      matrix.PackGroups(row, RandomGroups(format, rows, k, prng));
    } else {
      FillRandom(rows * k, scale, DTypeOf(format), panel.data(), prng);
      matrix.PackRows(row, rows, panel.data());
    }
  }
  return matrix;
}

std::vector<float> Zeros(bool wanted, std::int64_t n) {
  return std::vector<float>(wanted ? static_cast<std::size_t>(n) : 0, 0.0f);
}

std::vector<float> Ones(std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n), 1.0f); }

void RandomExperts(const ModelConfig& c, WeightFormat format, Prng& prng, LayerWeights& w) {
  const ExpertsConfig& experts = *c.experts;
  const std::int64_t count = experts.route.experts, size = experts.intermediate_size, hidden = c.hidden_size;
  const WeightFormat floats = IsQuantised(format) ? WeightFormat::kBF16 : format;
  w.router = RandomMatrix(count, hidden, floats, prng);
  w.router_bias = Zeros(experts.router_bias, count);
  w.route_bias = Zeros(experts.route_bias, count);
  if (experts.shared_gate) w.shared_gate = RandomMatrix(1, hidden, floats, prng);
  if (experts.beside_block) {
    w.router_norm.weight = w.block_output_norm.weight = w.experts_norm.weight = w.experts_output_norm.weight =
        Ones(hidden);
    w.expert_scales = Ones(count);
  }
  for (std::int64_t e = 0; e < count; ++e) {
    w.expert_gate_up.push_back(RandomMatrix(c.GateUpDim(size), hidden, format, prng));
    w.expert_down.push_back(RandomMatrix(hidden, size, format, prng));
    if (!experts.biases) continue;
    w.expert_gate_up_bias.push_back(Zeros(true, c.GateUpDim(size)));
    w.expert_down_bias.push_back(Zeros(true, hidden));
  }
}

void RandomStates(const ModelConfig& c, WeightFormat format, Prng& prng, LayerWeights& w) {
  const RecurrentConfig& r = *c.recurrent;
  const WeightFormat floats = IsQuantised(format) ? WeightFormat::kBF16 : format;
  PackedMatrix out = RandomMatrix(c.hidden_size, r.Values(), format, prng);
  if (r.beside_attention) {
    w.state_in = RandomMatrix(r.InputRows(), c.hidden_size, format, prng);
    w.state_out = std::move(out);
    w.state_in_bias = Zeros(r.input_bias, r.InputRows());
    w.state_out_bias = Zeros(r.output_bias, c.hidden_size);
  } else {
    w.o = std::move(out);
  }
  if (!r.mamba) w.state_gates = RandomMatrix(2 * r.value_heads, c.hidden_size, floats, prng);
  w.states = {.conv = Ones(r.conv_width * r.Channels()),
              .rate = Ones(r.value_heads),
              .dt_bias = Zeros(true, r.value_heads),
              .norm = Ones(r.NormSize()),
              .conv_bias = Zeros(r.conv_bias, r.Channels()),
              .skip = Zeros(r.mamba, r.value_heads)};
  for (float& rate : w.states.rate) rate = -0.2f;
}

LayerWeights RandomLayer(const ModelConfig& c, WeightFormat format, std::int64_t index, Prng& prng) {
  LayerWeights w;
  const std::int64_t qkv = c.QkvDim(index);
  if (qkv > 0) w.qkv = RandomMatrix(qkv, c.hidden_size, format, prng);
  if (c.IsRecurrent(index)) RandomStates(c, format, prng, w);
  if (c.HasAttention(index)) {
    w.o = RandomMatrix(c.hidden_size, c.QDim(index), format, prng);
  }
  if (c.HasOwnBlock(index)) {
    const std::int64_t size = c.BlockSize(index), rows = c.GateUpDim(size);
    w.gate_up = RandomMatrix(rows, c.hidden_size, format, prng);
    w.down = RandomMatrix(c.hidden_size, size, format, prng);
    w.gate_up_bias = Zeros(c.mlp_bias, rows);
    w.down_bias = Zeros(c.mlp_bias, c.hidden_size);
  }
  if (c.HasExperts(index)) RandomExperts(c, format, prng, w);
  const bool of_states = c.IsRecurrent(index) && !c.HasAttention(index), mixes = c.Has(LayerPart::kMixer, index);
  w.qkv_bias = Zeros(of_states ? c.recurrent->input_bias : c.attention_qkv_bias, qkv);
  w.o_bias = Zeros(mixes && (of_states ? c.recurrent->output_bias : c.attention_output_bias), c.hidden_size);
  w.sinks = Zeros(c.sinks, c.num_heads);
  const ModelWeights::Norm whole = {Ones(c.hidden_size), Zeros(c.norm_kind == NormKind::kLayer, c.hidden_size)};
  const bool before = c.norm_places == NormPlaces::kBefore || c.norm_places == NormPlaces::kBoth;
  if (before) w.input_norm = whole;
  if (before && c.layer_parts.empty()) w.mlp_norm = whole;
  if (c.norm_places != NormPlaces::kBefore) w.attention_output_norm = w.mlp_output_norm = whole;
  const std::int64_t head_dim = c.HeadsOf(index).head_dim;
  if (c.qk_norm != QkNorm::kNone && c.HasAttention(index)) {
    const bool shared = c.qk_norm == QkNorm::kHeads, centers = c.qk_norm == QkNorm::kLayerOfHeads;
    const std::int64_t q = shared ? head_dim : c.QDim(index), k = shared ? head_dim : c.KvDim(index);
    w.q_norm = {Ones(q), Zeros(centers, q)};
    w.k_norm = {Ones(k), Zeros(centers, k)};
  }
  if (c.value_norm) w.v_norm.weight = Ones(head_dim);
  if (c.layer_input_size > 0) {
    w.input_gate = RandomMatrix(c.layer_input_size, c.hidden_size, format, prng);
    w.input_projection = RandomMatrix(c.hidden_size, c.layer_input_size, format, prng);
    w.layer_input_norm.weight = Ones(c.hidden_size);
  }
  return w;
}

}  // namespace

std::int64_t WeightBytes(const ModelWeights& weights) {
  std::int64_t total = static_cast<std::int64_t>(weights.embedding.bytes() + weights.lm_head.bytes()) +
                       static_cast<std::int64_t>(weights.positions.bytes() + weights.project_in.bytes()) +
                       static_cast<std::int64_t>(weights.project_out.bytes() + weights.layer_embedding.bytes()) +
                       static_cast<std::int64_t>(weights.layer_context.bytes()) +
                       FloatBytes({&weights.layer_context_norm}) +
                       FloatBytes({&weights.final_norm, &weights.embedding_norm}) + FloatBytes({&weights.slopes});
  for (const LayerWeights& w : weights.layers) {
    total += static_cast<std::int64_t>(w.qkv.bytes() + w.o.bytes() + w.gate_up.bytes() + w.down.bytes());
    total +=
        FloatBytes({&w.qkv_bias, &w.o_bias, &w.gate_up_bias, &w.down_bias, &w.router_bias, &w.expert_scales, &w.sinks});
    total += static_cast<std::int64_t>(w.router.bytes() + w.shared_gate.bytes() + w.state_gates.bytes());
    total += FloatBytes({&w.states.conv, &w.states.rate, &w.states.dt_bias, &w.states.norm});
    total += FloatBytes({&w.states.conv_bias, &w.states.skip, &w.route_bias, &w.state_in_bias, &w.state_out_bias});
    total += static_cast<std::int64_t>(w.state_in.bytes() + w.state_out.bytes());
    total += static_cast<std::int64_t>(w.input_gate.bytes() + w.input_projection.bytes());
    for (const auto* experts : {&w.expert_gate_up, &w.expert_down}) {
      for (const PackedMatrix& matrix : *experts) total += static_cast<std::int64_t>(matrix.bytes());
    }
    for (const auto* biases : {&w.expert_gate_up_bias, &w.expert_down_bias}) {
      for (const auto& bias : *biases) total += FloatBytes({&bias});
    }
    total += FloatBytes({&w.input_norm, &w.attention_output_norm, &w.mlp_norm, &w.mlp_output_norm, &w.q_norm, &w.k_norm,
                         &w.v_norm, &w.layer_input_norm});
    total += FloatBytes({&w.router_norm, &w.block_output_norm, &w.experts_norm, &w.experts_output_norm});
  }
  return total;
}

std::optional<WeightFormat> EmbeddingFormat(const WeightOptions& options) {
  if (options.embeddings || !options.layers || !IsQuantised(*options.layers)) return options.embeddings;
  return WeightFormat::kQ8;
}

namespace {

// Error: what is copied is more than the memory.
Status CheckMemory(const ModelTensors& tensors, const WeightOptions& options) {
  const std::int64_t memory = options.memory > 0 ? options.memory : MachineMemoryWithSwap();
  const std::int64_t needed = CopiedBytes(tensors, options.layers, EmbeddingFormat(options));
  if (needed <= memory) return Ok{};
  const auto with = [&](WeightFormat format) {
    WeightOptions fewer = options;
    fewer.layers = format;
    return FormatBytes(CopiedBytes(tensors, fewer.layers, EmbeddingFormat(fewer)));
  };
  return ResourceExhausted("the weights take " + FormatBytes(needed) + ", but this machine has " + FormatBytes(memory) +
                               " of memory with its swap: --weights q8 takes " + with(WeightFormat::kQ8) +
                               ", --weights q4 " + with(WeightFormat::kQ4) +
                               "; what `loramux quantize` writes is used where it lies in its files, and the system "
                               "keeps as much of it in memory as fits",
                           "--weights");
}

}  // namespace

Result<ModelWeights> PackModelWeights(const ModelConfig& config, ModelSource& source, const WeightOptions& options,
                                      const Progress& progress) {
  RETURN_IF_ERROR(CheckParts(config, options.part.ranks));
  ASSIGN_OR_RETURN(ModelTensors tensors, FindModelTensors(config, source));
  RETURN_IF_ERROR(TakePart(options.part, config, tensors));
  RETURN_IF_ERROR(CheckMemory(tensors, options));
  Packer packer(progress, MatrixBytes(tensors));
  const std::optional<WeightFormat> embeddings = EmbeddingFormat(options);
  ModelWeights weights;
  if (tensors.embedding.weight != nullptr) weights.embedding = packer.Matrix({tensors.embedding}, embeddings);
  for (const LayerTensors& layer : tensors.layers) weights.layers.push_back(PackLayer(packer, layer, options.layers));
  weights.final_norm = NormOf(tensors.final_norm);
  weights.embedding_norm = NormOf(tensors.embedding_norm);
  weights.slopes = AlibiSlopes(config);
  if (!weights.slopes.empty()) {
    const OutputRange heads = HeadsOf(options.part, config);
    const auto first = weights.slopes.begin() + heads.first;
    weights.slopes = std::vector<float>(first, first + heads.count);
  }
  if (tensors.project_in.weight != nullptr) {
    weights.project_in = packer.Matrix({tensors.project_in}, options.layers);
    weights.project_out = packer.Matrix({tensors.project_out}, options.layers);
  }
  if (tensors.layer_embedding.weight != nullptr) {
    weights.layer_embedding = packer.Matrix({tensors.layer_embedding}, embeddings);
    weights.layer_context = packer.Matrix({tensors.layer_context}, options.layers);
    weights.layer_context_norm = NormOf(tensors.layer_context_norm);
  }
  if (tensors.positions.weight != nullptr) weights.positions = packer.Matrix({tensors.positions}, std::nullopt);
  weights.lm_head = packer.Matrix({tensors.lm_head}, embeddings);
  weights.generates = tensors.generates;
  return weights;
}

ModelWeights RandomModelWeights(const ModelConfig& config, WeightFormat format, std::uint64_t seed) {
  Prng prng(seed);
  const WeightFormat embeddings = IsQuantised(format) ? WeightFormat::kQ8 : format;
  const std::int64_t vocab = config.vocab_size, hidden = config.hidden_size, width = config.EmbeddingSize();
  ModelWeights weights;
  if (!config.tie_word_embeddings) weights.embedding = RandomMatrix(vocab, width, embeddings, prng);
  weights.lm_head = RandomMatrix(vocab, width, embeddings, prng);
  for (std::int64_t i = 0; i < config.num_layers; ++i) weights.layers.push_back(RandomLayer(config, format, i, prng));
  const ModelWeights::Norm norm = {Ones(hidden), Zeros(config.norm_kind == NormKind::kLayer, hidden)};
  if (config.final_norm) weights.final_norm = norm;
  if (config.embedding_norm) weights.embedding_norm = norm;
  weights.slopes = AlibiSlopes(config);
  if (config.embedding_size != 0) {
    weights.project_in = RandomMatrix(hidden, width, format, prng);
    weights.project_out = RandomMatrix(width, hidden, format, prng);
  }
  if (const std::int64_t all = config.num_layers * config.layer_input_size; all > 0) {
    weights.layer_embedding = RandomMatrix(vocab, all, embeddings, prng);
    weights.layer_context = RandomMatrix(all, hidden, format, prng);
    weights.layer_context_norm.weight = Ones(config.layer_input_size);
  }
  if (config.position_rows_before) {
    weights.positions = RandomMatrix(config.max_position + *config.position_rows_before, hidden, embeddings, prng);
  }
  return weights;
}

}  // namespace loramux
