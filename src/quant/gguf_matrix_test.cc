#include "quant/gguf_matrix.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/file.h"
#include "tensor/half_float.h"

namespace loramux::gguf_matrix_test {
namespace {

const std::string kFixtures = LORAMUX_SOURCE_DIR "/tests/golden/gguf/";

struct Fixture {
  GgufFile file = GgufFile::Open(kFixtures + "types.gguf").value();
  std::vector<std::vector<float>> expected;  // by tensor, as the gguf package reads it

  Fixture() {
    const std::string bytes = ReadTextFile(kFixtures + "types.f32", std::size_t{1} << 24).value();
    std::size_t at = 0;
    for (const GgufTensor& tensor : file.tensors()) {
      std::vector<float>& values = expected.emplace_back(static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1]));
      std::memcpy(values.data(), bytes.data() + at, values.size() * sizeof(float));
      at += values.size() * sizeof(float);
    }
    EXPECT_EQ(at, bytes.size());
  }
};

std::vector<float> FloatsOf(const StoredMatrix& matrix) {
  std::vector<float> out(static_cast<std::size_t>(matrix.rows() * matrix.columns()));
  matrix.ReadFloats(0, matrix.rows(), out.data());
  return out;
}

std::vector<float> GroupsOf(const StoredMatrix& matrix) {
  const GroupedRows groups = matrix.ReadGroups(0, matrix.rows());
  EXPECT_EQ(groups.format, matrix.format());
  std::vector<float> out(static_cast<std::size_t>(matrix.rows() * matrix.columns()));
  for (std::int64_t row = 0; row < matrix.rows(); ++row) groups.ReadRow(row, out.data() + row * matrix.columns());
  for (const float scale : groups.scales) EXPECT_EQ(scale, F16ToF32(F32ToF16(scale)));
  for (const float minimum : groups.minimums) {
    if (groups.format == WeightFormat::kQ4) EXPECT_EQ(minimum, F16ToF32(F32ToF16(minimum)));
  }
  return out;
}

double Rms(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST(GgufMatrix, ReadsEveryTypeAsTheGgufPackageDoes) {
  const Fixture fixture;
  ASSERT_EQ(fixture.file.tensors().size(), 11u);
  for (std::size_t i = 0; i < fixture.expected.size(); ++i) {
    const GgufTensor& tensor = fixture.file.tensors()[i];
    EXPECT_EQ(tensor.name, tensor.type->name);
    EXPECT_EQ(FloatsOf(*MakeGgufMatrix(tensor, 0)), fixture.expected[i]) << tensor.name;
  }
}

TEST(GgufMatrix, KeepsTheIntegersOfTheFile) {
  const Fixture fixture;
  for (std::size_t i = 0; i < fixture.expected.size(); ++i) {
    const GgufTensor& tensor = fixture.file.tensors()[i];
    const auto matrix = MakeGgufMatrix(tensor, 0);
    const std::string name = tensor.name;
    if (!IsQuantised(matrix->format())) {
      EXPECT_EQ(matrix->Raw(1, 2).data(), tensor.data.data() + tensor.data.size() / 3);
      continue;
    }
    EXPECT_TRUE(matrix->Raw(0, 1).empty());
    EXPECT_EQ(matrix->format(), name.starts_with("Q4") ? WeightFormat::kQ4 : WeightFormat::kQ8) << name;
    std::vector<float> kept = GroupsOf(*matrix);
    if (name == "Q8_0" || name == "Q5_0" || name == "Q4_0" || name == "Q4_1") {
      EXPECT_EQ(kept, fixture.expected[i]) << name;
      continue;
    }
    for (std::size_t k = 0; k < kept.size(); ++k) kept[k] -= fixture.expected[i][k];
    // Rounding scales to float16 loses 2^-11 of a value, rounding to 8 bits 1/254 of the largest of a group.
    EXPECT_LT(Rms(kept), (name == "Q4_K" ? 0.0007 : 0.006) * Rms(fixture.expected[i])) << name;
    EXPECT_GT(Rms(kept), 0) << name;
  }
}

TEST(GgufMatrix, EightBitsKeepTheLeastCode) {
  std::vector<std::byte> block(34);
  const std::uint16_t half = F32ToF16(0.5f);
  std::memcpy(block.data(), &half, sizeof(half));
  block[2] = std::byte{0x80};  // -128
  block[3] = std::byte{0x7f};
  const GgufTensor tensor{.name = "w", .type = FindGgufType(8), .shape = {1, 32}, .data = block};
  const std::vector<float> values = GroupsOf(*MakeGgufMatrix(tensor, 0));
  EXPECT_EQ(values[0], -64.0f);
  EXPECT_EQ(values[1], 63.5f);
  EXPECT_EQ(values[2], 0.0f);
}

// In floats and in groups: block i is block order[i] of the file.
TEST(GgufMatrix, PutsBlocksOfColumnsInOrder) {
  const Fixture fixture;
  for (const GgufTensor& tensor : fixture.file.tensors()) {
    const std::shared_ptr<const StoredMatrix> matrix = MakeGgufMatrix(tensor, 0);
    const std::int64_t columns = matrix->columns(), count = columns / 64;
    std::vector<std::int64_t> order;
    for (std::int64_t block = 0; block < count; ++block) order.push_back((block + 1) % count);
    const auto ordered = ColumnsOfMatrix(matrix, 64, order);
    EXPECT_EQ(ordered->format(), matrix->format());
    const auto check = [&](const std::vector<float>& found, const std::vector<float>& stored) {
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(found.size()); ++i) {
        const std::int64_t column = i % columns, from = order[static_cast<std::size_t>(column / 64)] * 64 + column % 64;
        ASSERT_EQ(found[static_cast<std::size_t>(i)], stored[static_cast<std::size_t>(i - column + from)])
            << tensor.name << " " << i;
      }
    };
    check(FloatsOf(*ordered), FloatsOf(*matrix));
    if (IsQuantised(matrix->format())) check(GroupsOf(*ordered), GroupsOf(*matrix));
  }
}

TEST(GgufMatrix, ShowsInterleavedHeadsInOrder) {
  const std::vector<float> stored = {0, 1, 2, 3, 10, 11, 12, 13};  // two heads of four rows of one
  const GgufTensor tensor{
      .name = "w", .type = FindGgufType(0), .shape = {8, 1}, .data = std::as_bytes(std::span(stored))};
  const auto matrix = MakeGgufMatrix(tensor, 4);
  EXPECT_EQ(FloatsOf(*matrix), (std::vector<float>{0, 2, 1, 3, 10, 12, 11, 13}));
  EXPECT_TRUE(matrix->Raw(0, 8).empty());
}

}  // namespace
}  // namespace loramux::gguf_matrix_test
