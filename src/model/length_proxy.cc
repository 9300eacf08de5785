#include "model/length_proxy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/message.h"
#include "formats/safetensors.h"
#include "kernels/elementwise.h"
#include "kernels/encoder.h"
#include "model/model_tensors.h"
#include "quant/tensor_finder.h"

namespace loramux {

// ---------------------------------------------------------------- Loading

struct LengthProxy::Loader {
  TensorFinder finder;

  Result<std::vector<float>> Floats(const std::string& name, const TensorFinder::Shape& shape) {
    ASSIGN_OR_RETURN(const StoredTensor* tensor, finder.Require(name, shape));
    return ToFloats(*tensor);
  }

  // Stacks several layers with the same input in float32.
  Result<Linear> Linears(const std::vector<std::string>& names, std::int64_t out, std::int64_t in) {
    for (const std::string& name : names) {  // checked before allocating the sizes from config.json
      RETURN_IF_ERROR(finder.Require(name + ".weight", {out, in}));
      RETURN_IF_ERROR(finder.Require(name + ".bias", {out}));
    }
    Linear linear{PackedMatrix(out * static_cast<std::int64_t>(names.size()), in, DType::kF32), {}};
    std::int64_t row = 0;
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(const std::vector<float> weight, Floats(name + ".weight", {out, in}));
      ASSIGN_OR_RETURN(const std::vector<float> bias, Floats(name + ".bias", {out}));
      linear.weight.PackRows(row, out, reinterpret_cast<const std::byte*>(weight.data()));
      linear.bias.insert(linear.bias.end(), bias.begin(), bias.end());
      row += out;
    }
    return linear;
  }

  Result<Norm> LoadNorm(const std::string& name, std::int64_t width) {
    Norm norm;
    ASSIGN_OR_RETURN(norm.weight, Floats(name + ".weight", {width}));
    ASSIGN_OR_RETURN(norm.bias, Floats(name + ".bias", {width}));
    return norm;
  }

  Result<Layer> LoadLayer(const LengthProxyConfig& c, const std::string& at) {
    Layer layer;
    const std::string self = at + "attention.self.";
    ASSIGN_OR_RETURN(layer.qkv, Linears({self + "query", self + "key", self + "value"}, c.hidden_size, c.hidden_size));
    ASSIGN_OR_RETURN(layer.attention_out, Linears({at + "attention.output.dense"}, c.hidden_size, c.hidden_size));
    ASSIGN_OR_RETURN(layer.attention_norm, LoadNorm(at + "attention.output.LayerNorm", c.hidden_size));
    ASSIGN_OR_RETURN(layer.up, Linears({at + "intermediate.dense"}, c.intermediate_size, c.hidden_size));
    ASSIGN_OR_RETURN(layer.down, Linears({at + "output.dense"}, c.hidden_size, c.intermediate_size));
    ASSIGN_OR_RETURN(layer.output_norm, LoadNorm(at + "output.LayerNorm", c.hidden_size));
    return layer;
  }

  Status LoadAll(LengthProxy& p) {
    const LengthProxyConfig& c = p.config_;
    const std::string embeddings = "bert.embeddings.";
    ASSIGN_OR_RETURN(p.words_, Floats(embeddings + "word_embeddings.weight", {c.vocab_size, c.hidden_size}));
    ASSIGN_OR_RETURN(p.positions_, Floats(embeddings + "position_embeddings.weight", {c.max_position, c.hidden_size}));
    ASSIGN_OR_RETURN(p.types_, Floats(embeddings + "token_type_embeddings.weight", {c.type_vocab_size, c.hidden_size}));
    ASSIGN_OR_RETURN(p.embedding_norm_, LoadNorm(embeddings + "LayerNorm", c.hidden_size));
    for (std::int64_t i = 0; i < c.num_layers; ++i) {
      ASSIGN_OR_RETURN(Layer layer, LoadLayer(c, "bert.encoder.layer." + std::to_string(i) + "."));
      p.layers_.push_back(std::move(layer));
    }
    ASSIGN_OR_RETURN(p.pooler_, Linears({"bert.pooler.dense"}, c.hidden_size, c.hidden_size));
    ASSIGN_OR_RETURN(p.classifier_,
                     Linears({"classifier"}, static_cast<std::int64_t>(c.buckets.size()), c.hidden_size));
    return finder.CheckAllUsed(/*ignored=*/"bert.embeddings.position_ids");
  }
};

Result<LengthProxy> LengthProxy::Load(const std::filesystem::path& directory) {
  LengthProxy proxy;
  ASSIGN_OR_RETURN(proxy.config_, LoadLengthProxyConfig(directory));
  const std::filesystem::path weights = directory / "model.safetensors";
  ASSIGN_OR_RETURN(const TensorFile file, TensorFile::Open(weights));
  const Status loaded = Loader{TensorFinder(file)}.LoadAll(proxy);
  if (!loaded.ok())
    return Error{loaded.error().code, weights.string() + ": " + loaded.error().message, loaded.error().param};
  return proxy;
}

// ---------------------------------------------------------------- Running

void LengthProxy::Embed(std::span<const TokenId> ids, std::span<float> x) const {
  const std::int64_t n = config_.hidden_size;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(ids[i] >= 0 && ids[i] < config_.vocab_size);
    const float* word = words_.data() + ids[i] * n;
    const float* position = positions_.data() + static_cast<std::int64_t>(i) * n;
    float* row = x.data() + static_cast<std::int64_t>(i) * n;
    for (std::int64_t j = 0; j < n; ++j) row[j] = word[j] + types_[static_cast<std::size_t>(j)] + position[j];
  }
}

void LengthProxy::ApplyNorm(const KernelContext& context, const Norm& norm, std::int64_t rows, float* x) const {
  const std::int64_t n = config_.hidden_size;
  const NormWeights weights = {.weight = norm.weight.data(), .bias = norm.bias.data()};
  NormRows(context, {{x, n}, {x, n}, rows, n, weights, config_.layer_norm_eps});
}

void LengthProxy::ApplyLayer(const KernelContext& context, const Layer& layer, std::int64_t rows,
                             std::span<float> x) const {
  const std::int64_t n = config_.hidden_size, wide = std::max(3 * n, config_.intermediate_size);
  std::vector<float> inner(static_cast<std::size_t>(rows * wide)), attended(static_cast<std::size_t>(rows * n)),
      y = attended;
  const auto linear = [&](const Linear& w, std::span<const float> from, std::span<float> to) {
    MatMul(context, {{from.data(), w.weight.k()}, rows, w.weight, w.bias.data(), {to.data(), w.weight.n()}});
  };
  const auto add_and_norm = [&](const Norm& norm) {
    AddRows(context, {{y.data(), n}, {x.data(), n}, rows, n});
    ApplyNorm(context, norm, rows, x.data());
  };
  linear(layer.qkv, x, inner);
  const Rows qkv = {inner.data(), 3 * n};
  std::vector<float> workspace(static_cast<std::size_t>(EncoderAttentionFloats(rows, context.pool->size())));
  EncoderAttention(context, {.q = qkv,
                             .k = qkv.From(n),
                             .v = qkv.From(2 * n),
                             .out = {attended.data(), n},
                             .rows = rows,
                             .num_heads = config_.num_heads,
                             .head_dim = n / config_.num_heads,
                             .workspace = workspace.data()});
  linear(layer.attention_out, attended, y);
  add_and_norm(layer.attention_norm);
  linear(layer.up, x, inner);
  const Rows up = {inner.data(), config_.intermediate_size};
  GateMul(context, {up, up, rows, config_.intermediate_size, {Activation::kGelu, /*gated=*/false}});
  linear(layer.down, inner, y);
  add_and_norm(layer.output_norm);
}

std::vector<float> LengthProxy::Logits(std::span<const TokenId> all_ids, Backend backend) const {
  CHECK(!all_ids.empty());
  std::vector<TokenId> ids(all_ids.begin(), all_ids.end());
  const auto most = static_cast<std::size_t>(config_.max_position);
  if (ids.size() > most) {
    ids.resize(most);
    ids.back() = all_ids.back();
  }
  ThreadPool pool(1);  // only the calling thread
  const KernelContext context{backend, &pool};
  const auto rows = static_cast<std::int64_t>(ids.size());
  std::vector<float> x(ids.size() * static_cast<std::size_t>(config_.hidden_size));
  Embed(ids, x);
  ApplyNorm(context, embedding_norm_, rows, x.data());
  for (const Layer& layer : layers_) ApplyLayer(context, layer, rows, x);
  std::vector<float> pooled(static_cast<std::size_t>(config_.hidden_size)), logits(config_.buckets.size());
  const auto classes = static_cast<std::int64_t>(logits.size());
  const std::int64_t n = config_.hidden_size;
  MatMul(context, {{x.data(), n}, 1, pooler_.weight, pooler_.bias.data(), {pooled.data(), n}});
  for (float& value : pooled) value = std::tanh(value);
  MatMul(context, {{pooled.data(), n}, 1, classifier_.weight, classifier_.bias.data(), {logits.data(), classes}});
  return logits;
}

std::int32_t LengthProxy::GuessOf(std::span<const float> logits) const {
  CHECK_EQ(logits.size(), config_.buckets.size());
  const float most = *std::max_element(logits.begin(), logits.end());
  double weights = 0, logs = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const LengthBucket& bucket = config_.buckets[i];
    const double weight = std::exp(static_cast<double>(logits[i] - most));
    weights += weight;
    logs +=
        weight * 0.5 * std::log(static_cast<double>(bucket.low) * (bucket.high > 0 ? bucket.high : 2.0 * bucket.low));
  }
  const double length = std::round(std::exp(logs / weights));
  if (std::isnan(length)) return 0;
  return static_cast<std::int32_t>(
      std::clamp(length, 1.0, static_cast<double>(std::numeric_limits<std::int32_t>::max())));
}

}  // namespace loramux
