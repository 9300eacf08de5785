// The seam for devices: a second set of operations, with weights, activations, pages and adapters in forms of its own,
// runs the same forward pass as the CPU. It is written as plainly as possible and shares no kernel with it.
#include "model/forward_pass.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "memory/layer_progress.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/step_for_test.h"
#include "tensor/aligned_buffer.h"

namespace loramux {

// The "stream" of the plain operations: remembers what it was made to wait for.
class DeviceStream {
 public:
  std::vector<std::int64_t> waits;
};

}  // namespace loramux

namespace loramux::forward_pass_test {
namespace {

using Floats = std::vector<float>;
using Tokens = std::vector<TokenId>;

// A matrix by rows.
struct PlainMatrix {
  std::vector<Floats> rows;
  std::int64_t n() const { return static_cast<std::int64_t>(rows.size()); }
};
using PlainWeights = ModelWeightsOf<PlainMatrix, Floats>;

// Rows of vectors; not even contiguous.
struct PlainRows {
  std::vector<Floats>* rows = nullptr;
  std::size_t first = 0;
  PlainRows From(std::int64_t column) const { return {rows, first + static_cast<std::size_t>(column)}; }
  float* Row(std::int64_t i) const { return (*rows)[static_cast<std::size_t>(i)].data() + first; }
};

// One LoRA pair: rows of A, columns of B.
struct PlainPair {
  float scale = 0;
  std::vector<Floats> a, b;
};
using PlainAdapter = std::map<std::pair<std::int64_t, LoraTarget>, PlainPair>;

class PlainOps {
 public:
  using Rows = PlainRows;
  using Adapter = PlainAdapter;
  using Weights = PlainWeights;

  explicit PlainOps(const ModelConfig& config, std::int64_t page_tokens)
      : config_(config), page_tokens_(page_tokens), rope_(config, config.rope) {}

  ForwardBuffers<Rows> Begin(const StepRows<Adapter>& batch) {
    batch_ = &batch;
    sequence_of_.clear();
    positions_.clear();
    for (const StepSequence& sequence : batch.step->sequences) {
      for (std::int64_t i = 0; i < sequence.tokens.size; ++i) {
        sequence_of_.push_back(&sequence);
        positions_.push_back(sequence.position + i);
      }
    }
    for (auto& buffer : buffers_) buffer.clear();
    const auto make = [&](std::size_t i, std::int64_t rows, std::int64_t width) {
      buffers_[i].assign(static_cast<std::size_t>(rows), Floats(static_cast<std::size_t>(width), NAN));
      return Rows{&buffers_[i], 0};
    };
    const std::int64_t rows = batch.num_rows, logits = batch.MostLogitRows(), hidden = config_.hidden_size;
    scores.clear();
    return {.hidden = make(0, rows, hidden),
            .normed = make(1, rows, hidden),
            .qkv = make(2, rows, config_.QDim() + 2 * config_.KvDim()),
            .attended = make(3, rows, config_.QDim()),
            .gate_up = make(4, rows, 2 * config_.intermediate_size),
            .activated = make(5, rows, config_.intermediate_size),
            .last_hidden = make(6, logits, hidden),
            .logits = make(7, logits, config_.vocab_size)};
  }

  void EmbedRows(const PlainMatrix& table, Rows hidden) {
    for (std::size_t i = 0; i < batch_->step->tokens.size(); ++i) {
      const Floats& row = table.rows[static_cast<std::size_t>(batch_->step->tokens[i])];
      std::copy(row.begin(), row.end(), hidden.Row(static_cast<std::int64_t>(i)));
    }
  }

  void EmbedOwnRows(Rows) {}  // these adapters bring none

  void AwaitLayer(std::int64_t layer) {
    for (const auto& arrival : batch_->step->arrivals) arrival->events()->EnqueueWait(stream, layer);
  }

  // This file's models have none of what these are for.
  Rows Input(Rows x, std::int64_t, std::int64_t, Rows) { return x; }
  void NormOutput(NormOf, Rows, const PlainWeights::Norm&) {}
  void NormRow(NormOf, Rows, std::int64_t, const PlainWeights::Norm&) {}
  void EmbedPositions(const PlainMatrix&, Rows) {}
  void Scale(Rows, std::int64_t, std::int64_t, float, float) {}

  void Norm(NormOf, Rows x, std::int64_t rows, const PlainWeights::Norm& norm, Rows y) {
    for (std::int64_t i = 0; i < rows; ++i) NormOne(x.Row(i), norm.weight, y.Row(i));
  }
  void NormHeads(NormOf, Rows x, std::int64_t heads, const PlainWeights::Norm& norm) {
    for (std::int64_t i = 0; i < batch_->num_rows; ++i) {
      for (std::int64_t head = 0; head < heads; ++head) {
        float* const at = x.Row(i) + head * config_.head_dim;
        NormOne(at, norm.weight, at);
      }
    }
  }

  void Linear(std::int64_t layer, Rows x, std::int64_t rows, const PlainMatrix& w, const Floats& bias, Rows y,
              std::span<const LoraOutput<Rows>> outputs) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::size_t o = 0; o < w.rows.size(); ++o) {
        y.Row(i)[o] = Dot(w.rows[o], x.Row(i)) + (bias.empty() ? 0.0f : bias[o]);
      }
    }
    AddAdapters(layer, x, outputs);
  }

  void Rope(std::int64_t, Rows x, std::int64_t heads) {
    const auto half = static_cast<std::size_t>(config_.head_dim / 2);
    Floats cos(half), sin(half);
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      rope_.Row(positions_[i], positions_[i] + 1, cos.data(), sin.data());
      for (std::int64_t head = 0; head < heads; ++head) {
        float* const at = x.Row(static_cast<std::int64_t>(i)) + head * config_.head_dim;
        for (std::size_t t = 0; t < half; ++t) {
          const float a = at[t], b = at[t + half];
          at[t] = a * cos[t] - b * sin[t];
          at[t + half] = b * cos[t] + a * sin[t];
        }
      }
    }
  }

  void StoreKv(std::int64_t layer, Rows k, Rows v) {
    const auto width = static_cast<std::size_t>(config_.KvDim());
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      cache[Place(layer, *sequence_of_[i], positions_[i])] = {Floats(k.Row(row), k.Row(row) + width),
                                                              Floats(v.Row(row), v.Row(row) + width)};
    }
  }

  void Attention(std::int64_t layer, std::int64_t window, const Floats& /*sinks*/, const Floats& /*slopes*/, Rows q,
                 Rows out) {
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      for (std::int64_t head = 0; head < config_.num_heads; ++head) {
        const auto row = static_cast<std::int64_t>(i);
        Attend(layer, window, i, head, q.Row(row) + head * config_.head_dim, out.Row(row) + head * config_.head_dim);
      }
    }
  }

  void GateMul(Rows gate_up, std::int64_t rows, std::int64_t width, Rows y) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        const float gate = gate_up.Row(i)[j];
        y.Row(i)[j] = gate / (1 + std::exp(-gate)) * gate_up.Row(i)[width + j];
      }
    }
  }

  // Its models have neither experts nor inputs of layers: golden_test has some that do.
  void Route(const Floats& /*bias*/, Rows /*router*/, const Floats& /*scales*/, Rows /*x*/, Rows /*chosen*/) {}
  void ExpertLinear(std::int64_t /*layer*/, Rows /*x*/, const std::vector<PlainMatrix>& /*w*/,
                    const std::vector<Floats>& /*bias*/, Rows /*y*/, std::span<const LoraOutput<Rows>> /*outputs*/) {}
  void MixLayerInputs(Rows /*context*/, const PlainWeights::Norm& /*norm*/, Rows /*inputs*/) {}
  void GateLayerInput(std::int64_t /*layer*/, Rows /*gate*/, Rows /*y*/) {}
  void CombineChosen(Rows /*chosen*/, Rows /*router*/, Rows /*y*/) {}

  void Add(Rows x, Rows y) {
    for (std::int64_t i = 0; i < batch_->num_rows; ++i) {
      for (std::int64_t j = 0; j < config_.hidden_size; ++j) y.Row(i)[j] += x.Row(i)[j];
    }
  }

  void GatherLogitRows(const LogitBlock& block, Rows hidden, Rows y) {
    block_ = block;
    std::int64_t to = 0;
    for (const std::int64_t row : batch_->RowsOf(block)) {
      std::copy_n(hidden.Row(row), config_.hidden_size, y.Row(to++));
    }
  }

  // Greedy alone.
  void Sample(Rows logits, const SampleBatch& samples) {
    tokens.clear();
    for (std::size_t i = 0; i < samples.rows.size(); ++i) {
      const float* const row = logits.Row(static_cast<std::int64_t>(i));
      tokens.push_back(static_cast<TokenId>(std::max_element(row, row + config_.vocab_size) - row));
    }
  }

  void Score(Rows logits, std::span<const ScoreRow> rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const float* const row = logits.Row(static_cast<std::int64_t>(i));
      double total = 0;
      for (std::int64_t v = 0; v < config_.vocab_size; ++v) total += std::exp(static_cast<double>(row[v]));
      scores.push_back(static_cast<float>(row[rows[i].token] - std::log(total)));
    }
  }

  void Pool(Rows normed, const PoolBatch& pools) {
    pooled.clear();
    for (const PoolRange& range : pools.ranges) {
      const std::span<const double> before = pools.SumBefore(range);
      for (std::int64_t j = 0; j < config_.hidden_size; ++j) {
        double sum = before.empty() ? 0 : before[static_cast<std::size_t>(j)];
        for (std::int64_t i = 0; i < range.rows; ++i) sum += static_cast<double>(normed.Row(range.first_row + i)[j]);
        pooled.push_back(sum);
      }
    }
  }

  Tokens tokens;               // tokens of the last Sample
  std::vector<float> scores;   // scores of all Score since Begin
  std::vector<double> pooled;  // result of the last Pool
  std::map<std::tuple<std::int64_t, std::uint32_t, std::int64_t>, std::pair<Floats, Floats>> cache;
  DeviceStream stream;

 private:
  void AddAdapters(std::int64_t layer, Rows x, std::span<const LoraOutput<Rows>> outputs) {
    for (const LoraOutput<Rows>& output : outputs) {
      const bool head = output.target == LoraTarget::kLmHead;
      for (const auto& group : head ? batch_->AdaptersOf(block_) : std::span(batch_->adapters)) {
        const auto pair = group.adapter->find({layer, output.target});
        if (pair == group.adapter->end()) continue;
        for (std::int64_t i = group.begin; i < group.end; ++i) AddPair(pair->second, x.Row(i), output.y.Row(i));
      }
    }
  }

  static float Dot(const Floats& a, const float* b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
    return static_cast<float>(sum);
  }
  void NormOne(const float* x, const Floats& weight, float* y) const {
    double squares = 0;
    for (std::size_t i = 0; i < weight.size(); ++i) squares += static_cast<double>(x[i]) * x[i];
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(weight.size()) + config_.norm_eps);
    for (std::size_t i = 0; i < weight.size(); ++i) y[i] = static_cast<float>(x[i] * inverse * weight[i]);
  }
  static void AddPair(const PlainPair& pair, const float* x, float* y) {
    for (std::size_t j = 0; j < pair.a.size(); ++j) {
      const float coefficient = pair.scale * Dot(pair.a[j], x);
      for (std::size_t o = 0; o < pair.b[j].size(); ++o) y[o] += coefficient * pair.b[j][o];
    }
  }
  std::tuple<std::int64_t, std::uint32_t, std::int64_t> Place(std::int64_t layer, const StepSequence& sequence,
                                                              std::int64_t position) const {
    const std::span<const std::uint32_t> pages = batch_->step->PagesOf(sequence);
    return {layer, pages[static_cast<std::size_t>(position / page_tokens_)], position % page_tokens_};
  }
  void Attend(std::int64_t layer, std::int64_t window, std::size_t row, std::int64_t head, const float* q,
              float* out) const {
    const std::int64_t dim = config_.head_dim, kv = head / (config_.num_heads / config_.num_kv_heads) * dim;
    const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, positions_[row] - window + 1) : 0;
    std::vector<double> weights;
    double sum = 0;
    std::fill_n(out, dim, 0.0f);
    for (std::int64_t p = first; p <= positions_[row]; ++p) {
      const Floats& key = cache.at(Place(layer, *sequence_of_[row], p)).first;
      double score = 0;
      for (std::int64_t d = 0; d < dim; ++d) score += static_cast<double>(q[d]) * key[static_cast<std::size_t>(kv + d)];
      weights.push_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
      sum += weights.back();
    }
    for (std::int64_t p = first; p <= positions_[row]; ++p) {
      const Floats& value = cache.at(Place(layer, *sequence_of_[row], p)).second;
      const double weight = weights[static_cast<std::size_t>(p - first)] / sum;
      for (std::int64_t d = 0; d < dim; ++d)
        out[d] += static_cast<float>(weight * value[static_cast<std::size_t>(kv + d)]);
    }
  }

  const ModelConfig& config_;
  const std::int64_t page_tokens_;
  RopeTable rope_;
  const StepRows<Adapter>* batch_ = nullptr;
  LogitBlock block_;
  std::vector<const StepSequence*> sequence_of_;  // by row
  std::vector<std::int64_t> positions_;           // by row
  std::array<std::vector<Floats>, 8> buffers_;
};

static_assert(ForwardOps<PlainOps>);

// ---------------------------------------------------------------- One model in both forms

PlainMatrix Plain(const PackedMatrix& packed) {
  PlainMatrix plain;
  for (std::int64_t i = 0; i < packed.n(); ++i) packed.UnpackRow(i, plain.rows.emplace_back(packed.k()).data());
  return plain;
}

PlainWeights Plain(const ModelWeights& packed) {
  PlainWeights plain;
  plain.embedding = Plain(packed.embedding);
  plain.lm_head = Plain(packed.lm_head);
  plain.final_norm = packed.final_norm;
  for (const LayerWeights& w : packed.layers) {
    plain.layers.push_back({.qkv = Plain(w.qkv),
                            .o = Plain(w.o),
                            .gate_up = Plain(w.gate_up),
                            .down = Plain(w.down),
                            .qkv_bias = w.qkv_bias,
                            .o_bias = w.o_bias,
                            .gate_up_bias = w.gate_up_bias,
                            .down_bias = w.down_bias,
                            .input_norm = w.input_norm,
                            .attention_output_norm = w.attention_output_norm,
                            .mlp_norm = w.mlp_norm,
                            .mlp_output_norm = w.mlp_output_norm,
                            .q_norm = w.q_norm,
                            .k_norm = w.k_norm});
  }
  return plain;
}

Floats RandomRow(std::int64_t n, Prng& prng) {
  Floats row(static_cast<std::size_t>(n));
  for (float& value : row) value = static_cast<float>(prng.NextDouble() - 0.5) * 0.3f;
  return row;
}

// The same adapter for both sets of operations.
struct TwoAdapters {
  PlainAdapter plain;
  LoraView view;
  std::vector<AlignedBuffer<float>> memory;
  std::vector<std::unique_ptr<std::vector<const std::byte*>>> tables;

  // All targets in all layers, each at a rank of its own.
  TwoAdapters(const ModelConfig& config, Prng& prng) {
    view.modules.resize(LoraView::Index(0, LoraTarget::kLmHead, config.num_layers) + 1);
    for (int t = 0; t < kNumLoraTargets; ++t) {
      const auto target = static_cast<LoraTarget>(t);
      const std::int64_t layers = target == LoraTarget::kLmHead ? 1 : config.num_layers;
      for (std::int64_t layer = 0; layer < layers; ++layer) Add(config, layer, target, 2 + (t + layer) % 5, prng);
    }
  }

 private:
  void Add(const ModelConfig& config, std::int64_t layer, LoraTarget target, std::int64_t rank, Prng& prng) {
    const LinearShape shape = TargetShape(config, target);
    PlainPair& pair = plain[{layer, target}];
    pair.scale = 1.5f;
    for (std::int64_t j = 0; j < rank; ++j) {
      pair.a.push_back(RandomRow(shape.in, prng));
      pair.b.push_back(RandomRow(shape.out, prng));
    }
    view.modules[LoraView::Index(layer, target, config.num_layers)] = {static_cast<std::int32_t>(rank), pair.scale,
                                                                       DType::kF32, Copies(pair.a), Copies(pair.b)};
  }
  const std::byte* const* Copies(const std::vector<Floats>& rows) {
    auto& table = *tables.emplace_back(std::make_unique<std::vector<const std::byte*>>());
    for (const Floats& row : rows) {
      AlignedBuffer<float>& copy = memory.emplace_back(static_cast<std::int64_t>(row.size()));
      std::copy(row.begin(), row.end(), copy.data());
      table.push_back(reinterpret_cast<const std::byte*>(copy.data()));
    }
    return table.data();
  }
};

ModelConfig Config(bool rich) {
  ModelConfig config;
  config.hidden_size = 24;
  config.num_layers = 3;
  config.num_heads = 6;
  config.num_kv_heads = rich ? 2 : 6;
  config.head_dim = 8;
  config.intermediate_size = 40;
  config.vocab_size = 50;
  config.max_position = 128;
  config.sliding_window = rich ? std::vector<std::int64_t>{0, 6, 0} : std::vector<std::int64_t>{0, 0, 0};
  config.qk_norm = rich ? QkNorm::kHeads : QkNorm::kNone;
  config.attention_qkv_bias = config.attention_output_bias = config.mlp_bias = rich;
  config.tie_word_embeddings = !rich;
  return config;
}

ModelWeights Weights(const ModelConfig& config) {
  ModelWeights weights = RandomModelWeights(config, DType::kBF16, 1);
  Prng prng(2);
  for (LayerWeights& w : weights.layers) {
    for (Floats* bias : {&w.qkv_bias, &w.o_bias, &w.gate_up_bias, &w.down_bias}) {
      *bias = RandomRow(static_cast<std::int64_t>(bias->size()), prng);
    }
    for (ModelWeights::Norm* norm : {&w.input_norm, &w.mlp_norm, &w.q_norm, &w.k_norm}) {
      for (float& value : norm->weight) value += static_cast<float>(prng.NextDouble() - 0.5);
    }
  }
  return weights;
}

// Both sets of operations over the same model, with their own pages.
struct TwoModels {
  static constexpr std::int64_t kPages = 64;
  ModelConfig config;
  Model model;
  PlainWeights weights;
  KvLayout layout;
  AlignedBuffer<std::byte> arena;
  PlainOps ops;
  ThreadPool threads{2};

  explicit TwoModels(bool rich)
      : config(Config(rich)),
        model(config, Weights(config)),
        weights(Plain(model.weights())),
        layout{config.num_layers, config.num_kv_heads, config.head_dim, 4, DType::kF32},
        arena(static_cast<std::int64_t>(layout.PageBytes()) * kPages),
        ops(config, 4) {}

  // Computes the step with both. The result is the CPU's; that of the other operations is in `ops`.
  StepResult Forward(const StepForTest<TwoAdapters>& step) {
    std::vector<const LoraView*> views;
    std::vector<const PlainAdapter*> plains;
    for (const TwoAdapters* const adapter : step.adapters) {
      views.push_back(&adapter->view);
      plains.push_back(&adapter->plain);
    }
    StepResult result;
    model.Forward({{Backend::kCpu, &threads}, layout, {arena.data(), layout.PageBytes()}}, step.batch, views, result);
    rows.Describe(step.batch, plains);
    plain_logits = ForwardPass<PlainOps>(config, weights, ops).Run(rows);
    return result;
  }

  StepRows<PlainAdapter> rows;
  PlainRows plain_logits;
};

// A sequence as both see it.
struct Sequence {
  Tokens tokens;
  std::vector<std::uint32_t> pages;
  const TwoAdapters* adapter = nullptr;
  std::int64_t position = 0;

  StepSequence& AddTo(StepForTest<TwoAdapters>& step, std::int64_t count) const {
    const auto some = std::span(tokens).subspan(static_cast<std::size_t>(position), static_cast<std::size_t>(count));
    return step.Add(some, position, pages, adapter, 1);
  }
};

// The bar of model_test between two ways to compute the same logits.
constexpr float kTolerance = 2e-5f;

// Computes the next `counts` tokens of the sequences with both and compares logits and tokens. Returns the tokens.
Tokens Step(TwoModels& m, std::vector<Sequence>& sequences, const std::vector<std::int64_t>& counts) {
  StepForTest<TwoAdapters> step;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    step.batch.Sample(sequences[i].AddTo(step, counts[i]), {.temperature = 0}, {});
  }
  const std::vector<SampledToken> sampled = m.Forward(step).tokens;
  EXPECT_EQ(sampled.size(), sequences.size());
  EXPECT_EQ(m.ops.tokens.size(), sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto vocab = static_cast<std::size_t>(m.config.vocab_size);
    const auto cpu = m.model.logits().subspan(i * vocab, vocab);
    for (std::size_t v = 0; v < vocab; ++v) {
      EXPECT_NEAR(cpu[v], m.plain_logits.Row(static_cast<std::int64_t>(i))[v], kTolerance) << "sequence " << i;
    }
    EXPECT_EQ(sampled[i].id, m.ops.tokens[i]);
    sequences[i].position += counts[i];
  }
  return m.ops.tokens;
}

std::vector<Sequence> ThreeSequences(const TwoAdapters& x, const TwoAdapters& y) {
  Prng prng(5);
  std::vector<Sequence> sequences(3);
  sequences[1].adapter = &x;
  sequences[2].adapter = &y;
  for (std::uint32_t i = 0; i < 3; ++i) {
    for (int t = 0; t < 24; ++t) sequences[i].tokens.push_back(static_cast<TokenId>(prng.NextBelow(50)));
    for (std::uint32_t p = 0; p < 10; ++p) sequences[i].pages.push_back((p * 7 + i * 21) % 64);
  }
  return sequences;
}

// Prompts in chunks, then decoding, of the base model and two adapters in one batch.
TEST(ForwardPass, AnotherSetOfOperationsAgreesWithTheCpu) {
  for (const bool rich : {false, true}) {
    SCOPED_TRACE(rich ? "rich" : "plain");
    TwoModels m(rich);
    Prng prng(9);
    const TwoAdapters x(m.config, prng), y(m.config, prng);
    std::vector<Sequence> sequences = ThreeSequences(x, y);
    Step(m, sequences, {13, 1, 7});
    Tokens tokens = Step(m, sequences, {11, 23, 17});
    for (int step = 0; step < 8; ++step) {
      for (std::size_t i = 0; i < 3; ++i) sequences[i].tokens.push_back(tokens[i]);
      tokens = Step(m, sequences, {1, 1, 1});
    }
  }
}

// Prompts whose tokens are scored in part, with adapters, over more than one block of logits.
TEST(ForwardPass, BothSetsOfOperationsScoreTheSameRows) {
  TwoModels m(true);
  Prng prng(9);
  const TwoAdapters x(m.config, prng), y(m.config, prng);
  std::vector<Sequence> sequences = ThreeSequences(x, y);
  for (Sequence& sequence : sequences) {
    for (int t = 0; t < 16; ++t) sequence.tokens.push_back(static_cast<TokenId>(prng.NextBelow(50)));
  }
  const std::array<std::int32_t, 3> first = {0, 5, 1}, count = {39, 30, 20};
  StepForTest<TwoAdapters> step;
  for (std::size_t i = 0; i < 3; ++i) {
    StepSequence& part = sequences[i].AddTo(step, 40);
    const auto scored = std::span(sequences[i].tokens).subspan(static_cast<std::size_t>(first[i] + 1));
    step.batch.Score(part, scored.first(static_cast<std::size_t>(count[i])), first[i], 2);
    step.batch.Sample(part, {.temperature = 0}, {});
  }
  const StepResult result = m.Forward(step);
  const std::vector<ScoreRow>& rows = step.batch.scores;
  const std::vector<ScoredToken>& scores = result.scores;
  EXPECT_EQ(m.rows.scored.size(), 2u);  // 89 rows
  ASSERT_EQ(scores.size(), rows.size());
  ASSERT_EQ(m.ops.scores.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(scores[i].id, rows[i].token);
    EXPECT_NEAR(scores[i].logprob, m.ops.scores[i], kTolerance) << "row " << i;
    ASSERT_EQ(scores[i].top_logprobs.size(), 2u);
    EXPECT_EQ(scores[i].rank == 1, scores[i].top_logprobs[0].id == scores[i].id);
    EXPECT_GE(scores[i].top_logprobs[0].logprob, scores[i].logprob);
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(result.tokens[i].id, m.ops.tokens[i]);
}

// Sums over a part of each prompt, one of which goes on from an earlier sum.
TEST(ForwardPass, BothSetsOfOperationsPoolTheSameRows) {
  TwoModels m(true);
  Prng prng(9);
  const TwoAdapters x(m.config, prng), y(m.config, prng);
  const std::vector<Sequence> sequences = ThreeSequences(x, y);
  StepForTest<TwoAdapters> step;
  for (const Sequence& sequence : sequences) sequence.AddTo(step, 20);
  const std::vector<double> before(static_cast<std::size_t>(m.config.hidden_size), 0.75);
  step.batch.pools.Add(0, 20, {});
  step.batch.pools.Add(39, 1, {});
  step.batch.pools.Add(45, 15, before);
  const std::vector<double> pooled = m.Forward(step).pooled;
  ASSERT_EQ(pooled.size(), 3 * before.size());
  ASSERT_EQ(m.ops.pooled.size(), pooled.size());
  for (std::size_t i = 0; i < pooled.size(); ++i) EXPECT_NEAR(pooled[i], m.ops.pooled[i], 20 * kTolerance) << i;
}

// An adapter of which each layer arrives when the stream is made to wait for it, and is NaN before.
class ArrivingLayers final : public LayerEvents {
 public:
  ArrivingLayers(PlainAdapter complete, PlainAdapter* arriving) : complete_(std::move(complete)), arriving_(arriving) {}
  void EnqueueWait(DeviceStream& stream, std::int64_t layer) const override {
    stream.waits.push_back(layer);
    for (const auto& [place, pair] : complete_) {
      const bool head = place.second == LoraTarget::kLmHead;  // counts as the last layer's
      if ((head ? kLastLayer : place.first) == layer) (*arriving_)[place] = pair;
    }
  }

 private:
  static constexpr std::int64_t kLastLayer = 2;
  const PlainAdapter complete_;
  PlainAdapter* arriving_;
};

TEST(ForwardPass, ADeviceWaitsForEachLayerOnItsStream) {
  TwoModels m(true);
  Prng prng(9);
  const TwoAdapters whole(m.config, prng);
  PlainAdapter arriving = whole.plain;
  for (auto& [place, pair] : arriving) pair.scale = NAN;
  auto progress = std::make_shared<LayerProgress>(3);
  progress->AttachEvents(std::make_unique<ArrivingLayers>(whole.plain, &arriving));
  EXPECT_EQ(progress->arrived(), 0);  // the host's count plays no part

  std::vector<Sequence> sequences = ThreeSequences(whole, whole);
  const auto run = [&](const PlainAdapter& adapter, const std::shared_ptr<const LayerProgress>& arrival) {
    StepForTest<PlainAdapter> step;
    step.Add(std::span(sequences[1].tokens).first(9), 0, sequences[1].pages, &adapter, 1);
    step.batch.Await(arrival);
    StepRows<PlainAdapter> rows;
    rows.Describe(step.batch, step.adapters);
    const PlainRows logits = ForwardPass<PlainOps>(m.config, m.weights, m.ops).Run(rows);
    return Floats(logits.Row(0), logits.Row(0) + m.config.vocab_size);
  };
  const Floats expected = run(whole.plain, nullptr);
  EXPECT_TRUE(std::isnan(run(arriving, nullptr).front()));
  EXPECT_EQ(run(arriving, progress), expected);
  EXPECT_EQ(m.ops.stream.waits, (std::vector<std::int64_t>{0, 1, 2}));
}

}  // namespace
}  // namespace loramux::forward_pass_test
