#include "model/gpu_ops.h"

#include <algorithm>

#include "base/check.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/lora.h"
#include "gpu/kernels/lora_fused.h"
#include "gpu/kernels/own_rows.h"
#include "gpu/kernels/packed.h"
#include "gpu/kernels/qkv_post.h"
#include "model/lora_view.h"

namespace loramux {
namespace {

// The matrices of which y = W x is one.
AssistGroup GroupOf(const ForwardBuffers<GpuRows>& b, GpuRows x, GpuRows y) {
  if (y.wide == b.qkv.wide) return AssistGroup::kQkv;
  if (y.wide == b.gate_up.wide) return AssistGroup::kGateUp;
  return x.low == b.attended.low ? AssistGroup::kO : AssistGroup::kDown;
}

gpu::OwnNorm OwnOf(const ModelConfig& config, NormOf norm, const gpu::OwnPartsOnDevice* const* own) {
  if (norm.of_base_alone) return {};
  return {own, static_cast<std::int32_t>(LoraView::NormIndex(norm.layer, norm.kind, config.num_layers))};
}

// How many rows of chosen experts there are, in device memory.
const std::int32_t* Places(const ModelConfig& config, const Activations& activations) {
  return activations.experts.begins + config.experts->route.experts;
}

// The LoRA products of the experts that the rows of x go to.
void LaunchExpertLora(const GpuForward& f, const ModelConfig& config, const Activations& activations,
                      const StepOnDevice& step, std::int64_t layer, GpuRows x,
                      std::span<const LoraOutput<GpuRows>> outputs) {
  if (step.experts == nullptr) return;
  const gpu::ExpertBounds& most = step.expert_work;
  const gpu::ExpertLists& lists = activations.experts;
  const std::int32_t* const totals = lists.totals;
  const gpu::LoraWork work = {.shrink = lists.shrink,
                              .expand = lists.expand,
                              .shrink_count = totals + 1,
                              .expand_count = totals + 2,
                              .max_shrink = most.shrink,
                              .max_expand = most.expand,
                              .max_rank = step.expert_rank};
  gpu::LoraShrinkArguments shrink = {.x = x.low,
                                     .x_stride = x.stride,
                                     .in = TargetShape(config, outputs.front().target, layer, 0).in,
                                     .work = work,
                                     .partial = activations.lora,
                                     .partial_rows = most.places};
  gpu::LoraExpandArguments expand = {
      .work = work, .partial = shrink.partial, .partial_rows = shrink.partial_rows, .in = shrink.in};
  for (const LoraOutput<GpuRows>& output : outputs) {
    if (!ChangesTarget(step.lora_targets, layer, output.target)) continue;
    const std::int32_t slice = shrink.slices++;
    shrink.module[slice] = expand.module[slice] =
        static_cast<std::int32_t>(3 * layer + static_cast<int>(output.target) - static_cast<int>(LoraTarget::kGate));
    expand.y[slice] = output.y.wide;
    expand.y_stride[slice] = output.y.stride;
    expand.out[slice] = TargetShape(config, output.target, layer, 0).out;
  }
  expand.slices = shrink.slices;
  if (shrink.slices == 0) return;
  gpu::LoraShrink(f.stream, f.dtype, shrink);
  gpu::LoraExpand(f.stream, expand);
}

// The product of quantised weights with any number of rows, in the one order that few rows have.
void MultiplyInParts(const GpuForward& f, gpu::SkinnyMatMulLoraArguments part) {
  const std::int32_t rows = part.max_rows;
  const auto x_bytes = part.lora.x_stride * static_cast<std::int64_t>(DTypeSize(f.dtype));
  for (part.max_rows = gpu::kSkinnyRows; part.first_row < rows; part.first_row += gpu::kSkinnyRows) {
    gpu::SkinnyMatMulLora(f.stream, f.dtype, f.device.multiprocessors, part);
    part.lora.x = static_cast<const std::byte*>(part.lora.x) + gpu::kSkinnyRows * x_bytes;
    part.y += gpu::kSkinnyRows * part.y_stride;
  }
}

// The product of weights that are widened first, as many outputs at once as `bytes` at `widened` hold.
void MultiplyWidened(const GpuForward& f, const DeviceMatrix& w, void* widened, std::int64_t bytes,
                     DenseProduct product) {
  const auto row_bytes = w.k() * static_cast<std::int64_t>(DTypeSize(w.dtype()));
  const std::int64_t piece = bytes / (row_bytes * gpu::kPackedTile) * gpu::kPackedTile;
  CHECK_GT(piece, 0);
  product.w = widened;
  for (std::int64_t first = 0; first < w.n(); first += piece) {
    product.n = std::min(piece, w.n() - first);
    gpu::WidenPacked(f.stream, w.dtype(), {w.data(), w.form(), w.k(), first, product.n, widened});
    f.stream.Multiply(product);
    if (product.bias != nullptr) product.bias += piece;
    product.y += piece;
  }
}

gpu::PagesOnDevice PagesAt(const DevicePlace& place) {
  return {.base = place.arena.base,
          .page_stride = static_cast<std::int64_t>(place.arena.page_stride),
          .page_tokens = static_cast<std::int32_t>(place.layout.page_tokens),
          .num_kv_heads = static_cast<std::int32_t>(place.layout.num_kv_heads),
          .head_dim = static_cast<std::int32_t>(place.layout.head_dim)};
}

// Where the keys of a layer begin in a page.
std::int64_t KeysOf(const KvLayout& layout, const ModelConfig& config, std::int64_t layer) {
  return static_cast<std::int64_t>(layout.KeyOffset(config.KvIndex(layer), 0));
}

// From a head of q to the next.
std::int32_t QueryStride(const ModelConfig& config) {
  return static_cast<std::int32_t>(config.output_gate ? 2 * config.head_dim : config.head_dim);
}

}  // namespace

ForwardBuffers<GpuRows> GpuOps::Begin(const StepRows<DeviceLoraView>& /*batch*/) { return b_; }

void GpuOps::EmbedRows(const Matrix& table, Rows hidden) {
  gpu::EmbedRows(f_.stream, table.packed() ? DType::kF32 : table.dtype(), step_.max_rows,
                 {.table = table.data(),
                  .tokens = step_.tokens,
                  .rows = step_.rows,
                  .hidden = hidden.wide,
                  .width = config_.EmbeddingSize(),
                  .hidden_stride = hidden.stride,
                  .table_rows = config_.BaseTokens(),
                  .form = table.form()});
}

void GpuOps::EmbedOwnRows(Rows hidden) {
  if (step_.own == nullptr) return;
  gpu::EmbedOwnRows(f_.stream, step_.max_rows,
                    {.own = step_.own,
                     .tokens = step_.tokens,
                     .rows = step_.rows,
                     .hidden = hidden.wide,
                     .width = config_.EmbeddingSize(),
                     .hidden_stride = hidden.stride});
}

void GpuOps::EmbedPositions(const Matrix& table, Rows hidden) {
  Flush();
  gpu::EmbedPositions(f_.stream, table.dtype(), step_.max_rows,
                      {.table = table.data(),
                       .row_position = step_.row_position,
                       .rows = step_.rows,
                       .hidden = hidden.wide,
                       .width = config_.hidden_size,
                       .hidden_stride = hidden.stride,
                       .rows_before = *config_.position_rows_before});
}

void GpuOps::PutOwnProducts(Rows x, Rows y) {
  if (y.wide != b_.logits.wide) return;
  // What no adapter brings cannot be generated. The product that may not be launched yet is of other columns.
  gpu::ExcludeTokens(f_.stream, block_->max_rows,
                     {.rows = block_->rows,
                      .y = y.wide,
                      .begin = config_.BaseTokens(),
                      .width = config_.added_tokens,
                      .y_stride = y.stride});
  if (block_->max_own == 0) return;
  FlushProduct();
  gpu::OwnProducts(f_.stream, f_.dtype, block_->max_rows, block_->max_own,
                   {.own = block_->own,
                    .x = x.low,
                    .rows = block_->rows,
                    .y = y.wide,
                    .width = config_.EmbeddingSize(),
                    .x_stride = x.stride,
                    .y_stride = y.stride});
}

void GpuOps::AwaitLayer(std::int64_t layer) {
  layer_ = layer;
  for (std::size_t i = 0; f_.waits && i < f_.step.arrivals.size(); ++i) {
    const LayerProgress& arrival = *f_.step.arrivals[i];
    if (const LayerEvents* events = arrival.events(); events != nullptr) {
      events->EnqueueWait(f_.stream, layer);
      continue;
    }
    if (arrival.failed() || arrival.arrived() > std::min<std::int64_t>(layer, arrival.layers() - 1)) continue;
    const TimeNs begin = clock_.Now();
    arrival.Wait(layer);
    waited_ += clock_.Now() - begin;
  }
  if (f_.assist == nullptr) return;
  FlushExpand();  // launches what the layer before left, with its own gates
  f_.assist->BeginLayer(f_.stream, layer);
}

void GpuOps::Norm(NormOf norm, Rows x, std::int64_t /*rows*/, const NormVectors& weights, Rows y) {
  LaunchNorm(x, config_.hidden_size, weights, OwnOf(config_, norm, OfLogits(x) ? block_->own : step_.own), y);
}

GpuRows GpuOps::Input(Rows x, std::int64_t /*rows*/, std::int64_t width, Rows y) {
  LaunchNorm(x, width, {}, {}, y);
  return y;
}

void GpuOps::LaunchNorm(Rows x, std::int64_t width, const NormVectors& weights, gpu::OwnNorm own, Rows y) {
  const bool adds = added_to_.wide == x.wide;
  if (!adds) Flush();
  const gpu::NormRowsArguments arguments = {.x = x.wide,
                                            .added = adds ? added_.wide : nullptr,
                                            .weight = weights.weight.data,
                                            .y = y.low,
                                            .rows = OfLogits(x) ? block_->rows : step_.rows,
                                            .width = width,
                                            .x_stride = x.stride,
                                            .added_stride = added_.stride,
                                            .y_stride = y.stride,
                                            .eps = NormEpsilonOf(config_),
                                            .own = own,
                                            .added_scale = static_cast<float>(config_.residual_scale),
                                            .weight_offset = NormOffsetOf(config_),
                                            .bias = weights.bias.data};
  if (adds && expand_.slices == 1 && expand_.y[0] == added_.wide) {
    gpu::LoraNormRows(f_.stream, f_.dtype, {arguments, expand_});
    expand_ = {};
  } else {
    FlushExpand();
    gpu::NormRows(f_.stream, f_.dtype, MaxRows(x), arguments);
  }
  added_ = added_to_ = {};
}

void GpuOps::NormHeads(NormOf norm, Rows x, std::int64_t /*heads*/, const NormVectors& weights) {
  const bool of_q = x.wide == QueriesOf(norm.layer);
  (of_q ? q_norm_ : k_norm_) = weights.weight.data;
  (of_q ? own_q_ : own_k_) = OwnOf(config_, norm, step_.own);
}

void GpuOps::NormRow(NormOf norm, Rows x, std::int64_t width, const NormVectors& weights) {
  Flush();
  gpu::NormRows(f_.stream, DType::kF32, step_.max_rows,
                {.x = x.wide,
                 .added = nullptr,
                 .weight = weights.weight.data,
                 .y = x.wide,
                 .rows = step_.rows,
                 .width = width,
                 .x_stride = x.stride,
                 .added_stride = 0,
                 .y_stride = x.stride,
                 .eps = NormEpsilonOf(config_),
                 .own = OwnOf(config_, norm, step_.own),
                 .weight_offset = NormOffsetOf(config_),
                 .bias = weights.bias.data});
}

void GpuOps::MatMul(Rows x, std::int64_t /*rows*/, const Matrix& w, const Vector& bias, Rows y) {
  Flush();
  const bool of_logits = OfLogits(y);
  const std::int64_t rows = of_logits ? block_->max_rows : step_.max_rows;
  CHECK(w.dtype() == f_.dtype);
  if (f_.assist != nullptr) SendActivations(x, y);
  const gpu::SkinnyMatMulLoraArguments few = {.lora = {.x = x.low, .x_stride = x.stride, .in = w.k()},
                                              .w = w.data(),
                                              .form = w.form(),
                                              .n = w.n(),
                                              .bias = bias.data,
                                              .y = y.wide,
                                              .y_stride = y.stride,
                                              .rows = of_logits ? block_->rows : step_.rows,
                                              .max_rows = static_cast<std::int32_t>(rows)};
  if (rows <= gpu::MostSkinnyRows(f_.device, w.packed()) && gpu::IsSkinny(w.dtype(), rows, w.k())) {
    product_ = few;
    return;
  }
  const DenseProduct many = {.dtype = w.dtype(),
                             .m = rows,
                             .n = w.n(),
                             .k = w.k(),
                             .x = x.low,
                             .x_stride = x.stride,
                             .w = w.data(),
                             .bias = bias.data,
                             .y = y.wide,
                             .y_stride = y.stride};
  if (!w.packed()) return f_.stream.Multiply(many);
  if (f_.device.batch_invariant) return MultiplyInParts(f_, few);
  MultiplyWidened(f_, w, w_.activations().widened, w_.widened_bytes(), many);
}

void GpuOps::FlushProduct() {
  if (product_.w == nullptr) return;
  gpu::SkinnyMatMulLora(f_.stream, f_.dtype, f_.device.multiprocessors, product_);
  product_ = {};
}

void GpuOps::FlushExpand() {
  if (expand_.slices > 0) gpu::LoraExpand(f_.stream, expand_);
  expand_ = {};
}

void GpuOps::SendActivations(Rows x, Rows y) {
  if (y.wide == b_.logits.wide)
    f_.assist->SendHead(f_.stream, Block(), x.low, x.stride);
  else
    f_.assist->Send(f_.stream, GroupOf(b_, x, y), layer_, x.low, x.stride);
}

void GpuOps::AddAnswers(std::int64_t layer, Rows x, std::span<const LoraOutput<Rows>> outputs) {
  if (outputs.front().target == LoraTarget::kLmHead)
    return f_.assist->AddHead(f_.stream, Block(), outputs.front().y.wide, outputs.front().y.stride);
  AssistOutput of_group[kMaxSharedInput];
  std::size_t count = 0;
  for (const LoraOutput<Rows>& output : outputs)
    of_group[count++] = {.target = output.target, .y = output.y.wide, .y_stride = output.y.stride};
  f_.assist->Add(f_.stream, GroupOf(b_, x, outputs.front().y), layer, std::span(of_group, count));
}

void GpuOps::Linear(std::int64_t layer, Rows x, std::int64_t rows, const Matrix& w, const Vector& bias, Rows y,
                    std::span<const LoraOutput<Rows>> outputs) {
  MatMul(x, rows, w, bias, y);
  PutOwnProducts(x, y);
  if (outputs.empty()) return;
  LaunchLora(layer, x, outputs);
  if (f_.assist != nullptr) AddAnswers(layer, x, outputs);
}

void GpuOps::LaunchLora(std::int64_t layer, Rows x, std::span<const LoraOutput<Rows>> outputs) {
  FlushExpand();
  FlushAdd();
  const LoraTarget first = outputs.front().target;
  const bool of_block = OfLogits(outputs.front().y);
  const gpu::LoraWork& work = of_block ? block_->lora : step_.lora;
  if (work.max_expand == 0) return FlushProduct();
  gpu::LoraShrinkArguments shrink = {.x = x.low,
                                     .x_stride = x.stride,
                                     .in = TargetShape(config_, first, layer).in,
                                     .work = work,
                                     .partial = w_.activations().lora,
                                     .partial_rows = of_block ? block_->max_rows : step_.max_rows};
  gpu::LoraExpandArguments expand = {
      .work = work, .partial = shrink.partial, .partial_rows = shrink.partial_rows, .in = shrink.in};
  for (const LoraOutput<Rows>& output : outputs) {
    if (!of_block && !ChangesTarget(step_.lora_targets, layer, output.target)) continue;
    const std::int32_t slice = shrink.slices++;
    shrink.module[slice] = expand.module[slice] =
        static_cast<std::int32_t>(DeviceLoraView::Index(layer, output.target, config_.num_layers));
    expand.y[slice] = output.y.wide;
    expand.y_stride[slice] = output.y.stride;
    expand.out[slice] = TargetShape(config_, output.target, layer).out;
  }
  if (shrink.slices == 0) return FlushProduct();
  expand.slices = shrink.slices;
  if (product_.w != nullptr && product_.lora.x == shrink.x) {
    product_.lora = shrink;
    FlushProduct();
  } else {
    FlushProduct();
    gpu::LoraShrink(f_.stream, f_.dtype, shrink);
  }
  expand_ = expand;
  if (work.max_pieces == 0) FlushExpand();
}

// Done by StoreKv: q and k are the heads that it finds in qkv.
void GpuOps::Rope(std::int64_t layer, Rows x, std::int64_t heads) {
  rope_ = config_.RopeOf(layer);
  CHECK(x.wide == QueriesOf(layer));
  CHECK_EQ(heads, config_.num_heads + config_.num_kv_heads);
}

void GpuOps::StoreKv(std::int64_t layer, Rows k, Rows /*v*/) {
  FlushProduct();
  CHECK(k.wide == b_.qkv.wide + config_.QProjDim(layer));
  const bool local = rope_ == LayerRope::kLocal;
  const StepOnDevice::Angles angles = rope_ ? step_.angles[local ? 1 : 0] : StepOnDevice::Angles();
  const std::int64_t rotary_dim = config_.RotaryDim(local ? *config_.local_rope : config_.rope);
  const gpu::QkvPostArguments arguments = {.qkv = b_.qkv.wide,
                                           .qkv_stride = b_.qkv.stride,
                                           .q_norm = q_norm_,
                                           .k_norm = k_norm_,
                                           .eps = NormEpsilonOf(config_),
                                           .cos = angles.cos,
                                           .sin = angles.sin,
                                           .row_position = step_.row_position,
                                           .row_sequence = step_.row_sequence,
                                           .sequences = step_.sequences,
                                           .page_tables = step_.page_tables,
                                           .pages = PagesAt(f_),
                                           .layer_offset = KeysOf(f_.layout, config_, layer),
                                           .rows = step_.rows,
                                           .num_heads = static_cast<std::int32_t>(config_.num_heads),
                                           .own_q = own_q_,
                                           .own_k = own_k_,
                                           .norm_offset = NormOffsetOf(config_),
                                           .rotary_dim = static_cast<std::int32_t>(rotary_dim),
                                           .adjacent_pairs = config_.rope.adjacent_pairs,
                                           .query_scale = rope_ ? step_.query_scale : nullptr,
                                           .centers = config_.qk_norm == QkNorm::kLayerOfHeads,
                                           .q_head_stride = config_.output_gate ? QueryStride(config_) : 0};
  if (expand_.slices > 0) {
    gpu::LoraQkvPost(f_.stream, f_.layout.dtype, {arguments, expand_});
    expand_ = {};
  } else {
    gpu::QkvPost(f_.stream, f_.layout.dtype, step_.max_rows, arguments);
  }
  q_norm_ = k_norm_ = nullptr;
  rope_.reset();
}

void GpuOps::Attention(std::int64_t layer, std::int64_t window, const Vector& sinks, const Vector& slopes, Rows q,
                       Rows out) {
  FlushProduct();
  ScoreForm form = ScoresOf(config_, window);
  form.scale = static_cast<float>(config_.attention_scale);
  form.sinks = sinks.data;
  form.slopes = slopes.data;
  CHECK(q.wide == QueriesOf(layer));
  gpu::AttentionArguments arguments = {.q = b_.qkv.wide,
                                       .q_stride = q.stride,
                                       .out = config_.output_gate ? static_cast<void*>(out.wide) : out.low,
                                       .out_stride = out.stride,
                                       .out_dtype = config_.output_gate ? DType::kF32 : f_.dtype,
                                       .row_position = step_.row_position,
                                       .row_sequence = step_.row_sequence,
                                       .sequences = step_.sequences,
                                       .page_tables = step_.page_tables,
                                       .pages = PagesAt(f_),
                                       .layer_offset = KeysOf(f_.layout, config_, layer),
                                       .num_heads = static_cast<std::int32_t>(config_.num_heads),
                                       .form = form,
                                       .partial = w_.activations().attention,
                                       .q_head_stride = QueryStride(config_)};
  for (const StepAttention& group : step_.attention) {
    arguments.work = group.work;
    if (group.max_rows > 0)
      gpu::AttentionDecode(f_.stream, f_.layout.dtype, group.max_rows, group.max_chunks, arguments);
    if (group.tiles > 0) gpu::AttentionPrefill(f_.stream, f_.layout.dtype, group.tiles, arguments);
  }
}

// They stay where they are: kernels step over the gates. The expand that goes into StoreKv does not.
void GpuOps::SplitGates(std::int64_t /*layer*/, Rows x, Rows /*gates*/) {
  CHECK(x.wide == b_.qkv.wide && config_.qk_norm != QkNorm::kRow);
  FlushExpand();
}

void GpuOps::MulSigmoid(std::int64_t layer, Rows /*gates*/, Rows y) {
  gpu::MulSigmoid(f_.stream, f_.dtype, step_.max_rows,
                  {.x = y.wide,
                   .gate = b_.qkv.wide + config_.head_dim,
                   .y = y.low,
                   .rows = step_.rows,
                   .width = config_.QDim(layer),
                   .x_stride = y.stride,
                   .gate_stride = b_.qkv.stride,
                   .y_stride = y.stride,
                   .head_dim = static_cast<std::int32_t>(config_.head_dim),
                   .gate_head_stride = QueryStride(config_)});
}

void GpuOps::MixStates(std::int64_t layer, const StateWeightsOf<Vector>& weights, Rows x, Rows gates, Rows mixed,
                       Rows out) {
  FlushProduct();
  FlushExpand();
  const RecurrentConfig& config = *config_.recurrent;
  gpu::StatesOnDevice states = {.base = f_.arena.base,
                                .page_stride = static_cast<std::int64_t>(f_.arena.page_stride),
                                .page_floats = static_cast<std::int32_t>(f_.layout.StateFloats()),
                                .first = static_cast<std::int32_t>(config.Before(layer) * config.LayerFloats()),
                                .state_pages = static_cast<std::int32_t>(f_.layout.state_pages),
                                .sequences = step_.sequences,
                                .page_tables = step_.page_tables};
  // Mamba-2 has z, then what is mixed, then the steps of the heads; gated DeltaNet what is mixed, then z.
  const std::int64_t channels = config.Channels();
  const Rows z = x.From(config.mamba ? 0 : channels), to_mix = x.From(config.mamba ? config.Values() : 0);
  gpu::CausalConv(f_.stream, step_.max_rows,
                  {.weights = weights.conv.data,
                   .bias = weights.conv_bias.data,
                   .x = to_mix.wide,
                   .y = mixed.wide,
                   .row_sequence = step_.row_sequence,
                   .rows = step_.rows,
                   .channels = channels,
                   .x_stride = to_mix.stride,
                   .y_stride = mixed.stride,
                   .width = static_cast<std::int32_t>(config.conv_width),
                   .states = states});
  states.first += static_cast<std::int32_t>(config.ConvFloats());
  const Rows steps = config.mamba ? to_mix.From(channels) : gates;
  const gpu::StateHeadsOnDevice heads = {.x = mixed.wide,
                                         .gates = steps.wide,
                                         .rate = weights.rate.data,
                                         .bias = weights.dt_bias.data,
                                         .skip = weights.skip.data,
                                         .out = out.wide,
                                         .num_sequences = step_.num_sequences,
                                         .x_stride = mixed.stride,
                                         .gates_stride = steps.stride,
                                         .out_stride = out.stride,
                                         .key_heads = static_cast<std::int32_t>(config.key_heads),
                                         .value_heads = static_cast<std::int32_t>(config.value_heads),
                                         .key_dim = static_cast<std::int32_t>(config.key_dim),
                                         .value_dim = static_cast<std::int32_t>(config.value_dim),
                                         .least_step = static_cast<float>(config.least_step),
                                         .most_step = static_cast<float>(config.most_step),
                                         .states = states};
  (config.mamba ? gpu::SelectiveScan : gpu::DeltaRule)(f_.stream, step_.max_sequences, heads);
  NormGated(weights, z, out);
}

// Mamba-2 norms groups of heads, each with weights of its own.
void GpuOps::NormGated(const StateWeightsOf<Vector>& weights, Rows z, Rows out) {
  const RecurrentConfig& config = *config_.recurrent;
  const std::int64_t heads = config.mamba ? config.key_heads : config.value_heads, width = config.Values() / heads;
  gpu::GatedNorm(f_.stream, f_.dtype, step_.max_rows,
                 {.x = out.wide,
                  .z = z.wide,
                  .weight = weights.norm.data,
                  .y = out.low,
                  .rows = step_.rows,
                  .x_stride = out.stride,
                  .z_stride = z.stride,
                  .y_stride = out.stride,
                  .weight_stride = config.mamba ? width : 0,
                  .heads = static_cast<std::int32_t>(heads),
                  .head_dim = static_cast<std::int32_t>(width),
                  .eps = NormEpsilonOf(config_),
                  .gate_first = config.mamba && config.norm == RecurrentConfig::Norm::kAfterGate});
}

void GpuOps::Route(const Vector& bias, Rows router, const Vector& /*scales*/, Rows x, Rows chosen) {
  Flush();
  const RouteForm& form = config_.experts->route;
  const gpu::ExpertLists& lists = w_.activations().experts;
  gpu::RouteRows(f_.stream, step_.max_rows,
                 {.logits = router.wide,
                  .stride = router.stride,
                  .bias = bias.data,
                  .rows = step_.rows,
                  .form = form,
                  .experts = lists.experts,
                  .weights = lists.weights});
  gpu::ListChosen(f_.stream, {.lists = lists,
                              .rows = step_.rows,
                              .per_token = form.per_token,
                              .experts = form.experts,
                              .adapters = step_.experts,
                              .modules = static_cast<std::int32_t>(3 * config_.num_layers)});
  // The input of products, as words.
  const std::int64_t in_word = static_cast<std::int64_t>(sizeof(float) / DTypeSize(f_.dtype));
  gpu::GatherRows(f_.stream, step_.expert_work.places,
                  {.x = reinterpret_cast<const float*>(x.low),
                   .indices = lists.place_row,
                   .rows = Places(config_, w_.activations()),
                   .y = reinterpret_cast<float*>(chosen.low),
                   .width = config_.hidden_size / in_word,
                   .x_stride = x.stride / in_word,
                   .y_stride = chosen.stride / in_word});
}

void GpuOps::ExpertLinear(std::int64_t layer, Rows x, const std::vector<Matrix>& w, const std::vector<Vector>& bias,
                          Rows y, std::span<const LoraOutput<Rows>> outputs) {
  const Matrix& first = w.front();
  const gpu::ExpertLists& lists = w_.activations().experts;
  gpu::ExpertMatMul(
      f_.stream, f_.dtype, f_.device.multiprocessors, step_.expert_work.tiles,
      {.x = x.low,
       .x_stride = x.stride,
       .k = first.k(),
       .w = first.data(),
       .form = first.form(),
       .bias = bias.empty() ? nullptr : bias.front().data,
       .n = first.n(),
       .y = y.wide,
       .y_stride = y.stride,
       .tiles = lists.tiles,
       .tile_count = lists.totals,
       .max_rows = static_cast<std::int32_t>(std::min<std::int64_t>(step_.max_rows, gpu::kExpertTileRows))});
  LaunchExpertLora(f_, config_, w_.activations(), step_, layer, x, outputs);
}

void GpuOps::CombineChosen(Rows chosen, Rows router, Rows y) {
  Flush();
  const gpu::ExpertLists& lists = w_.activations().experts;
  gpu::CombineChosen(f_.stream, step_.max_rows,
                     {.x = chosen.wide,
                      .places = lists.places,
                      .weights = lists.weights,
                      .rows = step_.rows,
                      .y = y.wide,
                      .width = config_.hidden_size,
                      .x_stride = chosen.stride,
                      .y_stride = y.stride,
                      .form = CombineOf(*config_.experts, router.wide, router.stride)});
}

void GpuOps::GateMul(Rows gate_up, std::int64_t /*rows*/, std::int64_t width, Rows y) {
  FlushProduct();
  const bool of_experts = config_.experts && gate_up.wide == b_.chosen_up.wide;
  const gpu::GateMulArguments arguments = {.x = gate_up.wide,
                                           .y = y.low,
                                           .rows = of_experts ? Places(config_, w_.activations()) : step_.rows,
                                           .width = width,
                                           .x_stride = gate_up.stride,
                                           .y_stride = y.stride,
                                           .form = GateOf(config_)};
  if (expand_.slices > 0) {
    gpu::LoraGateMul(f_.stream, f_.dtype, {arguments, expand_});
    expand_ = {};
  } else {
    gpu::GateMul(f_.stream, f_.dtype, of_experts ? step_.expert_work.places : step_.max_rows, arguments);
  }
}

void GpuOps::Add(Rows x, Rows y) {
  FlushProduct();
  FlushAdd();
  added_ = x;
  added_to_ = y;
}

void GpuOps::FlushAdd() {
  if (added_.wide == nullptr) return;
  gpu::AddRows(f_.stream, step_.max_rows,
               {.x = added_.wide,
                .y = added_to_.wide,
                .rows = step_.rows,
                .width = config_.hidden_size,
                .x_stride = added_.stride,
                .y_stride = added_to_.stride,
                .factor = static_cast<float>(config_.residual_scale)});
  added_ = added_to_ = {};
}

void GpuOps::Scale(Rows x, std::int64_t /*rows*/, std::int64_t width, float factor, float cap) {
  Flush();
  const bool of_logits = x.wide == b_.logits.wide;
  gpu::ScaleRows(f_.stream, of_logits ? block_->max_rows : step_.max_rows,
                 {.x = x.wide,
                  .rows = of_logits ? block_->rows : step_.rows,
                  .width = width,
                  .x_stride = x.stride,
                  .factor = factor,
                  .cap = cap});
}

void GpuOps::GatherLogitRows(const LogitBlock& block, Rows hidden, Rows y) {
  Flush();
  if (f_.assist != nullptr && block_ == nullptr) f_.assist->BeginHead(f_.stream);
  block_ = &*std::ranges::find(step_.blocks, block.first, &StepLogitBlock::first);
  CHECK_EQ(block_->count, block.count);
  gpu::GatherRows(f_.stream, block_->max_rows,
                  {.x = hidden.wide,
                   .indices = block_->indices,
                   .rows = block_->rows,
                   .y = y.wide,
                   .width = config_.hidden_size,
                   .x_stride = hidden.stride,
                   .y_stride = y.stride});
}

void GpuOps::Sample(Rows logits, const SampleBatch& /*samples*/) {
  FlushProduct();
  w_.results.Sample(f_.stream, logits, step_);
}

void GpuOps::Score(Rows logits, std::span<const ScoreRow> scores) {
  FlushProduct();
  w_.results.Score(f_.stream, logits, scores);
}

void GpuOps::Pool(Rows x, const PoolBatch& pools) {
  FlushProduct();
  const StepPlace<double>& sums = step_.pool_sums;
  gpu::PoolRows(f_.stream, f_.dtype, static_cast<std::int64_t>(pools.ranges.size()),
                {.x = x.low,
                 .ranges = step_.pool_ranges,
                 .sums = sums.device,
                 .width = config_.EmbeddingSize(),
                 .x_stride = x.stride});
  f_.stream.CopyToHost(sums.host, sums.device, sums.count * sizeof(double));
}

Status GpuOps::Finish() {
  Flush();
  RETURN_IF_ERROR(w_.results.Finish(f_.stream));
  const StepPlace<double>& sums = step_.pool_sums;
  if (sums.count > 0) f_.result.pooled.assign(sums.host, sums.host + sums.count);
  return Ok{};
}

}  // namespace loramux
