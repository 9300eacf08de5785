// The runtime on a golden model (tests/golden): what it accepts and what it refuses.
#include "runtime/runtime.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <future>
#include <map>
#include <set>

#include <sys/stat.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/prng.h"
#include "gpu/emulated/emulated_device.h"

namespace loramux::runtime_test {
namespace {

namespace fs = std::filesystem;

const fs::path kModels = fs::path(LORAMUX_SOURCE_DIR) / "tests/golden/models";
const fs::path kCase = kModels / "tied_embed_only";

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

// Changes element [0, 7] of a tensor of float32.
void Damage(const fs::path& adapter, const TensorEntry& tensor) {
  std::fstream file(adapter / "adapter_model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(tensor.offset) + 4 * 7 + 3);  // the exponent
  file.put('\x3f');
}

// The gains of an adapter with DoRA after a start with this folder of lengths.
std::vector<float> GainsWith(const fs::path& lengths) {
  RuntimeOptions options = Small();
  options.length_directory = lengths;
  const auto runtime = Runtime::Load(kModels / "kinds_llama/model", std::move(options), {});
  EXPECT_TRUE(runtime.ok());
  const auto version = (*runtime)->registry().Register("dora", kModels / "kinds_llama/adapters/dora_r4", 0);
  EXPECT_TRUE(version.ok());
  std::vector<float> gains;
  for (const ModuleVectors& of : (*version)->file.vectors) gains.insert(gains.end(), of.gains.begin(), of.gains.end());
  return gains;
}

TEST(Runtime, ARestartFindsTheLengthsOfRowsThatDoraNeeds) {
  const ScratchAdapter scratch(kModels / "kinds_llama/adapters/dora_r4");
  const fs::path folder = scratch.path() / "lengths";
  const std::vector<float> computed = GainsWith({});
  EXPECT_EQ(GainsWith(folder), computed);
  const auto files = [&] {
    return std::vector<fs::directory_entry>(fs::directory_iterator(folder), fs::directory_iterator());
  };
  ASSERT_EQ(files().size(), 1u);
  struct stat first {
  }, second{};
  ASSERT_EQ(::stat(files().front().path().c_str(), &first), 0);
  EXPECT_EQ(GainsWith(folder), computed);
  ASSERT_EQ(files().size(), 1u);
  ASSERT_EQ(::stat(files().front().path().c_str(), &second), 0);
  EXPECT_EQ(first.st_ino, second.st_ino);  // it was not written again
}

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
  const auto opened = OpenAdapter(damaged.path(), (*runtime)->config());
  ASSERT_TRUE(opened.ok());
  Damage(damaged.path(), *opened->lm_head_base_copy);
  const auto bad = registry.Register("bad", damaged.path(), 0);
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("differs from the base model's output matrix"), std::string::npos)
      << bad.error().message;
}

// PEFT's save_embedding_layers stores both, of a base model whose embeddings are not tied.
TEST(Runtime, ComparesCopiesOfBothMatrices) {
  const fs::path golden = kModels / "llama2";
  for (const bool on_device : {false, true}) {
    RuntimeOptions options = Small();
    if (on_device) options.device = gpu::MakeEmulatedDevice({});
    const auto runtime = Runtime::Load(golden / "model", options, {});
    ASSERT_TRUE(runtime.ok()) << runtime.error().message;
    AdapterRegistry& registry = (*runtime)->registry();
    const fs::path original = golden / "adapters/embedding_copies";
    const auto opened = OpenAdapter(original, (*runtime)->config());
    ASSERT_TRUE(opened.ok());
    const auto good = registry.Register("good", original, 0);
    ASSERT_TRUE(good.ok()) << good.error().message;
    for (const auto& [copy, name] :
         {std::pair{opened->lm_head_base_copy, "output matrix"}, std::pair{opened->embedding_base_copy, "embedding"}}) {
      ASSERT_NE(copy, nullptr);
      const ScratchAdapter damaged(original);
      Damage(damaged.path(), *copy);
      const auto bad = registry.Register("bad", damaged.path(), 0);
      ASSERT_FALSE(bad.ok());
      EXPECT_NE(bad.error().message.find("differs from the base model's " + std::string(name) + " at [0, 7]"),
                std::string::npos)
          << bad.error().message;
    }
  }
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
    options.spec.keep_history = prefix_cache;
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
      for (std::size_t i = 0; event.token.has_value() && i < event.token->top_logprobs.size(); ++i) {
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
  Damage(adapter.path(), *opened->lm_head_base_copy);
  const auto bad = registry.Register("bad", adapter.path(), 0);
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("differs from the base model's output matrix at [0, 7]"), std::string::npos)
      << bad.error().message;
}

INSTANTIATE_TEST_SUITE_P(Models, CopiedPages,
                         testing::Values("llama3", "llama_bf16", "llama_f16", "qwen2_window", "mistral"),
                         [](const auto& info) { return info.param; });

// Runs a request to its end.
struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> embedding;
};
Answer AnswerOf(Runtime& runtime, GenerationRequest request) {
  Answer answer;
  std::promise<void> ended;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  request.on_event = [&](const GenerationEvent& event) {
    if (event.token.has_value()) answer.tokens.push_back(event.token->id);
    if (event.finish == FinishReason::kNone) return;
    answer.embedding.assign(event.embedding.begin(), event.embedding.end());
    ended.set_value();
  };
  const auto submitted = runtime.engine().Submit(std::move(request));
  EXPECT_TRUE(submitted.ok()) << submitted.error().message;
  if (submitted.ok()) ended.get_future().wait();
  return answer;
}

// The prompt of a golden case's last run of the base model, and a tensor of it.
nlohmann::json LastBaseRun(const fs::path& golden) {
  const auto runs = nlohmann::json::parse(std::ifstream(golden / "case.json"))["runs"];
  return *std::find_if(runs.rbegin(), runs.rend(), [](const auto& run) { return run["adapter"].is_null(); });
}
template <typename T>
std::vector<T> Stored(const fs::path& file, const std::string& name) {
  const auto opened = TensorFile::Open(file);
  std::vector<T> out(opened->Find(name)->data.size() / sizeof(T));
  std::memcpy(out.data(), opened->Find(name)->data.data(), out.size() * sizeof(T));
  return out;
}

// A runtime with the adapters of a golden case, started, and the case's runs as requests.
struct GoldenRuns {
  std::unique_ptr<Runtime> runtime;
  std::vector<std::pair<std::string, GenerationRequest>> requests;  // with the runs' keys
};
GoldenRuns StartGolden(const fs::path& golden, RuntimeOptions options, std::size_t tokens) {
  const auto json = nlohmann::json::parse(std::ifstream(golden / "case.json"));
  options.weights.added_tokens = json["model"].value("added_tokens", std::int64_t{0});
  auto loaded = Runtime::Load(golden / "model", options, {});
  EXPECT_TRUE(loaded.ok()) << loaded.error().message;
  GoldenRuns runs = {.runtime = std::move(loaded).value()};
  std::map<std::string, AdapterGeneration> adapters;
  for (const auto& adapter : json["adapters"]) {
    const std::string id = adapter["name"];
    const auto version = runs.runtime->registry().Register(id, golden / std::string(adapter["dir"]), 0);
    EXPECT_TRUE(version.ok()) << version.error().message;
    if (options.lora_dtype) EXPECT_EQ((*version)->layout.dtype, *options.lora_dtype);
    adapters[id] = (*version)->generation;
  }
  for (const auto& run : json["runs"]) {
    GenerationRequest request{.prompt = run["prompt_ids"], .max_tokens = static_cast<std::int32_t>(tokens)};
    if (!run["adapter"].is_null()) request.adapter = adapters.at(run["adapter"]);
    runs.requests.emplace_back(run["key"], std::move(request));
  }
  runs.runtime->Start();
  return runs;
}

// All runs of a golden case at once, twice, with memory for some of its adapters: they come from disk, leave the device
// and come back from the host tier, and the second round finds prompts in the prefix cache.
void ExpectGreedyAnswers(const std::string& name, std::shared_ptr<Device> device, std::size_t tokens) {
  const fs::path golden = kModels / name;
  RuntimeOptions options = Small();
  options.device = std::move(device);
  options.device_memory = 84 << 10;
  options.kv_dtype = options.lora_dtype = DType::kF32;  // as the expected values were computed
  options.spec.cold_start_policy = ColdStartPolicy::kAssist;
  const auto [started, requests] = StartGolden(golden, options, tokens);
  Runtime& runtime = *started;
  for (int round = 0; round < 2; ++round) {
    std::vector<std::pair<std::string, std::future<Answer>>> answers;
    for (const auto& [key, request] : requests) {
      answers.emplace_back(key, std::async(std::launch::async, [&runtime, r = request]() mutable {
                             return AnswerOf(runtime, std::move(r));
                           }));
    }
    for (auto& [key, answer] : answers) {
      auto greedy = Stored<std::int64_t>(golden / "expected.safetensors", key + ".greedy");
      greedy.resize(tokens);
      const std::vector<TokenId> found = answer.get().tokens;
      EXPECT_EQ(std::vector<std::int64_t>(found.begin(), found.end()), greedy) << name << ", " << key;
    }
  }
  runtime.Stop();
  std::int64_t pages = 0;
  for (const auto& version : runtime.registry().List()) pages += version->layout.pages;
  // They do not fit together, so some must go.
  EXPECT_GT(pages, runtime.engine().Stats().device.capacity_pages) << name;
  EXPECT_GT(runtime.engine().Stats().adapters.device_evictions, 0) << name;
  EXPECT_GT(runtime.engine().Stats().prefix.found_tokens, 0);
}

TEST(Runtime, ServesAllKindsOfAdaptersAtOnce) {
  for (const char* name : {"kinds_llama", "kinds_qwen2", "kinds_qwen3"}) ExpectGreedyAnswers(name, nullptr, 64);
}

TEST(Runtime, ServesAllKindsOfAdaptersAtOnceOnADevice) {
  for (const char* name : {"kinds_llama", "kinds_qwen2"}) ExpectGreedyAnswers(name, gpu::MakeEmulatedDevice({}), 6);
}

// Answers of all runs of a golden case, with adapters in 8 bits.
std::map<std::string, std::vector<TokenId>> AnswersIn8Bits(const fs::path& golden, std::shared_ptr<Device> device,
                                                           DType dtype, std::size_t tokens) {
  RuntimeOptions options = Small();
  options.device = std::move(device);
  options.kv_dtype = DType::kF32;
  options.lora_dtype = dtype;
  const auto [runtime, requests] = StartGolden(golden, options, tokens);
  std::map<std::string, std::vector<TokenId>> answers;
  for (const auto& [key, request] : requests) answers[key] = AnswerOf(*runtime, request).tokens;
  runtime->Stop();
  return answers;
}

// The values are transformers' own, of weights that are not rounded: most first tokens are the same.
TEST(Runtime, AdaptersIn8BitsAnswerAlikeOnEveryDevice) {
  const fs::path golden = kModels / "kinds_llama";
  for (const DType dtype : {DType::kI8, DType::kF8E4M3}) {
    const auto on_cpu = AnswersIn8Bits(golden, nullptr, dtype, 4);
    EXPECT_EQ(on_cpu, AnswersIn8Bits(golden, gpu::MakeEmulatedDevice({}), dtype, 4));
    std::size_t same = 0;
    for (const auto& [key, tokens] : on_cpu) {
      same += tokens.at(0) == Stored<std::int64_t>(golden / "expected.safetensors", key + ".greedy").at(0);
    }
    EXPECT_GE(same * 10, on_cpu.size() * 9) << same << " of " << on_cpu.size() << " in " << DTypeName(dtype);
  }
}

// As transformers: the prompt's length decides how its positions turn, and each answer's token turns by its own.
TEST(Runtime, DynamicRopeReachesBeyondTheModelsOwnLength) {
  const fs::path golden = kModels / "llama_dynamic_new";  // 32 positions, factor 4
  RuntimeOptions options = Small();
  EXPECT_EQ((*Runtime::Load(golden / "model", options, {}))->max_model_len(), 32);
  options.max_model_len = 129;
  EXPECT_NE(Runtime::Load(golden / "model", options, {}).error().message.find("at most 128"), std::string::npos);
  options.max_model_len = 128;
  options.spec.max_batch_tokens = 16;  // the prompt comes in pieces
  const auto runtime = Runtime::Load(golden / "model", options, {});
  ASSERT_TRUE(runtime.ok()) << runtime.error().message;
  (*runtime)->Start();
  const nlohmann::json run = LastBaseRun(golden);
  const std::vector<TokenId> prompt = run["prompt_ids"];
  ASSERT_GT(prompt.size(), 32u);
  const auto greedy = Stored<std::int64_t>(golden / "expected.safetensors", std::string(run["key"]) + ".greedy");
  for (int round = 0; round < 2; ++round) {  // the second would find a prefix, if there were one
    const Answer answer = AnswerOf(**runtime, {.prompt = prompt, .max_tokens = 64});
    EXPECT_EQ(std::vector<std::int64_t>(answer.tokens.begin(), answer.tokens.end()), greedy);
  }
  (*runtime)->Stop();
  EXPECT_EQ((*runtime)->engine().Stats().prefix.found_tokens, 0);
}

// With gated DeltaNet, with Mamba-2 of a larger state, beside attention in each layer, and in layers of one part.
struct HybridModel {
  const char* name;
  std::int64_t little_memory;  // for few of its runs
  std::int64_t kv_layers = 2;
  bool on_devices = false;
};
constexpr HybridModel kHybridModels[] = {{"qwen3_5", 160 << 10, 2, true},
                                         {"granite_hybrid", 224 << 10, 2, true},
                                         {"falcon_h1", 224 << 10, 3},
                                         {"nemotron_h", 224 << 10}};

// All runs of a hybrid model at once, twice, with a snapshot of their states after so many tokens.
EngineStats ServeFromStates(const HybridModel& model, std::int64_t snapshot_tokens, std::int64_t device_memory,
                            std::shared_ptr<Device> device = nullptr) {
  const fs::path golden = kModels / model.name;
  RuntimeOptions options = Small();
  const std::size_t tokens = device == nullptr ? 64 : 8;
  options.device = std::move(device);
  options.device_memory = device_memory;
  options.spec.state_snapshot_tokens = snapshot_tokens;
  options.kv_dtype = options.lora_dtype = DType::kF32;  // as the expected values were computed
  options.spec.max_batch_tokens = 24;                   // long prompts come in pieces
  const auto [started, requests] = StartGolden(golden, options, tokens);
  Runtime& runtime = *started;
  EXPECT_EQ(runtime.geometry().kv.num_layers, model.kv_layers);
  EXPECT_GT(runtime.geometry().kv.state_pages, 0);
  for (int round = 0; round < 2; ++round) {  // the second finds what the first left
    std::vector<std::pair<std::string, std::future<Answer>>> answers;
    for (const auto& [key, request] : requests) {
      answers.emplace_back(key, std::async(std::launch::async, [&runtime, r = request]() mutable {
                             return AnswerOf(runtime, std::move(r));
                           }));
    }
    for (auto& [key, answer] : answers) {
      auto greedy = Stored<std::int64_t>(golden / "expected.safetensors", key + ".greedy");
      greedy.resize(tokens);
      const std::vector<TokenId> found = answer.get().tokens;
      EXPECT_EQ(std::vector<std::int64_t>(found.begin(), found.end()), greedy) << key;
    }
  }
  runtime.Stop();
  const EngineStats stats = runtime.engine().Stats();
  EXPECT_EQ(stats.device.used(PageCategory::kKv), stats.history_pages);
  return stats;
}

// With memory for few of them, and without snapshots: states lie in their sequences' pages, and who is preempted begins
// again.
TEST(Runtime, AHybridModelIsServedFromStates) {
  for (const HybridModel& model : kHybridModels) {
    SCOPED_TRACE(model.name);
    const EngineStats stats = ServeFromStates(model, 0, model.little_memory);
    EXPECT_GT(stats.preemptions, 0);
    EXPECT_EQ(stats.prefix.found_tokens + stats.resumed.found + stats.history_pages, 0);
  }
}

TEST(Runtime, AHybridModelBeginsAfterSnapshots) {
  for (const HybridModel& model : kHybridModels) {
    SCOPED_TRACE(model.name);
    const EngineStats much = ServeFromStates(model, 16, 4 << 20);
    const EngineStats little = ServeFromStates(model, 16, model.little_memory);
    EXPECT_GT(much.prefix.found_tokens, much.prefix.looked_up_tokens / 4);
    EXPECT_EQ(much.preemptions, 0);
    EXPECT_GT(little.preemptions, 0);
    EXPECT_GT(little.prefix.snapshots, 0);
    EXPECT_GT(little.resumed.found + little.prefix.found_tokens, 0);
    EXPECT_GT(little.history_evictions, 0);
  }
}

TEST(Runtime, AHybridModelBeginsAfterSnapshotsOnADevice) {
  for (const HybridModel& model : kHybridModels) {
    SCOPED_TRACE(model.name);
    if (!model.on_devices) {
      RuntimeOptions options = Small();
      options.device = gpu::MakeEmulatedDevice({});
      const auto refused = Runtime::Load(kModels / model.name / "model", options, {});
      ASSERT_FALSE(refused.ok());
      EXPECT_NE(refused.error().message.find("start with --device cpu"), std::string::npos) << refused.error().message;
      continue;
    }
    // What one run shows depends on which requests run together, so some are asked until all of it was seen.
    bool found = false, resumed = false, evicted = false, from_host = false;
    for (int run = 0; run < 8 && !(found && resumed && evicted && from_host); ++run) {
      const EngineStats much = ServeFromStates(model, 16, 4 << 20, gpu::MakeEmulatedDevice({}));
      const EngineStats little = ServeFromStates(model, 16, model.little_memory, gpu::MakeEmulatedDevice({}));
      EXPECT_EQ(much.preemptions, 0);
      found |= much.prefix.found_tokens > much.prefix.looked_up_tokens / 4;
      resumed |= little.preemptions > 0 && little.resumed.found + little.prefix.found_tokens > 0;
      evicted |= little.prefix.snapshots > 0 && little.history_evictions > 0;
      from_host |= little.prefix.from_host_tokens > 0;
    }
    EXPECT_TRUE(found);
    EXPECT_TRUE(resumed);
    EXPECT_TRUE(evicted);
    EXPECT_TRUE(from_host);
  }
}

TEST(Runtime, AHybridModelIsRefusedWithoutMemoryForAState) {
  for (const bool on_device : {false, true}) {
    RuntimeOptions options = Small();
    options.device_memory = 8 << 10;  // a page
    if (on_device) options.device = gpu::MakeEmulatedDevice({});
    const auto too_small = Runtime::Load(kModels / "qwen3_5/model", options, {});
    ASSERT_FALSE(too_small.ok());
    EXPECT_EQ(too_small.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(too_small.error().message.find("states of one sequence"), std::string::npos) << too_small.error().message;
  }
}

TEST(Runtime, AModelWithoutAnOutputLayerMakesEmbeddingsOnly) {
  const fs::path golden = kModels / "qwen3_headless";
  EXPECT_TRUE((*Runtime::Load(golden / "model", Small(), {}))->generates());  // its embeddings are tied
  const ScratchAdapter untied(golden / "model");
  nlohmann::json config = nlohmann::json::parse(std::ifstream(golden / "model/config.json"));
  config["tie_word_embeddings"] = false;
  std::ofstream(untied.path() / "config.json") << config;
  for (const bool on_device : {false, true}) {
    RuntimeOptions options = Small();
    if (on_device) options.device = gpu::MakeEmulatedDevice({});
    const auto runtime = Runtime::Load(untied.path(), options, {});
    ASSERT_TRUE(runtime.ok()) << runtime.error().message;
    EXPECT_FALSE((*runtime)->generates());
    (*runtime)->Start();
    const nlohmann::json run = LastBaseRun(golden);
    const std::vector<TokenId> prompt = run["prompt_ids"];
    const auto refused =
        (*runtime)->engine().Submit({.prompt = prompt, .max_tokens = 1, .on_event = [](const auto&) {}});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("makes embeddings only"), std::string::npos) << refused.error().message;
    const Answer answer = AnswerOf(**runtime, {.prompt = prompt, .pooling = Pooling::kLast, .max_tokens = 0});
    const auto expected = Stored<float>(golden / "embeddings.safetensors", std::string(run["key"]) + ".last");
    ASSERT_EQ(answer.embedding.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(answer.embedding[i], expected[i], 1e-4f) << i;
    (*runtime)->Stop();
  }
}

TEST(Runtime, MemoryThatHoldsNoPageIsRefused) {
  RuntimeOptions options = Small();
  options.device_memory = 100;
  const auto runtime = Runtime::Load(kCase / "model", options, {});
  ASSERT_FALSE(runtime.ok());
  EXPECT_EQ(runtime.error().code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace loramux::runtime_test
