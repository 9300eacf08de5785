#include "server/adapters/upload_parser.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <fmt/format.h>

#include "http/json_reader.h"

namespace loramux {
namespace {

constexpr std::size_t kMostFiles = 64;
constexpr std::size_t kMostNameBytes = 255;

std::string Quote(std::string_view text) { return DumpJson(Json(text)); }

// Begins files under the names that an upload may have: those of one folder's entries.
class NamedFiles {
 public:
  explicit NamedFiles(UploadedFiles& files) : files_(files) {}

  // Begins the file of an archive's path. False: it is hidden, as what systems add to archives is, and is skipped.
  Result<bool> Begin(std::string_view path) {
    const std::string_view given = path;
    while (path.starts_with("./")) path.remove_prefix(2);
    const auto slash = path.find('/');
    const std::string_view folder = slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
    const std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
    if (name.starts_with('.') && name != "..") return false;
    const bool plain = !name.empty() && name != ".." && name.size() <= kMostNameBytes && folder != ".." &&
                       (slash == std::string_view::npos || !folder.empty()) &&
                       std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == '/'; });
    if (!plain || (folder_ && *folder_ != folder)) {
      return InvalidArgument(fmt::format("The upload: expected the files of one folder, found {}",
                                         Quote(given.substr(0, kMostNameBytes))));
    }
    folder_ = folder;
    if (++count_ > kMostFiles) {
      return InvalidArgument(fmt::format("The upload: expected at most {} files, found more", kMostFiles));
    }
    RETURN_IF_ERROR(files_.Begin(name));
    return true;
  }
  Status Append(std::string_view bytes) { return files_.Append(bytes); }
  // Error: there was no file.
  Status Finish() const {
    if (count_ > 0) return Ok{};
    return InvalidArgument("The upload: expected the files of an adapter, found none");
  }

 private:
  UploadedFiles& files_;
  std::optional<std::string> folder_;  // that the files lie in; unset until the first
  std::size_t count_ = 0;
};

// ---- tar ----

constexpr std::size_t kBlock = 512;
constexpr std::size_t kMostRecordBytes = 64 * 1024;  // in a record with further attributes

// The text of a header's field, which ends at its first NUL.
std::string_view TextAt(std::string_view header, std::size_t at, std::size_t size) {
  const std::string_view field = header.substr(at, size);
  return field.substr(0, field.find('\0'));
}

// The number of a field in octal digits; nullopt: it is none.
std::optional<std::uint64_t> OctalAt(std::string_view header, std::size_t at, std::size_t size) {
  std::string_view text = TextAt(header, at, size);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 8);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The sum of all bytes, the field of the sum itself read as spaces.
std::uint64_t SumOf(std::string_view header) {
  constexpr std::size_t kAt = 148, kSize = 8;
  std::uint64_t sum = kSize * ' ';
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (i < kAt || i >= kAt + kSize) sum += static_cast<unsigned char>(header[i]);
  }
  return sum;
}

// POSIX's ustar and pax, and GNU's format as far as that is the same: plain files with names of up to 255 bytes.
class TarParser final : public UploadParser {
 public:
  explicit TarParser(UploadedFiles& files) : files_(files) {}

  Status Feed(std::string_view bytes) override {
    begun_ |= !bytes.empty();
    while (!bytes.empty() && !ended_) {
      if (left_ > 0) {
        const std::string_view data = Take(bytes, left_);
        RETURN_IF_ERROR(TakeData(data));
      } else if (padding_ > 0) {
        Take(bytes, padding_);
      } else {
        std::size_t missing = kBlock - header_.size();
        header_ += Take(bytes, missing);
        if (missing == 0) RETURN_IF_ERROR(ReadHeader());
      }
    }
    return Ok{};
  }

  Status Finish() override {
    if (begun_ && !ended_) {
      return InvalidArgument("The upload: expected a whole tar archive, found one that is cut off");
    }
    return files_.Finish();
  }

 private:
  enum class Entry { kFile, kAttributes, kSkipped };

  // Removes up to `left` bytes from `bytes` and returns them.
  template <typename Count>
  static std::string_view Take(std::string_view& bytes, Count& left) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(left, bytes.size()));
    const std::string_view taken = bytes.substr(0, size);
    bytes.remove_prefix(size);
    left -= size;
    return taken;
  }

  Status TakeData(std::string_view data) {
    if (entry_ == Entry::kFile) return files_.Append(data);
    if (entry_ == Entry::kSkipped) return Ok{};
    attributes_ += data;
    return left_ > 0 ? Ok{} : CheckAttributes();
  }

  Status ReadHeader() {
    const std::string header = std::exchange(header_, {});
    if (header.find_first_not_of('\0') == std::string::npos) {  // the end of the archive
      ended_ = true;
      return Ok{};
    }
    const auto sum = OctalAt(header, 148, 8), size = OctalAt(header, 124, 12);
    if (header.starts_with("\x1f\x8b")) {
      return InvalidArgument(
          "The upload: expected a tar archive, found one that is compressed; send it as tar made it");
    }
    if (!sum || *sum != SumOf(header)) {
      return InvalidArgument("The upload: expected a tar archive, found a block that is none of its headers");
    }
    if (!size) return InvalidArgument("The upload: expected a file of less than 8 GiB, found a larger one");
    left_ = *size;
    padding_ = (kBlock - left_ % kBlock) % kBlock;
    return BeginEntry(header);
  }

  Status BeginEntry(std::string_view header) {
    std::string path(TextAt(header, 0, 100));
    if (header.substr(257, 5) == "ustar" && header[263] == '0') {
      const std::string_view prefix = TextAt(header, 345, 155);
      if (!prefix.empty()) path = std::string(prefix) + "/" + path;
    }
    const char type = header[156];
    entry_ = Entry::kSkipped;
    if (type == 'x' || type == 'g') {
      entry_ = Entry::kAttributes;
      attributes_.clear();
      if (left_ <= kMostRecordBytes) return Ok{};
      return InvalidArgument("The upload: expected short attributes of a file, found " + std::to_string(left_) +
                             " bytes");
    }
    if (type == '5') return Ok{};  // a folder
    if (type != '0' && type != '\0') {
      return InvalidArgument(
          fmt::format("The upload: expected plain files, found {} as a link, or with a name that is too "
                      "long",
                      Quote(path)));
    }
    ASSIGN_OR_RETURN(const bool begun, files_.Begin(path));
    if (begun) entry_ = Entry::kFile;
    return Ok{};
  }

  // Attributes are records of "LENGTH KEY=VALUE\n". Those that change what the header says are refused.
  Status CheckAttributes() const {
    std::string_view text = attributes_;
    while (!text.empty()) {
      std::size_t length = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
      const auto at = static_cast<std::size_t>(end - text.data());
      if (error != std::errc() || length <= at || length > text.size() || *end != ' ') {
        return InvalidArgument("The upload: expected attributes of a file, found something else");
      }
      const std::string_view record = text.substr(at + 1, length - at - 1);
      const std::string_view key = record.substr(0, record.find('='));
      if (key == "path" || key == "linkpath" || key == "size" || key.starts_with("GNU.sparse")) {
        return InvalidArgument(fmt::format(
            "The upload: expected plain files with short names of ASCII, found the attribute {}", Quote(key)));
      }
      text.remove_prefix(length);
    }
    return Ok{};
  }

  NamedFiles files_;
  std::string header_;  // so much of it has come
  Entry entry_ = Entry::kSkipped;
  std::uint64_t left_ = 0, padding_ = 0;  // bytes of the entry that are still to come
  std::string attributes_;
  bool begun_ = false, ended_ = false;
};

// ---- Forms ----

constexpr std::size_t kMostPartHeaderBytes = 8 * 1024;
constexpr std::size_t kMostBoundaryBytes = 70;  // RFC 2046

// The value of a parameter of a header's value, in quotes or not; nullopt: it has none of this name.
std::optional<std::string> ParameterOf(std::string_view value, std::string_view name) {
  const auto parameters = value.find(';');
  if (parameters == std::string_view::npos) return std::nullopt;
  for (const auto& [key, given] : boost::beast::http::param_list(value.substr(parameters))) {
    if (!boost::beast::iequals(key, name)) continue;
    std::string text(given);
    if (text.size() >= 2 && text.front() == '"') {
      std::string plain;
      for (std::size_t i = 1; i + 1 < text.size(); ++i) {
        if (text[i] == '\\' && i + 2 < text.size()) ++i;
        plain += text[i];
      }
      text = std::move(plain);
    }
    return text;
  }
  return std::nullopt;
}

// RFC 7578.
class FormParser final : public UploadParser {
 public:
  FormParser(std::string_view boundary, UploadedFiles& files)
      : delimiter_("\r\n--" + std::string(boundary)), files_(files) {}

  Status Feed(std::string_view bytes) override {
    held_ += bytes;
    std::string_view rest = held_;
    bool more = true;
    while (more) {
      ASSIGN_OR_RETURN(more, Advance(rest));
    }
    held_.erase(0, held_.size() - rest.size());
    return Ok{};
  }

  Status Finish() override {
    if (state_ != State::kEnd) {
      return InvalidArgument("The upload: expected a whole form, found one that is cut off");
    }
    return files_.Finish();
  }

 private:
  enum class State { kBegin, kDelimiter, kHeader, kFile, kSkipped, kEnd };

  // Takes what it can use from `rest`. False: it needs more bytes.
  Result<bool> Advance(std::string_view& rest) {
    switch (state_) {
      case State::kBegin:
      case State::kFile:
      case State::kSkipped:
        return TakeData(rest);
      case State::kDelimiter:
        return EndDelimiter(rest);
      case State::kHeader:
        return TakeHeader(rest);
      case State::kEnd:
        break;
    }
    rest = {};
    return false;
  }

  // What might be the beginning of a delimiter stays.
  Result<bool> TakeData(std::string_view& rest) {
    const auto found = rest.find(delimiter_);
    const bool whole = found != std::string_view::npos;
    const std::size_t size = whole ? found : rest.size() - std::min(rest.size(), delimiter_.size() - 1);
    if (state_ == State::kFile) RETURN_IF_ERROR(files_.Append(rest.substr(0, size)));
    rest.remove_prefix(whole ? size + delimiter_.size() : size);
    if (whole) state_ = State::kDelimiter;
    return whole;
  }

  Result<bool> EndDelimiter(std::string_view& rest) {
    if (rest.size() < 2) return false;
    const std::string_view end = rest.substr(0, 2);
    if (end != "--" && end != "\r\n") {
      return InvalidArgument("The upload: expected a line break behind the form's boundary, found something else");
    }
    // The line break stays, because an empty header ends with it.
    state_ = end == "--" ? State::kEnd : State::kHeader;
    return true;
  }

  Result<bool> TakeHeader(std::string_view& rest) {
    const auto end = rest.find("\r\n\r\n");
    if (end == std::string_view::npos && rest.size() <= kMostPartHeaderBytes) return false;
    if (end == std::string_view::npos || end > kMostPartHeaderBytes) {
      return InvalidArgument(
          fmt::format("The upload: expected a header of at most {} bytes in each part of the form, found a longer one",
                      kMostPartHeaderBytes));
    }
    const auto name = FileNameIn(rest.substr(0, end));
    rest.remove_prefix(end + 4);
    if (!name) {
      return InvalidArgument(
          "The upload: expected files in the form, each with a `filename`, found a part without one");
    }
    ASSIGN_OR_RETURN(const bool begun, files_.Begin(*name));
    state_ = begun ? State::kFile : State::kSkipped;
    return true;
  }

  static std::optional<std::string> FileNameIn(std::string_view header) {
    while (!header.empty()) {
      const auto end = header.find("\r\n");
      const std::string_view line = header.substr(0, end);
      header.remove_prefix(end == std::string_view::npos ? header.size() : end + 2);
      const auto colon = line.find(':');
      if (colon == std::string_view::npos) continue;
      if (!boost::beast::iequals(line.substr(0, colon), "Content-Disposition")) continue;
      return ParameterOf(line.substr(colon + 1), "filename");
    }
    return std::nullopt;
  }

  const std::string delimiter_;
  NamedFiles files_;
  State state_ = State::kBegin;
  std::string held_ = "\r\n";  // bytes that are not used yet; a delimiter may begin with the first
};

}  // namespace

Result<std::unique_ptr<UploadParser>> UploadParser::For(std::string_view content_type, UploadedFiles& files) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  for (const char* tar : {"", "application/x-tar", "application/tar", "application/octet-stream"}) {
    if (boost::beast::iequals(type, tar)) return std::unique_ptr<UploadParser>(std::make_unique<TarParser>(files));
  }
  if (boost::beast::iequals(type, "multipart/form-data")) {
    const auto boundary = ParameterOf(content_type, "boundary");
    if (boundary && !boundary->empty() && boundary->size() <= kMostBoundaryBytes) {
      return std::unique_ptr<UploadParser>(std::make_unique<FormParser>(*boundary, files));
    }
  }
  return Unsupported(
      fmt::format("Content-Type: expected application/x-tar, or multipart/form-data with its boundary, found {}",
                  Quote(content_type.substr(0, 100))));
}

}  // namespace loramux
