#include "model/model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "model/rope.h"
#include "tensor/aligned_buffer.h"

namespace loramux {
namespace {

// A matrix of activations, one row per token. Not owning. Rows may be wider than an operation uses.
struct Rows {
  float* data = nullptr;
  std::int64_t stride = 0;
  // The same rows from column `first` on.
  Rows From(std::int64_t first) const { return {data + first, stride}; }
};

using FloatBuffer = AlignedBuffer<float>;

float* EnsureFloats(FloatBuffer& buffer, std::int64_t floats) {
  buffer.Reserve(floats);
  return buffer.data();
}

// Rows of activations; their number changes from batch to batch.
class RowBuffer {
 public:
  // Rows begin on cache lines.
  explicit RowBuffer(std::int64_t width) : stride_((width + 15) / 16 * 16) {}
  // Provides memory for `rows` rows; their content is lost if it grows.
  Rows Ensure(std::int64_t rows) { return {EnsureFloats(buffer_, rows * stride_), stride_}; }

 private:
  std::int64_t stride_;
  FloatBuffer buffer_;
};

// The most linear layers that share an input: q, k and v.
constexpr std::size_t kMaxSharedInput = 3;

// Adjacent rows that use one adapter.
struct AdapterRows {
  const LoraView* adapter = nullptr;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Adds rows to the last group if they continue it, else starts a group.
void AppendAdapterRows(const LoraView* adapter, std::int64_t begin, std::int64_t count,
                       std::vector<AdapterRows>& groups) {
  if (adapter == nullptr || count == 0) return;
  if (!groups.empty() && groups.back().adapter == adapter && groups.back().end == begin) {
    groups.back().end += count;
  } else {
    groups.push_back({adapter, begin, begin + count});
  }
}

void CheckLayout(const ModelConfig& config, const KvLayout& layout) {
  CHECK_EQ(layout.num_layers, config.num_layers);
  CHECK_EQ(layout.num_kv_heads, config.num_kv_heads);
  CHECK_EQ(layout.head_dim, config.head_dim);
}

}  // namespace

// The description of a batch, and the memory it is computed in.
struct Model::Workspace {
  explicit Workspace(const ModelConfig& config)
      : rope(config),
        hidden(config.hidden_size),
        normed(config.hidden_size),
        qkv(config.QDim() + 2 * config.KvDim()),
        attended(config.QDim()),
        gate_up(2 * config.intermediate_size),
        activated(config.intermediate_size),
        last_hidden(config.hidden_size) {}

  RopeTable rope;

  // The batch.
  std::int64_t num_rows = 0;
  std::int64_t num_logit_rows = 0;
  std::int64_t max_positions = 0;
  std::vector<AttentionSequence> sequences;
  std::vector<AdapterRows> adapters;                               // in rows of the batch
  std::vector<AdapterRows> logit_adapters;                         // in rows of the logits
  std::array<std::vector<LoraSegment>, kMaxSharedInput> segments;  // of the current linear layers

  RowBuffer hidden, normed, qkv, attended, gate_up, activated;  // one row per token
  FloatBuffer cosines, sines;                                   // [num_rows, head_dim / 2]
  RowBuffer last_hidden;                                        // one row per row of logits
  FloatBuffer logits, lora, attention;
};

// One forward pass; lives as long as one call of Model::Forward.
class Model::Pass {
 public:
  Pass(const Model& model, Workspace& workspace, const KernelContext& context, std::span<const SequenceChunk> chunks,
       const KvLayout& layout, const PageArena& arena, const ForwardOptions& options)
      : config_(model.config_),
        weights_(model.weights_),
        w_(workspace),
        context_(context),
        chunks_(chunks),
        layout_(layout),
        arena_(arena),
        options_(options) {}

  std::span<const float> Run() {
    DescribeBatch();
    PrepareBuffers();
    PrepareRope();
    Embed();
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      if (options_.before_layer != nullptr) (*options_.before_layer)(layer);
      Attention(layer, weights_.layers[static_cast<std::size_t>(layer)]);
      Mlp(layer, weights_.layers[static_cast<std::size_t>(layer)]);
    }
    return Logits();
  }

 private:
  // hidden += o(attention(rope(qkv(norm(hidden)))))
  void Attention(std::int64_t layer, const LayerWeights& w) {
    const std::int64_t q_dim = config_.QDim();
    const std::int64_t kv_dim = config_.KvDim();
    const Rows q = qkv_;
    const Rows k = qkv_.From(q_dim);
    const Rows v = qkv_.From(q_dim + kv_dim);

    Norm(hidden_, w.input_norm, normed_);
    Linear(w.qkv, w.qkv_bias, normed_, qkv_);
    Lora(layer, normed_, {{LoraTarget::kQ, q}, {LoraTarget::kK, k}, {LoraTarget::kV, v}});
    if (config_.qk_norm) {
      NormHeads(q, config_.num_heads, w.q_norm);
      NormHeads(k, config_.num_kv_heads, w.k_norm);
    }
    // q and k are adjacent, so one call rotates the heads of both.
    Rope(context_, q.data, q.stride, w_.num_rows, config_.num_heads + config_.num_kv_heads, config_.head_dim,
         w_.cosines.data(), w_.sines.data());
    StoreKv(context_, layout_, layer, arena_, w_.sequences, k.data, k.stride, v.data, v.stride);
    PagedAttention(context_, layout_, layer, arena_, w_.sequences, config_.num_heads,
                   config_.sliding_window[static_cast<std::size_t>(layer)], q.data, q.stride, attended_.data,
                   attended_.stride, w_.attention.data());
    Linear(w.o, w.o_bias, attended_, normed_);
    Lora(layer, attended_, {{LoraTarget::kO, normed_}});
    AddToHidden(normed_);
  }

  // hidden += down(silu(gate(norm(hidden))) * up(norm(hidden)))
  void Mlp(std::int64_t layer, const LayerWeights& w) {
    const Rows gate = gate_up_;
    const Rows up = gate_up_.From(config_.intermediate_size);

    Norm(hidden_, w.post_attention_norm, normed_);
    Linear(w.gate_up, w.gate_up_bias, normed_, gate_up_);
    Lora(layer, normed_, {{LoraTarget::kGate, gate}, {LoraTarget::kUp, up}});
    SiluMul(context_, gate_up_.data, gate_up_.stride, w_.num_rows, config_.intermediate_size, activated_.data,
            activated_.stride);
    Linear(w.down, w.down_bias, activated_, normed_);
    Lora(layer, activated_, {{LoraTarget::kDown, normed_}});
    AddToHidden(normed_);
  }

  // lm_head(norm(hidden)) of the rows with wanted logits.
  std::span<const float> Logits() {
    if (w_.num_logit_rows == 0) return {};
    const std::int64_t vocab = config_.vocab_size;
    const Rows logits = {w_.logits.data(), vocab};
    GatherLastHidden();
    RmsNorm(context_, last_hidden_.data, last_hidden_.stride, w_.num_logit_rows, config_.hidden_size,
            weights_.final_norm.data(), Epsilon(), last_hidden_.data, last_hidden_.stride);
    MatMul(context_, last_hidden_.data, last_hidden_.stride, w_.num_logit_rows, weights_.lm_head, nullptr, logits.data,
           logits.stride);
    Lora(0, last_hidden_, {{LoraTarget::kLmHead, logits}});
    return {logits.data, static_cast<std::size_t>(w_.num_logit_rows * vocab)};
  }

  // Builds the kernels' descriptions of the batch from the chunks.
  void DescribeBatch() {
    w_.num_rows = w_.num_logit_rows = w_.max_positions = 0;
    w_.sequences.clear();
    w_.adapters.clear();
    w_.logit_adapters.clear();
    for (const SequenceChunk& chunk : chunks_) {
      const auto size = static_cast<std::int64_t>(chunk.tokens.size());
      CHECK_GT(size, 0);
      CHECK_GE(size, chunk.logit_rows);
      CHECK_GE(chunk.logit_rows, 0);
      CHECK_GE(chunk.position, 0);
      w_.sequences.push_back({w_.num_rows, size, chunk.position, chunk.pages});
      AppendAdapterRows(chunk.adapter, w_.num_rows, size, w_.adapters);
      AppendAdapterRows(chunk.adapter, w_.num_logit_rows, chunk.logit_rows, w_.logit_adapters);
      w_.num_rows += size;
      w_.num_logit_rows += chunk.logit_rows;
      w_.max_positions = std::max(w_.max_positions, chunk.position + size);
    }
  }

  void PrepareBuffers() {
    hidden_ = w_.hidden.Ensure(w_.num_rows);
    normed_ = w_.normed.Ensure(w_.num_rows);
    qkv_ = w_.qkv.Ensure(w_.num_rows);
    attended_ = w_.attended.Ensure(w_.num_rows);
    gate_up_ = w_.gate_up.Ensure(w_.num_rows);
    activated_ = w_.activated.Ensure(w_.num_rows);
    last_hidden_ = w_.last_hidden.Ensure(w_.num_logit_rows);
    w_.logits.Reserve(w_.num_logit_rows * config_.vocab_size);
    w_.attention.Reserve(AttentionWorkspaceFloats(layout_, config_.num_heads, w_.max_positions, context_.pool->size()));
  }

  // Computes the angles, which are the same in every layer.
  void PrepareRope() {
    const std::int64_t half = config_.head_dim / 2;
    float* cos = EnsureFloats(w_.cosines, w_.num_rows * half);
    float* sin = EnsureFloats(w_.sines, w_.num_rows * half);
    for (const SequenceChunk& chunk : chunks_) {
      const std::int64_t end = chunk.position + static_cast<std::int64_t>(chunk.tokens.size());
      for (std::int64_t p = chunk.position; p < end; ++p, cos += half, sin += half) {
        w_.rope.Row(p, std::max(chunk.rope_length, p + 1), cos, sin);
      }
    }
  }

  void Embed() {
    const PackedMatrix& table = weights_.EmbeddingRows();
    context_.pool->Run(static_cast<std::int64_t>(chunks_.size()), [&](std::int64_t task, int) {
      const std::span<const TokenId> tokens = chunks_[static_cast<std::size_t>(task)].tokens;
      float* row = hidden_.data + w_.sequences[static_cast<std::size_t>(task)].first_row * hidden_.stride;
      for (TokenId token : tokens) {
        CHECK(token >= 0 && token < config_.vocab_size);
        table.UnpackRow(token, row);
        row += hidden_.stride;
      }
    });
  }

  void GatherLastHidden() {
    float* out = last_hidden_.data;
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      const AttentionSequence& sequence = w_.sequences[i];
      const std::int64_t end = sequence.first_row + sequence.num_tokens;
      for (std::int64_t row = end - chunks_[i].logit_rows; row < end; ++row, out += last_hidden_.stride) {
        std::memcpy(out, hidden_.data + row * hidden_.stride,
                    static_cast<std::size_t>(config_.hidden_size) * sizeof(float));
      }
    }
  }

  void Norm(Rows x, const std::vector<float>& weight, Rows y) {
    RmsNorm(context_, x.data, x.stride, w_.num_rows, config_.hidden_size, weight.data(), Epsilon(), y.data, y.stride);
  }

  // Normalises each head of each row in place. The kernel takes a single stride, so it is called per row or per head,
  // whichever needs fewer calls (the result is the same).
  void NormHeads(Rows x, std::int64_t heads, const std::vector<float>& weight) {
    const std::int64_t dim = config_.head_dim;
    const auto norm = [&](float* first, std::int64_t stride, std::int64_t count) {
      RmsNorm(context_, first, stride, count, dim, weight.data(), Epsilon(), first, stride);
    };
    if (w_.num_rows <= heads) {
      for (std::int64_t row = 0; row < w_.num_rows; ++row) norm(x.data + row * x.stride, dim, heads);
    } else {
      for (std::int64_t head = 0; head < heads; ++head) norm(x.data + head * dim, x.stride, w_.num_rows);
    }
  }

  void Linear(const PackedMatrix& matrix, const std::vector<float>& bias, Rows x, Rows y) {
    MatMul(context_, x.data, x.stride, w_.num_rows, matrix, bias.empty() ? nullptr : bias.data(), y.data, y.stride);
  }

  // The target of a LoRA product and the rows that it adds to.
  struct LoraOutput {
    LoraTarget target;
    Rows y;
  };

  // y += scale * B (A x) for the linear layers that share x, for the rows with an adapter that changes them. Calls no
  // kernel if there are none.
  void Lora(std::int64_t layer, Rows x, std::initializer_list<LoraOutput> outputs) {
    LoraProjection projections[kMaxSharedInput];
    std::size_t count = 0;
    std::int64_t workspace = 0;
    for (const LoraOutput& output : outputs) {
      std::vector<LoraSegment>& segments = w_.segments[count];
      const std::int64_t max_rank = CollectSegments(layer, output.target, segments);
      if (segments.empty()) continue;
      projections[count++] = {segments, output.y.data, output.y.stride, TargetShape(config_, output.target).out};
      workspace += segments.back().end * max_rank;
    }
    if (count == 0) return;
    LoraMatMul(context_, options_.lora_variant, std::span(projections, count), x.data, x.stride,
               TargetShape(config_, outputs.begin()->target).in, EnsureFloats(w_.lora, workspace));
  }

  // Collects the rows with an adapter that changes a linear layer. Returns the largest rank.
  std::int64_t CollectSegments(std::int64_t layer, LoraTarget target, std::vector<LoraSegment>& segments) {
    const auto& groups = target == LoraTarget::kLmHead ? w_.logit_adapters : w_.adapters;
    const std::size_t index = LoraView::Index(layer, target, config_.num_layers);
    std::int64_t max_rank = 0;
    segments.clear();
    for (const AdapterRows& group : groups) {
      const LoraWeights& module = group.adapter->modules[index];
      if (module.rank == 0) continue;
      segments.push_back({group.begin, group.end, module});
      max_rank = std::max<std::int64_t>(max_rank, module.rank);
    }
    return max_rank;
  }

  void AddToHidden(Rows x) {
    AddRows(context_, x.data, x.stride, w_.num_rows, config_.hidden_size, hidden_.data, hidden_.stride);
  }

  float Epsilon() const { return static_cast<float>(config_.rms_norm_eps); }

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Workspace& w_;
  const KernelContext& context_;
  std::span<const SequenceChunk> chunks_;
  const KvLayout& layout_;
  const PageArena& arena_;
  const ForwardOptions& options_;
  Rows hidden_, normed_, qkv_, attended_, gate_up_, activated_, last_hidden_;
};

bool UsesRopeLength(const ModelConfig& config, std::int64_t prompt_length) {
  return config.rope.scaling == RopeConfig::Scaling::kDynamic && prompt_length > config.max_position;
}

Model::Model(ModelConfig config, ModelWeights weights)
    : config_(std::move(config)), weights_(std::move(weights)), workspace_(std::make_unique<Workspace>(config_)) {}

Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::Load(const std::filesystem::path& directory, const Progress& progress) {
  ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(directory));
  ASSIGN_OR_RETURN(const TensorFile file, TensorFile::OpenModelDirectory(directory));
  ASSIGN_OR_RETURN(ModelWeights weights, PackModelWeights(config, file, progress));
  return std::make_unique<Model>(std::move(config), std::move(weights));
}

void Model::Reserve(std::int64_t max_tokens, std::int64_t max_logit_rows, std::int64_t max_positions,
                    std::int64_t max_rank, int threads) {
  Workspace& w = *workspace_;
  w.rope.Reserve(max_positions);
  const auto max_chunks = static_cast<std::size_t>(max_tokens);
  w.sequences.reserve(max_chunks);
  w.adapters.reserve(max_chunks);
  w.logit_adapters.reserve(max_chunks);
  for (auto& segments : w.segments) segments.reserve(max_chunks);
  for (RowBuffer* buffer : {&w.hidden, &w.normed, &w.qkv, &w.attended, &w.gate_up, &w.activated}) {
    buffer->Ensure(max_tokens);
  }
  w.cosines.Reserve(max_tokens * config_.head_dim / 2);
  w.sines.Reserve(max_tokens * config_.head_dim / 2);
  w.last_hidden.Ensure(max_logit_rows);
  w.logits.Reserve(max_logit_rows * config_.vocab_size);
  w.lora.Reserve(max_tokens * max_rank * static_cast<std::int64_t>(kMaxSharedInput));
  // The page size is not known yet; assume the largest.
  const KvLayout layout = {config_.num_layers, config_.num_kv_heads, config_.head_dim, 64, DType::kF32};
  w.attention.Reserve(AttentionWorkspaceFloats(layout, config_.num_heads, max_positions, threads));
}

std::span<const float> Model::Forward(const KernelContext& context, std::span<const SequenceChunk> chunks,
                                      const KvLayout& layout, const PageArena& arena, const ForwardOptions& options) {
  CheckLayout(config_, layout);
  return Pass(*this, *workspace_, context, chunks, layout, arena, options).Run();
}

}  // namespace loramux
