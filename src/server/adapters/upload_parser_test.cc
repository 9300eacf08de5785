#include "server/adapters/upload_parser.h"

#include <map>

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace loramux::upload_parser_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class Files final : public UploadedFiles {
 public:
  Status Begin(std::string_view name) override {
    last_ = name;
    EXPECT_TRUE(content.emplace(name, "").second);
    return Ok{};
  }
  Status Append(std::string_view bytes) override {
    content.at(last_) += bytes;
    return Ok{};
  }
  std::map<std::string, std::string> content;

 private:
  std::string last_;
};

// An entry of a ustar archive.
std::string Entry(const std::string& path, const std::string& content, char type = '0') {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  put(0, path);
  put(124, fmt::format("{:011o}", content.size()));
  put(148, "        ");
  header[156] = type;
  put(257, std::string("ustar\0", 6) + "00");
  int sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return header + content + std::string((512 - content.size() % 512) % 512, '\0');
}

const std::string kEnd(1024, '\0');
constexpr const char* kForm = "multipart/form-data; boundary=\"b:1\"";

std::string Part(const std::string& name, const std::string& content) {
  return "\r\n--b:1\r\nContent-Disposition: form-data; name=\"files\"; filename=\"" + name +
         "\"\r\nContent-Type: application/octet-stream\r\n\r\n" + content;
}

// Feeds pieces of `size` bytes. Ok, or the error of any step.
Status Parse(const std::string& type, const std::string& bytes, std::size_t size, Files& files) {
  auto parser = UploadParser::For(type, files);
  if (!parser.ok()) return parser.error();
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    RETURN_IF_ERROR((*parser)->Feed(std::string_view(bytes).substr(at, size)));
  }
  return (*parser)->Finish();
}

// What is read must not depend on how the bytes arrive.
std::map<std::string, std::string> FilesOf(const std::string& type, const std::string& bytes) {
  Files whole;
  const Status status = Parse(type, bytes, bytes.size(), whole);
  EXPECT_TRUE(status.ok()) << status.error().message;
  for (const std::size_t size : {1, 2, 3, 7, 511, 512, 513}) {
    Files files;
    EXPECT_TRUE(Parse(type, bytes, size, files).ok());
    EXPECT_EQ(files.content, whole.content) << size;
  }
  return whole.content;
}

std::string Refusal(const std::string& type, const std::string& bytes) {
  std::string message;
  for (const std::size_t size : {std::size_t{1}, bytes.size() + 1}) {
    Files files;
    const Status status = Parse(type, bytes, size, files);
    EXPECT_FALSE(status.ok());
    if (!status.ok()) message = status.error().message;
  }
  return message;
}

TEST(UploadParser, ReadsTheFilesOfOneFolderOfAnArchive) {
  const std::string large(1500, 'x');
  EXPECT_THAT(FilesOf("", Entry("a", "1") + Entry("b", "") + Entry("c", large) + kEnd),
              ElementsAre(Pair("a", "1"), Pair("b", ""), Pair("c", large)));
  EXPECT_THAT(FilesOf("application/x-tar", Entry("./", "", '5') + Entry("./a", std::string(512, 'y')) + kEnd + "junk"),
              ElementsAre(Pair("a", std::string(512, 'y'))));
  EXPECT_THAT(FilesOf("application/x-tar",
                      Entry("v1/", "", '5') + Entry("v1/._a", "of another system") + Entry("v1/a", "2") + kEnd),
              ElementsAre(Pair("a", "2")));
  // Python writes a time with fractions as an attribute.
  EXPECT_THAT(FilesOf("", Entry("@", "28 mtime=1700000000.1234567\n", 'x') + Entry("a", "3") + kEnd),
              ElementsAre(Pair("a", "3")));
}

TEST(UploadParser, RefusesWhatIsNoPlainFileOfOneFolder) {
  for (const char* path : {"../a", "/a", "v/w/a", "v/..", "v/", "..", "v/a\nb"}) {
    EXPECT_THAT(Refusal("", Entry(path, "1") + kEnd), HasSubstr("expected the files of one folder")) << path;
  }
  EXPECT_THAT(Refusal("", Entry("v/a", "1") + Entry("w/b", "1") + kEnd), HasSubstr("one folder, found \"w/b\""));
  for (const char type : {'1', '2', '3', 'L', 'S'}) {
    EXPECT_THAT(Refusal("", Entry("a", "", type) + kEnd), HasSubstr("expected plain files, found \"a\"")) << type;
  }
  EXPECT_THAT(Refusal("", Entry("@", "12 path=../\n", 'x') + Entry("a", "1")), HasSubstr("the attribute \"path\""));
  EXPECT_THAT(Refusal("", Entry("@", "99 path=../\n", 'x') + Entry("a", "1")), HasSubstr("expected attributes"));
  EXPECT_THAT(Refusal("", kEnd), HasSubstr("found none"));
  EXPECT_THAT(Refusal("", std::string("\x1f\x8b") + std::string(600, 'z')), HasSubstr("compressed"));
  EXPECT_THAT(Refusal("", std::string(600, 'z')), HasSubstr("none of its headers"));
  std::string damaged = Entry("a", "1") + kEnd;
  damaged[200] = 'x';  // the sum of the header tells
  EXPECT_THAT(Refusal("", damaged), HasSubstr("none of its headers"));
  const std::string whole = Entry("a", std::string(700, 'a'));
  for (const std::size_t size : {std::size_t{100}, std::size_t{512 + 200}, whole.size()}) {
    EXPECT_THAT(Refusal("", whole.substr(0, size)), HasSubstr("cut off")) << size;
  }
  std::string many;
  for (int i = 0; i < 65; ++i) many += Entry(std::to_string(i), "");
  EXPECT_THAT(Refusal("", many), HasSubstr("at most 64 files"));
}

TEST(UploadParser, ReadsTheFilesOfAForm) {
  const std::string tricky = "\r\n--b:\r\n--b:2\r\n-\r\n\r\n--";
  EXPECT_THAT(FilesOf(kForm, "preamble" + Part("a", tricky) + Part("b", "") + "\r\n--b:1--\r\nepilogue"),
              ElementsAre(Pair("a", tricky), Pair("b", "")));
  // Clients begin with the boundary, and some quote nothing.
  EXPECT_THAT(FilesOf("Multipart/Form-Data;boundary=xy",
                      "--xy\r\ncontent-disposition: form-data;name=f;filename=adapter_config.json\r\n\r\n{}\r\n--xy--"),
              ElementsAre(Pair("adapter_config.json", "{}")));
}

TEST(UploadParser, RefusesFormsThatAreNone) {
  const std::string end = "\r\n--b:1--";
  EXPECT_THAT(Refusal(kForm, Part("a", "1")), HasSubstr("cut off"));
  EXPECT_THAT(Refusal(kForm, ""), HasSubstr("cut off"));
  EXPECT_THAT(Refusal(kForm, end), HasSubstr("found none"));
  EXPECT_THAT(Refusal(kForm, Part("../a", "1") + end), HasSubstr("expected the files of one folder"));
  EXPECT_THAT(Refusal(kForm, "--b:1\r\nContent-Disposition: form-data; name=\"pinned\"\r\n\r\ntrue" + end),
              HasSubstr("a part without one"));
  EXPECT_THAT(Refusal(kForm, "--b:1\r\n\r\nno header" + end), HasSubstr("a part without one"));
  EXPECT_THAT(Refusal(kForm, "--b:1\r\nX: " + std::string(9000, 'x')), HasSubstr("header of at most"));
  EXPECT_THAT(Refusal(kForm, "--b:1xy"), HasSubstr("line break behind the form's boundary"));
  Files files;
  for (const char* type : {"application/json", "multipart/form-data", "multipart/form-data; boundary=", "text/plain"}) {
    EXPECT_EQ(UploadParser::For(type, files).error().code, ErrorCode::kUnsupported) << type;
  }
}

}  // namespace
}  // namespace loramux::upload_parser_test
