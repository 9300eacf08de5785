// Layers in published formats (tests/golden/make_quantised.py), and files that only seem to hold such layers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/prng.h"
#include "formats/safetensors.h"
#include "formats/test_files.h"
#include "quant/model_source.h"
#include "quant/published_source.h"
#include "quant/quantise.h"
#include "quant/quantization_config.h"

namespace loramux::published_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

fs::path LayersDirectory() { return fs::path(LORAMUX_SOURCE_DIR) / "tests" / "golden" / "quantised" / "layers"; }

std::vector<std::string> LayerNames() {
  std::vector<std::string> names;
  std::error_code missing;  // then there are no parameters, which GoogleTest reports
  for (const auto& entry : fs::directory_iterator(LayersDirectory(), missing)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

template <typename T>
T Value(Result<T> result) {
  if (!result.ok()) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}

// The source of a directory whose config.json has quantization_config alone.
Result<std::unique_ptr<ModelSource>> OpenLayer(const fs::path& directory) {
  const json config = json::parse(std::ifstream(directory / "config.json"));
  ASSIGN_OR_RETURN(QuantizationConfig parsed, ParseQuantizationConfig(config["quantization_config"].dump(), "FILE"));
  ASSIGN_OR_RETURN(TensorFile file, TensorFile::OpenModelDirectory(directory));
  return MakePublishedSource(std::make_shared<const TensorFile>(std::move(file)), std::move(parsed));
}

// What a device keeps with the integers and floats as they are stored; 0: as floats. All other formats it keeps.
const std::map<std::string, std::int64_t> kGroups = {{"gptq_act_order", 0},
                                                     {"gptq_8_asymmetric", 0},
                                                     {"compressed_int4_in_bytes_asymmetric", 0},
                                                     {"compressed_int8_asymmetric", 0},
                                                     {"fp8_inverse_tensor", 0},
                                                     {"fp8_inverse_rows", 0},
                                                     {"fp8_inverse_block", 0},
                                                     {"nf4", 0},
                                                     {"nf4_odd", 0},
                                                     {"nf4_nested", 0},
                                                     {"fp4", 0},
                                                     {"compressed_nvfp4", 0},
                                                     {"modelopt_nvfp4", 0},
                                                     {"modelopt_fp8", 96},
                                                     {"modelopt_fp8_rows", 96},
                                                     {"gptq_asymmetric", 96},
                                                     {"compressed_int4_channel", 96},
                                                     {"compressed_int8", 96},
                                                     {"compressed_int8_tensor", 96},
                                                     {"compressed_fp8", 96},
                                                     {"compressed_fp8_tensor", 96},
                                                     {"fp8_rows", 96},
                                                     {"llm_int8", 96},
                                                     {"compressed_fp8_block", 64},
                                                     {"fp8_block", 64}};

class PublishedLayer : public testing::TestWithParam<std::string> {
 protected:
  PublishedLayer()
      : directory_(LayersDirectory() / GetParam()),
        expected_(Value(TensorFile::Open(directory_ / "expected.safetensors"))),
        source_(Value(OpenLayer(directory_))) {
    const StoredTensor* tensor = expected_.Find("layer.weight");
    rows_ = tensor->shape[0];
    columns_ = tensor->shape[1];
    values_ = ToFloats(*tensor);
    matrix_ = Value(source_->RequireMatrix("layer", rows_, columns_));
  }

  // The largest magnitude of the 32 values around one.
  float LargestAround(std::size_t i) const {
    const std::size_t begin = i - i % static_cast<std::size_t>(columns_) % 32;
    float largest = 0;
    for (std::size_t t = begin; t < begin + 32 && t < values_.size(); ++t)
      largest = std::max(largest, std::fabs(values_[t]));
    return largest;
  }

  const fs::path directory_;
  const TensorFile expected_;
  const std::unique_ptr<ModelSource> source_;
  std::int64_t rows_ = 0, columns_ = 0;
  std::vector<float> values_;
  std::shared_ptr<const StoredMatrix> matrix_;
};

TEST_P(PublishedLayer, HasTheValuesOfItsLibrary) {
  std::vector<float> floats(values_.size());
  matrix_->ReadFloats(0, rows_, floats.data());
  for (std::size_t i = 0; i < floats.size(); ++i) {
    ASSERT_NEAR(floats[i], values_[i], std::fabs(values_[i]) * 2e-7f) << "element " << i;
  }
  EXPECT_GT(matrix_->bytes(), rows_ * columns_ / 2);
  EXPECT_TRUE(source_->CheckAllUsed().ok()) << source_->CheckAllUsed().error().message;
}

TEST_P(PublishedLayer, PiecesAreThoseOfTheWhole) {
  std::vector<float> whole(values_.size()), piece(static_cast<std::size_t>(7 * columns_));
  matrix_->ReadFloats(0, rows_, whole.data());
  const GroupedRows groups = matrix_->ReadGroups(0, rows_);
  for (std::int64_t row = 0; row + 7 <= rows_; row += 5) {
    matrix_->ReadFloats(row, 7, piece.data());
    EXPECT_EQ(std::memcmp(piece.data(), whole.data() + row * columns_, piece.size() * sizeof(float)), 0);
    const GroupedRows part = matrix_->ReadGroups(row, 7);
    EXPECT_EQ(std::memcmp(part.CodesOf(0), groups.CodesOf(row), part.codes.size()), 0);
    EXPECT_EQ(std::memcmp(part.ScalesOf(0), groups.ScalesOf(row), part.scales.size() * sizeof(float)), 0);
  }
}

// Integers stay as they are, but for scales and minima that are rounded to float16. What the formats in memory cannot
// hold is rounded to 8 bits.
TEST_P(PublishedLayer, GroupsHoldTheValues) {
  const bool mx4 = GetParam() == "compressed_mxfp4";
  const bool rounded = (GetParam().find("fp") != std::string::npos && !mx4) ||
                       GetParam().find("nf4") != std::string::npos || GetParam() == "gptq_act_order" ||
                       GetParam() == "gptq_8_asymmetric" || GetParam() == "compressed_int8_asymmetric" ||
                       GetParam() == "compressed_int4_in_bytes_asymmetric";
  const bool four = GetParam() == "awq" || GetParam() == "gptq" || GetParam() == "gptq_v2" ||
                    GetParam() == "gptq_asymmetric" || GetParam() == "gptq_skips" ||
                    (GetParam().starts_with("compressed_int4") && GetParam().find("in_bytes") == std::string::npos);
  EXPECT_EQ(matrix_->format(), mx4 ? WeightFormat::kMx4 : four ? WeightFormat::kQ4 : WeightFormat::kQ8);
  const GroupedRows groups = matrix_->ReadGroups(0, rows_);
  std::vector<float> row(static_cast<std::size_t>(columns_));
  constexpr float kHalf = 1.0f / 2048;  // relative error of rounding to float16
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const auto column = i % row.size();
    if (column == 0) groups.ReadRow(static_cast<std::int64_t>(i / row.size()), row.data());
    const float largest = LargestAround(i);
    // Code and zero point have at most 16 steps each, half of which may be above the largest value.
    const float bound = rounded ? largest * (0.5f / 127 + 2 * kHalf) : largest * 4 * kHalf + 1e-7f;
    ASSERT_NEAR(row[column], values_[i], bound) << "element " << i;
  }
}

TEST_P(PublishedLayer, WhatADeviceKeepsIsWhatIsStored) {
  const auto named = kGroups.find(GetParam());
  const std::int64_t group = named == kGroups.end() ? kWeightGroup : named->second;
  const auto kept = matrix_->kept();
  ASSERT_EQ(kept.has_value(), group != 0);
  if (!kept) return;
  EXPECT_EQ(kept->group, group);
  EXPECT_EQ(kept->format == WeightFormat::kF8, GetParam().find("fp8") != std::string::npos);
  const GroupedRows rows = matrix_->ReadKept(0, rows_);
  ASSERT_EQ(rows.format, kept->format);
  std::vector<float> row(static_cast<std::size_t>(columns_));
  for (std::int64_t r = 0; r < rows_; ++r) {
    rows.ReadRow(r, row.data());
    for (std::int64_t t = 0; t < columns_; ++t) {
      const auto i = static_cast<std::size_t>(r * columns_ + t);
      // Scales and minima in 16 bits.
      const float most = rows.format == WeightFormat::kF8 ? 0 : LargestAround(i) / 512;
      ASSERT_NEAR(row[static_cast<std::size_t>(t)], values_[i], most) << "row " << r << ", input " << t;
    }
    for (std::int64_t g = 1; g < rows.groups(); ++g) {
      if (g * kWeightGroup % kept->group == 0) continue;
      ASSERT_EQ(rows.ScalesOf(r)[g], rows.ScalesOf(r)[g - 1]);
      ASSERT_EQ(rows.MinimumsOf(r)[g], rows.MinimumsOf(r)[g - 1]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, PublishedLayer, testing::ValuesIn(LayerNames()),
                         [](const auto& info) { return info.param; });

// ---- hostile files

// A directory made from that of a layer, with some tensors changed.
class BrokenLayer {
 public:
  explicit BrokenLayer(const std::string& layer) {
    const fs::path directory = LayersDirectory() / layer;
    config_ = json::parse(std::ifstream(directory / "config.json"));
    const TensorFile file = Value(TensorFile::Open(directory / "model.safetensors"));
    for (const StoredTensor& tensor : file.tensors()) {
      tensors_[tensor.name] = {DTypeName(tensor.dtype), tensor.shape,
                               std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size())};
    }
  }

  struct Tensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::string data;
  };
  Tensor& operator[](const std::string& name) { return tensors_.at("layer." + name); }
  void Remove(const std::string& name) { CHECK_EQ(tensors_.erase("layer." + name), 1u); }
  void Add(const std::string& name, Tensor tensor) { tensors_["layer." + name] = std::move(tensor); }
  json& config() { return config_["quantization_config"]; }

  // Changes something: bytes, a type of the same size, a shape of the same product, or a tensor that is gone.
  void Vandalise(Prng& prng) {
    const auto tensor = std::next(tensors_.begin(), static_cast<std::ptrdiff_t>(prng.NextBelow(tensors_.size())));
    Tensor& t = tensor->second;
    switch (prng.NextBelow(8)) {
      case 0:
        if (tensors_.size() > 1) tensors_.erase(tensor);
        break;
      case 1:
        std::reverse(t.shape.begin(), t.shape.end());
        break;
      case 2:
        t.shape.push_back(1);
        break;
      case 3:
        t.dtype = t.dtype == "F16" ? "BF16" : t.dtype == "F32" ? "I32" : t.dtype == "I32" ? "U32" : "F8_E4M3";
        break;
      default:
        for (std::uint64_t left = 1 + prng.NextBelow(8); left > 0 && !t.data.empty(); --left) {
          t.data[prng.NextBelow(t.data.size())] = static_cast<char>(prng.Next());
        }
    }
  }

  // The error of opening the directory, finding the layer [40, columns], or checking that all is used. `values`
  // receives the layer's if it is not null.
  std::string Error(std::int64_t columns = 96, std::vector<float>* values = nullptr) const {
    const TempFolder folder;
    json header;
    std::string data;
    for (const auto& [name, tensor] : tensors_) {
      header[name] = {{"dtype", tensor.dtype},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
      data += tensor.data;
    }
    folder.Write("config.json", config_.dump());
    folder.Write("model.safetensors", SafetensorsBytes(header.dump(), data));
    auto source = OpenLayer(folder.path());
    if (!source.ok()) return source.error().message;
    const auto matrix = (*source)->RequireMatrix("layer", 40, columns);
    if (!matrix.ok()) return matrix.error().message;
    std::vector<float> floats(static_cast<std::size_t>(40 * columns));
    (*matrix)->ReadFloats(0, 40, floats.data());
    if (values != nullptr) *values = floats;
    EXPECT_EQ((*matrix)->ReadGroups(0, 40).rows, 40);
    const Status used = (*source)->CheckAllUsed();
    return used.ok() ? "accepted" : used.error().message;
  }

 private:
  json config_;
  std::map<std::string, Tensor> tensors_;
};

std::string Words(const std::vector<std::uint32_t>& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(words[0])};
}

TEST(BrokenLayers, UntouchedOnesAreAccepted) {
  EXPECT_EQ(BrokenLayer("gptq").Error(), "accepted");
  EXPECT_EQ(BrokenLayer("nf4").Error(128), "accepted");
}

// The same layer, whose zero points one program stores less one and another as they are.
TEST(BrokenLayers, SymmetricGptqIsReadByWhatIsStored) {
  BrokenLayer layer("gptq");
  std::vector<float> less_one, as_they_are;
  EXPECT_EQ(layer.Error(96, &less_one), "accepted");
  std::string& zeros = layer["qzeros"].data;
  EXPECT_EQ(zeros, std::string(zeros.size(), '\x77'));
  zeros.assign(zeros.size(), '\x88');
  EXPECT_EQ(layer.Error(96, &as_they_are), "accepted");
  EXPECT_EQ(as_they_are, less_one);
  zeros[5] = '\x66';
  EXPECT_THAT(layer.Error(), testing::AllOf(HasSubstr("says sym: true"), HasSubstr("layer.qzeros")));
}

// A zero point of 0 is stored as -1.
TEST(BrokenLayers, AGptqZeroPointOfZeroWraps) {
  BrokenLayer layer("gptq_asymmetric");
  std::vector<float> values;
  std::string& zeros = layer["qzeros"].data;
  zeros.assign(zeros.size(), '\xff');
  EXPECT_EQ(layer.Error(96, &values), "accepted");
  EXPECT_GE(*std::min_element(values.begin(), values.end()), 0.0f);
}

TEST(BrokenLayers, MissingCompanionsAreNamed) {
  const std::map<std::string, std::vector<std::string>> companions = {
      {"gptq", {"qzeros", "scales"}},
      {"awq", {"qzeros", "scales"}},
      {"compressed_int4_asymmetric", {"weight_scale", "weight_zero_point"}},
      {"compressed_int8", {"weight_scale"}},
      {"compressed_fp8_block", {"weight_scale"}},
      {"fp8_block", {"weight_scale_inv"}},
      {"compressed_nvfp4", {"weight_scale", "weight_global_scale"}},
      {"compressed_mxfp4", {"weight_scale"}},
      {"modelopt_nvfp4", {"weight_scale", "weight_scale_2"}},
      {"modelopt_fp8", {"weight_scale"}},
      {"nf4_odd", {"weight.quant_map", "weight.quant_state.bitsandbytes__nf4"}}};
  for (const auto& [layer, names] : companions) {
    for (const std::string& name : names) {
      BrokenLayer broken(layer);
      broken.Remove(name);
      const std::string shown = name == "weight_scale_inv" ? "layer.weight_scale" : "layer." + name;
      EXPECT_THAT(broken.Error(), testing::AllOf(HasSubstr("'" + shown + "'"), HasSubstr("missing")));
    }
  }
}

TEST(BrokenLayers, WrongShapesAndTypesAreNamed) {
  BrokenLayer shape("gptq");
  shape["scales"].shape = {1, 120};
  EXPECT_THAT(shape.Error(), HasSubstr("'layer.scales' has shape [1, 120], but config.json asks for [3, 40]"));
  BrokenLayer group("gptq");
  group.config()["group_size"] = 64;
  EXPECT_THAT(group.Error(), HasSubstr("'layer.qzeros' has shape [3, 5], but config.json asks for [2, 5]"));
  BrokenLayer huge("awq");
  huge.config()["group_size"] = 1 << 24;
  EXPECT_THAT(huge.Error(), HasSubstr("asks for [1, 5]"));
  BrokenLayer type("compressed_int8");
  type["weight"].dtype = "U8";
  EXPECT_THAT(type.Error(), HasSubstr("'layer.weight' has type U8"));
  BrokenLayer stored("compressed_int4");
  stored["weight_shape"].data[0] = 41;
  EXPECT_THAT(stored.Error(), HasSubstr("'layer.weight_shape' holds [41, 96]"));
  BrokenLayer nibbles("nf4_odd");
  nibbles["weight"] = {"U8", {1900, 1}, std::string(1900, '\0')};
  EXPECT_THAT(nibbles.Error(), HasSubstr("expected 1920 bytes"));
}

TEST(BrokenLayers, GroupsOutOfRangeAreNamed) {
  for (const std::uint32_t group : {3u, 0xffffffffu}) {
    BrokenLayer order("gptq_act_order");
    std::memcpy(order["g_idx"].data.data() + 4 * 17, &group, sizeof(group));
    EXPECT_THAT(order.Error(), HasSubstr("'layer.g_idx': expected groups below 3, found"));
    EXPECT_THAT(order.Error(), HasSubstr("for input 17"));
  }
}

TEST(BrokenLayers, ScalesThatAreNoNumbersAreNamed) {
  BrokenLayer gptq("gptq");
  gptq["scales"].data.replace(2, 2, "\xff\x7f");
  EXPECT_THAT(gptq.Error(), HasSubstr("'layer.scales': expected finite scales"));
  BrokenLayer infinite("compressed_int8");
  infinite["weight_scale"].data.replace(0, 4, Words({0x7f800000}));
  EXPECT_THAT(infinite.Error(), HasSubstr("found inf as element 0"));
  BrokenLayer large("awq");
  large["scales"].data.replace(0, 2, "\xff\x7b");
  EXPECT_THAT(large.Error(), HasSubstr("found 65504"));
  BrokenLayer fp8("fp8_block");
  fp8["weight_scale_inv"].data.replace(4, 4, Words({0x7fc00000}));
  EXPECT_THAT(fp8.Error(), HasSubstr("'layer.weight_scale_inv': expected finite numbers, found nan as element 1"));
  BrokenLayer divisor("fp8_inverse_rows");
  divisor["weight_scale_inv"].data.replace(8, 4, Words({0}));
  EXPECT_THAT(divisor.Error(), HasSubstr("448.000000 can be divided, found 0.000000 as element 2"));
  BrokenLayer of_16("compressed_nvfp4");
  of_16["weight_scale"].data[3] = '\x7f';
  EXPECT_THAT(of_16.Error(), HasSubstr("'layer.weight_scale': expected numbers, found NaN as element 3"));
  for (const std::uint32_t bits : {0u, 0x7f800000u, 0x7fc00000u, 0xbf800000u, 0x00000001u}) {
    BrokenLayer whole("compressed_nvfp4");
    whole["weight_global_scale"].data = Words({bits});
    EXPECT_THAT(whole.Error(), HasSubstr("'layer.weight_global_scale': expected a number above 0")) << bits;
  }
  BrokenLayer mx4("compressed_mxfp4"), mx8("compressed_mxfp8");
  mx4["weight_scale"].data[5] = mx8["weight_scale"].data[5] = '\xff';
  EXPECT_THAT(mx4.Error(), HasSubstr("'layer.weight_scale': expected exponents of at most 143"));
  EXPECT_THAT(mx8.Error(), HasSubstr("'layer.weight_scale': expected exponents of at most 245"));
  BrokenLayer nested("nf4_nested");
  nested["weight.nested_quant_map"].data.replace(0, 4, Words({0x7fc00000}));
  EXPECT_THAT(nested.Error(128), HasSubstr("nested_quant_map"));
}

TEST(BrokenLayers, StatesThatDoNotFitAreNamed) {
  const auto with_state = [](const std::string& state) {
    BrokenLayer broken("nf4_odd");
    broken["weight.quant_state.bitsandbytes__nf4"] = {"U8", {static_cast<std::int64_t>(state.size())}, state};
    return broken.Error();
  };
  EXPECT_THAT(with_state("{"), HasSubstr("quant_state.bitsandbytes__nf4"));
  EXPECT_THAT(with_state(R"({"shape": [96, 40], "blocksize": 64})"), HasSubstr("shape: expected [40, 96]"));
  EXPECT_THAT(with_state(R"({"shape": [40, 96], "blocksize": 0})"), HasSubstr("blocksize: expected"));
  EXPECT_THAT(with_state(R"({"shape": [40, 96], "blocksize": 128})"), HasSubstr("asks for [30]"));
  EXPECT_THAT(with_state(R"({"shape": [40, 96], "blocksize": 64, "nested_blocksize": 256, "nested_offset": 1e300})"),
              HasSubstr("nested_offset"));
}

// Whatever is accepted can be read. AddressSanitizer watches.
TEST(BrokenLayers, VandalisedOnesAreRefusedOrRead) {
  constexpr int kRounds = 40;
  Prng prng(23);
  int accepted = 0;
  for (const std::string& layer : LayerNames()) {
    const bool wide = layer == "nf4" || layer == "nf4_nested" || layer == "fp4";
    for (int round = 0; round < kRounds; ++round) {
      BrokenLayer broken(layer);
      for (std::uint64_t left = 1 + prng.NextBelow(3); left > 0; --left) broken.Vandalise(prng);
      accepted += broken.Error(wide ? 128 : 96) == "accepted";
    }
  }
  EXPECT_GT(accepted, 50);
}

TEST(BrokenLayers, NothingIsIgnoredSilently) {
  BrokenLayer extra("gptq");
  extra.Add("weight", {"F16", {1, 1}, std::string(2, '\0')});
  EXPECT_THAT(extra.Error(), HasSubstr("'layer.weight' [1, 1] is in the weights"));
  BrokenLayer bias("gptq");
  bias.Add("bias", {"F16", {40}, std::string(80, '\0')});
  EXPECT_EQ(bias.Error(), "accepted");
  bias["bias"].data[1] = 1;
  EXPECT_THAT(bias.Error(), HasSubstr("'layer.bias'"));
  BrokenLayer scale("compressed_int8");
  scale.Add("input_scale", {"F32", {1}, std::string(4, '\0')});
  EXPECT_THAT(scale.Error(), HasSubstr("'layer.input_scale'"));
  scale.config()["config_groups"]["group_0"]["input_activations"] = {{"num_bits", 8}, {"dynamic", false}};
  EXPECT_EQ(scale.Error(), "accepted");
  BrokenLayer ignored("compressed_int8");
  ignored.config()["ignore"] = {"re:lay.*"};
  EXPECT_THAT(ignored.Error(), HasSubstr("leave this layer in floats"));
}

// Programs of 2023 say how the weights are packed in a file of their own, which no library reads alone.
TEST(BrokenLayers, AConfigurationInQuantizeConfigAloneIsNamed) {
  const fs::path model = LayersDirectory().parent_path() / "models" / "gptq" / "model";
  json config = json::parse(std::ifstream(model / "config.json"));
  const json alone = config["quantization_config"];
  config.erase("quantization_config");
  const TempFolder folder;
  folder.Write("config.json", config.dump());
  fs::copy_file(model / "model.safetensors", folder.path() / "model.safetensors");
  ASSERT_TRUE(OpenModelSource(folder.path()).ok());  // its tensors are then refused one by one
  folder.Write("quantize_config.json", alone.dump());
  const auto source = OpenModelSource(folder.path());
  ASSERT_FALSE(source.ok());
  EXPECT_THAT(source.error().message, HasSubstr("quantize_config.json alone: copy that object into config.json"));
  fs::rename(folder.path() / "quantize_config.json", folder.path() / "hf_quant_config.json");
  const auto of_modelopt = OpenModelSource(folder.path());
  ASSERT_FALSE(of_modelopt.ok());
  EXPECT_THAT(of_modelopt.error().message,
              HasSubstr("hf_quant_config.json alone: give config.json the object quantization_config with"));
}

}  // namespace
}  // namespace loramux::published_test
