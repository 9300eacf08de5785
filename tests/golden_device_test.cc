// The forward pass on the emulated device against transformers + PEFT: the cases of golden_test.cc, all runs of a case
// in one batch.
#include <algorithm>
#include <cmath>

#include "gpu/open_device.h"
#include "model/device_adapters_for_test.h"
#include "model/device_model.h"
#include "tests/golden_case.h"

namespace loramux::golden_device_test {
namespace {

using golden::ArgMax;
using golden::GoldenRun;

// A run being computed.
struct Request {
  const GoldenRun* run = nullptr;
  const DeviceLoraView* adapter = nullptr;
  std::vector<TokenId> tokens;
  std::vector<std::uint32_t> pages;
  std::int64_t position = 0;
};

class GoldenDeviceTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = golden::LoadCase(GetParam());
    device_ = gpu::OpenDevice("emulated", {.memory = std::int64_t{512} << 20}).value();
    stream_ = device_->CreateStream().value();
    model_ = DeviceModel::Load(golden_.model_directory, *device_, nullptr).value();
    const ModelConfig& c = model_->config();
    layout_ = {c.num_layers, c.num_kv_heads, c.head_dim, /*page_tokens=*/8, DType::kF32};
    adapters_ = std::make_unique<DeviceAdaptersForTest>(*device_, *stream_, c);
    std::map<const LoraView*, const DeviceLoraView*> copies = {{nullptr, nullptr}};
    for (const GoldenRun& run : golden_.runs) {
      if (!copies.contains(run.adapter)) copies[run.adapter] = adapters_->Copy(*run.adapter);
      requests_.push_back({&run, copies[run.adapter], run.prompt});
      const auto length = static_cast<std::int64_t>(run.prompt.size() + run.greedy.size());
      for (std::int64_t page = 0; page < layout_.PagesFor(length); ++page) requests_.back().pages.push_back(pages_++);
    }
    arena_ = device_->Allocate("pages", static_cast<std::int64_t>(layout_.PageBytes()) * pages_).value();
    stream_->Fill(arena_->base(), 0xff, static_cast<std::size_t>(arena_->size()));
  }

  // The next step of all requests. Returns the logits of the last rows of each, `rows_of` a request.
  template <typename RowsOf>
  std::vector<float> Step(const RowsOf& rows_of) {
    std::vector<DeviceSequenceChunk> chunks;
    for (Request& request : requests_) {
      chunks.push_back({std::span(request.tokens).subspan(static_cast<std::size_t>(request.position)), request.position,
                        request.pages.data(), request.adapter, rows_of(request),
                        static_cast<std::int64_t>(request.run->prompt.size())});
      request.position = static_cast<std::int64_t>(request.tokens.size());
    }
    const auto result = model_->Forward(*stream_, chunks, layout_, {arena_->base(), layout_.PageBytes()}, {});
    EXPECT_TRUE(result.ok()) << result.error().message;
    std::vector<float> logits;
    EXPECT_TRUE(model_->CopyLogits(*stream_, logits).ok());
    return logits;
  }

  std::size_t Vocabulary() const { return static_cast<std::size_t>(model_->config().vocab_size); }

  golden::GoldenCase golden_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceModel> model_;
  std::unique_ptr<DeviceAdaptersForTest> adapters_;
  std::unique_ptr<Arena> arena_;
  KvLayout layout_;
  std::uint32_t pages_ = 0;
  std::vector<Request> requests_;
};

double Length(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

// The length of the difference, relative to that of `expected`.
double RowError(std::span<const float> found, std::span<const float> expected) {
  std::vector<float> difference(found.begin(), found.end());
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= expected[i];
  return Length(difference) / Length(expected);
}

TEST_P(GoldenDeviceTest, MatchesTransformers) {
  std::vector<float> logits = Step([](const Request& request) { return request.run->num_logit_rows; });
  std::span<const float> rest = logits;
  std::vector<double> errors;
  for (Request& request : requests_) {
    for (std::span<const float> expected = request.run->logits; !expected.empty();) {
      errors.push_back(RowError(rest.first(Vocabulary()), expected.first(Vocabulary())));
      expected = expected.subspan(Vocabulary());
      rest = rest.subspan(Vocabulary());
    }
  }
  ASSERT_TRUE(rest.empty());
  std::ranges::sort(errors);
  const double median = errors[errors.size() / 2], largest = errors.back();
  SCOPED_TRACE("median " + std::to_string(median) + ", largest " + std::to_string(largest));
  if (model_->dtype() != DType::kF32) {  // what goes into products is rounded; random weights make the most of it
    EXPECT_LE(median, 6e-3);
    EXPECT_LE(largest, 3e-2);
    return;
  }
  EXPECT_LE(largest, 2e-5);
  for (Request& request : requests_) request.tokens.push_back(request.run->greedy[0]);
  for (std::size_t step = 1; step < requests_[0].run->greedy.size(); ++step) {
    logits = Step([](const Request&) { return 1; });
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const TokenId expected = requests_[i].run->greedy[step];
      ASSERT_EQ(ArgMax(std::span(logits).subspan(i * Vocabulary(), Vocabulary())), expected)
          << requests_[i].run->name << ", generated token " << step;
      requests_[i].tokens.push_back(expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenDeviceTest, ::testing::ValuesIn(golden::CaseNames()),
                         [](const auto& info) { return info.param; });

// ---- the demo model

const std::filesystem::path kDemo = std::filesystem::path(LORAMUX_SOURCE_DIR) / "demo";

// The first questions that an adapter was tested with, with their answers, as the model's template writes them.
std::vector<std::vector<TokenId>> Conversations(const std::string& adapter, std::size_t count) {
  std::vector<std::vector<TokenId>> conversations;
  std::ifstream lines(kDemo / "eval" / (adapter + ".jsonl"));
  for (std::string line; conversations.size() < count && std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    std::vector<TokenId>& tokens = conversations.emplace_back(std::vector<TokenId>{1, 4});  // <|bos|><|user|>
    const auto add_bytes = [&](const std::string& text) {
      for (const char byte : text) tokens.push_back(static_cast<TokenId>(static_cast<unsigned char>(byte)) + 8);
    };
    add_bytes(json["prompt"]);
    tokens.insert(tokens.end(), {2, 5});  // <|end|><|assistant|>
    add_bytes(json["answer"]);
  }
  return conversations;
}

// A trained model in bfloat16 with adapters of several ranks, against the CPU, which computes in float32.
TEST(DemoModelOnDevice, IsNearTheCpus) {
  const auto host = golden::Value(Model::Load(kDemo / "model", nullptr));
  const ModelConfig& c = host->config();
  const auto device = gpu::OpenDevice("emulated", {}).value();
  const auto stream = device->CreateStream().value();
  const auto model = DeviceModel::Load(kDemo / "model", *device, nullptr).value();
  ASSERT_EQ(model->dtype(), DType::kBF16);
  DeviceAdaptersForTest on_device(*device, *stream, c);

  std::vector<std::unique_ptr<golden::ResidentAdapter>> adapters;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::pair<const LoraView*, const DeviceLoraView*>> views;  // of each conversation
  for (const char* const name : {"upper", "reverse", "sort", "rot13"}) {
    const AdapterFile file = golden::Value(OpenAdapter(kDemo / "adapters" / name, c));
    adapters.push_back(std::make_unique<golden::ResidentAdapter>(file, c));
    const LoraView* const view = &adapters.back()->view();
    const DeviceLoraView* const copy = on_device.Copy(*view);
    for (auto& conversation : Conversations(name, 4)) {
      tokens.push_back(std::move(conversation));
      views.emplace_back(view, copy);
    }
  }
  for (auto& conversation : Conversations("base", 4)) {
    tokens.push_back(std::move(conversation));
    views.emplace_back(nullptr, nullptr);
  }
  ASSERT_EQ(tokens.size(), 20u);

  const KvLayout layout = {c.num_layers, c.num_kv_heads, c.head_dim, 16, DType::kBF16};
  std::vector<std::vector<std::uint32_t>> pages(tokens.size());
  std::uint32_t num_pages = 0;
  std::vector<SequenceChunk> chunks;
  std::vector<DeviceSequenceChunk> device_chunks;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto size = static_cast<std::int32_t>(tokens[i].size());
    for (std::int64_t page = 0; page < layout.PagesFor(size); ++page) pages[i].push_back(num_pages++);
    chunks.push_back({tokens[i], 0, pages[i].data(), views[i].first, size});
    device_chunks.push_back({tokens[i], 0, pages[i].data(), views[i].second, size});
  }
  const auto bytes = static_cast<std::int64_t>(layout.PageBytes()) * num_pages;
  AlignedBuffer<std::byte> host_pages(bytes);
  const auto device_pages = device->Allocate("pages", bytes).value();
  ThreadPool threads(2);
  host->Forward({Backend::kCpu, &threads}, chunks, layout, {host_pages.data(), layout.PageBytes()}, {});
  ASSERT_TRUE(model->Forward(*stream, device_chunks, layout, {device_pages->base(), layout.PageBytes()}, {}).ok());
  std::vector<float> found;
  ASSERT_TRUE(model->CopyLogits(*stream, found).ok());
  ASSERT_EQ(found.size(), host->logits().size());

  const auto vocab = static_cast<std::size_t>(c.vocab_size);
  std::vector<double> errors;
  std::size_t other = 0;
  for (std::size_t first = 0; first < found.size(); first += vocab) {
    const auto expected = host->logits().subspan(first, vocab),
               row = std::span<const float>(found).subspan(first, vocab);
    errors.push_back(RowError(row, expected));
    const auto best = static_cast<std::size_t>(ArgMax(expected)), chosen = static_cast<std::size_t>(ArgMax(row));
    if (best == chosen) continue;
    ++other;
    EXPECT_LE(expected[best] - expected[chosen], 2 * golden::LargestDifference(row, expected));
  }
  std::ranges::sort(errors);
  EXPECT_LE(errors[errors.size() / 2], 5e-3);
  EXPECT_LE(errors.back(), 3e-2);
  EXPECT_LE(other * 50, errors.size());
}

}  // namespace
}  // namespace loramux::golden_device_test
