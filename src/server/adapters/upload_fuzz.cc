// Fuzzes UploadParser: it names only entries of one folder, and reads the same however the bytes arrive.
#include <algorithm>
#include <map>
#include <string>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "server/adapters/upload_parser.h"

namespace loramux::upload_fuzz {
namespace {

class Files final : public UploadedFiles {
 public:
  Status Begin(std::string_view name) override {
    CHECK(!name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos);
    CHECK(name.find('\0') == std::string_view::npos);
    last_ = name;
    content_[last_] += '|';
    return Ok{};
  }
  Status Append(std::string_view bytes) override {
    content_.at(last_) += bytes;
    return Ok{};
  }
  friend bool operator==(const Files& a, const Files& b) { return a.content_ == b.content_; }

 private:
  std::map<std::string, std::string> content_;
  std::string last_;
};

bool Parse(const char* type, std::string_view bytes, std::size_t piece, Files& files) {
  const auto parser = UploadParser::For(type, files);
  CHECK(parser.ok());
  while (!bytes.empty()) {
    const std::string_view next = bytes.substr(0, piece);
    bytes.remove_prefix(next.size());
    if (!(*parser)->Feed(next).ok()) return false;
  }
  return (*parser)->Finish().ok();
}

}  // namespace
}  // namespace loramux::upload_fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace loramux;
  const FuzzLimits cost;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const char* const type = data[0] % 2 == 0 ? "application/x-tar" : "multipart/form-data; boundary=b";
  upload_fuzz::Files whole, pieces;
  const bool ok = upload_fuzz::Parse(type, bytes, std::max<std::size_t>(1, bytes.size()), whole);
  CHECK(upload_fuzz::Parse(type, bytes, 1 + data[0] / 2, pieces) == ok);
  CHECK(whole == pieces || !ok);
  return 0;
}
