// Requests that begin before their adapter is on the device: computed from the host tier's copy, or layer by layer
// while it is read from disk.
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine_world_for_test.h"
#include "runtime/gated_world_for_test.h"

namespace loramux::cold_start_test {
namespace {

namespace fs = std::filesystem;

// ---------------------------------------------------------------- On a virtual clock

constexpr std::int64_t kAdapterPages = 8;
const std::vector<TokenId> kPrompt(9, 5);

SystemSpec InPlace(ColdStartPolicy policy = ColdStartPolicy::kAuto) {
  SystemSpec options;
  options.cold_start_policy = policy;
  options.reads_host_tier = true;
  return options;
}

// An adapter takes 20 ms from the host tier to the device. The device has room for one of two.
struct World : EngineWorld {
  explicit World(const SystemSpec& scheduler, std::int64_t host_pages = 64)
      : EngineWorld({.device_pages = 14,
                     .host_pages = host_pages,
                     .spec = scheduler,
                     .prefix_cache = false,
                     .host_bytes_per_second = kAdapterPages * 64 / 20e-3}) {}
  TimeNs Ask(AdapterGeneration adapter, std::int32_t tokens = 4) {
    const TimeNs begin = clock.Now();
    const RequestId id = *Submit(kPrompt, adapter, tokens);
    while (outcomes[id].tokens.empty() && outcomes[id].ends == 0) EXPECT_TRUE(Advance());
    const TimeNs first = clock.Now() - begin;
    Drain();
    EXPECT_EQ(outcomes[id].tokens, ExpectedTokens(adapter, kPrompt, tokens));
    return first;
  }
};

TEST(ColdStart, AnAdapterInTheHostTierIsAsFastAsOnTheDevice) {
  for (const auto policy : {ColdStartPolicy::kWait, ColdStartPolicy::kAssist, ColdStartPolicy::kAuto}) {
    World w(InPlace(policy));
    const AdapterGeneration x = w.Load("x", kAdapterPages), y = w.Load("y", kAdapterPages);
    w.Ask(x);
    const TimeNs resident = w.Ask(x);
    w.Ask(y);  // x leaves the device
    ASSERT_EQ(w.engine->Stats().adapters.device_evictions, 1);
    const std::int64_t begins = w.engine->Stats().cold_begins.whole;
    const TimeNs cold = w.Ask(x);
    EXPECT_EQ(w.engine->Stats().adapters.cold_starts(), 3);
    EXPECT_EQ(w.engine->Stats().adapters.active, 0);
    if (policy == ColdStartPolicy::kWait) {
      EXPECT_GT(cold, resident + 10 * kNsPerMs);
      EXPECT_EQ(w.engine->Stats().cold_begins.whole, 0);
    } else {
      EXPECT_LE(cold, resident);
      EXPECT_EQ(w.engine->Stats().adapters.device_loads, 3);  // it was copied beside the steps
      EXPECT_EQ(w.engine->Stats().cold_begins.whole, begins + 1);
    }
  }
}

// The host tier has room for one copy, which a step reads. Its load ends within the step. A request that arrives then
// loads another adapter beside the step, past the host tier.
TEST(ColdStart, TheCopyStaysWhileAStepReadsIt) {
  SystemSpec options = InPlace();
  options.load_on_arrival = true;
  EngineWorld w({.device_pages = 40, .host_pages = 4, .spec = options, .prefix_cache = false, .cache = "s-lora"});
  const AdapterGeneration x = w.Load("x", 4), z = w.Load("z", 4);
  for (const bool reads : {false, true}) {
    const RequestId first = *w.Submit(kPrompt, x, 4);
    if (reads) {
      while (w.engine->Step()) {
      }
      ASSERT_EQ(w.engine->Stats().early_admissions, 2);  // it begins from the host tier, now as at first
      w.clock.Advance(2 * kNsPerMs);
      ASSERT_TRUE(w.Submit(kPrompt, z, 4).ok());
      while (w.engine->Step()) {
      }
    }
    w.Drain();
    EXPECT_EQ(w.outcomes[first].tokens, ExpectedTokens(x, kPrompt, 4));
  }
  EXPECT_EQ(w.engine->Stats().loads_on_arrival, 1);
  EXPECT_EQ(w.engine->Stats().adapters.host_evictions, 0);
}

// Decoding goes on from the host tier; the load fails after some steps. That ends the adapter's requests and no others.
TEST(ColdStart, ALoadThatFailsLaterEndsItsRequestsAlone) {
  World w(InPlace());
  const AdapterGeneration x = w.Load("x", kAdapterPages), y = w.Load("y", kAdapterPages);
  w.Ask(x);
  w.Ask(y);
  w.transfer.set_fault([](const TransferJob& job) {
    return job.kind() == TransferKind::kHostToDevice ? std::optional<Error>(IoError("injected")) : std::nullopt;
  });
  const RequestId cold = *w.Submit(kPrompt, x, 14), base = *w.Submit({1, 2, 3}, kBaseModel, 14);
  while (w.outcomes[cold].ends == 0) ASSERT_TRUE(w.Advance());
  EXPECT_FALSE(w.outcomes[cold].tokens.empty());
  EXPECT_EQ(w.outcomes[cold].error, "injected");
  w.transfer.set_fault(nullptr);
  w.Drain();
  EXPECT_EQ(w.outcomes[base].tokens, ExpectedTokens(kBaseModel, {1, 2, 3}, 14));
  w.Ask(x);
}

TEST(ColdStart, WhoLeavesInTheMiddleLeavesNothing) {
  for (int moment = 0; moment < 10; ++moment) {
    SCOPED_TRACE(moment);
    World w(InPlace());
    const AdapterGeneration x = w.Load("x", kAdapterPages), y = w.Load("y", kAdapterPages);
    w.Ask(x);
    w.Ask(y);
    const RequestId id = *w.Submit(kPrompt, x, 14);
    for (int i = 0; i < moment; ++i) w.Advance();
    w.engine->Cancel(id);
    ASSERT_TRUE(w.registry.Remove("x").ok());
    w.Drain();
    EXPECT_EQ(w.outcomes[id].ends, 1);
    EXPECT_EQ(w.engine->Stats().adapters.known, 1);
    EXPECT_EQ(w.host->Stats().used(PageCategory::kAdapter), kAdapterPages);
  }
}

// ---------------------------------------------------------------- A real model

RuntimeOptions RealOptions() {
  RuntimeOptions options;
  options.spec.cold_start_policy = ColdStartPolicy::kAuto;
  return options;
}

constexpr std::int64_t kMemory = std::int64_t{64} << 20;

// The copy passes layer by layer during prefill and decode, or not at all until the answer is there.
TEST(ColdStartOnARealModel, TheAnswerIsThatOfAResidentAdapter) {
  RealWorld truth;
  const RealWorld::Answer expected = truth.Ask(RealWorld::Prompt(1), truth.adapter);
  for (std::int32_t layers = 0; layers <= 6; ++layers) {
    SCOPED_TRACE(layers);
    RealWorld w(kMemory, RealOptions());
    RealWorld::Answer answer;
    w.Submit(RealWorld::Prompt(1), w.adapter, answer);
    w.StepUntil([&] { return w.transfer->adapters.holding(); });
    for (std::int32_t i = 0; i < layers; ++i) w.transfer->adapters.PassLayer();
    if (layers == 6) {
      w.StepUntil([&] { return answer.tokens.size() >= 2; });  // from the device from here on
      w.transfer->adapters.Complete();
    }
    w.StepUntil([&] { return answer.ended; });
    EXPECT_EQ(answer, expected);  // bitwise
    EXPECT_EQ(w.runtime->engine().Stats().step_wait_total, 0);
    w.ExpectExact();
  }
}

TEST(ColdStartOnARealModel, AnAdapterIsUsedLayerByLayerAsItIsRead) {
  RealWorld truth;
  const RealWorld::Answer expected = truth.Ask(RealWorld::Prompt(1), truth.adapter);
  RealWorld w(kMemory, RealOptions());
  w.transfer->HoldDisk();
  RealWorld::Answer answer;
  w.Submit(RealWorld::Prompt(1), w.adapter, answer);
  w.StepUntil([&] { return w.runtime->engine().Stats().adapters.loading == 1; });
  EXPECT_EQ(w.runtime->engine().Stats().early_admissions, 0);
  w.transfer->PassDiskLayers(2);
  w.StepUntil([&] { return w.runtime->engine().Stats().early_admissions == 1; });  // it is alone, so its step may wait
  EXPECT_TRUE(answer.tokens.empty());
  w.transfer->PassDiskLayers(3);
  w.StepUntil([&] { return answer.ended; });
  EXPECT_EQ(answer, expected);
  w.ExpectExact();
}

TEST(ColdStartOnARealModel, NoLayerIsUsedBeforeTheFileIsVerifiedIfThatIsAsked) {
  RuntimeOptions options = RealOptions();
  options.verify_before_use = true;
  RealWorld w(kMemory, options);
  w.transfer->HoldDisk();  // holds nothing: there are no layers
  const RealWorld::Answer expected = RealWorld().Ask(RealWorld::Prompt(1), w.adapter);
  RealWorld::Answer answer;
  w.Submit(RealWorld::Prompt(1), w.adapter, answer);
  w.StepUntil([&] { return answer.ended; });
  EXPECT_EQ(answer, expected);
  EXPECT_EQ(w.runtime->engine().Stats().adapters.disk_loads, 1);
  w.ExpectExact();
}

// Layers arrive as long as what was read is what was opened, and no longer.
TEST(ColdStartOnARealModel, ALayerThatChangedNeverArrives) {
  const fs::path copy = fs::path(testing::TempDir()) / "loramux_cold_changed";
  fs::remove_all(copy);
  fs::copy(kDemo / "adapters/rot13", copy, fs::copy_options::recursive);
  RealWorld w;
  const auto opened = OpenAdapter(copy, w.runtime->config());
  ASSERT_TRUE(opened.ok());
  const auto page_bytes = static_cast<std::size_t>(w.runtime->geometry().page_bytes);
  const AdapterLayout layout = *LayoutAdapter(ModuleShapes(*opened), DType::kBF16, page_bytes);
  std::vector<std::vector<std::byte>> pages(static_cast<std::size_t>(layout.pages), std::vector<std::byte>(page_bytes));
  std::vector<std::byte*> to;
  for (auto& page : pages) to.push_back(page.data());
  const auto arrived_until = [&](const std::string& error) {
    std::vector<std::int32_t> arrived;
    const Status packed =
        PackAdapter(*opened, layout, to, page_bytes, {}, [&](std::int32_t layers) { arrived.push_back(layers); });
    EXPECT_EQ(packed.ok(), error.empty());
    if (!packed.ok()) EXPECT_NE(packed.error().message.find(error), std::string::npos) << packed.error().message;
    return arrived;
  };
  EXPECT_EQ(arrived_until(""), (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6}));
  for (const LoraModule& module : opened->modules) {
    if (module.layer != 3) continue;
    std::fstream file(copy / "adapter_model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(module.b->offset));
    file.put('\1');
    break;
  }
  EXPECT_EQ(arrived_until("modules differs"), (std::vector<std::int32_t>{1, 2, 3}));
}

// The file's weights are rewritten in place after it was opened, in the layers that are read last. The request has
// begun with the first layers, and gets no token of what was not verified.
TEST(ColdStartOnARealModel, AFileThatChangesWhileItIsReadFailsItsRequestsAlone) {
  const fs::path copy = fs::path(testing::TempDir()) / "loramux_cold_rot13";
  fs::remove_all(copy);
  fs::copy(kDemo / "adapters/rot13", copy, fs::copy_options::recursive);
  RealWorld w(kMemory, RealOptions(), copy);
  const RealWorld::Answer base = RealWorld().Ask(RealWorld::Prompt(2), kBaseModel);
  w.transfer->HoldDisk();
  RealWorld::Answer answer, other;
  w.Submit(RealWorld::Prompt(1), w.adapter, answer);
  w.StepUntil([&] { return w.runtime->engine().Stats().adapters.loading == 1; });
  w.transfer->PassDiskLayers(2);
  w.StepUntil([&] { return w.runtime->engine().Stats().early_admissions == 1; });
  {  // all weights but the header become those of another adapter: the same size, other bytes
    const fs::path weights = copy / "adapter_model.safetensors";
    const auto size = fs::file_size(weights);
    std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
    std::uint64_t header = 0;
    file.read(reinterpret_cast<char*>(&header), sizeof(header));
    const std::string zeros(size - 8 - header, '\0');
    file.seekp(static_cast<std::streamoff>(8 + header));
    file.write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
  }
  w.Submit(RealWorld::Prompt(2), kBaseModel, other);
  w.transfer->PassDiskLayers(8);
  w.StepUntil([&] { return answer.ended && other.ended; });
  EXPECT_NE(answer.error.find("changed in place"), std::string::npos) << answer.error;
  EXPECT_TRUE(answer.tokens.empty());
  EXPECT_EQ(other, base);
  w.ExpectExact();
  EXPECT_EQ(w.runtime->engine().Stats().device.used(PageCategory::kAdapter), 0);
}

}  // namespace
}  // namespace loramux::cold_start_test
