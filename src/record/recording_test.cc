// The recording file, and the recorder on failing disks. Whole runs: tests/replay_test.cc.
#include "record/flight_recorder.h"

#include <condition_variable>
#include <functional>
#include <mutex>

#include "engine/engine_world_for_test.h"
#include "record/recording_setup.h"
#include "record/world_samples.h"
#include "schedule/system_settings.h"

namespace loramux::recording_test {
namespace {

// ---------------------------------------------------------------- The file

std::uint64_t AnyNumber(Prng& prng) { return prng.Next() >> prng.NextBelow(64); }

template <typename Item, typename Make>
void MakeSome(Prng& prng, std::vector<Item>& items, Make make) {
  if (prng.NextBelow(2) == 0) return;
  for (std::uint64_t n = prng.NextBelow(4); n > 0; --n) items.push_back(make());
}

RecordedPlan AnyPlan(Prng& prng) {
  RecordedPlan plan{.digest = prng.Next(),
                    .chunks = AnyNumber(prng),
                    .tokens = AnyNumber(prng),
                    .prefill_tokens = AnyNumber(prng),
                    .history_evictions = AnyNumber(prng),
                    .free_device = AnyNumber(prng),
                    .free_host = AnyNumber(prng)};
  for (auto* list : {&plan.admissions, &plan.preemptions, &plan.fetches, &plan.loads, &plan.device_evictions,
                     &plan.host_evictions}) {
    MakeSome(prng, *list, [&] { return AnyNumber(prng); });
  }
  return plan;
}

RecordedArrival AnyArrival(Prng& prng) {
  const auto flip = [&] { return prng.NextBelow(2) == 0; };
  const auto token = [&] { return static_cast<TokenId>(prng.NextBelow(static_cast<std::uint64_t>(kStopToken))); };
  const auto number32 = [&] { return static_cast<std::uint32_t>(AnyNumber(prng)); };
  RecordedArrival arrival{RequestId{AnyNumber(prng)},
                          AdapterGeneration{number32()},
                          number32(),
                          number32(),
                          static_cast<std::int32_t>(number32()),
                          static_cast<std::int32_t>(number32() >> 1),
                          0,
                          static_cast<TimeNs>(AnyNumber(prng) >> 3) * (flip() ? 1 : -1),
                          flip(),
                          0,
                          flip(),
                          {}};
  for (std::uint64_t n = 1 + prng.NextBelow(50); n > 0; --n) arrival.prompt.push_back(token());
  arrival.max_total_tokens = static_cast<std::int32_t>(arrival.prompt.size() + prng.NextBelow(100));
  arrival.base_tokens = static_cast<std::int32_t>(prng.NextBelow(arrival.prompt.size()));
  return arrival;
}

RecordedStep AnyStep(Prng& prng) {
  const auto flip = [&] { return prng.NextBelow(2) == 0; };
  const auto token = [&] { return static_cast<TokenId>(prng.NextBelow(static_cast<std::uint64_t>(kStopToken))); };
  const auto number32 = [&] { return static_cast<std::uint32_t>(AnyNumber(prng)); };
  RecordedStep step;
  MakeSome(prng, step.adapters, [&] {
    return RecordedAdapter{AdapterGeneration{number32() | 1}, std::string(prng.NextBelow(40), 'd'),
                           1 + static_cast<std::int64_t>(prng.NextBelow(999)),
                           static_cast<std::int32_t>(prng.NextBelow(99)),
                           static_cast<std::int32_t>(prng.NextBelow(64))};
  });
  MakeSome(prng, step.arrivals, [&] { return AnyArrival(prng); });
  MakeSome(prng, step.pins, [&] { return RecordedPin{AdapterGeneration{number32()}, flip()}; });
  MakeSome(prng, step.cancellations, [&] { return AnyNumber(prng); });
  MakeSome(prng, step.retargets, [&] {
    const std::uint32_t old = number32() | 1;
    return RecordedRetarget{AdapterGeneration{old}, AdapterGeneration{flip() ? 0 : old ^ 2}};
  });
  MakeSome(prng, step.renamings, [&] { return RecordedRenaming{RequestId{AnyNumber(prng)}, {token(), token()}}; });
  MakeSome(prng, step.retired, number32);
  MakeSome(prng, step.registered, number32);
  const auto transfer = [&] { return AnyNumber(prng) >> 1 | (flip() ? kHistoryBit : 0); };
  MakeSome(prng, step.completions, [&] {
    return RecordedCompletion{transfer(), static_cast<TransferOutcome>(prng.NextBelow(3))};
  });
  MakeSome(prng, step.layers, [&] {
    return RecordedLayers{transfer(), static_cast<std::int32_t>(prng.NextBelow(100))};
  });
  MakeSome(prng, step.tokens, [&] { return RecordedToken{RequestId{AnyNumber(prng)}, flip() ? kStopToken : token()}; });
  step.cancel_all = flip();
  step.ending = flip();
  step.drop_history = flip();
  if (flip()) step.hold = static_cast<Hold>(prng.NextBelow(3));
  step.collected = flip();
  if (flip()) step.computed = static_cast<TimeNs>(AnyNumber(prng) >> 4);
  if (flip()) step.plan = AnyPlan(prng);
  MakeSome(prng, step.moves, [&] {
    return RecordedMoves{static_cast<MoveReason>(prng.NextBelow(9)),
                         prng.Next(),
                         AnyNumber(prng),
                         AnyNumber(prng),
                         AnyNumber(prng),
                         AnyNumber(prng),
                         {AnyNumber(prng)},
                         {},
                         {AnyNumber(prng), 1}};
  });
  return step;
}

RecordedSetup SmallSetup() {
  return {.program = "1",
          .model = "m",
          .spec = {.prefill_chunk = 512, .total_tokens = 100},
          .max_model_len = 64,
          .page_bytes = 64,
          .device_pages = 10};
}

TEST(Recording, WhatIsWrittenIsRead) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    RecordedSetup setup = SmallSetup();
    setup.history = "bytes";
    setup.spec.fairness.weights = {{"0", 2.5}, {"1", 0.1}};
    setup.spec.discard_share = prng.NextDouble();
    RecordingEncoder encoder;
    std::string bytes = encoder.Head(setup);
    std::vector<RecordedStep> all;
    TimeNs now = 0;
    for (int block = 0; block < 3; ++block) {
      std::vector<RecordedStep> steps;
      for (std::uint64_t n = prng.NextBelow(20); n > 0; --n) {
        RecordedStep& step = steps.emplace_back(AnyStep(prng));
        step.number = all.size() + steps.size() - 1;
        step.now = now += static_cast<TimeNs>(prng.NextBelow(std::uint64_t{1} << 40));
      }
      bytes += encoder.Steps(steps);
      all.insert(all.end(), steps.begin(), steps.end());
    }
    bytes += encoder.End(RecordingEnd::kLimit);

    auto reader = RecordingReader::Open(bytes);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    EXPECT_EQ(reader->setup().history, "bytes");
    EXPECT_EQ(reader->setup().spec.discard_share, setup.spec.discard_share);
    EXPECT_EQ(reader->setup().spec.fairness.weights, setup.spec.fairness.weights);
    for (const int round : {1, 2}) {
      SCOPED_TRACE(round);
      for (const RecordedStep& step : all) {
        const auto read = reader->Next();
        ASSERT_TRUE(read.ok()) << read.error().message;
        ASSERT_TRUE(read->has_value());
        EXPECT_TRUE(**read == step) << "step " << step.number;
      }
      const auto end = reader->Next();
      ASSERT_TRUE(end.ok());
      EXPECT_FALSE(end->has_value());
      EXPECT_EQ(reader->end(), RecordingEnd::kLimit);
      reader->Rewind();
    }
  }
}

// Versions 5 to 8 have not all moves; their other steps without arrivals are those of version 9.
TEST(Recording, EarlierVersionsAreReadWithoutWhatTheyLack) {
  RecordingEncoder encoder;
  std::string bytes = encoder.Head(SmallSetup());
  const RecordedStep step{.number = 0, .now = 5, .collected = true};
  bytes += encoder.Steps(std::span(&step, 1));
  bytes += encoder.End(RecordingEnd::kStopped);
  EXPECT_TRUE(RecordingReader::Open(bytes)->has_moves());
  for (const char version : {5, 6, 7, 8}) {
    bytes[8] = version;
    auto old = RecordingReader::Open(bytes);
    ASSERT_TRUE(old.ok()) << old.error().message;
    EXPECT_FALSE(old->has_moves());
    EXPECT_EQ(old->Next().value(), step);
  }
  for (const char version : {4, 11}) {
    bytes[8] = version;
    const auto refused = RecordingReader::Open(bytes);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, testing::HasSubstr("expected a version from 5 to 10, found"));
  }
}

// A value that differs from `value` and is valid for the setting.
SettingValue Another(const Setting& setting, SettingValue value) {
  if (auto* on = std::get_if<bool>(&value)) *on = !*on;
  if (auto* number = std::get_if<std::int64_t>(&value))
    *number += static_cast<double>(*number) < setting.range.high ? 1 : -1;
  if (auto* number = std::get_if<double>(&value)) {
    const double eighth = setting.range.high / 8;
    *number += *number + eighth <= setting.range.high ? eighth : -eighth;
  }
  if (auto* text = std::get_if<std::string>(&value)) {
    *text = setting.key == "cache" ? "gdsf" : setting.key == "queue" ? "sjf" : "none";
  }
  return value;
}

// Each setting is written and read, is refused out of its range, and has its default where an older server lacked it.
TEST(Recording, HasEverySetting) {
  for (const Setting& setting : kSettings) {
    SCOPED_TRACE(setting.key);
    RecordedSetup setup = SmallSetup();
    setup.spec.swapping.lower = 0.5;
    setup.spec.costs = std::make_shared<const PerformanceModel>();
    const SettingValue before = setting.get(setup.spec), other = Another(setting, before);
    ASSERT_NE(before, other);
    setting.set(setup.spec, other);
    std::string json = SetupAsJson(setup);
    auto read = SetupFromJson(json);
    ASSERT_TRUE(read.ok()) << read.error().message;
    for (const Setting& each : kSettings) EXPECT_EQ(each.get(read->spec), each.get(setup.spec)) << each.key;

    const std::size_t begin = json.find("\"" + std::string(setting.key) + "\":"), end = json.find('\n', begin);
    ASSERT_NE(end, std::string::npos);
    json.erase(begin, end - begin);
    read = SetupFromJson(json);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(setting.get(read->spec), setting.get(SystemSpec()));

    if (!std::holds_alternative<std::int64_t>(other) && !std::holds_alternative<double>(other)) continue;
    for (const double wrong : {setting.range.low - 1, setting.range.high + 1}) {
      setting.set(setup.spec, std::holds_alternative<double>(other) ? SettingValue(wrong)
                                                                    : SettingValue(static_cast<std::int64_t>(wrong)));
      if (!setting.values.empty() && wrong < 0) continue;  // no value of an enumeration
      EXPECT_FALSE(SetupFromJson(SetupAsJson(setup)).ok()) << wrong;
    }
  }
}

TEST(Recording, ASettingThatIsNotKnownIsRefusedByName) {
  std::string json = SetupAsJson(SmallSetup());
  json.insert(json.find('"'), "\"dream\": 1, ");
  const auto read = SetupFromJson(json);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().message, "recording: setup.dream: not known to this version of loramux");
  for (const std::string former : {"queue_age_bound", "lane_slo", "fixed_lanes"}) {
    std::string old = SetupAsJson(SmallSetup());
    old.insert(old.find('"'), "\"" + former + "\": 1, ");
    EXPECT_TRUE(SetupFromJson(old).ok()) << former;
  }
}

TEST(Recording, ASetupThatNoServerHasIsRefused) {
  const auto opens = [](const RecordedSetup& setup) {
    RecordingEncoder encoder;
    return RecordingReader::Open(encoder.Head(setup)).ok();
  };
  EXPECT_TRUE(opens(SmallSetup()));
  const std::vector<std::function<void(RecordedSetup&)>> wrongs = {
      [](RecordedSetup& s) { s.spec.cache = "none"; },
      [](RecordedSetup& s) { s.spec.queue = "last"; },
      [](RecordedSetup& s) { s.spec.count_cached = static_cast<CountCached>(3); },
      [](RecordedSetup& s) { s.spec.length_predictor = "oracle"; },
      [](RecordedSetup& s) { s.page_bytes = 65; },
      [](RecordedSetup& s) { s.page_bytes = 0; },
      [](RecordedSetup& s) { s.device_pages = 0; },
      [](RecordedSetup& s) { s.device_pages = std::int64_t{1} << 40; },
      [](RecordedSetup& s) { s.spec.page_tokens = 0; },
      [](RecordedSetup& s) { s.spec.max_batch_tokens = 0; },
      [](RecordedSetup& s) { s.spec.whole_prompt_tokens = 10, s.spec.prefill_chunk = 2; },
      [](RecordedSetup& s) { s.spec.adapter_share = 2; },
      [](RecordedSetup& s) {
        s.spec.fairness.weights = {{"0", 0}};
      },
      [](RecordedSetup& s) { s.moves_kv = true; },
      [](RecordedSetup& s) { s.max_model_len = -1; },
      [](RecordedSetup& s) { s.kv_slices.layers = 0; },
  };
  for (std::size_t i = 0; i < wrongs.size(); ++i) {
    RecordedSetup setup = SmallSetup();
    wrongs[i](setup);
    EXPECT_FALSE(opens(setup)) << i;
  }
}

// ---------------------------------------------------------------- Pseudonyms

std::vector<TokenId> Disguised(const Pseudonyms& names, std::string_view digest, const std::vector<TokenId>& tokens) {
  std::uint64_t sequence = names.Begin(digest);
  std::vector<TokenId> out;
  for (const TokenId token : tokens) out.push_back(names.Name(sequence, token));
  return out;
}

TEST(Pseudonyms, AreAlikeAsFarAsTheTokensAre) {
  const Pseudonyms names({1, 2}), others({1, 3});
  const std::vector<TokenId> a = {5, 5, 7, 9, 9}, b = {5, 5, 8, 9, 9};
  const auto da = Disguised(names, "x", a), db = Disguised(names, "x", b);
  EXPECT_EQ(da, Disguised(names, "x", a));
  EXPECT_EQ(da[0], db[0]);
  EXPECT_EQ(da[1], db[1]);
  for (std::size_t i = 2; i < a.size(); ++i) EXPECT_NE(da[i], db[i]);  // the common end is not visible
  EXPECT_NE(da[0], da[1]);
  EXPECT_NE(da, Disguised(names, "y", a));
  EXPECT_NE(da, Disguised(others, "x", a));
}

// ---------------------------------------------------------------- The recorder

// A disk in memory. Fails after `room` bytes, writes a little at a time, and blocks while it is held.
class Disk final : public FileSystem {
 public:
  std::size_t room = SIZE_MAX;
  std::string content;

  void Hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  Status CreateDirectories(const std::filesystem::path&) override { return Ok{}; }
  Result<std::unique_ptr<WritableFile>> Create(const std::filesystem::path&) override {
    return std::unique_ptr<WritableFile>(std::make_unique<File>(this));
  }
  Result<std::unique_ptr<WritableFile>> OpenForAppend(const std::filesystem::path&) override {
    return IoError("not asked for");
  }
  Result<std::string> Read(const std::filesystem::path&) override { return content; }
  Status Rename(const std::filesystem::path&, const std::filesystem::path&) override { return Ok{}; }
  Status SyncDirectory(const std::filesystem::path&) override { return Ok{}; }
  Result<std::unique_ptr<FileLock>> Lock(const std::filesystem::path&) override { return IoError("not asked for"); }

 private:
  class File final : public WritableFile {
   public:
    explicit File(Disk* disk) : disk_(disk) {}
    Result<std::size_t> Append(std::string_view data) override {
      std::unique_lock lock(disk_->mutex_);
      disk_->changed_.wait(lock, [this] { return !disk_->held_; });
      if (disk_->content.size() >= disk_->room)
        return IoError("recording: cannot write: No space left on device (injected)");
      const std::size_t size = std::min({data.size(), disk_->room - disk_->content.size(), std::size_t{1000}});
      disk_->content += data.substr(0, size);
      return size;
    }
    Status Sync() override { return Ok{}; }
    Status Truncate(std::uint64_t) override { return Ok{}; }

   private:
    Disk* const disk_;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
};

constexpr const char* kTenant = "a tenant's name";

// An engine under a light load, watched by the recorder: every request gets its expected tokens.
void Serve(FlightRecorder& recorder) {
  EngineWorld w({.observer = &recorder});
  for (int round = 0; round < 20; ++round) {
    std::vector<RequestId> ids;
    const auto prompt = [&](int i) { return std::vector<TokenId>(static_cast<std::size_t>(10 + i), 100 + i); };
    for (int i = 0; i < 6; ++i) ids.push_back(*w.Submit(prompt(i), kBaseModel, 12, kTenant));
    w.Drain();
    for (int i = 0; i < 6; ++i)
      EXPECT_EQ(w.outcomes[ids[static_cast<std::size_t>(i)]].tokens, ExpectedTokens(kBaseModel, prompt(i), 12));
  }
}

TEST(FlightRecorder, HasNoTokenAndNoNameInItsFile) {
  Disk disk;
  auto recorder = std::move(FlightRecorder::Create(&disk, "recording")).value();
  recorder->Begin(SmallSetup());
  Serve(*recorder);
  recorder->Close();
  recorder->Close();
  EXPECT_FALSE(recorder->failed());
  EXPECT_EQ(recorder->bytes(), static_cast<std::int64_t>(disk.content.size()));
  EXPECT_EQ(disk.content.find(kTenant), std::string::npos);
  auto reader = RecordingReader::Open(disk.content);
  ASSERT_TRUE(reader.ok());
  std::uint64_t steps = 0, arrivals = 0, tokens = 0;
  std::vector<TokenId> seen;
  while (true) {
    const auto step = reader->Next();
    ASSERT_TRUE(step.ok()) << step.error().message;
    if (!step->has_value()) break;
    ++steps;
    arrivals += (*step)->arrivals.size();
    for (const RecordedArrival& arrival : (*step)->arrivals) {
      seen.insert(seen.end(), arrival.prompt.begin(), arrival.prompt.end());
      EXPECT_EQ(arrival.tenant, 0u);
    }
    for (const RecordedToken& token : (*step)->tokens) {
      tokens += token.token != kStopToken;
      seen.push_back(token.token);
    }
  }
  EXPECT_EQ(steps, recorder->steps());
  EXPECT_EQ(arrivals, 120u);
  EXPECT_GT(tokens, 500u);
  // Tokens are below kTestVocab; of thousands of pseudonyms below 2^30, hardly any is.
  EXPECT_LT(std::count_if(seen.begin(), seen.end(), [](TokenId token) { return token < kTestVocab; }), 5);
  EXPECT_EQ(reader->end(), RecordingEnd::kStopped);
}

// A domain is a number, and its tokens are unlike those of other domains, as in the prefix cache.
TEST(FlightRecorder, KeepsSharingDomainsApart) {
  constexpr const char* kDomain = "a domain's name";
  Disk disk;
  auto recorder = std::move(FlightRecorder::Create(&disk, "recording")).value();
  recorder->Begin(SmallSetup());
  EngineWorld w({.observer = recorder.get()});
  for (const char* domain : {"", kDomain, kDomain, "another"}) {
    ASSERT_TRUE(w.Submit(std::vector<TokenId>(10, 7), kBaseModel, 2, kTenant, domain).ok());
    w.Drain();
  }
  recorder->Close();
  EXPECT_EQ(disk.content.find(kDomain), std::string::npos);
  auto reader = RecordingReader::Open(disk.content);
  ASSERT_TRUE(reader.ok());
  std::vector<RecordedArrival> arrivals;
  for (auto step = reader->Next(); step.ok() && step->has_value(); step = reader->Next())
    arrivals.insert(arrivals.end(), (*step)->arrivals.begin(), (*step)->arrivals.end());
  ASSERT_EQ(arrivals.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t j = 0; j < 4; ++j) {
      const bool same = i == j || (i + j == 3 && i * j == 2);
      EXPECT_EQ(arrivals[i].prefix_domain == arrivals[j].prefix_domain, same) << i << " " << j;
      EXPECT_EQ(arrivals[i].prompt == arrivals[j].prompt, same) << i << " " << j;
    }
  }
  EXPECT_EQ(arrivals[0].prefix_domain, 0u);
}

TEST(FlightRecorder, AFullDiskEndsTheRecordingAlone) {
  std::size_t whole = 0;
  for (const std::size_t room : {SIZE_MAX, std::size_t{0}, std::size_t{100}, std::size_t{2000}, std::size_t{6000}}) {
    SCOPED_TRACE(room);
    Disk disk;
    disk.room = room;
    auto recorder = std::move(FlightRecorder::Create(&disk, "recording")).value();
    recorder->Begin(SmallSetup());
    Serve(*recorder);
    recorder->Close();
    if (room == SIZE_MAX) whole = disk.content.size();
    ASSERT_GT(whole, 6000u);
    EXPECT_EQ(recorder->failed(), room != SIZE_MAX);
    EXPECT_LE(disk.content.size(), room);
    auto reader = RecordingReader::Open(disk.content);
    while (reader.ok()) {  // the existing part is valid, up to where it ends
      const auto step = reader->Next();
      if (step.ok() && step->has_value()) continue;
      EXPECT_EQ(step.ok(), room == SIZE_MAX);
      EXPECT_EQ(reader->truncated(), room != SIZE_MAX);
      break;
    }
  }
}

TEST(FlightRecorder, NeverWaitsForADiskThatHangs) {
  Disk disk;
  auto recorder = std::move(FlightRecorder::Create(&disk, "recording", {.max_queued_bytes = 20000})).value();
  recorder->Begin(SmallSetup());
  disk.Hold(true);
  Serve(*recorder);  // to its end
  EXPECT_TRUE(recorder->failed());
  disk.Hold(false);
  recorder->Close();
}

TEST(FlightRecorder, TenantsWithoutEndEndTheRecordingAlone) {
  Disk disk;
  auto recorder = std::move(FlightRecorder::Create(&disk, "recording", {.max_tenant_bytes = 8})).value();
  recorder->Begin(SmallSetup());
  Serve(*recorder);  // to its end
  EXPECT_TRUE(recorder->failed());
  recorder->Close();
}

TEST(FlightRecorder, EndsAtItsLargestSize) {
  Disk disk;
  auto recorder = std::move(FlightRecorder::Create(&disk, "recording", {.max_file_bytes = 1})).value();
  recorder->Begin(SmallSetup());
  Serve(*recorder);
  recorder->Close();
  EXPECT_FALSE(recorder->failed());
  auto reader = RecordingReader::Open(disk.content);
  ASSERT_TRUE(reader.ok());
  while (true) {
    const auto step = reader->Next();
    ASSERT_TRUE(step.ok()) << step.error().message;
    if (!step->has_value()) break;
  }
  EXPECT_EQ(reader->end(), RecordingEnd::kLimit);
}

// ---------------------------------------------------------------- Samples

TEST(WorldSamples, AreFewHoweverLongTheRunIs) {
  WorldSamples samples;
  TimeNs now = 0;
  std::int64_t steps = 0;
  for (; steps < 20'000; ++steps, now += 10 * kNsPerMs) {
    if (samples.Wants(now)) samples.Add(SampleOf({.running = 3, .steps = steps}, now));
  }
  const std::vector<WorldSample> kept = samples.Take();
  EXPECT_LE(kept.size(), WorldSamples::kMostSamples);
  EXPECT_GE(kept.size(), WorldSamples::kMostSamples / 4);
  EXPECT_EQ(kept.front().steps, 0);
  EXPECT_GT(kept.back().at, now * 9 / 10);
  for (std::size_t i = 1; i < kept.size(); ++i) EXPECT_LT(kept[i - 1].at, kept[i].at);
  EXPECT_EQ(kept.back().steps, kept.back().at / (10 * kNsPerMs));
}

}  // namespace
}  // namespace loramux::recording_test
