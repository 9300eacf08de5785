#include "tools/simulate_replay.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/bytes.h"
#include "base/message.h"
#include "formats/file.h"
#include "record/replay.h"
#include "simulate/report.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{16} << 30;

std::string DescribeServer(const RecordedSetup& setup) {
  return fmt::format(
      "recorded by loramux {}: {}; {} device pages and {} host pages of {} ({} positions); cache {}, order {}, "
      "lengths by {}{}",
      Printable(setup.program), Printable(setup.model), setup.device_pages, setup.host_pages,
      FormatBytes(setup.page_bytes), setup.spec.page_tokens, Printable(setup.spec.cache), Printable(setup.spec.queue),
      Printable(setup.spec.length_predictor), setup.spec.costs == nullptr ? "" : ", plans by a profile");
}

std::string DescribeRequests(const ReplayReport& replay) {
  const char* end = "";
  if (replay.truncated) end = "; the recording is truncated: the server was killed, or the disk was full";
  if (replay.end == RecordingEnd::kLimit) end = "; the recording reached its size limit before the server ended";
  return fmt::format("{} requests: {} ended, {} cancelled, {} failed; {} steps{}", replay.arrived, replay.ended,
                     replay.cancelled, replay.failed, replay.steps, end);
}

void PrintVerdict(const ReplayReport& replay) {
  if (replay.difference.empty()) {
    fmt::print("\nplans: {} compared, all equal\n", replay.plans);
    return;
  }
  fmt::print("\nplans: {} compared, {} equal; the replay ends at the first difference:\n{}\n", replay.plans,
             replay.equal_plans, replay.difference);
}

}  // namespace

Status ReportReplay(const SimulateFlags& flags, bool& equal) {
  ASSIGN_OR_RETURN(std::string bytes, ReadTextFile(flags.replay, kMaxFileBytes));
  ASSIGN_OR_RETURN(RecordingReader reader, RecordingReader::Open(std::move(bytes)));
  auto replayed = Replay(reader, flags.replay_truncated, flags.fleet.server.check_every);
  if (!replayed.ok()) {
    const std::string hint = reader.truncated() ? "; --replay-truncated replays the steps before that point" : "";
    return Error{replayed.error().code, flags.replay + ": " + replayed.error().message + hint, "--replay"};
  }
  ReplayReport& replay = *replayed;
  const RecordedSetup& setup = reader.setup();
  const TimeNs ttft = flags.objective.ttft > 0 ? flags.objective.ttft : setup.spec.objective;
  SimulationReport report{.device = DescribeServer(setup),
                          .workload = DescribeRequests(replay),
                          .command = flags.command_line,
                          .page_bytes = setup.page_bytes,
                          .device_pages = setup.device_pages,
                          .objective = {.ttft = ttft},
                          .objective_source = flags.objective.ttft > 0 ? "as given" : "the server's"};
  PresetRun run{.preset = {.name = "replayed", .what = "a recorded run", .spec = setup.spec}};
  run.summary = Summarise(replay.run, ttft);
  run.result = std::move(replay.run);
  report.runs.push_back(std::move(run));
  fmt::print("{}", ReportAsTable(report));
  PrintVerdict(replay);
  equal = replay.difference.empty();
  return WriteReport(flags, report);
}

}  // namespace loramux
