// The lengths of rows that DoRA needs, kept on disk: to compute them takes as many multiply-adds as the adapted layers
// have weights, times the rank.
//   DIRECTORY/NAME.lengths   of one adapter and one base model; NAME is a SHA-256 of both their contents
// Each module's lengths stand beside the digest of all that they were computed from, and the file ends with a digest of
// itself. The folder is the server's own and not the adapter's: an adapter that could bring lengths could answer as
// another one with the same weights, whose digest names what prompts have in the prefix cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "model/base_matrix.h"

namespace loramux {

// Lengths of rows, by the digest of what they were computed from.
using KnownLengths = std::map<Sha256Digest, std::vector<float>>;

// The lengths for one base model. Thread-safe, also among processes. What it cannot read is not there, and what it
// cannot write is computed again next time; both are in the log, and neither is an error.
class LengthCache {
 public:
  static constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;
  // `directory` is made once there is something to keep. `max_bytes`: of all files in it; those that were not used for
  // longest go first.
  explicit LengthCache(std::filesystem::path directory, std::int64_t max_bytes = kMaxBytes)
      : directory_(std::move(directory)), max_bytes_(max_bytes) {}

  // NAME of the adapter: its digest, and those of the base model's matrices that its modules with DoRA change. Reads
  // each matrix once. Errors: those of the reads.
  Result<std::string> NameOf(const BaseMatrices& base, const AdapterFile& file);
  // The digest of what the lengths of a module's rows are computed from: the matrix of the base model, scale, and A and
  // B as they were read. REQUIRES: NameOf of its adapter was called.
  Sha256Digest KeyOf(const LoraModule& module, std::span<const float> a, std::span<const float> b) const;

  // What is kept under the name; empty: nothing, or a file that is not whole.
  KnownLengths Read(const std::string& name) const;
  void Write(const std::string& name, const KnownLengths& lengths) const;

 private:
  using Matrix = std::pair<std::int64_t, LoraTarget>;  // layer, target

  std::filesystem::path PathOf(const std::string& name) const { return directory_ / (name + ".lengths"); }
  Status Replace(const std::filesystem::path& path, const std::string& content) const;
  void MakeRoom(const std::filesystem::path& except) const;

  const std::filesystem::path directory_;
  const std::int64_t max_bytes_;
  mutable std::mutex mutex_;
  std::map<Matrix, MatrixDigest> matrices_;  // guarded by mutex_
};

}  // namespace loramux
