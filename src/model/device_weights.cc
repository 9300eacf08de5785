#include "model/device_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/alibi.h"
#include "model/model_tensors.h"
#include "tensor/grouped_rows.h"
#include "tensor/half_float.h"
#include "tensor/weight_format.h"

namespace loramux {
namespace {

constexpr std::int64_t kWeightAlignment = 256;
constexpr std::int64_t kStagingBytes = std::int64_t{32} << 20;  // bytes of one half

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

  // MXFP4: codes, then scales. `fill` writes the codes of rows, or their scales.
  template <typename FillMx4>
  DeviceMatrix Mx4(std::int64_t n, std::int64_t k, DType dtype, const FillMx4& fill) {
    const auto part = [&](bool scales) {
      return Matrix(n, scales ? k / kWeightGroup : k / 2, DType::kI8,
                    [&](std::int64_t first, std::int64_t rows, std::byte* out) { fill(scales, first, rows, out); });
    };
    const DeviceMatrix codes = part(false), scales = part(true);
    return {codes.data(), n, k, dtype, reinterpret_cast<const std::uint8_t*>(scales.data())};
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

// Rows of MXFP4 as the kernels read them: codes of kQ8 become its own, scales the exponent of their float.
void WriteMx4(const GroupedRows& rows, bool scales, std::byte* out) {
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::uint8_t* const codes = rows.CodesOf(row);
    for (std::int64_t i = 0; !scales && i < rows.columns; i += 2) {
      const auto code = [&](std::int64_t at) {
        return std::ranges::find(kMx4Codes, codes[at]) - std::begin(kMx4Codes);
      };
      *out++ = static_cast<std::byte>(code(i) | code(i + 1) << 4);
    }
    for (std::int64_t g = 0; scales && g < rows.groups(); ++g) {
      *out++ = static_cast<std::byte>(std::bit_cast<std::uint32_t>(rows.ScalesOf(row)[g]) >> 23);
    }
  }
}

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
  // The one type that the inputs of all products have.
  static DType TypeOf(const ModelTensors& tensors) {
    const bool projects = tensors.project_in.weight != nullptr;
    const DType dtype = projects ? CommonDType({tensors.lm_head, tensors.project_in, tensors.project_out})
                                 : CommonDType({tensors.lm_head});
    const auto has = [&](const LinearTensors& linear) {
      return linear.weight == nullptr || CommonDType({linear}) == dtype;
    };
    const auto block_has = [&](const BlockTensors& t) { return has(t.gate) && has(t.up) && has(t.down); };
    // What decides is small, and may be stored wider.
    const auto fits = [&](const LinearTensors& linear) { return has(linear) || Holds(dtype, *linear.weight); };
    const auto states_have = [&](const LayerTensors& t) {
      return has(t.in_qkv) && has(t.in_z) && has(t.in_all) && fits(t.in_b) && fits(t.in_a);
    };
    const bool same = std::ranges::all_of(tensors.layers, [&](const LayerTensors& t) {
      return has(t.q) && has(t.k) && has(t.v) && has(t.o) && states_have(t) && block_has(t) &&
             std::ranges::all_of(t.experts, block_has) && fits(t.router) && fits(t.shared_gate);
    });
    return same ? dtype : DType::kF32;
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
      w.qkv = Matrix(writer, {t.q, t.k, t.v}, dtype_);
    } else {
      WriteStates(writer, t, w);
    }
    w.o = Matrix(writer, {t.o}, dtype_);
    if (t.down.weight != nullptr) {
      w.gate_up = WithGateUp(t, [&](auto linears) { return Matrix(writer, linears, dtype_); });
      w.down = Matrix(writer, {t.down}, dtype_);
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
      w.qkv = Matrix(writer, {t.in_all}, dtype_);
    } else {
      w.qkv = Matrix(writer, {t.in_qkv, t.in_z}, dtype_);
      w.state_gates = Matrix(writer, {t.in_b, t.in_a}, dtype_);
    }
    w.states = WriteVectors(writer, {t.conv, t.rate, t.dt_bias, t.state_norm, t.conv_bias, t.skip});
  }

  void WriteExperts(WeightWriter& writer, const LayerTensors& t, DeviceWeights::Layer& w) {
    const std::size_t count = t.experts.size();
    w.router = Matrix(writer, {t.router}, dtype_);
    w.router_bias = writer.Vector(t.router.bias);
    if (t.shared_gate.weight != nullptr) w.shared_gate = Matrix(writer, {t.shared_gate}, dtype_);
    std::vector<LinearTensors> gate_up, down;
    std::vector<float> gate_up_bias, down_bias;
    for (const BlockTensors& expert : t.experts) {
      gate_up.insert(gate_up.end(), {expert.gate, expert.up});
      down.push_back(expert.down);
      std::ranges::copy(StackedBias({expert.gate, expert.up}), std::back_inserter(gate_up_bias));
      std::ranges::copy(expert.down.bias, std::back_inserter(down_bias));
    }
    w.expert_gate_up = SplitMatrix(Experts(writer, gate_up), count);
    w.expert_down = SplitMatrix(Experts(writer, down), count);
    w.expert_gate_up_bias = SplitVector(writer.Vector(gate_up_bias), w.expert_gate_up[0].n(), count);
    w.expert_down_bias = SplitVector(writer.Vector(down_bias), w.expert_down[0].n(), count);
  }

  // The matrices of all experts: in MXFP4 if all are.
  DeviceMatrix Experts(WeightWriter& writer, std::span<const LinearTensors> linears) {
    const bool mx4 = std::ranges::all_of(
        linears, [](const LinearTensors& linear) { return linear.weight->format() == WeightFormat::kMx4; });
    if (!mx4) return Matrix(writer, linears, dtype_);
    return writer.Mx4(RowsOf(linears), linears[0].weight->columns(), dtype_,
                      [&](bool scales, std::int64_t first_row, std::int64_t rows, std::byte* out) {
                        ForEachPart(linears, first_row, rows,
                                    [&](const StoredMatrix& matrix, std::int64_t first, std::int64_t count) {
                                      WriteMx4(matrix.ReadGroups(first, count), scales, out);
                                      out += count * matrix.columns() / (scales ? kWeightGroup : 2);
                                      if (!scales) Report(matrix, count);
                                    });
                      });
  }

  DeviceMatrix Matrix(WeightWriter& writer, std::initializer_list<LinearTensors> linears, DType dtype) {
    return Matrix(writer, std::span(linears.begin(), linears.size()), dtype);
  }

  // Stacks the weights by output rows.
  DeviceMatrix Matrix(WeightWriter& writer, std::span<const LinearTensors> linears, DType dtype) {
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
    done_ += matrix.bytes() / matrix.rows() * rows;
    if (report_ && progress_) progress_(done_, total_);
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
      const auto has = [&](const PackedMatrix& matrix) { return matrix.n() == 0 || matrix.dtype() == dtype; };
      return has(w.qkv) && has(w.state_gates) && has(w.o) && has(w.gate_up) && has(w.down) && has(w.router) &&
             has(w.shared_gate) && std::ranges::all_of(w.expert_gate_up, has) &&
             std::ranges::all_of(w.expert_down, has);
    });
    return same ? dtype : DType::kF32;
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
    std::vector<float> floats(static_cast<std::size_t>(from.k()));
    const std::int64_t n = from.n() * static_cast<std::int64_t>(all.size());
    return writer.Matrix(n, from.k(), dtype, [&](std::int64_t first_row, std::int64_t rows, std::byte* out) {
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t at = first_row + row;
        all[static_cast<std::size_t>(at / from.n())].UnpackRow(at % from.n(), floats.data());
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

DeviceMatrix DeviceMatrix::Rows(std::int64_t first, std::int64_t rows) const {
  const std::int64_t values = first * k_;
  if (data_ == nullptr) return {nullptr, rows, k_, dtype_};
  if (scales_ == nullptr) return {data_ + values * static_cast<std::int64_t>(DTypeSize(dtype_)), rows, k_, dtype_};
  return {data_ + values / 2, rows, k_, dtype_, scales_ + values / kWeightGroup};
}

Result<DeviceWeights> UploadModelWeights(const ModelConfig& config, ModelSource& source, Device& device,
                                         const Progress& progress) {
  ASSIGN_OR_RETURN(const ModelTensors tensors, FindModelTensors(config, source));
  return WriteWeights(TensorSource(tensors, AlibiSlopes(config), progress), device);
}

Result<DeviceWeights> UploadModelWeights(const ModelWeights& weights, Device& device) {
  return WriteWeights(PackedSource(weights), device);
}

}  // namespace loramux
