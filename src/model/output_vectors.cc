#include "model/output_vectors.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/message.h"
#include "kernels/matmul.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;  // bytes of W that are read at once, as float32

Result<std::vector<float>> ReadFloats(const AdapterFile& file, const TensorEntry& tensor) {
  std::vector<std::byte> bytes;
  RETURN_IF_ERROR(file.tensors->Read(tensor, bytes));
  std::vector<float> values(static_cast<std::size_t>(tensor.ElementCount()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = LoadAsF32(tensor.dtype, bytes.data(), static_cast<std::int64_t>(i));
  return values;
}

float Length(const float* a, const float* b, std::int64_t count) {
  constexpr std::int64_t kLanes = 16;  // sums that do not wait for each other
  double squares = 0;
  std::int64_t t = 0;
  while (t < count) {
    constexpr std::int64_t kPiece = 1024;  // so short that float32 rounds little
    float sums[kLanes] = {};
    const std::int64_t end = std::min(count, t + kPiece);
    for (; t + kLanes <= end; t += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const float value = a[t + lane] + b[t + lane];
        sums[lane] += value * value;
      }
    }
    for (; t < end; ++t) sums[0] += (a[t] + b[t]) * (a[t] + b[t]);
    for (const float sum : sums) squares += static_cast<double>(sum);
  }
  return static_cast<float>(std::sqrt(squares));
}

// |W + scale B A| of each row.
class RowLengths {
 public:
  RowLengths(const LoraModule& module, std::vector<float> a, std::vector<float> b)
      : in_(module.in()), rank_(module.rank), a_(in_, rank_, DType::kF32), b_(std::move(b)) {
    std::vector<float> transposed(a.size());
    for (std::int64_t j = 0; j < rank_; ++j)
      for (std::int64_t t = 0; t < in_; ++t) transposed[At(t * rank_ + j)] = a[At(j * in_ + t)];
    a_.PackRows(0, in_, reinterpret_cast<const std::byte*>(transposed.data()));
    for (float& value : b_) value *= module.scale;
  }

  Status Compute(const BaseMatrix& w, std::vector<float>& lengths) const {
    const std::int64_t at_once =
        std::clamp<std::int64_t>(kBlockBytes / static_cast<std::int64_t>(sizeof(float)) / in_, 1, w.n);
    std::vector<float> rows(At(at_once * in_)), changes(At(at_once * in_));
    lengths.resize(At(w.n));
    for (std::int64_t first = 0; first < w.n; first += at_once) {
      const std::int64_t count = std::min(at_once, w.n - first);
      RETURN_IF_ERROR(w.read(first, count, rows.data()));
      MatMul({Backend::kCpu, &pool_},
             {.x = {b_.data() + first * rank_, rank_}, .rows = count, .w = a_, .y = {changes.data(), in_}});
      for (std::int64_t row = 0; row < count; ++row)
        lengths[At(first + row)] = Length(rows.data() + row * in_, changes.data() + row * in_, in_);
    }
    return Ok{};
  }

 private:
  static std::size_t At(std::int64_t i) { return static_cast<std::size_t>(i); }

  const std::int64_t in_, rank_;
  PackedMatrix a_;  // A transposed: [in, rank]
  std::vector<float> b_;
  mutable ThreadPool pool_{1};  // the thread that loads; the others serve
};

// |W + scale B A| of each row, where W is the transposed embedding: of each column of its rows, to which A^T (scale
// B)^T is added.
Result<std::vector<float>> ColumnLengths(const LoraModule& module, const std::vector<float>& a,
                                         const std::vector<float>& b, const BaseMatrix& w) {
  const auto rank = static_cast<std::size_t>(module.rank), width = static_cast<std::size_t>(w.k);
  const auto tokens = static_cast<std::size_t>(w.n);
  const std::int64_t at_once =
      std::clamp<std::int64_t>(kBlockBytes / static_cast<std::int64_t>(sizeof(float)) / w.k, 1, w.n);
  std::vector<float> rows(static_cast<std::size_t>(at_once) * width);
  std::vector<double> squares(width, 0);
  for (std::int64_t first = 0; first < w.n; first += at_once) {
    const std::int64_t count = std::min(at_once, w.n - first);
    RETURN_IF_ERROR(w.read(first, count, rows.data()));
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const std::size_t token = static_cast<std::size_t>(first) + i;
      for (std::size_t t = 0; t < width; ++t) {
        float change = 0;
        for (std::size_t j = 0; j < rank; ++j) change += b[t * rank + j] * a[j * tokens + token];
        const double value = static_cast<double>(rows[i * width + t] + module.scale * change);
        squares[t] += value * value;
      }
    }
  }
  std::vector<float> lengths(width);
  std::ranges::transform(squares, lengths.begin(), [](double sum) { return static_cast<float>(std::sqrt(sum)); });
  return lengths;
}

Error BadVector(const AdapterFile& file, const TensorEntry& tensor, std::size_t row, const std::string& what) {
  return InvalidArgument(file.directory.string() + ": tensor " + Quote(tensor.name) + ": expected a finite " + what +
                             ", found none at [" + std::to_string(row) +
                             "]: the adapter is damaged, or belongs to another base model",
                         "lora_path");
}

// The lengths of one adapter: those that the cache has, and those that are computed now.
class AdapterLengths {
 public:
  // Nothing is known, and nothing is kept.
  AdapterLengths() = default;
  static Result<AdapterLengths> Of(const BaseMatrices& base, const AdapterFile& file, LengthCache* cache) {
    AdapterLengths lengths;
    if (cache == nullptr || std::ranges::none_of(file.modules, &LoraModule::magnitude)) return lengths;
    lengths.cache_ = cache;
    ASSIGN_OR_RETURN(lengths.name_, cache->NameOf(base, file));
    lengths.known_ = cache->Read(lengths.name_);
    return lengths;
  }

  // Finds the lengths of a module, whose base matrix is `w`; for the embedding, the matrix itself.
  Status Find(const LoraModule& module, std::vector<float> a, std::vector<float> b, const BaseMatrix& w,
              std::vector<float>& lengths) {
    if (cache_ == nullptr) return Compute(module, std::move(a), std::move(b), w, lengths);
    const Sha256Digest key = cache_->KeyOf(module, a, b);
    const auto known = known_.find(key);
    const bool right = known != known_.end() && static_cast<std::int64_t>(known->second.size()) == module.out();
    found_ += right ? 1 : 0;
    if (right) {
      lengths = known->second;
    } else {
      RETURN_IF_ERROR(Compute(module, std::move(a), std::move(b), w, lengths));
      is_new_ = true;
    }
    used_[key] = lengths;
    return Ok{};
  }
  // Keeps what was computed. Call it once all were found.
  void Keep() const {
    if (is_new_) cache_->Write(name_, used_);
  }
  std::int64_t found() const { return found_; }

 private:
  static Status Compute(const LoraModule& module, std::vector<float> a, std::vector<float> b, const BaseMatrix& w,
                        std::vector<float>& lengths) {
    if (module.target != LoraTarget::kEmbedding)
      return RowLengths(module, std::move(a), std::move(b)).Compute(w, lengths);
    ASSIGN_OR_RETURN(lengths, ColumnLengths(module, a, b, w));
    return Ok{};
  }

  LengthCache* cache_ = nullptr;
  std::string name_;
  KnownLengths known_, used_;  // lengths in the file; lengths of this adapter's modules
  std::int64_t found_ = 0;
  bool is_new_ = false;  // used_ has what the file lacks
};

Status ComputeGains(const AdapterFile& file, const LoraModule& module, const BaseMatrix& w, AdapterLengths& lengths,
                    std::vector<float>& gains) {
  ASSIGN_OR_RETURN(std::vector<float> a, ReadFloats(file, *module.a));
  ASSIGN_OR_RETURN(std::vector<float> b, ReadFloats(file, *module.b));
  ASSIGN_OR_RETURN(const std::vector<float> magnitude, ReadFloats(file, *module.magnitude));
  RETURN_IF_ERROR(lengths.Find(module, std::move(a), std::move(b), w, gains));
  for (std::size_t row = 0; row < gains.size(); ++row) {
    gains[row] = magnitude[row] / gains[row];
    if (!std::isfinite(gains[row]))
      return BadVector(file, *module.magnitude, row, "share of the length of W + scale B A");
  }
  return Ok{};
}

Status ComputeModule(const AdapterFile& file, const LoraModule& module, const BaseMatrices& base,
                     AdapterLengths& lengths, ModuleVectors& vectors) {
  if (module.target == LoraTarget::kEmbedding) {
    vectors.shifts.assign(static_cast<std::size_t>(module.out()), 0.0f);
    return ComputeGains(file, module, base.embedding, lengths, vectors.gains);
  }
  ASSIGN_OR_RETURN(const BaseLinear linear, base.linear(module.layer, module.target));
  vectors.gains.assign(static_cast<std::size_t>(module.out()), 1.0f);
  if (module.magnitude != nullptr) {
    RETURN_IF_ERROR(ComputeGains(file, module, linear.weight, lengths, vectors.gains));
  }
  std::vector<float> bias = linear.bias, b_bias;
  if (module.bias != nullptr) {
    ASSIGN_OR_RETURN(bias, ReadFloats(file, *module.bias));
  }
  if (module.b_bias != nullptr) {
    ASSIGN_OR_RETURN(b_bias, ReadFloats(file, *module.b_bias));
  }
  vectors.shifts.assign(vectors.gains.size(), 0.0f);
  for (std::size_t o = 0; o < vectors.shifts.size(); ++o) {
    float& shift = vectors.shifts[o];
    if (!bias.empty()) shift = bias[o];
    if (!linear.bias.empty()) shift -= vectors.gains[o] * linear.bias[o];
    if (!b_bias.empty()) shift += module.scale * b_bias[o];
    if (!std::isfinite(shift)) {
      const TensorEntry* const from = module.b_bias != nullptr ? module.b_bias : module.bias;
      return BadVector(file, from == nullptr ? *module.magnitude : *from, o, "sum of biases");
    }
  }
  return Ok{};
}

}  // namespace

Result<std::int64_t> ComputeVectors(const BaseMatrices& base, AdapterFile& file, LengthCache* cache) {
  ASSIGN_OR_RETURN(AdapterLengths lengths, AdapterLengths::Of(base, file, cache));
  file.vectors.assign(file.modules.size(), {});
  for (std::size_t m = 0; m < file.modules.size(); ++m) {
    if (!file.modules[m].has_vectors()) continue;
    RETURN_IF_ERROR(ComputeModule(file, file.modules[m], base, lengths, file.vectors[m]));
  }
  lengths.Keep();
  return lengths.found();
}

}  // namespace loramux
