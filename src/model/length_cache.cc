#include "model/length_cache.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <string_view>

#include <unistd.h>

#include <fmt/format.h>
#include <openssl/evp.h>
#include <spdlog/spdlog.h>

#include "base/check.h"
#include "base/file_system.h"
#include "formats/file.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

// Another number for each change of the form, of how lengths are computed, or of how matrices lie in memory.
constexpr std::string_view kMark = "loramux row lengths 1\n";

Sha256Digest Sha256Of(std::span<const std::byte> bytes) {
  Sha256Digest digest;
  CHECK_EQ(EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr), 1);
  return digest;
}

Sha256Digest Sha256Of(std::string_view text) { return Sha256Of(std::as_bytes(std::span(text))); }

template <typename T>
void Append(std::string& text, const T& value) {
  static_assert(std::has_unique_object_representations_v<T> || std::is_same_v<T, float>);
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Takes values from the front of a text.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}
  template <typename T>
  std::optional<T> Take() {
    T value;
    if (!TakeInto(&value, sizeof(value))) return std::nullopt;
    return value;
  }
  std::optional<std::vector<float>> TakeFloats(std::uint64_t count) {
    if (count > rest_.size() / sizeof(float)) return std::nullopt;
    std::vector<float> values(static_cast<std::size_t>(count));
    CHECK(TakeInto(values.data(), values.size() * sizeof(float)));
    return values;
  }
  bool empty() const { return rest_.empty(); }

 private:
  bool TakeInto(void* to, std::size_t bytes) {
    if (bytes > rest_.size()) return false;
    if (bytes > 0) std::memcpy(to, rest_.data(), bytes);
    rest_.remove_prefix(bytes);
    return true;
  }

  std::string_view rest_;
};

// The file's content but for the digest at its end.
std::string ContentOf(const KnownLengths& lengths) {
  std::string content(kMark);
  for (const auto& [key, values] : lengths) {
    Append(content, key);
    Append(content, static_cast<std::uint64_t>(values.size()));
    for (const float value : values) Append(content, value);
  }
  return content;
}

// nullopt: it is not a whole file of this kind.
std::optional<KnownLengths> Parse(std::string_view file) {
  if (file.size() < kMark.size() + sizeof(Sha256Digest) || !file.starts_with(kMark)) return std::nullopt;
  const std::string_view content = file.substr(0, file.size() - sizeof(Sha256Digest));
  const Sha256Digest digest = Sha256Of(content);
  if (std::memcmp(digest.data(), file.data() + content.size(), digest.size()) != 0) return std::nullopt;
  KnownLengths lengths;
  Reader reader(content.substr(kMark.size()));
  while (!reader.empty()) {
    const auto key = reader.Take<Sha256Digest>();
    const auto count = reader.Take<std::uint64_t>();
    if (!key || !count) return std::nullopt;
    auto values = reader.TakeFloats(*count);
    if (!values) return std::nullopt;
    lengths[*key] = *std::move(values);
  }
  return lengths;
}

}  // namespace

Result<std::string> LengthCache::NameOf(const BaseMatrices& base, const AdapterFile& file) {
  std::string content = std::string(kMark) + file.digest;
  const std::lock_guard lock(mutex_);  // held while a matrix is read: another load would read the same ones
  for (const LoraModule& module : file.modules) {
    if (module.magnitude == nullptr) continue;
    const auto [found, is_new] = matrices_.try_emplace({module.layer, module.target});
    if (is_new) {
      Result<MatrixDigest> digest = IoError("not read");
      if (module.target == LoraTarget::kEmbedding) {
        digest = base.embedding.digest(0, base.embedding.n);
      } else if (auto linear = base.linear(module.layer, module.target); linear.ok()) {
        digest = linear->weight.digest(0, linear->weight.n);
      } else {
        digest = std::move(linear).error();
      }
      if (!digest.ok()) {
        matrices_.erase(found);
        return std::move(digest).error();
      }
      found->second = *digest;
    }
    Append(content, found->second);
  }
  std::string name;
  for (const unsigned char byte : Sha256Of(content)) name += fmt::format("{:02x}", byte);
  return name;
}

Sha256Digest LengthCache::KeyOf(const LoraModule& module, std::span<const float> a, std::span<const float> b) const {
  std::string content(kMark);
  {
    const std::lock_guard lock(mutex_);
    Append(content, matrices_.at({module.layer, module.target}));
  }
  Append(content, module.target == LoraTarget::kEmbedding);  // whose lengths are those of columns
  Append(content, module.scale);
  Append(content, module.rank);
  Append(content, Sha256Of(std::as_bytes(a)));
  Append(content, Sha256Of(std::as_bytes(b)));
  return Sha256Of(content);
}

KnownLengths LengthCache::Read(const std::string& name) const {
  const fs::path path = PathOf(name);
  const auto text = ReadTextFile(path, static_cast<std::size_t>(max_bytes_));
  if (!text.ok()) {
    if (text.error().code != ErrorCode::kNotFound)
      spdlog::warn("lengths of DoRA's rows are computed again: {}", text.error().message);
    return {};
  }
  auto lengths = Parse(*text);
  if (!lengths) {
    spdlog::warn("lengths of DoRA's rows are computed again: {}: expected a file that ends with its digest, found {}",
                 path.string(), "another content; it is written anew");
    return {};
  }
  std::error_code ignored;  // a folder that may not be written keeps its times
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  return *std::move(lengths);
}

// The name of the temporary file is that of no other thread or process: two may keep the same lengths at a time.
Status LengthCache::Replace(const fs::path& path, const std::string& content) const {
  static std::atomic<int> number = 0;
  fs::path temporary = path;
  temporary += fmt::format(".{}.{}", ::getpid(), number++);
  FileSystem& files = OsFileSystem();
  Status status = files.CreateDirectories(directory_);
  if (status.ok()) status = ReplaceFile(files, temporary, content);
  if (status.ok()) status = files.Rename(temporary, path);
  if (status.ok()) return status;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  fs::remove(temporary += ".new", ignored);
  return status;
}

void LengthCache::Write(const std::string& name, const KnownLengths& lengths) const {
  std::string content = ContentOf(lengths);
  Append(content, Sha256Of(content));
  if (static_cast<std::int64_t>(content.size()) > max_bytes_) return;
  const Status status = Replace(PathOf(name), content);
  if (status.ok()) return MakeRoom(PathOf(name));
  spdlog::info("lengths of DoRA's rows are not kept, and a restart computes them again: {}", status.error().message);
}

// Removes files until the others take at most max_bytes_, also those that a crash left half written.
void LengthCache::MakeRoom(const fs::path& except) const {
  struct Kept {
    fs::path path;
    fs::file_time_type used;
    std::int64_t bytes;
  };
  std::vector<Kept> kept;
  std::int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    if (it->path().filename().string().find(".lengths") == std::string::npos || !it->is_regular_file(gone)) continue;
    const std::uintmax_t size = it->file_size(gone);
    const fs::file_time_type used = it->last_write_time(gone);
    if (gone) continue;
    bytes += static_cast<std::int64_t>(size);
    if (it->path() != except) kept.push_back({it->path(), used, static_cast<std::int64_t>(size)});
  }
  std::ranges::sort(kept, {}, &Kept::used);
  for (const Kept& file : kept) {
    if (bytes <= max_bytes_) return;
    std::error_code gone;
    if (fs::remove(file.path, gone)) bytes -= file.bytes;
  }
}

}  // namespace loramux
