#include "model/device_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/alibi.h"
#include "model/model_tensors.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

constexpr std::int64_t kWeightAlignment = 256;
constexpr std::int64_t kStagingBytes = std::int64_t{32} << 20;  // of one half

// Writes rows [first_row, first_row + rows) of a row-major matrix.
using FillRows = std::function<void(std::int64_t first_row, std::int64_t rows, std::byte* out)>;

// Places weights one after the other. The same calls are made twice: first they add up the bytes, then they copy.
// Copies go through two halves of pinned memory; each half has a stream, so that one is filled while the other is
// copied.
class WeightWriter {
 public:
  explicit WeightWriter(Device& device) : device_(device) {}

  // Begins the second pass: takes the memory that the first one asked for.
  Result<std::unique_ptr<Arena>> BeginCopy() {
    const std::int64_t half = std::max(kStagingBytes, longest_row_);
    ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, device_.Allocate("the model's weights", bytes_));
    ASSIGN_OR_RETURN(staging_, device_.AllocatePinned("the copy of the model's weights", 2 * half));
    for (std::size_t i = 0; i < halves_.size(); ++i) {
      halves_[i].data = staging_->base() + static_cast<std::int64_t>(i) * half;
      ASSIGN_OR_RETURN(halves_[i].stream, device_.CreateStream());
    }
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

  // Waits for all copies. Error: the device is lost.
  Status Finish() {
    for (Half& half : halves_) RETURN_IF_ERROR(half.stream->Synchronize());
    return device_.status();
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
    Half& half = halves_[next_];
    next_ = (next_ + 1) % halves_.size();
    // Its earlier copy must have read the half. A lost device says so in Finish.
    if (!half.stream->Synchronize().ok()) return;
    fill(half.data);
    half.stream->CopyToDevice(to, half.data, static_cast<std::size_t>(bytes));
  }

  Device& device_;
  std::byte* base_ = nullptr;
  std::int64_t bytes_ = 0, longest_row_ = 0, half_bytes_ = 0;
  std::unique_ptr<Arena> staging_;
  std::array<Half, 2> halves_;
  std::size_t next_ = 0;
};

template <typename Norm>
DeviceWeights::Norm WriteNorm(WeightWriter& writer, const Norm& norm) {
  return {writer.Vector(norm.weight), writer.Vector(norm.bias)};
}

// ---- from the files

// Writes the tensors of a model directory.
class TensorSource {
 public:
  TensorSource(const ModelTensors& tensors, std::vector<float> slopes, const Progress& progress)
      : tensors_(tensors),
        slopes_(std::move(slopes)),
        progress_(progress),
        total_(MatrixBytes(tensors)),
        dtype_(TypeOf(tensors)) {}

  DeviceWeights Write(WeightWriter& writer, bool report) {
    report_ = report;
    DeviceWeights w;
    w.dtype = dtype_;
    if (tensors_.embedding.weight != nullptr) {
      w.embedding = Matrix(writer, {tensors_.embedding}, CommonDType({tensors_.embedding}));
    }
    for (const LayerTensors& layer : tensors_.layers) w.layers.push_back(WriteLayer(writer, layer));
    w.final_norm = WriteNorm(writer, tensors_.final_norm);
    if (tensors_.positions.weight != nullptr) {
      w.positions = Matrix(writer, {tensors_.positions}, CommonDType({tensors_.positions}));
    }
    w.embedding_norm = WriteNorm(writer, tensors_.embedding_norm);
    w.slopes = writer.Vector(slopes_);
    if (tensors_.project_in.weight != nullptr) {
      w.project_in = Matrix(writer, {tensors_.project_in}, dtype_);
      w.project_out = Matrix(writer, {tensors_.project_out}, dtype_);
    }
    w.lm_head = Matrix(writer, {tensors_.lm_head}, dtype_);
    w.generates = tensors_.generates;
    return w;
  }

 private:
  // Of all products: their inputs have one type.
  static DType TypeOf(const ModelTensors& tensors) {
    const bool projects = tensors.project_in.weight != nullptr;
    const DType dtype = projects ? CommonDType({tensors.lm_head, tensors.project_in, tensors.project_out})
                                 : CommonDType({tensors.lm_head});
    const bool same = std::ranges::all_of(tensors.layers, [&](const LayerTensors& t) {
      return CommonDType({tensors.lm_head, t.q, t.k, t.v, t.o, t.gate.weight == nullptr ? t.up : t.gate, t.up,
                          t.down}) == dtype;
    });
    return same ? dtype : DType::kF32;
  }

  DeviceWeights::Layer WriteLayer(WeightWriter& writer, const LayerTensors& t) {
    DeviceWeights::Layer w;
    w.qkv = Matrix(writer, {t.q, t.k, t.v}, dtype_);
    w.o = Matrix(writer, {t.o}, dtype_);
    w.gate_up = WithGateUp(t, [&](auto linears) { return Matrix(writer, linears, dtype_); });
    w.down = Matrix(writer, {t.down}, dtype_);
    w.qkv_bias = writer.Vector(StackedBias({t.q, t.k, t.v}));
    w.o_bias = writer.Vector(StackedBias({t.o}));
    w.gate_up_bias = writer.Vector(WithGateUp(t, StackedBias));
    w.down_bias = writer.Vector(StackedBias({t.down}));
    w.input_norm = WriteNorm(writer, t.input_norm);
    w.attention_output_norm = WriteNorm(writer, t.attention_output_norm);
    w.mlp_norm = WriteNorm(writer, t.mlp_norm);
    w.mlp_output_norm = WriteNorm(writer, t.mlp_output_norm);
    w.q_norm = WriteNorm(writer, t.q_norm);
    w.k_norm = WriteNorm(writer, t.k_norm);
    return w;
  }

  // Stacks the weights by output rows.
  DeviceMatrix Matrix(WeightWriter& writer, std::initializer_list<LinearTensors> linears, DType dtype) {
    std::int64_t n = 0;
    for (const LinearTensors& linear : linears) n += linear.weight->rows();
    return writer.Matrix(n, linears.begin()->weight->columns(), dtype,
                         [&](std::int64_t first_row, std::int64_t rows, std::byte* out) {
                           FillStacked(linears, first_row, rows, dtype, out);
                         });
  }

  void FillStacked(std::initializer_list<LinearTensors> linears, std::int64_t first_row, std::int64_t rows, DType dtype,
                   std::byte* out) {
    std::int64_t tensor_row = 0;  // where the tensor begins
    for (const LinearTensors& linear : linears) {
      const StoredMatrix& matrix = *linear.weight;
      const std::int64_t begin = std::max(first_row, tensor_row);
      const std::int64_t end = std::min(first_row + rows, tensor_row + matrix.rows());
      if (begin < end) out = CopyRows(matrix, begin - tensor_row, end - begin, dtype, out);
      tensor_row += matrix.rows();
    }
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
    done_ += matrix.bytes() / matrix.rows() * rows;
    if (report_ && progress_) progress_(done_, total_);
    return out + count * static_cast<std::int64_t>(DTypeSize(dtype));
  }

  const ModelTensors& tensors_;
  const std::vector<float> slopes_;
  const Progress& progress_;
  const std::int64_t total_;
  const DType dtype_;
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
    if (weights_.embedding.n() > 0) w.embedding = Matrix(writer, weights_.embedding, weights_.embedding.dtype());
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
  static DType TypeOf(const ModelWeights& weights) {
    const DType dtype = weights.lm_head.dtype();
    const bool projects = weights.project_in.n() > 0;
    if (projects && (weights.project_in.dtype() != dtype || weights.project_out.dtype() != dtype)) return DType::kF32;
    const bool same = std::ranges::all_of(weights.layers, [&](const LayerWeights& w) {
      return w.qkv.dtype() == dtype && w.o.dtype() == dtype && w.gate_up.dtype() == dtype && w.down.dtype() == dtype;
    });
    return same ? dtype : DType::kF32;
  }

  DeviceWeights::Layer WriteLayer(WeightWriter& writer, const LayerWeights& from) const {
    DeviceWeights::Layer w;
    w.qkv = Matrix(writer, from.qkv, dtype_);
    w.o = Matrix(writer, from.o, dtype_);
    w.gate_up = Matrix(writer, from.gate_up, dtype_);
    w.down = Matrix(writer, from.down, dtype_);
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

  static DeviceMatrix Matrix(WeightWriter& writer, const PackedMatrix& from, DType dtype) {
    std::vector<float> floats(static_cast<std::size_t>(from.k()));
    return writer.Matrix(from.n(), from.k(), dtype, [&](std::int64_t first_row, std::int64_t rows, std::byte* out) {
      for (std::int64_t row = 0; row < rows; ++row) {
        from.UnpackRow(first_row + row, floats.data());
        // The values have this type already, so nothing is rounded.
        for (std::int64_t i = 0; i < from.k(); ++i) {
          StoreFromF32(dtype, out, row * from.k() + i, floats[static_cast<std::size_t>(i)]);
        }
      }
    });
  }

  const ModelWeights& weights_;
  const DType dtype_;
};

template <typename Source>
Result<DeviceWeights> WriteWeights(Source source, Device& device) {
  WeightWriter writer(device);
  source.Write(writer, false);
  ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, writer.BeginCopy());
  DeviceWeights weights = source.Write(writer, true);
  RETURN_IF_ERROR(writer.Finish());
  weights.arena = std::move(arena);
  return weights;
}

}  // namespace

Result<DeviceWeights> UploadModelWeights(const ModelConfig& config, ModelSource& source, Device& device,
                                         const Progress& progress) {
  ASSIGN_OR_RETURN(const ModelTensors tensors, FindModelTensors(config, source));
  return WriteWeights(TensorSource(tensors, AlibiSlopes(config), progress), device);
}

Result<DeviceWeights> UploadModelWeights(const ModelWeights& weights, Device& device) {
  return WriteWeights(PackedSource(weights), device);
}

}  // namespace loramux
