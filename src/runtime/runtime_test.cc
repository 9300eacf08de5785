// The runtime on a golden model (tests/golden): what it accepts and what it refuses.
#include "runtime/runtime.h"

#include <bit>
#include <fstream>
#include <future>
#include <set>

#include "base/prng.h"
#include "gpu/emulated/emulated_device.h"

namespace loramux::runtime_test {
namespace {

namespace fs = std::filesystem;

const fs::path kCase = fs::path(LORAMUX_SOURCE_DIR) / "tests/golden/models/tied_embed_only";

RuntimeOptions Small() {
  RuntimeOptions options;
  options.device_memory = 4 << 20;
  options.host_memory = 1 << 20;
  options.threads = 1;
  options.base_names = {"base"};
  return options;
}

// A copy of an adapter directory that a test may damage; removed at the end.
class ScratchAdapter {
 public:
  explicit ScratchAdapter(const fs::path& original)
      : path_(fs::temp_directory_path() /
              ("loramux-runtime-test-" + std::to_string(SplitMix64(reinterpret_cast<std::uintptr_t>(this))))) {
    fs::copy(original, path_, fs::copy_options::recursive);
  }
  ~ScratchAdapter() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// The base model in floats, and in integers that differ from the copy by their rounding.
class RuntimeBaseCopy : public testing::TestWithParam<std::optional<WeightFormat>> {};
INSTANTIATE_TEST_SUITE_P(Formats, RuntimeBaseCopy, testing::Values(std::nullopt, WeightFormat::kQ8, WeightFormat::kQ4));

TEST_P(RuntimeBaseCopy, RefusesAnAdapterSavedBesideAnotherOutputMatrix) {
  RuntimeOptions options = Small();
  options.weights.embeddings = GetParam();
  auto runtime = Runtime::Load(kCase / "model", std::move(options), {});
  ASSERT_TRUE(runtime.ok()) << runtime.error().message;
  AdapterRegistry& registry = (*runtime)->registry();
  const fs::path original = kCase / "adapters/lm_head_peft_auto";
  const auto good = registry.Register("good", original, 0);
  ASSERT_TRUE(good.ok()) << good.error().message;
  ASSERT_NE((*good)->file.lm_head_base_copy, nullptr);

  const ScratchAdapter damaged(original);
  const fs::path weights = damaged.path() / "adapter_model.safetensors";
  const auto opened = OpenAdapter(damaged.path(), (*runtime)->config());
  ASSERT_TRUE(opened.ok());
  const auto offset = static_cast<std::streamoff>(opened->lm_head_base_copy->offset);
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset + 4 * 7 + 3);  // the exponent of an element
  file.put('\x3f');
  file.close();
  const auto bad = registry.Register("bad", damaged.path(), 0);
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("differs from the base model's output matrix"), std::string::npos)
      << bad.error().message;
}

TEST(Runtime, ReadsTheFilesOfEmbeddingsBesideAnAdapter) {
  auto runtime = Runtime::Load(kCase / "model", Small(), {});
  ASSERT_TRUE(runtime.ok()) << runtime.error().message;
  const ScratchAdapter adapter(kCase / "adapters/lm_head");
  const auto embedding = [&](const std::string& name) {
    const auto version = (*runtime)->registry().Register(name, adapter.path(), 0);
    EXPECT_TRUE(version.ok()) << version.error().message;
    return (*version)->file.embedding;
  };
  EXPECT_EQ(*embedding("silent"), std::nullopt);
  std::ofstream(adapter.path() / "modules.json") << R"([{"type":"Transformer","path":""},
      {"type":"Pooling","path":"1_Pooling"},{"type":"Normalize","path":"2_Normalize"}])";
  EXPECT_FALSE(embedding("incomplete").ok());  // the adapter is served all the same
  fs::create_directory(adapter.path() / "1_Pooling");
  std::ofstream(adapter.path() / "1_Pooling/config.json") << R"({"pooling_mode_mean_tokens":true})";
  EXPECT_EQ(**embedding("mean"), (EmbeddingConfig{Pooling::kMean, true}));
}

TEST(Runtime, NamesAndLimitsOfAdapters) {
  auto runtime = Runtime::Load(kCase / "model",
                               [] {
                                 RuntimeOptions options = Small();
                                 options.max_lora_rank = 2;
                                 return options;
                               }(),
                               {});
  ASSERT_TRUE(runtime.ok());
  AdapterRegistry& registry = (*runtime)->registry();
  const fs::path adapter = kCase / "adapters/lm_head";
  EXPECT_NE(registry.Register("x", adapter, 0).error().message.find("--max-lora-rank"), std::string::npos);
  for (const char* name : {"", "a,b", "a\nb", "base"}) EXPECT_FALSE(registry.Register(name, adapter, 0).ok()) << name;
  EXPECT_EQ(registry.Resolve("nobody").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(*registry.Resolve("base"), nullptr);
}

// ---------------------------------------------------------------- Pages that are copied

const fs::path kModels = fs::path(LORAMUX_SOURCE_DIR) / "tests/golden/models";

// A golden model that answers one prompt after the other, with its first adapter if it has one, else with the base
// model.
struct Asked {
  std::unique_ptr<Runtime> runtime;
  AdapterGeneration adapter = kBaseModel;

  Asked(const std::string& model, std::int64_t page_tokens, bool prefix_cache,
        std::shared_ptr<Device> device = nullptr) {
    RuntimeOptions options = Small();
    options.device = std::move(device);
    options.device_memory = 32 << 20;
    options.page_tokens = page_tokens;
    options.prefix_cache = prefix_cache;
    runtime = std::move(Runtime::Load(kModels / model / "model", options, {})).value();
    runtime->Start();
    if (!fs::exists(kModels / model / "adapters")) return;
    const std::set<fs::path> adapters(fs::directory_iterator(kModels / model / "adapters"), fs::directory_iterator{});
    const auto version = runtime->registry().Register("first", *adapters.begin(), 0);
    EXPECT_TRUE(version.ok()) << version.error().message;
    adapter = (*version)->generation;
  }
  // The most likely tokens at each of four steps, bit by bit.
  std::vector<std::uint32_t> Ask(const std::vector<TokenId>& prompt) {
    GenerationRequest request{.prompt = prompt, .adapter = adapter, .max_tokens = 4};
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.sampling.top_logprobs = 20;
    std::vector<std::uint32_t> bits;
    std::promise<void> ended;
    request.on_event = [&](const GenerationEvent& event) {
      for (std::size_t i = 0; event.token != nullptr && i < event.token->top_logprobs.size(); ++i) {
        bits.push_back(static_cast<std::uint32_t>(event.token->top_logprobs[i].id));
        bits.push_back(std::bit_cast<std::uint32_t>(event.token->top_logprobs[i].logprob));
      }
      if (event.finish != FinishReason::kNone) ended.set_value();
    };
    EXPECT_TRUE(runtime->engine().Submit(std::move(request)).ok());
    ended.get_future().wait();
    EXPECT_EQ(bits.size(), 4u * 20 * 2);
    return bits;
  }
};

class CopiedPages : public testing::TestWithParam<std::string> {};

// A prompt is sent repeatedly, each time with another end from another position on. Its cached beginning, full pages
// and the first positions of a copied page, gives the same bits as a computation from scratch.
TEST_P(CopiedPages, GiveTheBitsThatAreComputedFromNothing) {
  for (const std::int64_t page_tokens : {4, 16, 64}) {
    SCOPED_TRACE("pages of " + std::to_string(page_tokens));
    Asked cached(GetParam(), page_tokens, true), computed(GetParam(), page_tokens, false);
    const auto vocabulary = static_cast<std::uint64_t>(cached.runtime->config().vocab_size);
    Prng prng(static_cast<std::uint64_t>(page_tokens));
    std::vector<TokenId> prompt(90);
    const auto draw_from = [&](std::size_t position) {
      for (std::size_t i = position; i < prompt.size(); ++i)
        prompt[i] = static_cast<TokenId>(prng.NextBelow(vocabulary));
    };
    draw_from(0);
    for (std::size_t parts = 87; parts > 0; parts -= 3) {
      ASSERT_EQ(cached.Ask(prompt), computed.Ask(prompt)) << "the next prompt differs from position " << parts << " on";
      draw_from(parts);
    }
    cached.runtime->Stop();
    computed.runtime->Stop();
    const PrefixStats stats = cached.runtime->engine().Stats().prefix;
    EXPECT_GT(stats.copied_pages, 8);
    EXPECT_GT(stats.found_tokens, stats.looked_up_tokens / 4);
    EXPECT_EQ(computed.runtime->engine().Stats().prefix.copied_pages, 0);
  }
}

// The same on the emulated device, with fewer prompts.
TEST(Runtime, CopiedPagesOnADeviceGiveTheBitsThatAreComputedFromNothing) {
  Asked cached("llama_bf16", 16, true, gpu::MakeEmulatedDevice({.batch_invariant = true}));
  Asked computed("llama_bf16", 16, false, gpu::MakeEmulatedDevice({.batch_invariant = true}));
  const auto vocabulary = static_cast<std::uint64_t>(cached.runtime->config().vocab_size);
  Prng prng(16);
  std::vector<TokenId> prompt(70);
  const auto draw_from = [&](std::size_t position) {
    for (std::size_t i = position; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(prng.NextBelow(vocabulary));
  };
  draw_from(0);
  for (const std::size_t parts : {67, 41, 40, 31, 9}) {
    ASSERT_EQ(cached.Ask(prompt), computed.Ask(prompt)) << "the next prompt differs from position " << parts << " on";
    draw_from(parts);
  }
  cached.runtime->Stop();
  computed.runtime->Stop();
  EXPECT_GT(cached.runtime->engine().Stats().prefix.copied_pages, 0);
}

// What a CPU's weights are needed for is done without them.
TEST(Runtime, ADeviceChecksTheOutputMatrixToo) {
  RuntimeOptions options = Small();
  options.device = gpu::MakeEmulatedDevice({});
  auto runtime = Runtime::Load(kCase / "model", options, {});
  ASSERT_TRUE(runtime.ok()) << runtime.error().message;
  AdapterRegistry& registry = (*runtime)->registry();
  const ScratchAdapter adapter(kCase / "adapters/lm_head_peft_auto");
  ASSERT_TRUE(registry.Register("good", adapter.path(), 0).ok());
  const auto opened = OpenAdapter(adapter.path(), (*runtime)->config());
  ASSERT_TRUE(opened.ok());
  const auto offset = static_cast<std::streamoff>(opened->lm_head_base_copy->offset);
  std::fstream file(adapter.path() / "adapter_model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset + 4 * 7 + 3);  // the exponent of an element
  file.put('\x3f');
  file.close();
  const auto bad = registry.Register("bad", adapter.path(), 0);
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("differs from the base model's output matrix at [0, 7]"), std::string::npos)
      << bad.error().message;
}

INSTANTIATE_TEST_SUITE_P(Models, CopiedPages,
                         testing::Values("llama3", "llama_bf16", "llama_f16", "qwen2_window", "mistral"),
                         [](const auto& info) { return info.param; });

TEST(Runtime, MemoryThatHoldsNoPageIsRefused) {
  RuntimeOptions options = Small();
  options.device_memory = 100;
  const auto runtime = Runtime::Load(kCase / "model", options, {});
  ASSERT_FALSE(runtime.ok());
  EXPECT_EQ(runtime.error().code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace loramux::runtime_test
