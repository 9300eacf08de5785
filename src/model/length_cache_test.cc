// Lengths that are kept are used where everything is as it was, and in no other case.
#include "model/length_cache.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "gpu/open_device.h"
#include "model/model.h"
#include "model/output_vectors.h"

namespace loramux::length_cache_test {
namespace {

namespace fs = std::filesystem;

const fs::path kCase = fs::path(LORAMUX_SOURCE_DIR) / "tests" / "golden" / "models" / "kinds_llama";

class LengthCacheTest : public testing::Test {
 protected:
  LengthCacheTest() {
    std::string pattern = (fs::temp_directory_path() / "loramux_lengths_XXXXXX").string();
    top_ = ::mkdtemp(pattern.data());
    fs::copy(kCase / "adapters" / "dora_r4", Adapter());
    expected_ = Compute(nullptr, 0);
    modules_ = static_cast<std::int64_t>(expected_.size());
  }
  ~LengthCacheTest() override { fs::remove_all(top_); }

  fs::path Adapter() const { return top_ / "adapter"; }
  fs::path Folder() const { return top_ / "kept" / "lengths"; }

  // The gains of the modules; `found` of them are kept.
  std::vector<std::vector<float>> Compute(LengthCache* cache, std::int64_t found, const Model* model = nullptr) {
    if (model == nullptr) model = model_.get();
    AdapterFile file = OpenAdapter(Adapter(), model->config()).value();
    const auto vectors = ComputeVectors(BaseMatricesOf(*model), file, cache);
    EXPECT_TRUE(vectors.ok());
    EXPECT_EQ(*vectors, found);
    std::vector<std::vector<float>> gains;
    for (const ModuleVectors& of_module : file.vectors) gains.push_back(of_module.gains);
    return gains;
  }
  // As a server does after a restart.
  void ExpectFound(std::int64_t found) {
    LengthCache cache(Folder());
    EXPECT_EQ(Compute(&cache, found), expected_);
  }
  std::vector<fs::path> Files() const {
    std::error_code none;
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(Folder(), none)) files.push_back(entry.path());
    std::ranges::sort(files);
    return files;
  }
  fs::path File() const {
    const auto files = Files();
    EXPECT_EQ(files.size(), 1u);
    return files.empty() ? fs::path() : files.front();
  }
  static std::string Content(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void SetContent(const fs::path& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  }
  // Changes the last byte of a tensor, and its digest with it.
  void ChangeAdapter(const char* tensor) {
    const auto path = Adapter() / "adapter_model.safetensors";
    std::string content = Content(path);
    const AdapterFile file = OpenAdapter(Adapter(), model_->config()).value();
    for (const TensorEntry& entry : file.tensors->tensors()) {
      if (entry.name.find(tensor) == std::string::npos) continue;
      content[entry.offset + 1] ^= 0x10;
      return SetContent(path, content);
    }
    FAIL() << tensor;
  }

  const std::unique_ptr<Model> model_ = Model::Load(kCase / "model", {}, nullptr).value();
  fs::path top_;
  std::vector<std::vector<float>> expected_;
  std::int64_t modules_ = 0;
};

TEST_F(LengthCacheTest, ASecondLoadAndARestartFindThem) {
  LengthCache cache(Folder());
  EXPECT_EQ(Compute(&cache, 0), expected_);
  EXPECT_EQ(Compute(&cache, modules_), expected_);
  ExpectFound(modules_);
  EXPECT_GT(modules_, 0);
  EXPECT_EQ(File().extension(), ".lengths");
}

TEST_F(LengthCacheTest, AnotherAdapterDoesNot) {
  ExpectFound(0);
  ChangeAdapter("lora_B");
  LengthCache cache(Folder());
  const auto changed = Compute(&cache, 0);
  EXPECT_NE(changed, expected_);
  EXPECT_EQ(changed, Compute(nullptr, 0));
  EXPECT_EQ(Files().size(), 2u);
}

TEST_F(LengthCacheTest, AnotherBaseModelDoesNot) {
  ExpectFound(0);
  const auto rounded = Model::Load(kCase / "model", {.layers = WeightFormat::kQ8}, nullptr).value();
  LengthCache cache(Folder());
  const auto changed = Compute(&cache, 0, rounded.get());
  EXPECT_NE(changed, expected_);
  EXPECT_EQ(changed, Compute(nullptr, 0, rounded.get()));
  ExpectFound(modules_);  // both are kept
}

// Where one weight of the base model differs, or a row lies elsewhere, the digest does.
TEST_F(LengthCacheTest, TheDigestOfAMatrixIsThatOfItsWeights) {
  fs::copy(kCase / "model", top_ / "base");
  const fs::path weights = top_ / "base" / "model.safetensors";
  std::string content = Content(weights);
  content[content.size() - 1] ^= 0x40;
  const auto changed = Model::Load(top_ / "base", {}, nullptr);
  SetContent(weights, content);
  const auto after = Model::Load(top_ / "base", {}, nullptr);
  ASSERT_TRUE(changed.ok() && after.ok());
  int same = 0, other = 0;
  std::set<MatrixDigest> all;
  const BaseMatrices before = BaseMatricesOf(*model_), twin = BaseMatricesOf(**changed), now = BaseMatricesOf(**after);
  for (std::int64_t layer = 0; layer < model_->config().num_layers; ++layer) {
    for (int target = 0; target < static_cast<int>(LoraTarget::kLmHead); ++target) {
      const auto digest = [&](const BaseMatrices& base) {
        const BaseMatrix w = base.linear(layer, static_cast<LoraTarget>(target)).value().weight;
        return w.digest(0, w.n).value();
      };
      EXPECT_EQ(digest(before), digest(twin));
      ++(digest(before) == digest(now) ? same : other);
      EXPECT_TRUE(all.insert(digest(before)).second) << layer << ", " << target;
    }
  }
  EXPECT_GT(same, 0);
  EXPECT_LE(other, 1);  // the last tensor of the file may be none of them
  const BaseMatrix q = before.linear(0, LoraTarget::kQ).value().weight;
  EXPECT_NE(q.digest(0, 4).value(), q.digest(1, 4).value());
  EXPECT_NE(q.digest(0, 4).value(), q.digest(0, 5).value());
}

TEST_F(LengthCacheTest, TheDigestsOfADeviceAreThoseOfItsWeights) {
  const auto device = gpu::OpenDevice("emulated", {}).value();
  const auto on_device = DeviceModel::Load(kCase / "model", *device, {}, nullptr).value();
  const BaseMatrices base = BaseMatricesOf(*on_device, *device);
  LengthCache cache(Folder());
  for (const std::int64_t found : {std::int64_t{0}, modules_}) {
    AdapterFile file = OpenAdapter(Adapter(), model_->config()).value();
    EXPECT_EQ(ComputeVectors(base, file, &cache).value(), found);
    for (std::size_t m = 0; m < file.vectors.size(); ++m) EXPECT_EQ(file.vectors[m].gains, expected_[m]);
  }
  const BaseMatrix q = base.linear(0, LoraTarget::kQ)->weight, k = base.linear(0, LoraTarget::kK)->weight;
  EXPECT_NE(q.digest(0, q.n).value(), k.digest(0, k.n).value());
}

// A file under another's name is whole, and yet used only for modules whose base matrix, A and B are the same.
TEST_F(LengthCacheTest, AForeignFileIsNotUsed) {
  ExpectFound(0);
  const fs::path of_first = File();
  ChangeAdapter("lora_A");
  LengthCache cache(Folder());
  const auto changed = Compute(nullptr, 0);
  EXPECT_NE(changed, expected_);
  const std::string name = *cache.NameOf(BaseMatricesOf(*model_), *OpenAdapter(Adapter(), model_->config()));
  fs::rename(of_first, Folder() / (name + ".lengths"));
  EXPECT_EQ(Compute(&cache, modules_ - 1), changed);
  EXPECT_EQ(Compute(&cache, modules_), changed);  // it was written anew
}

TEST_F(LengthCacheTest, ADamagedFileIsComputedAgain) {
  ExpectFound(0);
  const std::string whole = Content(File());
  std::vector<std::string> bad = {"",          "x",           whole.substr(0, 22),
                                  whole + "x", whole + whole, std::string(whole.size(), '\0')};
  for (std::size_t length = 0; length < whole.size(); length += whole.size() / 23)
    bad.push_back(whole.substr(0, length));
  for (std::size_t at = 0; at < whole.size(); at += whole.size() / 29) {
    bad.push_back(whole);
    bad.back()[at] ^= 1;
  }
  for (const std::string& content : bad) {
    SetContent(File(), content);
    ExpectFound(0);
    EXPECT_EQ(Content(File()), whole);
  }
  ExpectFound(modules_);
}

// With a right digest at the end, but counts that no file has.
TEST_F(LengthCacheTest, AHostileFileIsComputedAgain) {
  LengthCache cache(Folder());
  const AdapterFile file = OpenAdapter(Adapter(), model_->config()).value();
  const std::string name = *cache.NameOf(BaseMatricesOf(*model_), file);
  ExpectFound(0);
  KnownLengths lengths = cache.Read(name);
  ASSERT_EQ(static_cast<std::int64_t>(lengths.size()), modules_);
  for (auto& [key, values] : lengths) values.push_back(1);
  cache.Write(name, lengths);
  ExpectFound(0);  // no module has as many outputs
  for (auto& [key, values] : lengths) values.clear();
  cache.Write(name, lengths);
  ExpectFound(0);
  ExpectFound(modules_);
}

TEST_F(LengthCacheTest, WhatIsNoFileHoldsUpNothing) {
  ExpectFound(0);
  const fs::path path = File();
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  ExpectFound(0);
  ExpectFound(modules_);  // the rename replaced it
  fs::remove(path);
  fs::create_directories(path / "x");
  ExpectFound(0);
  ExpectFound(0);
}

TEST_F(LengthCacheTest, AFolderThatCannotBeMadeIsNoError) {
  SetContent(top_ / "kept", "a file");
  ExpectFound(0);
  ExpectFound(0);
}

TEST_F(LengthCacheTest, AFullDiskIsNoError) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{100, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  ExpectFound(0);
  ExpectFound(0);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(Files().empty());  // nothing is left half written
  ExpectFound(0);
  ExpectFound(modules_);
}

TEST_F(LengthCacheTest, TheLongestUnusedGoFirst) {
  ExpectFound(0);
  const std::string whole = Content(File());
  const fs::path used = File();
  fs::rename(used, Folder() / "keep");
  const auto now = fs::file_time_type::clock::now();
  for (int i = 0; i < 3; ++i) {
    const fs::path path = Folder() / (std::to_string(i) + ".lengths");
    SetContent(path, whole);
    fs::last_write_time(path, now - std::chrono::hours(i == 1 ? 9 : 1));
  }
  LengthCache cache(Folder(), static_cast<std::int64_t>(3 * whole.size()));
  EXPECT_EQ(Compute(&cache, 0), expected_);
  EXPECT_EQ(Files(), (std::vector{Folder() / "0.lengths", Folder() / "2.lengths", used, Folder() / "keep"}));
}

TEST_F(LengthCacheTest, LoadsAtATimeFindTheSame) {
  LengthCache cache(Folder());
  std::vector<std::thread> loads;
  for (int i = 0; i < 4; ++i) {
    loads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        AdapterFile file = OpenAdapter(Adapter(), model_->config()).value();
        EXPECT_TRUE(ComputeVectors(BaseMatricesOf(*model_), file, &cache).ok());
        for (std::size_t m = 0; m < file.vectors.size(); ++m) EXPECT_EQ(file.vectors[m].gains, expected_[m]);
      }
    });
  }
  for (std::thread& load : loads) load.join();
  ExpectFound(modules_);
}

}  // namespace
}  // namespace loramux::length_cache_test
