#include "model/base_matrix.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <utility>

#include <xxhash.h>

#include "base/check.h"
#include "memory/arena.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

// Copies `bytes` of device memory.
Result<std::unique_ptr<Arena>> CopyFromDevice(Device& device, const std::byte* from, std::size_t bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<Arena> staging,
                   device.AllocatePinned("rows of a matrix of the base model", static_cast<std::int64_t>(bytes)));
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceStream> stream, device.CreateStream());
  stream->CopyToHost(staging->base(), from, bytes);
  RETURN_IF_ERROR(stream->Synchronize());
  return staging;
}

// The same, and converts them.
Status ReadFromDevice(Device& device, const std::byte* from, DType dtype, std::int64_t elements, float* to) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Arena> staging,
                   CopyFromDevice(device, from, static_cast<std::size_t>(elements) * DTypeSize(dtype)));
  for (std::int64_t i = 0; i < elements; ++i) to[i] = LoadAsF32(dtype, staging->base(), i);
  return Ok{};
}

// XXH3 of bytes, after numbers that say what they are.
class BytesDigest {
 public:
  explicit BytesDigest(std::initializer_list<std::int64_t> about) : state_(XXH3_createState(), XXH3_freeState) {
    CHECK(state_ != nullptr && XXH3_128bits_reset(state_.get()) == XXH_OK);
    Add(reinterpret_cast<const std::byte*>(about.begin()), about.size() * sizeof(std::int64_t));
  }
  void Add(const std::byte* bytes, std::size_t size) {
    CHECK(XXH3_128bits_update(state_.get(), bytes, size) == XXH_OK);
  }
  MatrixDigest Final() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
    MatrixDigest digest;
    std::memcpy(digest.data(), canonical.digest, digest.size());
    return digest;
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

// The digest of the panels that hold the rows.
MatrixDigest DigestOf(const PackedMatrix& matrix, std::int64_t first, std::int64_t count) {
  constexpr std::int64_t kPanel = PackedMatrix::kPanel;
  BytesDigest digest({matrix.k(), first % kPanel, count});
  const std::byte* const end = matrix.data() + matrix.bytes();
  for (std::int64_t p = first / kPanel; p * kPanel < first + count; ++p) {
    const auto format = static_cast<std::byte>(matrix.format(p));
    digest.Add(&format, 1);
    const std::byte* const next = p + 1 < matrix.panels() ? matrix.panel(p + 1) : end;
    digest.Add(matrix.panel(p), static_cast<std::size_t>(next - matrix.panel(p)));
  }
  return digest.Final();
}

BaseMatrix MatrixOf(const PackedMatrix& matrix) {
  return {matrix.n(), matrix.k(), matrix.format(),
          [&matrix](std::int64_t first, std::int64_t count, float* rows) -> Status {
            for (std::int64_t i = 0; i < count; ++i) matrix.UnpackRow(first + i, rows + i * matrix.k());
            return Ok{};
          },
          [&matrix](std::int64_t first, std::int64_t count) -> Result<MatrixDigest> {
            return DigestOf(matrix, first, count);
          }};
}

// The tiles that hold rows [first, first + count), and their scales; `form` has their address on the host.
struct TilesOnHost {
  std::unique_ptr<Arena> codes, scales;
  gpu::PackedForm form;
  std::int64_t code_bytes = 0, scale_bytes = 0;
};
Result<TilesOnHost> CopyTiles(const DeviceMatrix& matrix, Device& device, std::int64_t first, std::int64_t count) {
  const std::int64_t begin = first / gpu::kPackedTile * gpu::kPackedTile;
  const DeviceMatrix some = matrix.Rows(begin, first + count - begin);
  TilesOnHost tiles;
  tiles.form = some.form();
  tiles.code_bytes = gpu::PackedCodeBytes(tiles.form.format, some.n(), some.k());
  tiles.scale_bytes = gpu::PackedScaleBytes(tiles.form.format, tiles.form.group_shift, some.n(), some.k());
  ASSIGN_OR_RETURN(tiles.codes, CopyFromDevice(device, some.data(), static_cast<std::size_t>(tiles.code_bytes)));
  ASSIGN_OR_RETURN(tiles.scales, CopyFromDevice(device, reinterpret_cast<const std::byte*>(tiles.form.scales),
                                                static_cast<std::size_t>(tiles.scale_bytes)));
  tiles.form.scales = reinterpret_cast<const std::uint8_t*>(tiles.scales->base());
  return tiles;
}

Status ReadPacked(const DeviceMatrix& matrix, Device& device, std::int64_t first, std::int64_t count, float* rows) {
  ASSIGN_OR_RETURN(const TilesOnHost tiles, CopyTiles(matrix, device, first, count));
  for (std::int64_t i = 0; i < count; ++i) {
    gpu::UnpackTileRow(tiles.form, tiles.codes->base(), first % gpu::kPackedTile + i, matrix.k(),
                       rows + i * matrix.k());
  }
  return Ok{};
}

Result<MatrixDigest> DigestOfPacked(const DeviceMatrix& matrix, Device& device, std::int64_t first,
                                    std::int64_t count) {
  constexpr std::int64_t kRows = 1024;  // at once
  BytesDigest digest({matrix.k(), static_cast<std::int64_t>(matrix.format()), matrix.form().group_shift,
                      first % gpu::kPackedTile, count});
  for (const std::int64_t end = first + count; first < end;) {
    const std::int64_t rows = std::min(end - first, kRows - first % gpu::kPackedTile);
    ASSIGN_OR_RETURN(const TilesOnHost tiles, CopyTiles(matrix, device, first, rows));
    digest.Add(tiles.codes->base(), static_cast<std::size_t>(tiles.code_bytes));
    digest.Add(tiles.scales->base(), static_cast<std::size_t>(tiles.scale_bytes));
    first += rows;
  }
  return digest.Final();
}

Result<MatrixDigest> DigestOf(const DeviceMatrix& matrix, Device& device, std::int64_t first, std::int64_t count) {
  if (matrix.packed()) return DigestOfPacked(matrix, device, first, count);
  constexpr std::size_t kPiece = std::size_t{8} << 20;
  BytesDigest digest({matrix.k(), static_cast<std::int64_t>(matrix.dtype()), count});
  const std::size_t row_bytes = static_cast<std::size_t>(matrix.k()) * DTypeSize(matrix.dtype());
  const std::byte* from = matrix.data() + static_cast<std::size_t>(first) * row_bytes;
  for (std::size_t left = static_cast<std::size_t>(count) * row_bytes; left > 0;) {
    const std::size_t bytes = std::min(left, kPiece);
    ASSIGN_OR_RETURN(const std::unique_ptr<Arena> piece, CopyFromDevice(device, from, bytes));
    digest.Add(piece->base(), bytes);
    from += bytes;
    left -= bytes;
  }
  return digest.Final();
}

BaseMatrix MatrixOf(const DeviceMatrix& matrix, Device& device) {
  return {
      matrix.n(), matrix.k(), matrix.format(),
      [&matrix, &device](std::int64_t first, std::int64_t count, float* rows) {
        if (matrix.packed()) return ReadPacked(matrix, device, first, count, rows);
        const std::size_t row_bytes = static_cast<std::size_t>(matrix.k()) * DTypeSize(matrix.dtype());
        return ReadFromDevice(device, matrix.data() + static_cast<std::size_t>(first) * row_bytes, matrix.dtype(),
                              count * matrix.k(), rows);
      },
      [&matrix, &device](std::int64_t first, std::int64_t count) { return DigestOf(matrix, device, first, count); }};
}

// Where a linear layer lies: its rows of a matrix, and of a vector, that others share.
template <typename Weights>
struct PlaceOfLinear {
  const typename Weights::Matrix* matrix;
  const typename Weights::Vector* bias;
  std::int64_t first_row;
};

// The same in a recurrent layer, which may have attention beside.
template <typename Weights>
PlaceOfLinear<Weights> FindOfStates(const ModelConfig& config, const Weights& weights, const typename Weights::Layer& w,
                                    LoraTarget target) {
  const RecurrentConfig& r = *config.recurrent;
  if (target == LoraTarget::kInB) return {&w.state_gates, &weights.no_bias, 0};
  if (target == LoraTarget::kInA) return {&w.state_gates, &weights.no_bias, r.value_heads};
  const bool out = target == LoraTarget::kOut;
  if (r.beside_attention) {
    return {out ? &w.state_out : &w.state_in, out ? &w.state_out_bias : &w.state_in_bias, 0};
  }
  if (out) return {&w.o, &w.o_bias, 0};
  return {&w.qkv, &w.qkv_bias, target == LoraTarget::kInZ ? r.Channels() : 0};
}

template <typename Weights>
PlaceOfLinear<Weights> FindLinear(const ModelConfig& config, const Weights& weights, std::int64_t layer,
                                  LoraTarget target) {
  if (target == LoraTarget::kLmHead) return {&weights.lm_head, &weights.no_bias, 0};
  const typename Weights::Layer& w = weights.layers.at(static_cast<std::size_t>(layer));
  if (IsOfStates(target)) return FindOfStates(config, weights, w, target);
  switch (target) {
    case LoraTarget::kQ:
      return {&w.qkv, &w.qkv_bias, 0};
    case LoraTarget::kK:
      return {&w.qkv, &w.qkv_bias, config.QProjDim(layer)};
    case LoraTarget::kV:
      return {&w.qkv, &w.qkv_bias, config.QProjDim(layer) + config.KvDim(layer)};
    case LoraTarget::kO:
      return {&w.o, &w.o_bias, 0};
    case LoraTarget::kGate:
      return {&w.gate_up, &w.gate_up_bias, 0};
    case LoraTarget::kUp:
      return {&w.gate_up, &w.gate_up_bias, config.gated ? config.BlockSize(layer) : 0};
    default:
      CHECK(target == LoraTarget::kDown);
      return {&w.down, &w.down_bias, 0};
  }
}

// `count` rows from `first` on of a matrix.
BaseMatrix SomeRows(BaseMatrix matrix, std::int64_t first, std::int64_t count) {
  CHECK_LE(first + count, matrix.n);
  auto read = [first, whole = std::move(matrix.read)](std::int64_t row, std::int64_t rows, float* out) {
    return whole(first + row, rows, out);
  };
  auto digest = [first, whole = std::move(matrix.digest)](std::int64_t row, std::int64_t rows) {
    return whole(first + row, rows);
  };
  return {count, matrix.k, matrix.format, std::move(read), std::move(digest)};
}

}  // namespace

BaseMatrices BaseMatricesOf(const Model& model) {
  const auto linear = [&model](std::int64_t layer, LoraTarget target) -> Result<BaseLinear> {
    const auto place = FindLinear(model.config(), model.weights(), layer, target);
    const std::int64_t out = TargetShape(model.config(), target, layer).out;
    BaseLinear found{SomeRows(MatrixOf(*place.matrix), place.first_row, out), {}};
    if (!place.bias->empty())
      found.bias.assign(place.bias->data() + place.first_row, place.bias->data() + place.first_row + out);
    return found;
  };
  return {MatrixOf(model.weights().lm_head), MatrixOf(model.weights().EmbeddingRows()), linear};
}

BaseMatrices BaseMatricesOf(const DeviceModel& model, Device& device) {
  const auto linear = [&model, &device](std::int64_t layer, LoraTarget target) -> Result<BaseLinear> {
    const auto place = FindLinear(model.config(), model.weights(), layer, target);
    const std::int64_t out = TargetShape(model.config(), target, layer).out;
    BaseLinear found{SomeRows(MatrixOf(*place.matrix, device), place.first_row, out), {}};
    if (place.bias->data == nullptr) return found;
    found.bias.resize(static_cast<std::size_t>(out));
    RETURN_IF_ERROR(ReadFromDevice(device, reinterpret_cast<const std::byte*>(place.bias->data + place.first_row),
                                   DType::kF32, out, found.bias.data()));
    return found;
  };
  return {MatrixOf(model.weights().lm_head, device), MatrixOf(model.weights().EmbeddingRows(), device), linear};
}

}  // namespace loramux
