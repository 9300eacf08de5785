#include "formats/safetensors.h"

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/test_files.h"

namespace loramux::safetensors_test {
namespace {

using testing::HasSubstr;

Result<std::vector<StoredTensor>> Parse(const std::string& bytes) {
  return TensorFile::Parse(std::as_bytes(std::span(bytes)), "FILE");
}

// The error for a file with this header and `data_bytes` bytes of data.
std::string HeaderError(const std::string& header, std::size_t data_bytes = 0) {
  const std::string bytes = SafetensorsBytes(header, std::string(data_bytes, '\0'));
  const auto tensors = Parse(bytes);
  return tensors.ok() ? "accepted" : tensors.error().message;
}

TEST(DTypeTest, NamesAndSizesAgree) {
  for (const char* name : {"F32", "BF16", "F16", "F64", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2",
                           "U16", "U32", "U64"}) {
    const auto dtype = ParseDType(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_STREQ(DTypeName(*dtype), name);
  }
  EXPECT_EQ(DTypeSize(DType::kBF16), 2u);
  EXPECT_EQ(DTypeSize(DType::kF8E4M3), 1u);
  EXPECT_FALSE(ParseDType("f32"));
  EXPECT_FALSE(ParseDType(""));
}

TEST(DTypeTest, FindsWhatIsNotFinite) {
  struct Case {
    DType dtype;
    std::uint32_t largest, infinity, nan;
  };
  for (const Case& c : {Case{DType::kF32, 0xFF7FFFFF, 0x7F800000, 0xFF800001},
                        Case{DType::kBF16, 0xFF7F, 0xFF80, 0x7F81}, Case{DType::kF16, 0xFBFF, 0x7C00, 0xFC01}}) {
    const std::size_t size = DTypeSize(c.dtype);
    for (std::size_t count = 1; count < 12; ++count) {
      std::vector<std::byte> data(count * size);
      for (std::size_t i = 0; i < count; ++i) std::memcpy(&data[i * size], &c.largest, size);
      EXPECT_EQ(FirstNotFinite(c.dtype, data), std::nullopt);
      for (std::size_t i = count; i-- > 0;) {
        std::memcpy(&data[i * size], i % 2 == 0 ? &c.infinity : &c.nan, size);
        EXPECT_EQ(FirstNotFinite(c.dtype, data), i) << DTypeName(c.dtype) << " of " << count;
      }
    }
  }
}

TEST(SafetensorsTest, NothingMayFollowTheHeader) {
  EXPECT_THAT(HeaderError(std::string("{}\0garbage", 10)), HasSubstr("found a NUL byte at byte 2"));
}

TEST(SafetensorsTest, ReadsTensorsInHeaderOrder) {
  // Offsets in a different order than names; a scalar, an empty tensor, unaligned data, metadata and padding.
  const std::string header =
      R"({"__metadata__":{"format":"pt","__x__":"1"},"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},)"
      R"("a":{"data_offsets":[0,1],"dtype":"U8","shape":[]},)"
      R"("e":{"dtype":"BF16","shape":[0,7],"data_offsets":[9,9]}}    )";
  const std::string bytes = SafetensorsBytes(header,
                                             "\x05"
                                             "abcdefgh");
  const auto tensors = Parse(bytes);
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "b");
  EXPECT_EQ((*tensors)[0].ElementCount(), 2);
  EXPECT_EQ(std::memcmp((*tensors)[0].data.data(), "abcdefgh", 8), 0);
  EXPECT_EQ((*tensors)[1].ElementCount(), 1);
  EXPECT_EQ((*tensors)[2].shape, (std::vector<std::int64_t>{0, 7}));
  EXPECT_TRUE((*tensors)[2].data.empty());
}

TEST(SafetensorsTest, AcceptsAFileWithoutTensors) {
  EXPECT_EQ(HeaderError("{}"), "accepted");
  EXPECT_EQ(HeaderError(R"({"__metadata__":{}})"), "accepted");
  EXPECT_EQ(HeaderError(R"({"__metadata__":null})"), "accepted");
  EXPECT_THAT(HeaderError(R"({"__metadata__":{"a":null}})"), HasSubstr("__metadata__ to hold strings only"));
}

TEST(SafetensorsTest, RefusesBadHeaders) {
  EXPECT_THAT(HeaderError("[]"), HasSubstr("expected an object of tensors"));
  EXPECT_THAT(HeaderError(R"({"a":1})"), HasSubstr("tensor 'a': expected an object with dtype"));
  EXPECT_THAT(HeaderError(R"({"a":{"dtype":"F32","shape":[]}})"), HasSubstr("data_offsets are missing"));
  EXPECT_THAT(HeaderError(R"({"a":{"dtype":"F32","dtype":"F32"}})"), HasSubstr("dtype occurs twice"));
  EXPECT_THAT(HeaderError(R"({"a":{"dtype":4}})"), HasSubstr("expected a dtype"));
  EXPECT_THAT(HeaderError(R"({"a":{"shape":[[1]]}})"), HasSubstr("found an array"));
  EXPECT_THAT(HeaderError(R"({"a":{"shape":[-1]}})"), HasSubstr("found a negative number"));
  EXPECT_THAT(HeaderError(R"({"a":{"shape":[9223372036854775808]}})"), HasSubstr("63 bits"));
  EXPECT_THAT(HeaderError(R"({"a":{"shape":[99999999999999999999999]}})"), HasSubstr("not a 64-bit integer"));
  EXPECT_THAT(HeaderError(R"({"a":{"shape":[1.0]}})"), HasSubstr("not a 64-bit integer"));
  EXPECT_THAT(HeaderError(R"({"a":{"data_offsets":[0]}})"), HasSubstr("expected two data_offsets, found 1"));
  EXPECT_THAT(HeaderError(R"({"a":{"data_offsets":null}})"), HasSubstr("found null"));
  EXPECT_THAT(HeaderError(R"({"a":{"color":1}})"), HasSubstr("unknown field 'color'"));
  EXPECT_THAT(HeaderError(R"({"__metadata__":{"a":1}})"), HasSubstr("__metadata__ to hold strings only"));
  EXPECT_THAT(HeaderError(R"({"__metadata__":[]})"), HasSubstr("__metadata__ to be an object"));
  EXPECT_THAT(HeaderError(R"({} {})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(HeaderError("{\"\xff\":1}"), HasSubstr("not valid JSON"));
  std::string dimensions = "1";
  for (int i = 0; i < 64; ++i) dimensions += ",1";
  EXPECT_THAT(HeaderError(R"({"a":{"dtype":"U8","shape":[)" + dimensions + R"(],"data_offsets":[0,1]}})", 1),
              HasSubstr("more than 64 dimensions"));
}

TEST(SafetensorsTest, NestingCostsNoStack) {
  EXPECT_THAT(HeaderError(std::string(10'000'000, '[')), HasSubstr("expected an object of tensors"));
  std::string in_metadata = R"({"__metadata__":)";
  EXPECT_THAT(HeaderError(in_metadata.append(10'000'000, '{')), HasSubstr("FILE"));
}

TEST(SafetensorsTest, ErrorsStayShortAndPrintable) {
  std::string header = "{\"";
  const std::string message = HeaderError(header.append(1'000'000, 'n').append("\\n\":1}"));
  EXPECT_LT(message.size(), 600u);
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(SafetensorsTest, ProductsThatOverflowAreRefused) {
  EXPECT_THAT(HeaderError(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
              HasSubstr("does not fit in 63 bits"));
  // A zero extent makes an empty tensor, whatever the other extents are.
  EXPECT_EQ(HeaderError(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4,0],"data_offsets":[0,0]}})"), "accepted");
}

TEST(SafetensorsTest, TruncationIsNamed) {
  const std::string whole = ZeroTensors({{"a", "F32", {300, 100}}});
  const auto tensors = Parse(whole.substr(0, whole.size() - 100'000));
  ASSERT_FALSE(tensors.ok());
  EXPECT_THAT(
      tensors.error().message,
      HasSubstr("FILE: the header promises 120,000 bytes of data but the file holds 20,000: the file is truncated"));
  // Parsing reports every truncation.
  for (std::size_t size = 0; size < 120; ++size) EXPECT_FALSE(Parse(whole.substr(0, size)).ok()) << size;
}

TEST(SafetensorsTest, ALargeHeaderIsRead) {
  std::vector<TensorSpec> specs;
  for (int layer = 0; layer < 32; ++layer) {
    for (int i = 0; i < 9; ++i) {
      specs.push_back(
          {"model.layers." + std::to_string(layer) + ".part_" + std::to_string(i) + ".weight", "F32", {2, 3}});
    }
  }
  const std::string bytes = ZeroTensors(specs);  // as many tensors as a 7B model has
  ASSERT_TRUE(Parse(bytes).ok());
}

TEST(TensorFileTest, OpensAndFinds) {
  const TempFolder folder;
  auto opened = TensorFile::Open(folder.Write("x.safetensors", ZeroTensors({{"a", "F32", {2, 2}}, {"b", "F16", {3}}})));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const TensorFile file = std::move(opened).value();  // a move keeps the tensors valid
  ASSERT_NE(file.Find("b"), nullptr);
  EXPECT_EQ(file.Find("b")->dtype, DType::kF16);
  EXPECT_EQ(file.Find("c"), nullptr);
  EXPECT_EQ(file.TotalBytes(), static_cast<std::int64_t>(std::filesystem::file_size(folder.path() / "x.safetensors")));
}

TEST(TensorFileTest, RefusesWhatIsNoRegularFile) {
  const TempFolder folder;
  EXPECT_EQ(TensorFile::Open(folder.path() / "none").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(TensorFile::Open(folder.path()).error().message, HasSubstr("found a directory"));
  ASSERT_EQ(::mkfifo((folder.path() / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(TensorFile::Open(folder.path() / "fifo").error().message, HasSubstr("found a FIFO"));
  EXPECT_THAT(TensorFile::Open(folder.Write("empty", "")).error().message, HasSubstr("found 0 bytes"));
}

class ShardsTest : public testing::Test {
 protected:
  void WriteShards(const std::string& index) {
    folder_.Write("m-1.safetensors", ZeroTensors({{"a", "F32", {1}}, {"b", "F32", {2}}}));
    folder_.Write("m-2.safetensors", ZeroTensors({{"c", "F32", {3}}}));
    folder_.Write("model.safetensors.index.json", index);
  }
  std::string OpenError() {
    const auto file = TensorFile::OpenModelDirectory(folder_.path());
    return file.ok() ? "accepted" : file.error().message;
  }
  TempFolder folder_;
};

TEST_F(ShardsTest, OpensShards) {
  WriteShards(R"({"metadata":{},"weight_map":{"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}})");
  const auto file = TensorFile::OpenModelDirectory(folder_.path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->files().size(), 2u);
  EXPECT_EQ(file->Find("c")->ElementCount(), 3);
}

TEST_F(ShardsTest, RefusesNamesThatLeaveTheDirectory) {
  for (const char* name : {"../m-1.safetensors", "/etc/passwd", "sub/m-1.safetensors", "..", ".", "", "m-1.bin",
                           "m-1.safetensors/", "m-1.safetensors\\u0000"}) {
    WriteShards(std::string(R"({"weight_map":{"a":")") + name + "\"}}");
    EXPECT_THAT(OpenError(), HasSubstr("is not the plain name")) << name;
  }
}

TEST_F(ShardsTest, RefusesContradictions) {
  WriteShards(R"({"weight_map":{"a":"m-2.safetensors","c":"m-1.safetensors"}})");
  EXPECT_THAT(OpenError(), HasSubstr("tensor 'a' should be in 'm-2.safetensors' but is in 'm-1.safetensors'"));
  WriteShards(R"({"weight_map":{"a":"m-1.safetensors","z":"m-2.safetensors"}})");
  EXPECT_THAT(OpenError(), HasSubstr("tensor 'z' should be in 'm-2.safetensors' but is not there"));
  WriteShards(R"({"weight_map":{"a":"m-1.safetensors","z":"m-3.safetensors"}})");
  EXPECT_THAT(OpenError(), HasSubstr("names the shard 'm-3.safetensors', which is missing"));
  WriteShards(R"({"weight_map":{"a":"m-1.safetensors","c":"m-2.safetensors"}})");
  folder_.Write("m-2.safetensors", ZeroTensors({{"c", "F32", {3}}, {"a", "F32", {1}}}));
  EXPECT_THAT(OpenError(), HasSubstr("tensor 'a' is also in another shard"));
}

TEST_F(ShardsTest, RefusesABadIndex) {
  for (const char* index :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})"}) {
    WriteShards(index);
    EXPECT_THAT(OpenError(), HasSubstr("index.json")) << index;
  }
}

TEST_F(ShardsTest, NamesPickledWeights) {
  EXPECT_THAT(OpenError(), HasSubstr("found neither"));
  folder_.Write("pytorch_model.bin", "not read");
  EXPECT_THAT(OpenError(), HasSubstr("pickled weights (pytorch_model.bin)"));
  EXPECT_EQ(TensorFile::OpenModelDirectory(folder_.path() / "none").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace loramux::safetensors_test
