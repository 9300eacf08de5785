#include "adapter/layout.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/prng.h"
#include "memory/page_geometry.h"
#include "tensor/half_float.h"

namespace loramux::layout_test {
namespace {

ModelConfig Shape(std::int64_t hidden, std::int64_t layers, std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn,
                  std::int64_t vocab) {
  ModelConfig config;
  config.hidden_size = hidden;
  config.num_layers = layers;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = hidden / heads;
  config.intermediate_size = ffn;
  config.vocab_size = vocab;
  return config;
}

std::vector<ModuleShape> AllLayers(const ModelConfig& model, std::int32_t rank, std::vector<LoraTarget> targets) {
  std::vector<ModuleShape> modules;
  for (std::int32_t layer = 0; layer < model.num_layers; ++layer) {
    for (const LoraTarget target : targets) {
      const LinearShape shape = TargetShape(model, target);
      modules.push_back({layer, target, rank, 1.0f, shape.in, shape.out});
    }
  }
  return modules;
}

// architecture.md, Memory: at most 5 % internal waste for ranks 8 to 128 on these shapes.
TEST(AdapterLayout, WastesAtMostFivePercent) {
  const std::vector<LoraTarget> attention = {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV, LoraTarget::kO};
  std::vector<LoraTarget> all = attention;
  all.insert(all.end(), {LoraTarget::kGate, LoraTarget::kUp, LoraTarget::kDown});
  const ModelConfig llama2_7b = Shape(4096, 32, 32, 32, 11008, 32000);
  const ModelConfig llama3_8b = Shape(4096, 32, 32, 8, 14336, 128256);
  for (const ModelConfig& model : {llama2_7b, llama3_8b}) {
    const PageGeometry geometry = ChoosePageGeometry(model, DType::kBF16);
    for (const auto& targets : {attention, all}) {
      for (std::int32_t rank = 8; rank <= 128; ++rank) {
        const auto layout =
            LayoutAdapter(AllLayers(model, rank, targets), DType::kBF16, static_cast<std::size_t>(geometry.page_bytes));
        ASSERT_TRUE(layout.ok());
        const double taken = static_cast<double>(layout->pages * geometry.page_bytes);
        EXPECT_LE(1.0 - static_cast<double>(layout->payload_bytes) / taken, 0.05)
            << "rank " << rank << ", " << targets.size() << " targets, pages of " << geometry.page_bytes;
      }
    }
  }
}

// The size of a rank-8 adapter does not depend on other adapters of rank 128.
TEST(Peers, Point4_RanksAreStoredTrueAndNeverPadded) {
  const ModelConfig llama3_8b = Shape(4096, 32, 32, 8, 14336, 128256);
  const auto page_bytes = static_cast<std::size_t>(ChoosePageGeometry(llama3_8b, DType::kBF16).page_bytes);
  const auto pages = [&](std::int32_t rank) {
    return LayoutAdapter(AllLayers(llama3_8b, rank, {LoraTarget::kQ, LoraTarget::kV}), DType::kBF16, page_bytes)
        .value()
        .pages;
  };
  const double largest = static_cast<double>(pages(128));
  for (const std::int32_t rank : {8, 16, 32, 64}) {
    EXPECT_NEAR(static_cast<double>(pages(rank)) / largest, rank / 128.0, 0.06 * rank / 128.0) << "rank " << rank;
  }
}

TEST(AdapterLayout, RowsNeverStraddleOrOverlap) {
  const ModelConfig model = Shape(72, 3, 4, 2, 100, 131);  // odd extents
  const std::size_t page_bytes = 1024;
  const auto layout =
      LayoutAdapter(AllLayers(model, 13, {LoraTarget::kQ, LoraTarget::kV, LoraTarget::kDown}), DType::kF32, page_bytes);
  ASSERT_TRUE(layout.ok());
  std::vector<std::vector<bool>> used(static_cast<std::size_t>(layout->pages), std::vector<bool>(page_bytes, false));
  const auto claim = [&](RowPlace place, std::int64_t elements) {
    ASSERT_EQ(place.offset % kAdapterRowAlignment, 0u);
    ASSERT_LE(place.offset + static_cast<std::size_t>(elements) * 4, page_bytes);
    for (std::size_t i = 0; i < static_cast<std::size_t>(elements) * 4; ++i) {
      ASSERT_FALSE(used[place.page][place.offset + i]);
      used[place.page][place.offset + i] = true;
    }
  };
  for (const ModulePlace& module : layout->modules) {
    for (const RowPlace row : module.a_rows) claim(row, module.in);
    for (const RowPlace row : module.b_rows) claim(row, module.out);
  }
}

// As experts do that share A: its rows lie in one place.
TEST(AdapterLayout, ModulesWithTheSameMatrixShareItsRows) {
  ModuleShape first = {0, LoraTarget::kGate, 3, 1.0f, 40, 24};
  first.expert = 0;
  ModuleShape second = first;
  second.expert = 1;
  second.same_a = 0;
  const AdapterLayout layout = LayoutAdapter({first, second}, DType::kF32, 4096).value();
  const ModulePlace &a = layout.modules[0], &b = layout.modules[1];
  for (std::size_t j = 0; j < 3; ++j) {
    EXPECT_EQ(a.a_rows[j].offset, b.a_rows[j].offset);
    EXPECT_NE(a.b_rows[j].offset, b.b_rows[j].offset);
  }
  EXPECT_EQ(layout.payload_bytes, 3 * (40 + 24 + 24) * 4);
}

TEST(AdapterLayout, RowLongerThanAPageIsRefusedWithAdvice) {
  const auto layout = LayoutAdapter({{0, LoraTarget::kLmHead, 4, 1.0f, 64, 4096}}, DType::kF32, 1024);
  ASSERT_FALSE(layout.ok());
  EXPECT_NE(layout.error().message.find("lm_head"), std::string::npos);
  EXPECT_NE(layout.error().message.find("--page-tokens"), std::string::npos);
}

TEST(AdapterLayout, LoraOfTheEmbeddingComesWithTheFirstLayer) {
  const auto layout = LayoutAdapter({{0, LoraTarget::kQ, 2, 1.0F, 64, 64},
                                     {0, LoraTarget::kEmbedding, 2, 1.0F, 250, 64},
                                     {1, LoraTarget::kQ, 2, 1.0F, 64, 64}},
                                    DType::kF32, 1024);
  ASSERT_TRUE(layout.ok()) << layout.error().message;
  const ModulePlace& embedding = layout->modules[1];
  ASSERT_EQ(layout->layer_pages.size(), 2U);
  for (const auto* rows : {&embedding.a_rows, &embedding.b_rows}) {
    EXPECT_EQ(rows->size(), 2U);
    for (const RowPlace row : *rows) EXPECT_LT(static_cast<std::int32_t>(row.page), layout->layer_pages[0]);
  }
}

// An adapter of one module with f32 tensors, packed and read back.
struct OneModule {
  static constexpr std::int64_t kIn = 20, kOut = 12;
  static constexpr std::int32_t kRank = 3;
  std::vector<float> a = std::vector<float>(kRank * kIn), b = std::vector<float>(kOut * kRank);
  TensorEntry a_tensor, b_tensor;
  AdapterFile file;
  std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "loramux_one_module.safetensors";

  OneModule() {
    Prng prng(3);
    for (float& x : a) x = static_cast<float>(prng.NextDouble() - 0.5);
    for (float& x : b) x = static_cast<float>(prng.NextDouble() - 0.5);
    a_tensor = {"a", DType::kF32, {kRank, kIn}, 0, sizeof(float) * a.size()};
    b_tensor = {"b", DType::kF32, {kOut, kRank}, sizeof(float) * a.size(), sizeof(float) * b.size()};
    file.modules.push_back({.rank = kRank, .scale = 2.0f, .a = &a_tensor, .b = &b_tensor});
    file.max_rank = kRank;
  }

  // Writes the current a and b to a file and opens it.
  void Save() {
    const std::string header = R"({"a":{"dtype":"F32","shape":[3,20],"data_offsets":[0,240]},"b":{"dtype":"F32",)"
                               R"("shape":[12,3],"data_offsets":[240,384]}})";
    const std::uint64_t length = header.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof(length))
        .write(header.data(), static_cast<std::streamsize>(length));
    out.write(reinterpret_cast<const char*>(a.data()), 240).write(reinterpret_cast<const char*>(b.data()), 144);
    out.close();
    file.tensors = std::make_unique<TensorReader>(std::move(TensorReader::Open(path)).value());
    a_tensor.offset = file.tensors->tensors()[0].offset;
    b_tensor.offset = file.tensors->tensors()[1].offset;
    const auto digest = ScanAdapterTensors(file, {});  // an error if a weight is not finite
    file.digest = digest.ok() ? *digest : "";
  }

  Result<std::vector<std::vector<std::byte>>> Pack(const AdapterLayout& layout, std::size_t page_bytes,
                                                   bool save = true) {
    if (save) Save();
    std::vector<std::vector<std::byte>> pages(static_cast<std::size_t>(layout.pages),
                                              std::vector<std::byte>(page_bytes));
    std::vector<std::byte*> pointers;
    for (auto& page : pages) pointers.push_back(page.data());
    RETURN_IF_ERROR(PackAdapter(file, layout, pointers, page_bytes));
    return pages;
  }
};

TEST(PackAdapter, TransposesBAndKeepsF32Exactly) {
  OneModule module;
  const auto layout = LayoutAdapter(ModuleShapes(module.file), DType::kF32, 256);
  ASSERT_TRUE(layout.ok());
  EXPECT_GT(layout->pages, 1);
  const auto pages = module.Pack(*layout, 256);
  ASSERT_TRUE(pages.ok());
  for (std::int32_t j = 0; j < OneModule::kRank; ++j) {
    const RowPlace a_row = layout->modules[0].a_rows[static_cast<std::size_t>(j)];
    EXPECT_EQ(std::memcmp((*pages)[a_row.page].data() + a_row.offset,
                          &module.a[static_cast<std::size_t>(j * OneModule::kIn)], OneModule::kIn * sizeof(float)),
              0);
    const RowPlace b_row = layout->modules[0].b_rows[static_cast<std::size_t>(j)];
    for (std::int64_t o = 0; o < OneModule::kOut; ++o) {
      float value;
      std::memcpy(&value, (*pages)[b_row.page].data() + b_row.offset + static_cast<std::size_t>(o) * 4, 4);
      EXPECT_EQ(value, module.b[static_cast<std::size_t>(o * OneModule::kRank + j)]);
    }
  }
}

TEST(PackAdapter, RoundsRowsTo8BitsWithAFactorForEachRank) {
  OneModule module;
  for (std::int64_t o = 0; o < OneModule::kOut; ++o) module.b[static_cast<std::size_t>(o * OneModule::kRank + 1)] = 0;
  const auto layout = LayoutAdapter(ModuleShapes(module.file), DType::kI8, 256);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->payload_bytes, OneModule::kRank * (OneModule::kIn + OneModule::kOut + 4));
  const auto pages = module.Pack(*layout, 256);
  ASSERT_TRUE(pages.ok());
  const auto at = [&](RowPlace row) { return (*pages)[row.page].data() + row.offset; };
  const ModulePlace& place = layout->modules[0];
  const auto* factors = reinterpret_cast<const float*>(at(place.factors.value()));
  for (std::int32_t j = 0; j < OneModule::kRank; ++j) {
    const auto row = static_cast<std::size_t>(j);
    float most_a = 0, most_b = 0;
    for (std::int64_t t = 0; t < OneModule::kIn; ++t)
      most_a = std::max(most_a, std::abs(module.a[static_cast<std::size_t>(j * OneModule::kIn + t)]));
    for (std::int64_t o = 0; o < OneModule::kOut; ++o)
      most_b = std::max(most_b, std::abs(module.b[static_cast<std::size_t>(o * OneModule::kRank + j)]));
    EXPECT_FLOAT_EQ(factors[j], (most_a / 127) * (most_b / 127));
    for (std::int64_t t = 0; t < OneModule::kIn; ++t) {
      EXPECT_NEAR(LoadAsF32(DType::kI8, at(place.a_rows[row]), t) * most_a / 127,
                  module.a[static_cast<std::size_t>(j * OneModule::kIn + t)], most_a / 253);
    }
    for (std::int64_t o = 0; o < OneModule::kOut; ++o) {
      EXPECT_NEAR(LoadAsF32(DType::kI8, at(place.b_rows[row]), o) * most_b / 127,
                  module.b[static_cast<std::size_t>(o * OneModule::kRank + j)], most_b / 253);
    }
  }
  EXPECT_EQ(factors[1], 0);
  // 32 elements of uniform numbers, each wrong by a third of half a step's square in the mean.
  const auto error = ErrorInEightBits(module.file, DType::kI8);
  ASSERT_TRUE(error.ok());
  EXPECT_GT(error->all, 0.001);
  EXPECT_LT(error->all, 0.006);
  EXPECT_GE(error->worst, error->all);
  EXPECT_LT(error->worst, 0.01);
  module.a[7] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(module.Pack(*layout, 256).ok());
}

// A row with one large element keeps its small ones, each with three bits of mantissa, which integers do not.
TEST(PackAdapter, RoundsRowsToFloatsOf8Bits) {
  OneModule module;
  module.a[0] = 100;
  for (std::int64_t t = 1; t < OneModule::kIn; ++t) module.a[static_cast<std::size_t>(t)] = 0.3f + 0.001f * t;
  const auto layout = LayoutAdapter(ModuleShapes(module.file), DType::kF8E4M3, 256);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->payload_bytes, OneModule::kRank * (OneModule::kIn + OneModule::kOut + 4));
  const auto pages = module.Pack(*layout, 256);
  ASSERT_TRUE(pages.ok());
  const auto at = [&](RowPlace row) { return (*pages)[row.page].data() + row.offset; };
  const ModulePlace& place = layout->modules[0];
  EXPECT_EQ(LoadAsF32(DType::kF8E4M3, at(place.a_rows[0]), 0), 448);
  double squares = 0, wrong = 0;
  for (std::int64_t t = 0; t < OneModule::kIn; ++t) {
    const float value = module.a[static_cast<std::size_t>(t)];
    const float found = LoadAsF32(DType::kF8E4M3, at(place.a_rows[0]), t) * (100.0f / 448);
    EXPECT_NEAR(found, value, value / 16) << t;
    squares += value * value;
    wrong += (found - value) * (found - value);
  }
  float most_b = 0;
  for (std::int64_t o = 0; o < OneModule::kOut; ++o)
    most_b = std::max(most_b, std::abs(module.b[static_cast<std::size_t>(o * OneModule::kRank)]));
  EXPECT_FLOAT_EQ(*reinterpret_cast<const float*>(at(place.factors.value())), (100.0f / 448) * (most_b / 448));
  const auto floats = ErrorInEightBits(module.file, DType::kF8E4M3),
             integers = ErrorInEightBits(module.file, DType::kI8);
  ASSERT_TRUE(floats.ok() && integers.ok());
  EXPECT_LT(std::sqrt(wrong / squares), integers->all);
  EXPECT_GT(floats->worst, 0.01);  // rows of uniform numbers have better integers
  EXPECT_LT(floats->worst, 0.05);
  EXPECT_EQ(Describe({0.0043, 0.0071}, DType::kF8E4M3), "fp8 is 0.43 % off, 0.71 % in the worst row");
}

TEST(LayoutAdapter, VectorsOfOutputsAreFloatRowsOfTheirLayer) {
  const auto layout = LayoutAdapter({{0, LoraTarget::kQ, 1, 1.0f, 32, 40, true},
                                     {0, LoraTarget::kV, 0, 0.0f, 0, 16, true},
                                     {1, LoraTarget::kQ, 1, 1.0f, 32, 40, false}},
                                    DType::kBF16, 256);
  ASSERT_TRUE(layout.ok());
  ASSERT_EQ(layout->modules[0].vectors.size(), 2u);
  ASSERT_EQ(layout->modules[1].vectors.size(), 2u);
  EXPECT_TRUE(layout->modules[1].a_rows.empty());
  EXPECT_TRUE(layout->modules[2].vectors.empty());
  // 64 + 128 bytes of rows; 192 and 192; 64 and 64; 64 + 128.
  EXPECT_EQ(layout->modules[0].vectors[0].page, 1u);
  EXPECT_EQ(layout->modules[0].vectors[1].page, 2u);
  EXPECT_EQ(layout->modules[1].vectors[0].page, 2u);
  EXPECT_EQ(layout->modules[1].vectors[0].offset, 192u);
  EXPECT_EQ(layout->modules[1].vectors[1].page, 3u);
  EXPECT_EQ(layout->layer_pages, (std::vector<std::int32_t>{4, 4}));
  EXPECT_EQ(layout->payload_bytes, 2 * (64 + 80) + 2 * 160 + 2 * 64);
  const auto too_long = LayoutAdapter({{0, LoraTarget::kQ, 1, 1.0f, 32, 80, true}}, DType::kBF16, 256);
  ASSERT_FALSE(too_long.ok());
  EXPECT_NE(too_long.error().message.find("takes 320 bytes"), std::string::npos) << too_long.error().message;
}

// Rows of the embedding come before the first layer, rows of the output matrix after all; each is where its token is.
TEST(PackAdapter, OwnRowsLieAroundTheModules) {
  OneModule module;
  module.file.own = {{.kind = OwnKind::kEmbedding, .tensor = &module.a_tensor, .rows = {{2, 2}, {5, 0}}},
                     {.kind = OwnKind::kOutput, .tensor = &module.b_tensor, .rows = {{0, 11}, {1, 3}, {9, 4}}}};
  const auto layout = LayoutAdapter(module.file, DType::kF32, 128);  // a row of A takes a page, or three of B
  ASSERT_TRUE(layout.ok());
  ASSERT_EQ(layout->own.size(), 2u);
  EXPECT_EQ(layout->own[0].tokens, (std::vector<TokenId>{2, 5}));
  EXPECT_EQ(layout->own[0].rows[1].page, 1u);
  EXPECT_GE(layout->modules[0].a_rows[0].page, 2u);
  EXPECT_GE(layout->own[1].rows[0].page, layout->modules[0].b_rows[2].page);
  EXPECT_EQ(layout->layer_pages, (std::vector<std::int32_t>{static_cast<std::int32_t>(layout->pages)}));
  EXPECT_EQ(layout->payload_bytes, 3 * (80 + 48) + 2 * 80 + 3 * 12);
  const auto pages = module.Pack(*layout, 128);
  ASSERT_TRUE(pages.ok()) << pages.error().message;
  for (const auto& [part, values] : {std::pair{0, std::span<const float>(module.a)}, {1, module.b}}) {
    const OwnPlace& own = layout->own[static_cast<std::size_t>(part)];
    for (std::size_t i = 0; i < own.rows.size(); ++i) {
      const std::int32_t row = module.file.own[static_cast<std::size_t>(part)].rows[i].row;
      EXPECT_EQ(std::memcmp((*pages)[own.rows[i].page].data() + own.rows[i].offset,
                            &values[static_cast<std::size_t>(row * own.width)],
                            static_cast<std::size_t>(own.width) * sizeof(float)),
                0)
          << part << " " << i;
    }
  }
  // A norm is a row of float32, whatever the layout's type.
  module.file.own.insert(module.file.own.begin() + 1,
                         {.kind = OwnKind::kInputNorm, .layer = 3, .tensor = &module.a_tensor, .rows = {{0, 0}}});
  const auto with_norm = LayoutAdapter(module.file, DType::kBF16, 128);
  ASSERT_TRUE(with_norm.ok());
  EXPECT_EQ(with_norm->own[1].layer, 3);
  EXPECT_EQ(with_norm->payload_bytes, 3 * (40 + 24) + 2 * 40 + 80 + 3 * 6);
  module.file.own.erase(module.file.own.begin() + 1);
  // Another token makes another adapter; a tied output matrix does not.
  const std::string digest = module.file.digest;
  module.file.own[0].rows[1].token = 6;
  EXPECT_NE(*ScanAdapterTensors(module.file, {}), digest);
  module.file.own[0].rows[1].token = 5;
  module.file.own.pop_back();
  const std::string embedding_alone = *ScanAdapterTensors(module.file, {});
  EXPECT_NE(embedding_alone, digest);
  module.file.own.push_back(module.file.own[0]);
  module.file.own[1].kind = OwnKind::kOutput;
  module.file.own[1].tied = true;
  EXPECT_EQ(*ScanAdapterTensors(module.file, {}), embedding_alone);
  module.file.own[0].rows[0].row = 1;
  module.a[25] = 1e6f;
  const auto f16 = LayoutAdapter(module.file, DType::kF16, 128);
  const auto overflow = module.Pack(*f16, 128);
  ASSERT_FALSE(overflow.ok());
  EXPECT_NE(overflow.error().message.find("tensor a"), std::string::npos) << overflow.error().message;
}

TEST(PackAdapter, RoundsToNearestEvenIn16BitTypes) {
  OneModule module;
  // f32 values between two neighbours of each type; ties go to the even neighbour.
  module.a[0] = 1.0f + 0x1p-8f;    // bf16 tie -> 1.0
  module.a[1] = 1.0f + 0x1p-11f;   // f16 tie -> 1.0
  module.a[2] = 1.0f + 0x1.8p-7f;  // bf16 tie -> 1 + 2^-6
  module.a[3] = 0x1p-24f;          // f16: the smallest subnormal
  module.a[4] = 65504.0f;          // f16: the largest
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto layout = LayoutAdapter(ModuleShapes(module.file), dtype, 1024);
    const auto pages = module.Pack(*layout, 1024);
    ASSERT_TRUE(pages.ok());
    std::uint16_t bits[5];
    const RowPlace row = layout->modules[0].a_rows[0];
    std::memcpy(bits, (*pages)[row.page].data() + row.offset, sizeof(bits));
    if (dtype == DType::kBF16) {
      EXPECT_EQ(bits[0], 0x3f80);
      EXPECT_EQ(bits[2], 0x3f82);
    } else {
      EXPECT_EQ(bits[1], 0x3c00);
      EXPECT_EQ(bits[3], 0x0001);
      EXPECT_EQ(bits[4], 0x7bff);
    }
  }
}

TEST(PackAdapter, ValuesThatOverflowTheTypeAreRefusedByName) {
  OneModule module;
  module.b[5] = 1e6f;  // finite, but not in f16
  const auto layout = LayoutAdapter(ModuleShapes(module.file), DType::kF16, 1024);
  const auto pages = module.Pack(*layout, 1024);
  ASSERT_FALSE(pages.ok());
  EXPECT_NE(pages.error().message.find("tensor b"), std::string::npos);
  module.b[5] = std::numeric_limits<float>::quiet_NaN();
  const auto f32 = LayoutAdapter(ModuleShapes(module.file), DType::kF32, 1024);
  EXPECT_FALSE(module.Pack(*f32, 1024).ok());
}

TEST(PackAdapter, AFileThatIsChangedInPlaceIsAnErrorAndNoSignal) {
  OneModule module;
  const auto layout = LayoutAdapter(ModuleShapes(module.file), DType::kF32, 1024);
  ASSERT_TRUE(module.Pack(*layout, 1024).ok());
  std::fstream(module.path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(module.b_tensor.offset) + 5)
      .put('\x11');
  const auto changed = module.Pack(*layout, 1024, /*save=*/false);
  ASSERT_FALSE(changed.ok());
  EXPECT_NE(changed.error().message.find("changed in place"), std::string::npos) << changed.error().message;
  std::filesystem::resize_file(module.path, module.b_tensor.offset + 10);
  const auto truncated = module.Pack(*layout, 1024, /*save=*/false);
  ASSERT_FALSE(truncated.ok());
  EXPECT_NE(truncated.error().message.find("became shorter"), std::string::npos) << truncated.error().message;
}

TEST(PackAdapter, AFileThatIsReplacedByRenamingIsReadAsItWas) {
  OneModule module;
  const auto layout = LayoutAdapter(ModuleShapes(module.file), DType::kF32, 1024);
  const auto before = module.Pack(*layout, 1024);
  ASSERT_TRUE(before.ok());
  std::ofstream(module.path.string() + ".new") << "something else";
  std::filesystem::rename(module.path.string() + ".new", module.path);
  const auto after = module.Pack(*layout, 1024, /*save=*/false);
  ASSERT_TRUE(after.ok()) << after.error().message;
  EXPECT_EQ(*before, *after);
}

TEST(PackAdapter, IsCancelledBetweenTensors) {
  OneModule module;
  const auto layout = LayoutAdapter(ModuleShapes(module.file), DType::kF32, 1024);
  ASSERT_TRUE(layout.ok());
  module.Save();
  std::vector<std::byte> page(1024);
  int asked = 0;
  const Status packed = PackAdapter(module.file, *layout, {page.data()}, 1024, [&] { return ++asked == 2; });
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.error().message, "the load was cancelled");
  EXPECT_EQ(asked, 2);  // for A and for B
}

TEST(ChooseAdapterDType, NeverWiderThanTheBase) {
  OneModule module;
  EXPECT_EQ(ChooseAdapterDType(module.file, DType::kBF16), DType::kBF16);
  EXPECT_EQ(ChooseAdapterDType(module.file, DType::kF32), DType::kF32);
  module.a_tensor.dtype = module.b_tensor.dtype = DType::kF16;
  EXPECT_EQ(ChooseAdapterDType(module.file, DType::kBF16), DType::kF16);
  EXPECT_EQ(ChooseAdapterDType(module.file, DType::kF32), DType::kF16);
}

}  // namespace
}  // namespace loramux::layout_test
