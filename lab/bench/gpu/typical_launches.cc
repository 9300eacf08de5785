// Prints the launches of each kernel for a model of 7B (and, for attention, for each width of heads) as JSON lines:
// what tests/cubin_table.py needs to know beside the compiled code. Nothing runs.
#include <cstdio>
#include <memory>
#include <string>

#include "gpu/device.h"
#include "gpu/kernels/assist.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/attention_extents.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/lora.h"
#include "gpu/kernels/lora_fused.h"
#include "gpu/kernels/own_rows.h"
#include "gpu/kernels/packed.h"
#include "gpu/kernels/qkv_post.h"
#include "gpu/kernels/read_all.h"
#include "gpu/kernels/sampling.h"
#include "gpu/kernels/skinny.h"
#include "gpu/kernels/state_heads_kernel.h"
#include "gpu/kernels/states.h"

namespace loramux::gpu {
namespace {

constexpr std::int64_t kHidden = 4096, kIntermediate = 11008, kVocab = 32000;
constexpr std::int32_t kHeads = 32, kRows = 64;

// A stream that prints its launches.
class PrintingStream final : public DeviceStream {
 public:
  int variant = 0;  // variant of the kernels that have several

  void CopyToDevice(void*, const void*, std::size_t) override {}
  void CopyToHost(void*, const void*, std::size_t) override {}
  void Fill(void*, std::uint8_t, std::size_t) override {}
  void Launch(const KernelLaunch& launch) override {
    std::printf("{\"kernel\": \"%s\", \"dtype\": \"%s\", \"variant\": %d, \"threads\": %u, \"shared_bytes\": %zu}\n",
                std::string(NameOf(launch.kernel)).c_str(), DTypeName(launch.dtype), variant, launch.threads,
                launch.shared_bytes);
  }
  void Multiply(const DenseProduct&) override {}
  void Record(DeviceEvent&) override {}
  void Wait(const DeviceEvent&) override {}
  Status Synchronize() override { return Ok{}; }
  Result<std::unique_ptr<DeviceGraph>> Capture(const std::function<void()>&) override {
    return Unsupported("a stream that prints");
  }
  void Replay(const DeviceGraph&) override {}
};

void PrintRowWise(PrintingStream& stream, DType dtype) {
  EmbedRowsArguments embed = {};
  embed.width = kHidden;
  EmbedRows(stream, dtype, kRows, embed);
  EmbedPositionsArguments positions = {};
  positions.width = kHidden;
  EmbedPositions(stream, dtype, kRows, positions);
  NormRowsArguments norm = {};
  norm.width = kHidden;
  NormRows(stream, dtype, kRows, norm);
  GateMulArguments silu = {};
  silu.width = kIntermediate;
  GateMul(stream, dtype, kRows, silu);
  PoolRowsArguments pool = {};
  pool.width = kHidden;
  PoolRows(stream, dtype, kRows, pool);
  ExcludeTokensArguments exclude = {};
  exclude.width = kRows;
  ExcludeTokens(stream, kRows, exclude);
  OwnProductsArguments own = {};
  own.width = kHidden;
  OwnProducts(stream, dtype, kRows, kRows, own);
}

void PrintAttention(PrintingStream& stream, DType dtype, std::int32_t head_dim) {
  AttentionArguments attention = {};
  attention.pages.num_kv_heads = kHeads;
  attention.pages.head_dim = head_dim;
  attention.num_heads = kHeads;
  attention.q_stride = attention.out_stride = kHeads * head_dim;
  stream.variant = HeadDimVariant(head_dim);
  AttentionDecode(stream, dtype, kRows, kRows, attention);
  AttentionPrefill(stream, dtype, kRows, attention);
  stream.variant = 0;
}

void PrintLora(PrintingStream& stream, DType dtype) {
  LoraShrinkArguments shrink = {};
  shrink.slices = 1;
  shrink.in = kHidden;
  shrink.work.max_shrink = kRows;
  LoraShrink(stream, dtype, shrink);
  SkinnyMatMulLoraArguments skinny = {};
  skinny.lora = shrink;
  skinny.n = kHidden;
  ExpertMatMulArguments experts = {};
  experts.k = experts.n = kHidden;
  constexpr std::uint8_t kScale = 0;
  for (const PackedForm& form :
       {PackedForm(), PackedForm{&kScale, WeightFormat::kQ8, 5}, PackedForm{&kScale, WeightFormat::kQ4, 5}}) {
    skinny.form = experts.form = form;
    for (const std::int32_t rows : {8, 16, 32, 64}) {
      skinny.max_rows = experts.max_rows = rows;
      SkinnyMatMulLora(stream, dtype, 132, skinny);
      ExpertMatMul(stream, dtype, 132, kRows, experts);
      ++stream.variant;
    }
  }
  stream.variant = 0;
  WidenPacked(stream, dtype, {nullptr, experts.form, kHidden, 0, kHidden, nullptr});
  SendActivationsArguments send = {};
  send.work.max_pieces = 1;
  send.in = kHidden;
  SendActivations(stream, dtype, send);
  QkvPostArguments qkv = {};
  qkv.pages.num_kv_heads = kHeads;
  qkv.pages.head_dim = static_cast<std::int32_t>(kHidden) / kHeads;
  qkv.num_heads = kHeads;
  QkvPost(stream, dtype, kRows, qkv);
  LoraExpandArguments expand = {};
  expand.slices = 1;
  expand.work.max_pieces = kRows;
  LoraQkvPost(stream, dtype, {qkv, expand});
  GateMulArguments silu = {};
  silu.width = kIntermediate;
  LoraGateMul(stream, dtype, {silu, expand});
  float added = 0;
  NormRowsArguments norm = {};
  norm.width = kHidden;
  norm.added = expand.y[0] = &added;
  LoraNormRows(stream, dtype, {norm, expand});
}

void PrintGates(PrintingStream& stream, DType dtype) {
  GatedNormOnDevice norm = {};
  norm.heads = kHeads;
  norm.head_dim = static_cast<std::int32_t>(kHidden) / kHeads;
  GatedNorm(stream, dtype, kRows, norm);
  MulSigmoidOnDevice gate = {};
  gate.width = kHidden;
  MulSigmoid(stream, dtype, kRows, gate);
}

// The kernels of recurrent layers, by the elements of a key.
void PrintStates(PrintingStream& stream) {
  StatesOnDevice states = {};
  states.page_floats = states.state_pages = 1 << 14;
  CausalConvOnDevice conv = {};
  conv.channels = 2 * kHidden;
  conv.width = 4;
  conv.states = states;
  CausalConv(stream, kRows, conv);
  StateHeadsOnDevice heads = {};
  heads.key_heads = heads.value_heads = kHeads;
  heads.value_dim = 128;
  heads.states = states;
  for (const std::int32_t key_dim : {32, 64, 128, 256}) {
    heads.key_dim = key_dim;
    stream.variant = DeltaRuleKernel<float>::VariantOf(heads);
    DeltaRule(stream, kRows, heads);
    SelectiveScan(stream, kRows, heads);
  }
  stream.variant = 0;
}

void PrintExperts(PrintingStream& stream) {
  RouteRowsArguments route = {};
  route.form = {.experts = 128, .per_token = 8};
  RouteRows(stream, kRows, route);
  ListChosenArguments list = {};
  list.experts = route.form.experts;
  ListChosen(stream, list);
  CombineChosenArguments combine = {};
  combine.width = kHidden;
  CombineChosen(stream, kRows, combine);
}

void PrintOneInstance(PrintingStream& stream) {
  AddAnswersArguments answers = {};
  answers.work.max_pieces = answers.work.max_segments = 1;
  answers.slices = 1;
  answers.width = answers.out[0] = kHidden;
  AddAnswers(stream, answers);
  DecideLayer(stream, {answers.work, 1});
  PublishLayers(stream, {});
  GatherRowsArguments gather = {};
  gather.width = kHidden;
  GatherRows(stream, kRows, gather);
  EmbedOwnRowsArguments own = {};
  own.width = kHidden;
  EmbedOwnRows(stream, kRows, own);
  AddRowsArguments add = {};
  add.width = kHidden;
  AddRows(stream, kRows, add);
  ScaleRowsArguments scale = {};
  scale.width = kHidden;
  ScaleRows(stream, kRows, scale);
  CopyPagesArguments copy = {};
  copy.page_bytes = 1 << 19;
  CopyPages(stream, kRows, copy);
  ReadAll(stream, kRows, {});
  LoraExpandArguments expand = {};
  expand.slices = 1;
  expand.in = expand.out[0] = kHidden;
  expand.work.max_expand = kRows;
  LoraExpand(stream, expand);
  SampleRowsArguments sample = {};
  sample.vocab = kVocab;
  SampleRows(stream, kRows, sample);
  ScoreRowsArguments score = {};
  score.vocab = kVocab;
  ScoreRows(stream, kRows, score);
  ArgmaxRowsArguments argmax = {};
  argmax.vocab = kVocab;
  ArgmaxRows(stream, kRows, argmax);
}

void PrintAll() {
  PrintingStream stream;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    PrintRowWise(stream, dtype);
    PrintLora(stream, dtype);
    PrintGates(stream, dtype);
    for (const int head_dim : kHeadDims) PrintAttention(stream, dtype, head_dim);
  }
  PrintOneInstance(stream);
  PrintExperts(stream);
  PrintStates(stream);
}

}  // namespace
}  // namespace loramux::gpu

int main() { loramux::gpu::PrintAll(); }
