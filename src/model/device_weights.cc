#include "model/device_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/ceil_divide.h"
#include "base/check.h"
#include "kernels/thread_pool.h"
#include "model/alibi.h"
#include "model/model_tensors.h"
#include "quant/quantise.h"
#include "tensor/group_panel.h"
#include "tensor/grouped_rows.h"
#include "tensor/half_float.h"
#include "tensor/weight_format.h"

namespace loramux {
namespace {

constexpr std::int64_t kWeightAlignment = 256;
constexpr std::int64_t kMostWidenedBytes = std::int64_t{32} << 20;  // less than the L2 cache of large devices
constexpr std::int64_t kStagingBytes = std::int64_t{32} << 20;      // bytes of one half

// Writes rows [first_row, first_row + rows) of a row-major matrix.
using FillRows = std::function<void(std::int64_t first_row, std::int64_t rows, std::byte* out)>;
// Gives the same rows in the form that is kept. Called by several threads at once.
using ReadRows = std::function<GroupedRows(std::int64_t first_row, std::int64_t rows)>;

// How a device keeps a quantised matrix.
struct KeptForm {
  WeightFormat format = WeightFormat::kQ8;
  std::int32_t group_shift = 5;
};

// The largest groups that the kernels take: powers of two, or whole rows.
std::int32_t GroupShift(std::int64_t group, std::int64_t columns) {
  if (group >= columns) return gpu::kWholeRow;
  return std::countr_zero(static_cast<std::uint64_t>(group));
}

// Places weights one after the other. The same calls are made twice: first they add up the bytes, then they copy.
// Copies go through two halves of pinned memory; each half has a stream, so that one is filled while the other is
// copied.
class WeightWriter {
 public:
  // Begins the second pass: takes the memory that the first one asked for.
  Result<std::unique_ptr<Arena>> BeginCopy(Device& device) {
    const std::int64_t half = std::max(kStagingBytes, longest_row_);
    ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, device.Allocate("the model's weights", bytes_));
    ASSIGN_OR_RETURN(staging_, device.AllocatePinned("the copy of the model's weights", 2 * half));
    for (std::size_t i = 0; i < halves_.size(); ++i) {
      halves_[i].data = staging_->base() + static_cast<std::int64_t>(i) * half;
      ASSIGN_OR_RETURN(halves_[i].stream, device.CreateStream());
    }
    pool_ = std::make_unique<ThreadPool>(AvailableProcessors());
    half_bytes_ = half;
    base_ = arena->base();
    bytes_ = 0;
    return arena;
  }

  DeviceMatrix Matrix(std::int64_t n, std::int64_t k, DType dtype, const FillRows& fill) {
    const std::int64_t row_bytes = k * static_cast<std::int64_t>(DTypeSize(dtype));
    longest_row_ = std::max(longest_row_, row_bytes);
    std::byte* const to = Place(n * row_bytes);
    if (to == nullptr) return {nullptr, n, k, dtype};
    const std::int64_t piece = std::max<std::int64_t>(1, half_bytes_ / row_bytes);
    for (std::int64_t row = 0; row < n; row += piece) {
      const std::int64_t rows = std::min(piece, n - row);
      CopyPiece(to + row * row_bytes, rows * row_bytes, [&](std::byte* out) { fill(row, rows, out); });
    }
    return {to, n, k, dtype};
  }

  // Codes, then scales, of tiles; all processors read them.
  DeviceMatrix Packed(std::int64_t n, std::int64_t k, DType dtype, const KeptForm& kept, const ReadRows& read) {
    const auto code_bytes = [&](std::int64_t rows) { return gpu::PackedCodeBytes(kept.format, rows, k); };
    const auto scale_bytes = [&](std::int64_t rows) {
      return gpu::PackedScaleBytes(kept.format, kept.group_shift, rows, k);
    };
    constexpr std::int64_t kTile = gpu::kPackedTile;
    longest_row_ = std::max(longest_row_, code_bytes(kTile) + scale_bytes(kTile));
    std::byte *const codes = Place(code_bytes(n)), *const scales = Place(scale_bytes(n));
    const gpu::PackedForm form = {reinterpret_cast<const std::uint8_t*>(scales), kept.format, kept.group_shift};
    if (codes == nullptr) return {nullptr, n, k, dtype, form};
    const std::int64_t piece = half_bytes_ / (code_bytes(kTile) + scale_bytes(kTile)) * kTile;
    for (std::int64_t row = 0; row < n; row += piece) {
      const std::int64_t rows = std::min(piece, n - row);
      Half* const half = NextHalf();
      if (half == nullptr) break;
      std::byte* const half_scales = half->data + code_bytes(rows);
      pool_->Run(CeilDivide(rows, kTile), [&](std::int64_t tile, int) {
        const std::int64_t first = tile * kTile, count = std::min(kTile, rows - first);
        gpu::PackTiles(read(row + first, count), kept.group_shift, half->data + code_bytes(first),
                       half_scales + scale_bytes(first));
      });
      half->stream->CopyToDevice(codes + code_bytes(row), half->data, static_cast<std::size_t>(code_bytes(rows)));
      half->stream->CopyToDevice(scales + scale_bytes(row), half_scales, static_cast<std::size_t>(scale_bytes(rows)));
    }
    return {codes, n, k, dtype, form};
  }

  // No vector if there are no values.
  DeviceVector Vector(std::span<const float> values) {
    if (values.empty()) return {};
    const auto bytes = static_cast<std::int64_t>(values.size_bytes());
    longest_row_ = std::max(longest_row_, bytes);
    std::byte* const to = Place(bytes);
    if (to == nullptr) return {};
    CopyPiece(to, bytes, [&](std::byte* out) { std::memcpy(out, values.data(), values.size_bytes()); });
    return {reinterpret_cast<const float*>(to)};
  }

  // What has been placed so far.
  std::int64_t bytes() const { return bytes_; }

  // Waits for all copies. Error: the device is lost.
  Status Finish(const Device& device) {
    for (Half& half : halves_) RETURN_IF_ERROR(half.stream->Synchronize());
    return device.status();
  }

 private:
  struct Half {
    std::byte* data = nullptr;
    std::unique_ptr<DeviceStream> stream;
  };

  // Null in the first pass.
  std::byte* Place(std::int64_t bytes) {
    const std::int64_t at = bytes_;
    bytes_ += (bytes + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
    return base_ == nullptr ? nullptr : base_ + at;
  }

  template <typename Fill>
  void CopyPiece(std::byte* to, std::int64_t bytes, const Fill& fill) {
    Half* const half = NextHalf();
    if (half == nullptr) return;
    fill(half->data);
    half->stream->CopyToDevice(to, half->data, static_cast<std::size_t>(bytes));
  }

  // The half whose turn it is, once its earlier copy has read it. Null: the device is lost, which Finish says.
  Half* NextHalf() {
    Half& half = halves_[next_];
    next_ = (next_ + 1) % halves_.size();
    return half.stream->Synchronize().ok() ? &half : nullptr;
  }

  std::unique_ptr<ThreadPool> pool_;  // from the second pass on
  std::byte* base_ = nullptr;
  std::int64_t bytes_ = 0, longest_row_ = 0, half_bytes_ = 0;
  std::unique_ptr<Arena> staging_;
  std::array<Half, 2> halves_;
  std::size_t next_ = 0;
};

// The vectors of a recurrent layer; none of another.
StateWeightsOf<DeviceVector> WriteVectors(WeightWriter& writer, const StateWeightsOf<std::vector<float>>& from) {
  return {.conv = writer.Vector(from.conv),
          .rate = writer.Vector(from.rate),
          .dt_bias = writer.Vector(from.dt_bias),
          .norm = writer.Vector(from.norm),
          .conv_bias = writer.Vector(from.conv_bias),
          .skip = writer.Vector(from.skip)};
}

// The experts' parts of a matrix, or of a vector, of all of them.
std::vector<DeviceMatrix> SplitMatrix(const DeviceMatrix& all, std::size_t experts) {
  std::vector<DeviceMatrix> split;
  const std::int64_t rows = all.n() / static_cast<std::int64_t>(experts);
  for (std::size_t e = 0; e < experts; ++e) split.push_back(all.Rows(static_cast<std::int64_t>(e) * rows, rows));
  return split;
}
std::vector<DeviceVector> SplitVector(DeviceVector all, std::int64_t values, std::size_t experts) {
  std::vector<DeviceVector> split;
  for (std::size_t e = 0; all.data != nullptr && e < experts; ++e) {
    split.push_back({all.data + static_cast<std::int64_t>(e) * values});
  }
  return split;
}

template <typename Norm>
DeviceWeights::Norm WriteNorm(WeightWriter& writer, const Norm& norm) {
  return {writer.Vector(norm.weight), writer.Vector(norm.bias)};
}

// ---- from the files

// Writes the tensors of a model directory.
class TensorSource {
 public:
  TensorSource(const ModelTensors& tensors, std::vector<float> slopes, const WeightOptions& options,
               const Progress& progress)
      : tensors_(tensors),
        slopes_(std::move(slopes)),
        layers_(options.layers),
        others_(EmbeddingFormat(options)),
        progress_(progress),
        total_(MatrixBytes(tensors)),
        dtype_(TypeOf()) {}

  DeviceWeights Write(WeightWriter& writer, bool report) {
    report_ = report;
    widened_.clear();
    DeviceWeights w;
    w.dtype = dtype_;
    if (tensors_.embedding.weight != nullptr) {
      const bool floats = others_ && !IsQuantised(*others_);
      w.embedding =
          Matrix(writer, {tensors_.embedding}, others_, floats ? DTypeOf(*others_) : CommonDType({tensors_.embedding}));
    }
    for (const LayerTensors& layer : tensors_.layers) w.layers.push_back(WriteLayer(writer, layer));
    w.final_norm = WriteNorm(writer, tensors_.final_norm);
    if (tensors_.positions.weight != nullptr) {
      w.positions = Floats(writer, Span({tensors_.positions}), CommonDType({tensors_.positions}));
    }
    w.embedding_norm = WriteNorm(writer, tensors_.embedding_norm);
    w.slopes = writer.Vector(slopes_);
    if (tensors_.project_in.weight != nullptr) {
      w.project_in = Matrix(writer, {tensors_.project_in}, layers_, dtype_);
      w.project_out = Matrix(writer, {tensors_.project_out}, layers_, dtype_);
    }
    w.lm_head = Matrix(writer, {tensors_.lm_head}, others_, dtype_);
    w.generates = tensors_.generates;
    w.widened = widened_;
    return w;
  }

 private:
  using Linears = std::span<const LinearTensors>;
  static Linears Span(std::initializer_list<LinearTensors> linears) { return {linears.begin(), linears.size()}; }

  // The form in which a device keeps matrices that share a product; nullopt: floats. `as`: what replaces theirs.
  // `tiles`: whether each has whole tiles, as experts must.
  static std::optional<KeptForm> FormOf(Linears linears, std::optional<WeightFormat> as, bool tiles = false) {
    const std::int64_t columns = linears[0].weight->columns();
    const auto in_tiles = [](const LinearTensors& linear) { return linear.weight->rows() % gpu::kPackedTile == 0; };
    if (!gpu::CanPack(columns) || (tiles && !std::ranges::all_of(linears, in_tiles))) return std::nullopt;
    if (as) return IsQuantised(*as) ? std::optional(KeptForm{*as, 5}) : std::nullopt;
    std::optional<KeptForm> form;
    for (const LinearTensors& linear : linears) {
      const auto kept = linear.weight->kept();
      if (!kept || (form && form->format != kept->format)) return std::nullopt;
      const std::int32_t shift = GroupShift(kept->group, columns);
      form = {kept->format, form ? std::min(form->group_shift, shift) : shift};
    }
    return form;
  }

  // The type of the floats that all products of floats have; bf16 if there are none.
  DType TypeOf() const {
    std::optional<DType> dtype;
    bool same = true;
    const auto look = [&](Linears linears, std::optional<WeightFormat> as, bool tiles = false) {
      for (const LinearTensors& linear : linears) {
        if (linear.weight == nullptr || FormOf({&linear, 1}, as, tiles)) continue;
        const WeightFormat format = as.value_or(linear.weight->format());
        if (IsQuantised(format)) continue;  // takes the type of the others
        same = same && (!dtype || *dtype == DTypeOf(format));
        dtype = DTypeOf(format);
      }
    };
    const auto block = [&](const BlockTensors& t, bool tiles) { look(Span({t.gate, t.up, t.down}), layers_, tiles); };
    look(Span({tensors_.lm_head}), others_);
    look(Span({tensors_.project_in, tensors_.project_out}), layers_);
    for (const LayerTensors& t : tensors_.layers) {
      look(Span({t.q, t.k, t.v, t.o}), layers_);
      look(Span({t.in_qkv, t.in_z, t.in_all}), layers_);
      block(t, false);
      for (const BlockTensors& expert : t.experts) block(expert, true);
    }
    if (!same) return DType::kF32;
    const DType found = dtype.value_or(DType::kBF16);
    // What decides is small, and may be stored wider.
    for (const LayerTensors& t : tensors_.layers) {
      for (const LinearTensors* small : {&t.router, &t.shared_gate, &t.in_b, &t.in_a}) {
        if (small->weight == nullptr || IsQuantised(small->weight->format())) continue;
        if (small->weight->format() != FormatOf(found) && !Holds(found, *small->weight)) return DType::kF32;
      }
    }
    return found;
  }

  // Whether rounding changes no value.
  static bool Holds(DType dtype, const StoredMatrix& matrix) {
    std::vector<float> row(static_cast<std::size_t>(matrix.columns()));
    for (std::int64_t r = 0; r < matrix.rows(); ++r) {
      matrix.ReadFloats(r, 1, row.data());
      for (const float value : row) {
        std::byte rounded[sizeof(float)];
        StoreFromF32(dtype, rounded, 0, value);
        if (LoadAsF32(dtype, rounded, 0) != value) return false;
      }
    }
    return true;
  }

  DeviceWeights::Layer WriteLayer(WeightWriter& writer, const LayerTensors& t) {
    DeviceWeights::Layer w;
    if (t.rate.empty()) {
      w.qkv = Matrix(writer, {t.q, t.k, t.v}, layers_, dtype_);
    } else {
      WriteStates(writer, t, w);
    }
    w.o = Matrix(writer, {t.o}, layers_, dtype_);
    if (t.down.weight != nullptr) {
      w.gate_up = WithGateUp(t, [&](auto linears) { return Matrix(writer, linears, layers_, dtype_); });
      w.down = Matrix(writer, {t.down}, layers_, dtype_);
      w.gate_up_bias = writer.Vector(WithGateUp(t, StackedBias));
      w.down_bias = writer.Vector(StackedBias({t.down}));
    }
    if (!t.experts.empty()) WriteExperts(writer, t, w);
    w.sinks = writer.Vector(t.sinks);
    w.qkv_bias = writer.Vector(StackedBias({t.in_all, t.q, t.k, t.v}));
    w.o_bias = writer.Vector(StackedBias({t.o}));
    w.input_norm = WriteNorm(writer, t.input_norm);
    w.attention_output_norm = WriteNorm(writer, t.attention_output_norm);
    w.mlp_norm = WriteNorm(writer, t.mlp_norm);
    w.mlp_output_norm = WriteNorm(writer, t.mlp_output_norm);
    w.q_norm = WriteNorm(writer, t.q_norm);
    w.k_norm = WriteNorm(writer, t.k_norm);
    return w;
  }

  // What a recurrent layer has in place of queries, keys and values.
  void WriteStates(WeightWriter& writer, const LayerTensors& t, DeviceWeights::Layer& w) {
    if (t.in_all.weight != nullptr) {
      w.qkv = Matrix(writer, {t.in_all}, layers_, dtype_);
    } else {
      w.qkv = Matrix(writer, {t.in_qkv, t.in_z}, layers_, dtype_);
      w.state_gates = Floats(writer, Span({t.in_b, t.in_a}), dtype_);
    }
    w.states = WriteVectors(writer, {t.conv, t.rate, t.dt_bias, t.state_norm, t.conv_bias, t.skip});
  }

  void WriteExperts(WeightWriter& writer, const LayerTensors& t, DeviceWeights::Layer& w) {
    const std::size_t count = t.experts.size();
    // As small, and always floats.
    w.router = Floats(writer, Span({t.router}), dtype_);
    w.router_bias = writer.Vector(t.router.bias);
    if (t.shared_gate.weight != nullptr) w.shared_gate = Floats(writer, Span({t.shared_gate}), dtype_);
    std::vector<LinearTensors> gate_up, down;
    std::vector<float> gate_up_bias, down_bias;
    for (const BlockTensors& expert : t.experts) {
      gate_up.insert(gate_up.end(), {expert.gate, expert.up});
      down.push_back(expert.down);
      std::ranges::copy(StackedBias({expert.gate, expert.up}), std::back_inserter(gate_up_bias));
      std::ranges::copy(expert.down.bias, std::back_inserter(down_bias));
    }
    w.expert_gate_up = SplitMatrix(Matrix(writer, gate_up, layers_, dtype_, true), count);
    w.expert_down = SplitMatrix(Matrix(writer, down, layers_, dtype_, true), count);
    w.expert_gate_up_bias = SplitVector(writer.Vector(gate_up_bias), w.expert_gate_up[0].n(), count);
    w.expert_down_bias = SplitVector(writer.Vector(down_bias), w.expert_down[0].n(), count);
  }

  DeviceMatrix Matrix(WeightWriter& writer, std::initializer_list<LinearTensors> linears,
                      std::optional<WeightFormat> as, DType dtype) {
    return Matrix(writer, Span(linears), as, dtype);
  }

  // Stacks the weights by output rows, in a quantised form if there is one.
  DeviceMatrix Matrix(WeightWriter& writer, Linears linears, std::optional<WeightFormat> as, DType dtype,
                      bool tiles = false) {
    const std::optional<KeptForm> form = FormOf(linears, as, tiles);
    if (!form) return Floats(writer, linears, dtype, as);
    const DeviceMatrix matrix = writer.Packed(
        RowsOf(linears), linears[0].weight->columns(), dtype_, *form, [&](std::int64_t first_row, std::int64_t rows) {
          GroupedRows all;
          ForEachPart(linears, first_row, rows, [&](const StoredMatrix& part, std::int64_t first, std::int64_t count) {
            GroupedRows some = ReadAs(part, as, form->format, first, count);
            if (all.codes.empty())
              all = std::move(some);
            else
              all.Append(some);
          });
          return all;
        });
    for (const LinearTensors& linear : linears) Report(*linear.weight, linear.weight->rows());
    return matrix;
  }

  static GroupedRows ReadAs(const StoredMatrix& matrix, std::optional<WeightFormat> as, WeightFormat format,
                            std::int64_t first, std::int64_t count) {
    if (!as) return matrix.ReadKept(first, count);
    if (matrix.format() == format) return matrix.ReadGroups(first, count);
    std::vector<float> floats(static_cast<std::size_t>(count * matrix.columns()));
    matrix.ReadFloats(first, count, floats.data());
    return Quantise(format, floats.data(), count, matrix.columns());
  }

  DeviceMatrix Floats(WeightWriter& writer, Linears linears, DType dtype, std::optional<WeightFormat> as = {}) {
    for (const LinearTensors& linear : linears) {
      const WeightFormat wanted = as.value_or(linear.weight->format());
      if (IsQuantised(wanted)) widened_.push_back(linear.weight->name());
    }
    return writer.Matrix(RowsOf(linears), linears[0].weight->columns(), dtype,
                         [&](std::int64_t first_row, std::int64_t rows, std::byte* out) {
                           FillStacked(linears, first_row, rows, dtype, out);
                         });
  }

  static std::int64_t RowsOf(std::span<const LinearTensors> linears) {
    std::int64_t rows = 0;
    for (const LinearTensors& linear : linears) rows += linear.weight->rows();
    return rows;
  }

  // Calls fn(matrix, first, count) for the parts of the rows [first_row, first_row + rows) of all matrices together.
  template <typename F>
  static void ForEachPart(std::span<const LinearTensors> linears, std::int64_t first_row, std::int64_t rows,
                          const F& fn) {
    std::int64_t tensor_row = 0;  // where the tensor begins
    for (const LinearTensors& linear : linears) {
      const StoredMatrix& matrix = *linear.weight;
      const std::int64_t begin = std::max(first_row, tensor_row);
      const std::int64_t end = std::min(first_row + rows, tensor_row + matrix.rows());
      if (begin < end) fn(matrix, begin - tensor_row, end - begin);
      tensor_row += matrix.rows();
    }
  }

  void FillStacked(std::span<const LinearTensors> linears, std::int64_t first_row, std::int64_t rows, DType dtype,
                   std::byte* out) {
    ForEachPart(linears, first_row, rows, [&](const StoredMatrix& matrix, std::int64_t first, std::int64_t count) {
      out = CopyRows(matrix, first, count, dtype, out);
    });
  }

  void Report(const StoredMatrix& matrix, std::int64_t rows) {
    if (!report_) return;
    done_ += matrix.bytes() / matrix.rows() * rows;
    if (progress_) progress_(done_, total_);
  }

  // Returns the end of what it wrote.
  std::byte* CopyRows(const StoredMatrix& matrix, std::int64_t first_row, std::int64_t rows, DType dtype,
                      std::byte* out) {
    const std::int64_t k = matrix.columns(), count = rows * k;
    const std::span<const std::byte> raw = matrix.Raw(first_row, rows);
    if (!raw.empty() && matrix.format() == FormatOf(dtype)) {
      std::memcpy(out, raw.data(), raw.size());
    } else {
      std::vector<float> row(static_cast<std::size_t>(k));
      for (std::int64_t r = 0; r < rows; ++r) {
        matrix.ReadFloats(first_row + r, 1, row.data());
        for (std::int64_t t = 0; t < k; ++t) StoreFromF32(dtype, out, r * k + t, row[static_cast<std::size_t>(t)]);
      }
    }
    Report(matrix, rows);
    return out + count * static_cast<std::int64_t>(DTypeSize(dtype));
  }

  const ModelTensors& tensors_;
  const std::vector<float> slopes_;
  const std::optional<WeightFormat> layers_, others_;
  const Progress& progress_;
  const std::int64_t total_;
  const DType dtype_;
  std::vector<std::string> widened_;
  std::int64_t done_ = 0;
  bool report_ = false;
};

// ---- from the CPU's weights

// Writes packed weights.
class PackedSource {
 public:
  explicit PackedSource(const ModelWeights& weights) : weights_(weights), dtype_(TypeOf(weights)) {}

  DeviceWeights Write(WeightWriter& writer, bool /*report*/) const {
    DeviceWeights w;
    w.dtype = dtype_;
    if (const PackedMatrix& from = weights_.embedding; from.n() > 0)
      w.embedding = Matrix(writer, from, from.quantised() ? dtype_ : from.dtype());
    for (const LayerWeights& layer : weights_.layers) w.layers.push_back(WriteLayer(writer, layer));
    w.final_norm = WriteNorm(writer, weights_.final_norm);
    if (weights_.positions.n() > 0) w.positions = Matrix(writer, weights_.positions, weights_.positions.dtype());
    w.embedding_norm = WriteNorm(writer, weights_.embedding_norm);
    w.slopes = writer.Vector(weights_.slopes);
    if (weights_.project_in.n() > 0) {
      w.project_in = Matrix(writer, weights_.project_in, dtype_);
      w.project_out = Matrix(writer, weights_.project_out, dtype_);
    }
    w.lm_head = Matrix(writer, weights_.lm_head, dtype_);
    w.generates = weights_.generates;
    return w;
  }

 private:
  // Whether the device keeps matrices of equal extents in the one format that all their panels have.
  static bool Keeps(std::span<const PackedMatrix> all) {
    return std::ranges::all_of(all, [&](const PackedMatrix& matrix) {
      if (!IsQuantised(matrix.format()) || !gpu::CanPack(matrix.k())) return false;
      if (all.size() > 1 && matrix.n() % gpu::kPackedTile != 0) return false;
      for (std::int64_t panel = 0; panel < matrix.panels(); ++panel)
        if (matrix.format(panel) != all[0].format()) return false;
      return true;
    });
  }

  // The type of the floats; bf16 if there are none.
  static DType TypeOf(const ModelWeights& weights) {
    std::optional<DType> dtype;
    bool same = true;
    const auto look = [&](const PackedMatrix& matrix) {
      if (matrix.n() == 0 || matrix.quantised()) return;
      same = same && (!dtype || *dtype == matrix.dtype());
      dtype = matrix.dtype();
    };
    for (const PackedMatrix* matrix : {&weights.lm_head, &weights.project_in, &weights.project_out}) look(*matrix);
    for (const LayerWeights& w : weights.layers) {
      for (const PackedMatrix* matrix : {&w.qkv, &w.state_gates, &w.o, &w.gate_up, &w.down, &w.router, &w.shared_gate})
        look(*matrix);
      for (const auto* experts : {&w.expert_gate_up, &w.expert_down}) std::ranges::for_each(*experts, look);
    }
    return same ? dtype.value_or(DType::kBF16) : DType::kF32;
  }

  DeviceWeights::Layer WriteLayer(WeightWriter& writer, const LayerWeights& from) const {
    DeviceWeights::Layer w;
    w.qkv = Matrix(writer, from.qkv, dtype_);
    w.o = Matrix(writer, from.o, dtype_);
    if (from.state_gates.n() > 0) w.state_gates = Matrix(writer, from.state_gates, dtype_);
    w.states = WriteVectors(writer, from.states);
    if (from.down.n() > 0) {
      w.gate_up = Matrix(writer, from.gate_up, dtype_);
      w.down = Matrix(writer, from.down, dtype_);
    }
    if (!from.expert_down.empty()) WriteExperts(writer, from, w);
    w.sinks = writer.Vector(from.sinks);
    w.qkv_bias = writer.Vector(from.qkv_bias);
    w.o_bias = writer.Vector(from.o_bias);
    w.gate_up_bias = writer.Vector(from.gate_up_bias);
    w.down_bias = writer.Vector(from.down_bias);
    w.input_norm = WriteNorm(writer, from.input_norm);
    w.attention_output_norm = WriteNorm(writer, from.attention_output_norm);
    w.mlp_norm = WriteNorm(writer, from.mlp_norm);
    w.mlp_output_norm = WriteNorm(writer, from.mlp_output_norm);
    w.q_norm = WriteNorm(writer, from.q_norm);
    w.k_norm = WriteNorm(writer, from.k_norm);
    return w;
  }

  void WriteExperts(WeightWriter& writer, const LayerWeights& from, DeviceWeights::Layer& w) const {
    const std::size_t count = from.expert_down.size();
    w.router = Matrix(writer, from.router, dtype_);
    w.router_bias = writer.Vector(from.router_bias);
    if (from.shared_gate.n() > 0) w.shared_gate = Matrix(writer, from.shared_gate, dtype_);
    w.expert_gate_up = SplitMatrix(Matrix(writer, from.expert_gate_up, dtype_), count);
    w.expert_down = SplitMatrix(Matrix(writer, from.expert_down, dtype_), count);
    const auto bias = [&](std::span<const std::vector<float>> biases, std::int64_t values) {
      std::vector<float> all;
      for (const std::vector<float>& of_expert : biases) all.insert(all.end(), of_expert.begin(), of_expert.end());
      return SplitVector(writer.Vector(all), values, count);
    };
    w.expert_gate_up_bias = bias(from.expert_gate_up_bias, from.expert_gate_up[0].n());
    w.expert_down_bias = bias(from.expert_down_bias, from.expert_down[0].n());
  }

  static DeviceMatrix Matrix(WeightWriter& writer, const PackedMatrix& from, DType dtype) {
    return Matrix(writer, std::span(&from, 1), dtype);
  }

  // Matrices of equal extents, one after the other.
  static DeviceMatrix Matrix(WeightWriter& writer, std::span<const PackedMatrix> all, DType dtype) {
    const PackedMatrix& from = all[0];
    const std::int64_t n = from.n() * static_cast<std::int64_t>(all.size());
    if (Keeps(all)) {
      return writer.Packed(n, from.k(), dtype, {from.format(), 5}, [&](std::int64_t first_row, std::int64_t rows) {
        GroupedRows groups(from.format(), rows, from.k());
        for (std::int64_t row = 0; row < rows; ++row) {
          const std::int64_t at = first_row + row;
          UnpackGroups(all[static_cast<std::size_t>(at / from.n())], at % from.n(), row, groups);
        }
        return groups;
      });
    }
    std::vector<float> floats(static_cast<std::size_t>(from.k()));
    return writer.Matrix(n, from.k(), dtype, [&](std::int64_t first_row, std::int64_t rows, std::byte* out) {
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t at = first_row + row;
        all[static_cast<std::size_t>(at / from.n())].UnpackRow(at % from.n(), floats.data());
        // The values have this type already, so nothing is rounded; or they are quantised and not kept.
        for (std::int64_t i = 0; i < from.k(); ++i) {
          StoreFromF32(dtype, out, row * from.k() + i, floats[static_cast<std::size_t>(i)]);
        }
      }
    });
  }

  static void UnpackGroups(const PackedMatrix& from, std::int64_t row, std::int64_t to, GroupedRows& groups) {
    const std::byte* const panel = from.panel(row / PackedMatrix::kPanel);
    for (std::int64_t g = 0; g < groups.groups(); ++g) {
      const OutputGroup group = ReadGroup(from.format(), panel, row % PackedMatrix::kPanel, g);
      groups.ScalesOf(to)[g] = group.scale;
      groups.MinimumsOf(to)[g] = group.minimum;
      std::ranges::copy(group.codes, groups.CodesOf(to) + g * kWeightGroup);
    }
  }

  const ModelWeights& weights_;
  const DType dtype_;
};

template <typename Source>
Result<DeviceWeights> WriteWeights(Source source, Device& device) {
  WeightWriter writer;
  source.Write(writer, false);
  ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, writer.BeginCopy(device));
  DeviceWeights weights = source.Write(writer, true);
  RETURN_IF_ERROR(writer.Finish(device));
  weights.arena = std::move(arena);
  return weights;
}

}  // namespace

DeviceMatrix DeviceMatrix::Rows(std::int64_t first, std::int64_t rows) const {
  if (data_ == nullptr) return {nullptr, rows, k_, dtype_, form_};
  if (!packed()) return {data_ + first * k_ * static_cast<std::int64_t>(DTypeSize(dtype_)), rows, k_, dtype_};
  CHECK_EQ(first % gpu::kPackedTile, 0);
  gpu::PackedForm form = form_;
  form.scales += gpu::PackedScaleBytes(form.format, form.group_shift, first, k_);
  return {data_ + gpu::PackedCodeBytes(form.format, first, k_), rows, k_, dtype_, form};
}

Result<DeviceWeights> UploadModelWeights(const ModelConfig& config, ModelSource& source, const WeightOptions& options,
                                         Device& device, const Progress& progress) {
  ASSIGN_OR_RETURN(const ModelTensors tensors, FindModelTensors(config, source));
  auto weights = WriteWeights(TensorSource(tensors, AlibiSlopes(config), options, progress), device);
  if (weights.ok() || weights.error().code != ErrorCode::kResourceExhausted || options.layers) return weights;
  const auto bytes = [&](WeightFormat format) {
    WeightOptions fewer = options;
    fewer.layers = format;
    return FormatBytes(PlanModelWeights(config, tensors, fewer).bytes);
  };
  return ResourceExhausted(weights.error().message + "; --weights q8 takes " + bytes(WeightFormat::kQ8) +
                               ", --weights q4 " + bytes(WeightFormat::kQ4),
                           "--weights");
}

std::int64_t WidenedBytes(const DeviceWeights& weights) {
  std::int64_t most = 0, tile = 0;
  const auto look = [&](const DeviceMatrix& matrix) {
    if (!matrix.packed()) return;
    const std::int64_t bytes = matrix.k() * gpu::kPackedTile * static_cast<std::int64_t>(DTypeSize(matrix.dtype()));
    most = std::max(most, CeilDivide(matrix.n(), gpu::kPackedTile) * bytes);
    tile = std::max(tile, bytes);
  };
  for (const DeviceMatrix* matrix : {&weights.lm_head, &weights.project_in, &weights.project_out}) look(*matrix);
  for (const DeviceWeights::Layer& w : weights.layers)
    for (const DeviceMatrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down}) look(*matrix);
  return std::max(tile, std::min(most, kMostWidenedBytes));
}

PlannedWeights PlanModelWeights(const ModelConfig& config, const ModelTensors& tensors, const WeightOptions& options) {
  WeightWriter writer;
  DeviceWeights weights = TensorSource(tensors, AlibiSlopes(config), options, {}).Write(writer, false);
  return {std::move(weights), writer.bytes()};
}

Result<DeviceWeights> UploadModelWeights(const ModelWeights& weights, Device& device) {
  return WriteWeights(PackedSource(weights), device);
}

}  // namespace loramux
