#include "model/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

float* EnsureFloats(AlignedBuffer<float>& buffer, std::int64_t floats) {
  buffer.Reserve(floats);
  return buffer.data();
}

DeltaShape ShapeOf(const RecurrentConfig& config) {
  return {config.key_heads, config.value_heads, config.key_dim, config.value_dim};
}

// What no adapter brings cannot be generated.
void ExcludeAddedTokens(const ModelConfig& config, Rows logits, std::int64_t rows) {
  for (std::int64_t row = 0; config.added_tokens > 0 && row < rows; ++row) {
    std::fill_n(logits.data + row * logits.stride + config.BaseTokens(), config.added_tokens,
                -std::numeric_limits<float>::infinity());
  }
}

std::span<const float> LogitsOf(const ModelConfig& config, Rows logits, std::int64_t row) {
  return {logits.data + row * logits.stride, static_cast<std::size_t>(config.vocab_size)};
}

}  // namespace

CpuWorkspace::CpuWorkspace(const ModelConfig& config, const ModelConfig& whole, const ModelPart& part)
    : rope(config, config.rope),
      hidden(config.hidden_size),
      normed(config.hidden_size),
      qkv(config.MostQkvDim()),
      attended(config.MostAttended()),
      gate_up(config.GateUpDim(config.MostBlockSize())),
      activated(config.MostBlockSize()),
      embedded(config.embedding_size),
      last_embedded(config.embedding_size),
      layer_inputs(config.num_layers * config.layer_input_size),
      layer_context(config.num_layers * config.layer_input_size),
      layer_gate(2 * config.layer_input_size),
      layer_gated(config.layer_input_size),
      output_gates(config.output_gate ? config.MostQDim() : 0),
      mixed(config.recurrent ? config.recurrent->Channels() : 0),
      state_gates(config.recurrent && !config.recurrent->mamba ? 2 * config.recurrent->value_heads : 0),
      last_hidden(config.hidden_size),
      router(config.experts ? config.experts->route.experts + 1 : 0),
      chosen(config.experts ? config.hidden_size : 0),
      chosen_up(config.experts ? 2 * config.experts->intermediate_size : 0),
      chosen_between(config.experts ? config.experts->intermediate_size : 0),
      exchange(part),
      part_output(part.whole() ? 0 : RangeOf(part, whole.hidden_size).room) {
  if (config.local_rope) local_rope.emplace(config, *config.local_rope);
}

void CpuWorkspace::Reserve(const ModelConfig& config, std::int64_t max_tokens, std::int64_t max_logit_rows,
                           std::int64_t max_positions, std::int64_t max_rank, int threads) {
  rope.Reserve(max_positions);
  if (local_rope) local_rope->Reserve(max_positions);
  const auto max_chunks = static_cast<std::size_t>(max_tokens);
  sequences.reserve(max_chunks);
  state_sequences.reserve(max_chunks);
  batch.adapters.reserve(max_chunks);
  batch.logit_adapters.reserve(max_chunks);
  batch.logit_rows.reserve(max_chunks);
  for (auto& of_target : segments) of_target.reserve(max_chunks);
  own_segments.reserve(max_chunks);
  for (CpuRowBuffer* buffer : {&hidden, &normed, &qkv, &attended, &gate_up, &activated, &embedded, &layer_inputs,
                               &layer_context, &layer_gate, &layer_gated, &output_gates, &mixed, &state_gates}) {
    buffer->Ensure(max_tokens);
  }
  for (Angles& of_rope : angles) {
    of_rope.cosines.Reserve(max_tokens * config.MostHeadDim() / 2);
    of_rope.sines.Reserve(max_tokens * config.MostHeadDim() / 2);
  }
  if (config.experts) {
    const RouteForm& form = config.experts->route;
    const std::int64_t pairs = max_tokens * form.per_token;
    router.Ensure(max_tokens);
    for (CpuRowBuffer* buffer : {&chosen, &chosen_up, &chosen_between}) buffer->Ensure(pairs);
    experts.reserve(static_cast<std::size_t>(pairs));
    expert_weights.reserve(static_cast<std::size_t>(pairs));
    expert_runs.reserve(static_cast<std::size_t>(pairs));
    for (auto& of_target : segments) of_target.reserve(static_cast<std::size_t>(pairs));
    lora.Reserve(pairs * max_rank * 2);
    chosen_rows.begins.reserve(static_cast<std::size_t>(form.experts) + 1);
    chosen_rows.rows.reserve(static_cast<std::size_t>(pairs));
    chosen_rows.places.reserve(static_cast<std::size_t>(pairs));
  }
  last_hidden.Ensure(max_logit_rows);
  last_embedded.Ensure(max_logit_rows);
  logits.Reserve(max_logit_rows * config.vocab_size);
  lora.Reserve(max_tokens * max_rank * static_cast<std::int64_t>(kMaxSharedInput));
  // The page size is not known yet; assume the largest.
  const KvLayout layout = {config.num_layers, config.num_kv_heads, config.MostHeadDim(), 64, DType::kF32};
  attention.Reserve(AttentionWorkspaceFloats(layout, config.num_heads, max_positions, threads));
  if (config.recurrent) states.Reserve(DeltaWorkspaceFloats(ShapeOf(*config.recurrent)) * threads);
  sampler.resize(static_cast<std::size_t>(threads));
}

ForwardBuffers<Rows> CpuOps::Begin(const StepRows<LoraView>& batch) {
  batch_ = &batch;
  w_.exchange.Begin(f_.group);
  w_.sequences.clear();
  w_.state_sequences.clear();
  for (const StepSequence& sequence : batch.step->sequences) {
    const std::int64_t first_row = sequence.tokens.first, size = sequence.tokens.size;
    const std::uint32_t* const pages = batch.step->PagesOf(sequence).data();
    w_.sequences.push_back({first_row, size, sequence.position, pages + f_.layout.state_pages});
    if (config_.recurrent) w_.state_sequences.push_back({first_row, size, sequence.position == 0, pages});
  }
  const std::int64_t rows = batch.num_rows, pairs = config_.experts ? rows * config_.experts->route.per_token : 0;
  KvLayout widest = f_.layout;
  widest.head_dim = config_.MostHeadDim();
  w_.attention.Reserve(
      AttentionWorkspaceFloats(widest, config_.num_heads, batch.max_positions, f_.context.pool->size()));
  PrepareRope(w_.rope, w_.angles[0]);
  if (w_.local_rope) PrepareRope(*w_.local_rope, w_.angles[1]);
  return {.hidden = w_.hidden.Ensure(rows),
          .normed = w_.normed.Ensure(rows),
          .embedded = w_.embedded.Ensure(rows),
          .layer_inputs = w_.layer_inputs.Ensure(rows),
          .layer_context = w_.layer_context.Ensure(rows),
          .layer_gate = w_.layer_gate.Ensure(rows),
          .layer_gated = w_.layer_gated.Ensure(rows),
          .qkv = w_.qkv.Ensure(rows),
          .attended = w_.attended.Ensure(rows),
          .gate_up = w_.gate_up.Ensure(rows),
          .activated = w_.activated.Ensure(rows),
          .router = w_.router.Ensure(rows),
          .chosen = w_.chosen.Ensure(pairs),
          .chosen_up = w_.chosen_up.Ensure(pairs),
          .chosen_between = w_.chosen_between.Ensure(pairs),
          .output_gates = w_.output_gates.Ensure(rows),
          .mixed = w_.mixed.Ensure(rows),
          .state_gates = w_.state_gates.Ensure(rows),
          .last_hidden = w_.last_hidden.Ensure(batch.MostLogitRows()),
          .last_embedded = w_.last_embedded.Ensure(batch.MostLogitRows()),
          .logits = {EnsureFloats(w_.logits, batch.MostLogitRows() * config_.vocab_size), config_.vocab_size}};
}

// Computes the angles, which are the same in every layer.
void CpuOps::PrepareRope(RopeTable& table, CpuWorkspace::Angles& angles) const {
  const std::int64_t half = table.rotary_dim() / 2;
  float* cos = EnsureFloats(angles.cosines, batch_->num_rows * half);
  float* sin = EnsureFloats(angles.sines, batch_->num_rows * half);
  for (const StepSequence& sequence : batch_->step->sequences) {
    const std::int64_t end = sequence.position + sequence.tokens.size;
    for (std::int64_t p = sequence.position; p < end; ++p, cos += half, sin += half) {
      table.Row(p, std::max(sequence.prompt_tokens, p + 1), cos, sin);
    }
  }
}

void CpuOps::EmbedRows(const Matrix& table, Rows hidden) {
  const StepBatch& step = *batch_->step;
  const OutputRange own = RangeOf(w_.exchange.part(), config_.BaseTokens());
  f_.context.pool->Run(static_cast<std::int64_t>(step.sequences.size()), [&](std::int64_t task, int) {
    const StepSequence& sequence = step.sequences[static_cast<std::size_t>(task)];
    float* row = hidden.data + sequence.tokens.first * hidden.stride;
    for (const TokenId token : step.TokensOf(sequence)) {
      CHECK(token >= 0 && token < config_.vocab_size);
      // A token of an adapter alone: EmbedOwnRows writes its row. Layers have no input of it.
      if (token >= config_.BaseTokens()) {
        std::fill_n(row, table.k(), 0.0f);
      } else if (token >= own.first && token < own.first + own.count) {
        table.UnpackRow(token - own.first, row);
      }
      row += hidden.stride;
    }
  });
  if (w_.exchange.whole()) return;
  w_.owners.clear();
  for (const TokenId token : step.tokens) w_.owners.push_back(token < config_.BaseTokens() ? token / own.room : 0);
  w_.exchange.RowsOfOwners(w_.owners, table.k(), hidden);
}

void CpuOps::EmbedOwnRows(Rows hidden) {
  const auto changes = [](const auto& group) { return group.adapter->ChangesEmbedding(); };
  if (std::ranges::none_of(batch_->adapters, changes)) return;
  const StepBatch& step = *batch_->step;
  f_.context.pool->Run(static_cast<std::int64_t>(step.sequences.size()), [&](std::int64_t task, int) {
    const StepSequence& sequence = step.sequences[static_cast<std::size_t>(task)];
    const LoraView* const adapter = batch_->AdapterOf(sequence);
    if (adapter == nullptr || !adapter->ChangesEmbedding()) return;
    float* row = hidden.data + sequence.tokens.first * hidden.stride;
    for (const TokenId token : step.TokensOf(sequence)) {
      if (const std::byte* const own = adapter->embedding.Find(token)) {
        for (std::int64_t t = 0; t < config_.EmbeddingSize(); ++t) {
          row[t] = LoadAsF32(adapter->embedding.dtype, own, t);
        }
      }
      AddEmbeddingLora(adapter->embedding_lora, token, config_.EmbeddingSize(), row);
      row += hidden.stride;
    }
  });
}

void CpuOps::EmbedPositions(const Matrix& table, Rows hidden) {
  float* const position = w_.normed.Ensure(batch_->num_rows).data;  // nothing is there yet
  float* row = hidden.data;
  for (const StepSequence& sequence : batch_->step->sequences) {
    for (std::int64_t p = sequence.position; p < sequence.position + sequence.tokens.size; ++p, row += hidden.stride) {
      table.UnpackRow(p + *config_.position_rows_before, position);
      for (std::int64_t t = 0; t < config_.hidden_size; ++t) row[t] += position[t];
    }
  }
}

void CpuOps::AwaitLayer(std::int64_t layer) {
  const auto is_there = [layer](const auto& arrival) {
    return arrival->failed() || arrival->arrived() > std::min<std::int64_t>(layer, arrival->layers() - 1);
  };
  const auto& arrivals = batch_->step->arrivals;
  if (std::ranges::all_of(arrivals, is_there)) return;
  const TimeNs begin = clock_.Now();
  for (const auto& arrival : arrivals) arrival->Wait(layer);
  waited_ += clock_.Now() - begin;
}

template <typename F>
void CpuOps::ForEachNorm(NormOf norm, std::span<const AdapterRowsOf<LoraView>> groups, std::int64_t rows,
                         const NormVectors& weights, const F& fn) const {
  const std::size_t index = LoraView::NormIndex(norm.layer, norm.kind, config_.num_layers);
  const float offset = NormOffsetOf(config_);
  const NormWeights of_base = {weights.weight.data(), offset, weights.bias.empty() ? nullptr : weights.bias.data()};
  std::int64_t begin = 0;  // first of the rows with the base's weights
  for (const AdapterRowsOf<LoraView>& group : groups) {
    const float* const own = norm.of_base_alone ? nullptr : group.adapter->Norm(index);
    if (own == nullptr) continue;
    if (begin < group.begin) fn(begin, group.begin, of_base);
    fn(group.begin, group.end, NormWeights{own, offset});
    begin = group.end;
  }
  if (begin < rows) fn(begin, rows, of_base);
}

void CpuOps::Norm(NormOf norm, Rows x, std::int64_t rows, const NormVectors& weights, Rows y) {
  const bool of_logits = x.data == w_.last_hidden.Ensure(0).data;
  const auto groups = of_logits ? batch_->AdaptersOf(block_) : std::span(batch_->adapters);
  ForEachNorm(norm, groups, rows, weights, [&](std::int64_t begin, std::int64_t end, const NormWeights& of_rows) {
    NormRows(f_.context, {.x = x.Below(begin),
                          .y = y.Below(begin),
                          .rows = end - begin,
                          .width = config_.hidden_size,
                          .weights = of_rows,
                          .eps = NormEpsilonOf(config_)});
  });
}

// The kernel takes a single stride, so it is called per row or per head, whichever needs fewer calls (the result is the
// same).
void CpuOps::NormHeads(NormOf norm, Rows x, std::int64_t heads, const NormVectors& weights) {
  const std::int64_t dim = config_.HeadsOf(norm.layer).head_dim;
  const auto norm_some = [&](Rows some, std::int64_t rows, const NormWeights& of_rows) {
    NormRows(f_.context,
             {.x = some, .y = some, .rows = rows, .width = dim, .weights = of_rows, .eps = NormEpsilonOf(config_)});
  };
  if (config_.qk_norm == QkNorm::kLayerOfHeads) {  // adapters bring no weights of these norms
    for (std::int64_t first = 0; first < heads * dim; first += dim) {
      norm_some(x.From(first), batch_->num_rows,
                {.weight = weights.weight.data() + first, .bias = weights.bias.data() + first});
    }
    return;
  }
  const auto norm_rows = [&](std::int64_t begin, std::int64_t end, const NormWeights& of_rows) {
    if (end - begin <= heads) {
      for (std::int64_t row = begin; row < end; ++row) norm_some({x[row], dim}, heads, of_rows);
    } else {
      for (std::int64_t head = 0; head < heads; ++head)
        norm_some(x.Below(begin).From(head * dim), end - begin, of_rows);
    }
  };
  ForEachNorm(norm, batch_->adapters, batch_->num_rows, weights, norm_rows);
}

void CpuOps::NormRow(NormOf norm, Rows own, std::int64_t own_width, const NormVectors& weights) {
  Rows x = own;
  std::int64_t width = own_width, first = 0;
  if (!w_.exchange.whole()) {
    // Ranks that have the same heads of keys give the same columns, of which the first ones count.
    width = static_cast<std::int64_t>(weights.weight.size());
    const std::int64_t of_all = own_width * w_.exchange.part().ranks, copies = of_all / width;
    x = w_.exchange.Whole(own, batch_->num_rows, of_all);
    for (std::int64_t row = 0; copies > 1 && row < batch_->num_rows; ++row) {
      for (std::int64_t at = own_width; at < width; at += own_width)
        std::copy_n(x[row] + at * copies, own_width, x[row] + at);
    }
    first = w_.exchange.part().rank / copies * own_width;
  }
  ForEachNorm(norm, batch_->adapters, batch_->num_rows, weights,
              [&](std::int64_t begin, std::int64_t end, const NormWeights& of_rows) {
                const Rows some = x.Below(begin);
                NormRows(f_.context, {some, some, end - begin, width, of_rows, NormEpsilonOf(config_)});
              });
  if (w_.exchange.whole()) return;
  for (std::int64_t row = 0; row < batch_->num_rows; ++row) std::copy_n(x[row] + first, own_width, own[row]);
}

void CpuOps::Linear(std::int64_t layer, Rows x, std::int64_t rows, const Matrix& w, const Vector& bias, Rows y,
                    std::span<const LoraOutput<Rows>> outputs) {
  const bool of_logits = !outputs.empty() && outputs.front().target == LoraTarget::kLmHead;
  const std::int64_t tokens = config_.BaseTokens();
  if (outputs.empty() || !w_.exchange.Splits(outputs.front().target)) {
    if (of_logits) ExcludeAddedTokens(config_, y, rows);
    return OwnLinear(layer, x, rows, w, bias, y, 0, outputs);
  }
  if (!of_logits) {
    const Rows own = w_.part_output.Ensure(rows);
    const LoraOutput<Rows> own_output = {outputs.front().target, own};
    OwnLinear(layer, w_.exchange.Whole(x, rows, w.k()), rows, w, bias, own, 0, {&own_output, 1});
    return w_.exchange.Columns(own, rows, config_.hidden_size, y);
  }
  const std::int64_t first = RangeOf(w_.exchange.part(), tokens).first;
  OwnLinear(layer, x, rows, w, bias, y, first, outputs);
  w_.exchange.Columns(y.From(first), rows, tokens, y, /*to_root=*/true);
  ExcludeAddedTokens(config_, y, rows);
  if (CollectOwnSegments(tokens, config_.vocab_size)) {
    OwnProducts(f_.context, {w_.own_segments, x, config_.EmbeddingSize(), y});
  }
}

void CpuOps::OwnLinear(std::int64_t layer, Rows x, std::int64_t rows, const Matrix& w, const Vector& bias, Rows y,
                       std::int64_t first, std::span<const LoraOutput<Rows>> outputs) {
  const bool shares = !outputs.empty() && w_.exchange.Splits(outputs.front().target);
  LoraProjection projections[kMaxSharedInput];
  std::size_t count = 0;
  std::int64_t workspace = 0;
  for (const LoraOutput<Rows>& output : outputs) {
    std::vector<LoraSegment>& segments = w_.segments[count];
    const std::int64_t max_rank = CollectSegments(layer, output, segments);
    if (segments.empty()) continue;
    const std::int64_t out = shares ? w.n() : TargetShape(config_, output.target, layer).out;
    projections[count++] = {segments, output.y.From(first), out};
    workspace += segments.back().end * max_rank;
  }
  const MatMulArguments product = {x, rows, w, bias.empty() ? nullptr : bias.data(), y.From(first)};
  const bool of_logits = !outputs.empty() && outputs.front().target == LoraTarget::kLmHead;
  const bool own = of_logits && CollectOwnSegments(first, shares ? first + w.n() : config_.vocab_size);
  if (own || count == 0) MatMul(f_.context, product);
  if (own) OwnProducts(f_.context, {w_.own_segments, x, config_.EmbeddingSize(), y});
  if (count == 0) return;
  const MatMulWithLoraArguments with_lora = {product, f_.lora_variant, std::span(projections, count),
                                             EnsureFloats(w_.lora, workspace)};
  if (own) return LoraMatMul(f_.context, with_lora.Lora());
  MatMulWithLora(f_.context, with_lora);
}

bool CpuOps::IsOfBlock(Rows y) const { return y.data == w_.logits.data() || y.data == w_.last_embedded.Ensure(0).data; }

// Collects the rows with an adapter that changes a linear layer. Returns the largest rank.
std::int64_t CpuOps::CollectSegments(std::int64_t layer, const LoraOutput<Rows>& output,
                                     std::vector<LoraSegment>& segments) {
  const std::span<const AdapterRowsOf<LoraView>> groups =
      IsOfBlock(output.y) ? batch_->AdaptersOf(block_) : std::span(batch_->adapters);
  std::int64_t max_rank = 0;
  segments.clear();
  for (const AdapterRowsOf<LoraView>& group : groups) {
    const LoraWeights* const module = group.adapter->Find(layer, output.target, config_.num_layers);
    if (module == nullptr || !module->changes()) continue;
    segments.push_back({group.begin, group.end, *module});
    max_rank = std::max<std::int64_t>(max_rank, module->rank);
  }
  return max_rank;
}

// The places of an expert are in the order of rows, and so are the adapters.
void CpuOps::CollectExpertRuns() {
  w_.expert_runs.clear();
  if (std::ranges::none_of(batch_->adapters, [](const auto& g) { return g.adapter->experts_of_layer > 0; })) return;
  const ChosenRows& chosen = w_.chosen_rows;
  for (std::size_t e = 0; e + 1 < chosen.begins.size(); ++e) {
    auto group = batch_->adapters.begin();
    for (std::int64_t place = chosen.begins[e]; place < chosen.begins[e + 1]; ++place) {
      const std::int64_t row = chosen.rows[static_cast<std::size_t>(place)];
      while (group != batch_->adapters.end() && group->end <= row) ++group;
      if (group == batch_->adapters.end()) break;
      if (row < group->begin || group->adapter->experts_of_layer == 0) continue;
      const auto expert = static_cast<std::int64_t>(e);
      const bool continues = !w_.expert_runs.empty() && w_.expert_runs.back().expert == expert &&
                             w_.expert_runs.back().adapter == group->adapter && w_.expert_runs.back().end == place;
      if (!continues) w_.expert_runs.push_back({expert, place, place, group->adapter});
      w_.expert_runs.back().end = place + 1;
    }
  }
}

std::int64_t CpuOps::CollectExpertSegments(std::int64_t layer, LoraTarget target,
                                           std::vector<LoraSegment>& segments) const {
  std::int64_t max_rank = 0;
  segments.clear();
  for (const CpuWorkspace::ExpertRun& run : w_.expert_runs) {
    const LoraWeights* const module = run.adapter->OfExpert(layer, run.expert, target);
    if (module == nullptr || !module->changes()) continue;
    segments.push_back({run.begin, run.end, *module});
    max_rank = std::max<std::int64_t>(max_rank, module->rank);
  }
  return max_rank;
}

bool CpuOps::CollectOwnSegments(std::int64_t first, std::int64_t end) {
  w_.own_segments.clear();
  for (const AdapterRowsOf<LoraView>& group : batch_->AdaptersOf(block_)) {
    const OwnRows& all = group.adapter->output;
    const TokenId* const begin = std::lower_bound(all.tokens, all.tokens + all.count, static_cast<TokenId>(first));
    const TokenId* const last = std::lower_bound(begin, all.tokens + all.count, static_cast<TokenId>(end));
    if (begin == last) continue;
    w_.own_segments.push_back(
        {group.begin, group.end, {last - begin, all.dtype, begin, all.rows + (begin - all.tokens)}});
  }
  return !w_.own_segments.empty();
}

void CpuOps::Rope(std::int64_t layer, Rows x, std::int64_t heads) {
  const bool local = config_.RopeOf(layer) == LayerRope::kLocal;
  const RopeTable& table = local ? *w_.local_rope : w_.rope;
  const CpuWorkspace::Angles& angles = w_.angles[local ? 1 : 0];
  loramux::Rope(f_.context,
                {.x = x,
                 .rows = batch_->num_rows,
                 .heads = heads,
                 .shape = {config_.HeadsOf(layer).head_dim, table.rotary_dim(), config_.rope.adjacent_pairs},
                 .cos = angles.cosines.data(),
                 .sin = angles.sines.data()});
  if (config_.rope.query_beta == 0) return;
  Rows q = x;
  for (const StepSequence& sequence : batch_->step->sequences) {
    const std::int64_t end = sequence.position + sequence.tokens.size;
    for (std::int64_t p = sequence.position; p < end; ++p, q = q.Below(1)) {
      Scale(q, 1, config_.QDim(), config_.QueryScale(p), 0.0f);
    }
  }
}

PagesOfLayer CpuOps::PagesOf(std::int64_t layer) const {
  const HeadShape heads = config_.HeadsOf(layer);
  if (heads.head_dim == f_.layout.head_dim && heads.num_kv_heads == f_.layout.num_kv_heads) {
    return {f_.layout, f_.arena, config_.KvIndex(layer)};
  }
  // In the part of a page that is the layer's, which its heads need not fill.
  const KvLayout own = {1, heads.num_kv_heads, heads.head_dim, f_.layout.page_tokens, f_.layout.dtype};
  return {own, {f_.arena.base + f_.layout.KeyOffset(layer, 0), f_.arena.page_stride}, 0};
}

void CpuOps::StoreKv(std::int64_t layer, Rows k, Rows v) {
  loramux::StoreKv(f_.context, {PagesOf(layer), w_.sequences, k, v});
}

void CpuOps::Attention(std::int64_t layer, std::int64_t window, const Vector& sinks, const Vector& slopes, Rows q,
                       Rows out) {
  ScoreForm form = ScoresOf(config_, window);
  form.sinks = sinks.empty() ? nullptr : sinks.data();
  form.slopes = slopes.empty() ? nullptr : slopes.data();
  loramux::Attention(f_.context, {.pages = PagesOf(layer),
                                  .sequences = w_.sequences,
                                  .num_heads = config_.num_heads,
                                  .form = form,
                                  .q = q,
                                  .out = out,
                                  .workspace = w_.attention.data()});
}

void CpuOps::SplitGates(std::int64_t layer, Rows x, Rows gates) {
  loramux::SplitGates(f_.context, {x, gates, batch_->num_rows, config_.num_heads, config_.HeadsOf(layer).head_dim});
}

void CpuOps::MulSigmoid(std::int64_t layer, Rows gates, Rows y) {
  loramux::MulSigmoid(f_.context, {gates, y, batch_->num_rows, config_.QDim(layer)});
}

void CpuOps::Scan(const StateWeightsOf<Vector>& weights, const StatePlace& place, Rows mixed, Rows steps, Rows z,
                  Rows out) {
  const RecurrentConfig& config = *config_.recurrent;
  const DeltaShape shape = ShapeOf(config);
  SelectiveScan(f_.context,
                {.shape = shape,
                 .rate = weights.rate.data(),
                 .bias = weights.dt_bias.data(),
                 .skip = weights.skip.data(),
                 .least_step = static_cast<float>(config.least_step),
                 .most_step = static_cast<float>(config.most_step),
                 .place = place,
                 .sequences = w_.state_sequences,
                 .x = mixed,
                 .steps = steps,
                 .out = out,
                 .workspace = EnsureFloats(w_.states, DeltaWorkspaceFloats(shape) * f_.context.pool->size())});
  const std::int64_t group = shape.Values() / shape.key_heads;
  GatedRmsNorm(f_.context, {.rows = batch_->num_rows,
                            .heads = shape.key_heads,
                            .head_dim = group,
                            .weight = weights.norm.data(),
                            .eps = NormEpsilonOf(config_),
                            .z = z,
                            .y = out,
                            .gate_first = true,
                            .weight_stride = group});
}

void CpuOps::MixStates(std::int64_t layer, const StateWeightsOf<Vector>& weights, Rows x, Rows gates, Rows mixed,
                       Rows out) {
  const RecurrentConfig& config = *config_.recurrent;
  const DeltaShape shape = ShapeOf(config);
  CHECK_GE(f_.layout.state_pages * f_.layout.StateFloats() * static_cast<std::int64_t>(sizeof(float)),
           config.StateBytes());
  const StatePlace conv = {f_.arena, f_.layout.StateFloats(), config.Before(layer) * config.LayerFloats()};
  StatePlace heads = conv;
  heads.first += config.ConvFloats();
  // Mamba-2 has z, then what is mixed, then the steps of the heads; gated DeltaNet what is mixed, then z.
  const Rows z = x.From(config.mamba ? 0 : shape.Channels()), to_mix = x.From(config.mamba ? shape.Values() : 0);
  CausalConv(f_.context, {.channels = shape.Channels(),
                          .width = config.conv_width,
                          .weights = weights.conv.data(),
                          .place = conv,
                          .sequences = w_.state_sequences,
                          .x = to_mix,
                          .y = mixed,
                          .bias = weights.conv_bias.empty() ? nullptr : weights.conv_bias.data()});
  if (config.mamba) {
    Scan(weights, heads, mixed, to_mix.From(shape.Channels()), z, out);
    return;
  }
  DeltaRule(f_.context, {.shape = shape,
                         .rate = weights.rate.data(),
                         .bias = weights.dt_bias.data(),
                         .place = heads,
                         .sequences = w_.state_sequences,
                         .x = mixed,
                         .gates = gates,
                         .out = out,
                         .workspace = EnsureFloats(w_.states, DeltaWorkspaceFloats(shape) * f_.context.pool->size())});
  GatedRmsNorm(f_.context, {.rows = batch_->num_rows,
                            .heads = shape.value_heads,
                            .head_dim = shape.value_dim,
                            .weight = weights.norm.data(),
                            .eps = NormEpsilonOf(config_),
                            .z = z,
                            .y = out});
}

void CpuOps::GateMul(Rows gate_up, std::int64_t rows, std::int64_t width, Rows y) {
  loramux::GateMul(f_.context, {gate_up, y, rows, width, GateOf(config_)});
}

void CpuOps::Route(Rows router, Rows x, Rows chosen) {
  const RouteForm& form = config_.experts->route;
  const std::int64_t rows = batch_->num_rows;
  w_.experts.resize(static_cast<std::size_t>(rows * form.per_token));
  w_.expert_weights.resize(w_.experts.size());
  RouteRows(f_.context, {.logits = router,
                         .rows = rows,
                         .form = form,
                         .experts = w_.experts.data(),
                         .weights = w_.expert_weights.data()});
  w_.chosen_rows.Sort(form, rows, w_.experts.data());
  CollectExpertRuns();
  GatherRows(f_.context, {x, w_.chosen_rows.rows, chosen, config_.hidden_size});
}

void CpuOps::ExpertLinear(std::int64_t layer, Rows x, const std::vector<Matrix>& w, const std::vector<Vector>& bias,
                          Rows y, std::span<const LoraOutput<Rows>> outputs) {
  const auto pairs = static_cast<std::int64_t>(w_.experts.size());
  if (w_.exchange.Splits(outputs.front().target)) {
    const Rows own = w_.part_output.Ensure(pairs);
    const LoraOutput<Rows> own_output = {outputs.front().target, own};
    OwnExpertLinear(layer, w_.exchange.Whole(x, pairs, w.front().k()), w, bias, own, {&own_output, 1});
    return w_.exchange.Columns(own, pairs, config_.hidden_size, y);
  }
  OwnExpertLinear(layer, x, w, bias, y, outputs);
}

void CpuOps::OwnExpertLinear(std::int64_t layer, Rows x, const std::vector<Matrix>& w, const std::vector<Vector>& bias,
                             Rows y, std::span<const LoraOutput<Rows>> outputs) {
  ExpertMatMul(f_.context, {w_.chosen_rows.begins, x, w, bias, y});
  LoraProjection projections[kMaxSharedInput];
  std::size_t count = 0;
  std::int64_t workspace = 0;
  for (const LoraOutput<Rows>& output : outputs) {
    std::vector<LoraSegment>& segments = w_.segments[count];
    const std::int64_t max_rank = CollectExpertSegments(layer, output.target, segments);
    if (segments.empty()) continue;
    const std::int64_t out =
        w_.exchange.Splits(outputs.front().target) ? w.front().n() : TargetShape(config_, output.target, layer, 0).out;
    projections[count++] = {segments, output.y, out};
    workspace += segments.back().end * max_rank;
  }
  if (count == 0) return;
  LoraMatMul(f_.context,
             {f_.lora_variant, std::span(projections, count), x, w.front().k(), EnsureFloats(w_.lora, workspace)});
}

void CpuOps::CombineChosen(Rows chosen, Rows router, Rows y) {
  loramux::CombineChosen(f_.context, {.x = chosen,
                                      .places = w_.chosen_rows.places,
                                      .weights = w_.expert_weights.data(),
                                      .y = y,
                                      .rows = batch_->num_rows,
                                      .width = config_.hidden_size,
                                      .form = CombineOf(*config_.experts, router.data, router.stride)});
}

void CpuOps::MixLayerInputs(Rows context, const NormVectors& weights, Rows inputs) {
  const std::int64_t rows = batch_->num_rows, size = config_.layer_input_size, all = config_.num_layers * size;
  const float to_hidden = 1.0f / std::sqrt(static_cast<float>(config_.hidden_size));
  Scale(context, rows, all, to_hidden, 0.0f);
  for (std::int64_t first = 0; first < all; first += size) {
    const Rows of_layer = context.From(first);
    NormRows(f_.context, {of_layer, of_layer, rows, size, {weights.weight.data()}, NormEpsilonOf(config_)});
  }
  Scale(inputs, rows, all, static_cast<float>(config_.layer_input_scale), 0.0f);
  AddRows(f_.context, {context, inputs, rows, all});
  Scale(inputs, rows, all, std::sqrt(0.5f), 0.0f);
}

void CpuOps::GateLayerInput(std::int64_t layer, Rows gate, Rows y) {
  const std::int64_t rows = batch_->num_rows, size = config_.layer_input_size;
  const Rows input = w_.layer_inputs.Ensure(rows).From(layer * size);
  for (std::int64_t row = 0; row < rows; ++row) std::copy_n(input[row], size, gate[row] + size);
  loramux::GateMul(f_.context, {gate, y, rows, size, {config_.activation, true}});
}

void CpuOps::Add(Rows x, Rows y) {
  AddRows(f_.context, {x, y, batch_->num_rows, config_.hidden_size, static_cast<float>(config_.residual_scale)});
}

void CpuOps::Scale(Rows x, std::int64_t rows, std::int64_t width, float factor, float cap) {
  if (w_.exchange.part().rank > 0 && x.data == w_.logits.data()) return;  // rank 0 alone has logits
  ScaleRows(f_.context, {x, rows, width, factor, cap});
}

void CpuOps::GatherLogitRows(const LogitBlock& block, Rows hidden, Rows y) {
  block_ = block;
  const auto bytes = static_cast<std::size_t>(config_.hidden_size) * sizeof(float);
  float* out = y.data;
  for (const std::int64_t row : batch_->RowsOf(block)) {
    std::memcpy(out, hidden.data + row * hidden.stride, bytes);
    out += y.stride;
  }
}

void CpuOps::PrepareSampler() {
  const auto threads = static_cast<std::size_t>(f_.context.pool->size());
  if (w_.sampler.size() < threads) w_.sampler.resize(threads);
}

// Also samples rows whose arrival failed: their logits may be anything, and the engine discards their tokens.
void CpuOps::Sample(Rows logits, const SampleBatch& samples) {
  if (w_.exchange.part().rank > 0) return;
  PrepareSampler();
  f_.context.pool->Run(static_cast<std::int64_t>(samples.rows.size()), [&](std::int64_t task, int worker) {
    const auto first = static_cast<std::size_t>(task), thread = static_cast<std::size_t>(worker);
    if (!samples.IsFirst(first)) return;
    SampleWithDraft(samples, first, result_.tokens, [&](std::size_t row) {
      const SampleRow& of = samples.rows[row];
      const std::span<const float> of_row = LogitsOf(config_, logits, static_cast<std::int64_t>(row));
      return loramux::Sample(of_row, of.params, samples.ContextOf(of), w_.sampler[thread]);
    });
  });
}

void CpuOps::Score(Rows logits, std::span<const ScoreRow> scores) {
  if (w_.exchange.part().rank > 0) return;
  PrepareSampler();
  const std::size_t first = result_.scores.size();
  result_.scores.resize(first + scores.size());
  f_.context.pool->Run(static_cast<std::int64_t>(scores.size()), [&](std::int64_t row, int worker) {
    const auto index = static_cast<std::size_t>(row);
    result_.scores[first + index] =
        loramux::Score(LogitsOf(config_, logits, row), scores[index], w_.sampler[static_cast<std::size_t>(worker)]);
  });
}

// Threads share the columns, never the rows: the order of a sum is fixed.
void CpuOps::Pool(Rows x, const PoolBatch& pools) {
  if (w_.exchange.part().rank > 0) return;
  constexpr std::int64_t kColumns = 512;  // columns of one task
  const std::int64_t hidden = config_.EmbeddingSize(), pieces = (hidden + kColumns - 1) / kColumns;
  result_.pooled.resize(pools.ranges.size() * static_cast<std::size_t>(hidden));
  f_.context.pool->Run(static_cast<std::int64_t>(pools.ranges.size()) * pieces, [&](std::int64_t task, int) {
    const auto index = static_cast<std::size_t>(task / pieces);
    const std::int64_t first = task % pieces * kColumns, columns = std::min(kColumns, hidden - first);
    const PoolRange& range = pools.ranges[index];
    double* const sum = result_.pooled.data() + static_cast<std::int64_t>(index) * hidden + first;
    const std::span<const double> before = pools.SumBefore(range);
    if (before.empty()) {
      std::fill_n(sum, columns, 0.0);
    } else {
      CHECK_EQ(static_cast<std::int64_t>(before.size()), hidden);
      std::copy_n(before.data() + first, columns, sum);
    }
    for (std::int64_t row = range.first_row; row < range.first_row + range.rows; ++row) {
      const float* const from = x.data + row * x.stride + first;
      for (std::int64_t i = 0; i < columns; ++i) sum[i] += static_cast<double>(from[i]);
    }
  });
}

}  // namespace loramux
