// The scan of an adapter's weights, and the digests that name its content.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>

#include <openssl/evp.h>
#include <xxhash.h>

#include "base/message.h"
#include "formats/adapter_config.h"

namespace loramux {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;  // read at a time; holds whole elements

std::string HexOf(std::span<const unsigned char> bytes) {
  std::string hex;
  for (const unsigned char byte : bytes) hex += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  return hex;
}

class Sha256Hash {
 public:
  Sha256Hash() : state_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    CHECK(state_ != nullptr && EVP_DigestInit_ex(state_.get(), EVP_sha256(), nullptr) == 1);
  }
  void Add(std::span<const std::byte> bytes) {
    CHECK_EQ(EVP_DigestUpdate(state_.get(), bytes.data(), bytes.size()), 1);
  }
  std::string Hex() { return HexOf(Final(state_.get())); }
  // The digest of what was added so far; more may follow.
  Sha256Digest SoFar() const {
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> copy(EVP_MD_CTX_new(), EVP_MD_CTX_free);
    CHECK(copy != nullptr && EVP_MD_CTX_copy_ex(copy.get(), state_.get()) == 1);
    return Final(copy.get());
  }

 private:
  static Sha256Digest Final(EVP_MD_CTX* state) {
    Sha256Digest digest;
    unsigned size = 0;
    CHECK_EQ(EVP_DigestFinal_ex(state, digest.data(), &size), 1);
    CHECK_EQ(size, digest.size());
    return digest;
  }

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> state_;
};

class Xxh3Hash {
 public:
  Xxh3Hash() : state_(XXH3_createState(), XXH3_freeState) {
    CHECK(state_ != nullptr && XXH3_128bits_reset(state_.get()) == XXH_OK);
  }
  void Add(std::span<const std::byte> bytes) {
    CHECK(XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()) == XXH_OK);
  }
  std::string Hex() {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
    return HexOf(canonical.digest);
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

// Numbers are 64-bit little-endian.
template <typename Hash>
void AddNumber(Hash& hash, std::uint64_t number) {
  hash.Add(std::as_bytes(std::span(&number, 1)));
}

template <typename Hash>
void AddModule(const LoraModule& module, Hash& hash) {
  std::uint32_t scale_bits = 0;
  std::memcpy(&scale_bits, &module.scale, sizeof(scale_bits));
  AddNumber(hash, static_cast<std::uint64_t>(module.layer));
  AddNumber(hash, static_cast<std::uint64_t>(module.target));
  AddNumber(hash, static_cast<std::uint64_t>(module.rank));
  AddNumber(hash, scale_bits);
  // No layer has such a number.
  if (module.expert >= 0) AddNumber(hash, std::uint64_t{1} << 60 | static_cast<std::uint64_t>(module.expert));
  if (!module.has_vectors()) return;
  // No layer has such a number, so that no module without vectors looks like this one.
  const std::uint64_t which = (module.magnitude != nullptr ? 1u : 0u) | (module.b_bias != nullptr ? 2u : 0u) |
                              (module.bias != nullptr ? 4u : 0u);
  AddNumber(hash, std::uint64_t{1} << 63 | which);
}

// Adds a tensor to the digest, up to its data.
template <typename Hash>
void AddTensorHead(const TensorEntry& tensor, Hash& hash) {
  AddNumber(hash, static_cast<std::uint64_t>(tensor.dtype));
  for (const std::int64_t extent : tensor.shape) AddNumber(hash, static_cast<std::uint64_t>(extent));
}

// `data` begins at byte `first` of the tensor.
Status CheckFinite(const AdapterFile& file, const TensorEntry& tensor, std::uint64_t first,
                   std::span<const std::byte> data) {
  const auto index = FirstNotFinite(tensor.dtype, data);
  if (!index) return Ok{};
  const std::uint64_t element = first / DTypeSize(tensor.dtype) + *index;
  const auto columns = static_cast<std::uint64_t>(tensor.shape.back());
  return InvalidArgument(file.tensors->path().string() + ": tensor " + Quote(tensor.name) +
                         ": expected finite weights, found NaN or infinity at [" + std::to_string(element / columns) +
                         ", " + std::to_string(element % columns) +
                         "]: the training diverged or the file is damaged; save the adapter again");
}

// Reads, checks and digests a tensor piece by piece: its size is that of the file, not of memory.
template <typename Hash>
Status ScanInPieces(const AdapterFile& file, const TensorEntry& tensor, TensorReader::Stored& last,
                    std::vector<std::byte>& buffer, Hash& hash) {
  AddTensorHead(tensor, hash);
  if (tensor.view != nullptr) {
    RETURN_IF_ERROR(file.tensors->Read(tensor, buffer, &last));
    RETURN_IF_ERROR(CheckFinite(file, tensor, 0, buffer));
    hash.Add(buffer);
    return Ok{};
  }
  for (std::uint64_t first = 0; first < tensor.bytes; first += kPieceBytes) {
    buffer.resize(static_cast<std::size_t>(std::min(kPieceBytes, tensor.bytes - first)));
    RETURN_IF_ERROR(file.tensors->Read(tensor, first, buffer));
    RETURN_IF_ERROR(CheckFinite(file, tensor, first, buffer));
    hash.Add(buffer);
  }
  return Ok{};
}

// Reads, digests and visits own rows, as many whole rows at a time as fit a piece.
template <typename Hash>
Status ScanOwn(const AdapterFile& file, std::size_t index, const AdapterOwnVisitor& visit, Hash& hash) {
  const OwnPart& part = file.own[index];
  const TensorEntry& tensor = *part.tensor;
  // Rows of a tied output matrix are in the digest with the embedding's: whether the base model's is tied does not
  // change the adapter.
  const bool counts = !part.tied;
  if (counts) {
    // No layer has such a number, and no token.
    AddNumber(hash, std::uint64_t{1} << 62 | static_cast<std::uint64_t>(part.kind));
    AddNumber(hash, static_cast<std::uint64_t>(part.layer));
    if (!part.whole) {
      for (const OwnRow& row : part.rows) {
        AddNumber(hash, static_cast<std::uint64_t>(row.token));
        AddNumber(hash, static_cast<std::uint64_t>(row.row));
      }
    }
    AddTensorHead(tensor, hash);
  }
  if (!counts && !visit) return Ok{};
  const std::uint64_t row_bytes =
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(part.width()) * DTypeSize(tensor.dtype));
  const std::uint64_t piece = std::max<std::uint64_t>(1, kPieceBytes / row_bytes) * row_bytes;
  // Before the first row there may be the whole base model's.
  std::uint64_t begin = 0;
  if (!part.whole && !part.rows.empty())
    begin = static_cast<std::uint64_t>(std::ranges::min(part.rows, {}, &OwnRow::row).row) * row_bytes;
  std::vector<std::byte> buffer;
  for (std::uint64_t first = begin; first < tensor.bytes; first += piece) {
    buffer.resize(static_cast<std::size_t>(std::min(piece, tensor.bytes - first)));
    RETURN_IF_ERROR(file.tensors->Read(tensor, first, buffer));
    if (counts) hash.Add(buffer);
    RETURN_IF_ERROR(visit ? visit(index, static_cast<std::int64_t>(first / row_bytes), buffer)
                          : CheckFinite(file, tensor, first, buffer));
  }
  return Ok{};
}

// Own rows that are read before the modules, or after them.
template <typename Hash>
Status ScanOwnParts(const AdapterFile& file, bool of_output, const AdapterOwnVisitor& visit, Hash& hash) {
  for (std::size_t i = 0; i < file.own.size(); ++i) {
    if ((file.own[i].kind == OwnKind::kOutput) == of_output) RETURN_IF_ERROR(ScanOwn(file, i, visit, hash));
  }
  return Ok{};
}

// Adds a classification head to the digest.
template <typename Hash>
Status ScanHead(const AdapterFile& file, Hash& hash) {
  if (!file.head) return Ok{};
  const TensorEntry& tensor = *file.head->tensor;
  AddNumber(hash, std::uint64_t{1} << 61);  // no layer and no kind of own rows has such a number
  AddTensorHead(tensor, hash);
  hash.Add(file.head->weights);
  return CheckFinite(file, tensor, 0, file.head->weights);
}

// Calls `after_module` with the hash after each module.
template <typename Hash>
Result<std::string> Scan(const AdapterFile& file, const AdapterTensorVisitor& visit,
                         const AdapterOwnVisitor& visit_own = {},
                         const std::function<Status(std::size_t module, const Hash& hash)>& after_module = {}) {
  Hash hash;
  TensorReader::Stored last;
  std::vector<std::byte> buffer;
  AddNumber(hash, file.modules.size());
  for (const TokenId token : file.config.invocation_tokens) AddNumber(hash, static_cast<std::uint64_t>(token));
  RETURN_IF_ERROR(ScanOwnParts(file, /*of_output=*/false, visit_own, hash));
  for (std::size_t m = 0; m < file.modules.size(); ++m) {
    const LoraModule& module = file.modules[m];
    AddModule(module, hash);
    for (const TensorEntry* tensor : {module.a, module.b, module.magnitude, module.b_bias, module.bias}) {
      if (tensor == nullptr) continue;
      if (!visit) {
        RETURN_IF_ERROR(ScanInPieces(file, *tensor, last, buffer, hash));
        continue;
      }
      RETURN_IF_ERROR(file.tensors->Read(*tensor, buffer, &last));
      AddTensorHead(*tensor, hash);
      hash.Add(buffer);
      RETURN_IF_ERROR(visit(m, *tensor, buffer));
    }
    if (after_module) RETURN_IF_ERROR(after_module(m, hash));
  }
  RETURN_IF_ERROR(ScanOwnParts(file, /*of_output=*/true, visit_own, hash));
  RETURN_IF_ERROR(ScanHead(file, hash));
  return hash.Hex();
}

}  // namespace

Result<std::string> ScanAdapterTensors(const AdapterFile& file, const AdapterTensorVisitor& visit,
                                       const AdapterLayerVisitor& after_layer, const AdapterOwnVisitor& visit_own) {
  if (!after_layer) return Scan<Sha256Hash>(file, visit, visit_own);
  const std::vector<LoraModule>& modules = file.modules;
  return Scan<Sha256Hash>(file, visit, visit_own, [&](std::size_t m, const Sha256Hash& hash) -> Status {
    const bool last = m + 1 == modules.size() || modules[m + 1].layer != modules[m].layer;
    return last ? after_layer(m + 1, hash.SoFar()) : Ok{};
  });
}

bool IsOldAdapterDigest(std::string_view digest) { return digest.size() == 2 * sizeof(XXH128_hash_t); }

Result<std::string> OldAdapterDigest(const AdapterFile& file) { return Scan<Xxh3Hash>(file, {}); }

}  // namespace loramux
