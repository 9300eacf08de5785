#include "tools/bench_command.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <sys/resource.h>

#include <fmt/format.h>

#include "base/text_file.h"
#include "loadgen/compare.h"
#include "loadgen/console.h"
#include "loadgen/html_report.h"
#include "report/number_format.h"
#include "report/progress_bar.h"
#include "tools/bench_options.h"

namespace loramux::load {
namespace {

// An open loop needs a connection for each request in flight.
void AllowManyConnections() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The bar for one run: by requests, or by time where only that is bounded.
class RunProgressBar {
 public:
  RunProgressBar(bool enabled, std::int64_t requests, double duration_s)
      : enabled_(enabled),
        requests_(requests),
        duration_(static_cast<TimeNs>(duration_s * 1e9)),
        bar_("bench", requests > 0 ? "requests" : "s", requests > 0 ? 1 : kNsPerSecond) {}

  void Show(const RunProgress& now) {
    if (!enabled_) return;
    const std::int64_t total = requests_ > 0 ? requests_ : duration_;
    const std::int64_t done = std::min(requests_ > 0 ? now.finished : now.elapsed, total);
    const double seconds = std::max(static_cast<double>(now.elapsed) / 1e9, 1e-3);
    std::string note =
        fmt::format("{} done, {} in flight, {} failed, {} tok/s", now.finished, now.started - now.finished, now.failed,
                    FormatNumber(static_cast<double>(now.tokens) / seconds));
    if (done > 0 && done < total) {
      const double left = seconds * static_cast<double>(total - done) / static_cast<double>(done);
      note += fmt::format(", {:.0f} s left", left);
    }
    bar_.Note(std::move(note));
    bar_.Update(done, total);
  }
  void Finish() { bar_.Finish(); }

 private:
  bool enabled_;
  std::int64_t requests_;
  TimeNs duration_;
  ProgressBar bar_;
};

// Fills in what only the server knows: the names.
Status AskForNames(BenchRunner& runner, const BenchFlags& flags, SessionOptions& workload) {
  workload.base_model = flags.model;
  if (!flags.model.empty() && !flags.adapters_from_server) return Ok{};
  ASSIGN_OR_RETURN(const ModelNames names, runner.FetchModels());
  if (flags.model.empty()) workload.base_model = names.bases.empty() ? names.adapters.front() : names.bases.front();
  if (!flags.adapters_from_server) return Ok{};
  workload.adapters = names.adapters;
  if (workload.adapters.empty()) {
    return InvalidArgument(fmt::format(
        "--adapters-from-server: the server lists no model with a parent, only {} without one", names.bases.size()));
  }
  return Ok{};
}

Status WarmUp(BenchRunner& runner, const SessionMaker& workload) {
  const bool with_base = workload.options().base_share > 0 || workload.options().adapters.empty();
  for (std::size_t i = 0; i < workload.models().size() - (with_base ? 0 : 1); ++i) {
    const RequestRecord record = runner.Ask(workload.models()[i], "hello", 1);
    if (!record.ok()) {
      return Unavailable(fmt::format("--warmup: {} did not answer: {}: {}", workload.models()[i], record.failure_kind(),
                                     record.detail));
    }
  }
  return Ok{};
}

// What a reader of the numbers must know.
ReportJson Warnings(const ReportJson& report, const SessionOptions& workload) {
  ReportJson warnings = ReportJson::array();
  const ReportJson& summary = ChildAt(report, "summary");
  const double lag = NumberAt(summary, {"scheduling_lag_ms", "p99"});
  if (lag > 20) {
    warnings.push_back(fmt::format(
        "This client sent 1 % of its requests at least {} late: the client or its machine was too busy for this load.",
        FormatMs(lag)));
  }
  if (const double without = NumberAt(summary, {"tokens", "requests_without_usage"}); without > 0) {
    warnings.push_back(
        fmt::format("{} answers came without token counts; in these, each piece of text counts as one output token.",
                    FormatNumber(without)));
  }
  const double asked = NumberAt(summary, {"tokens", "requested_output"}), got = NumberAt(summary, {"tokens", "output"});
  const bool exact = workload.tasks.empty() && workload.ignore_eos && NumberAt(summary, {"requests", "failed"}) == 0;
  if (exact && got < 0.99 * asked) {
    warnings.push_back(fmt::format(
        "Answers were shorter than requested ({} of {} tokens): the server does not support ignore_eos, or its "
        "context is too short.",
        FormatNumber(got), FormatNumber(asked)));
  }
  return warnings;
}

Status WriteFiles(const BenchFlags& flags, const ReportJson& report) {
  if (!flags.json.empty()) {
    RETURN_IF_ERROR(WriteTextFile(flags.json, report.dump(1, ' ', false, ReportJson::error_handler_t::replace) + "\n"));
    fmt::print("result: {}\n", flags.json);
  }
  if (!flags.html.empty()) {
    RETURN_IF_ERROR(WriteTextFile(flags.html, HtmlReport(report)));
    fmt::print("report: {}\n", flags.html);
  }
  return Ok{};
}

void PrintReport(const ReportJson& report) {
  fmt::print("{}\n{}", DescribeRun(report), ConsoleSummary(report));
  for (const ReportJson& warning : ChildAt(report, "warnings")) {
    if (warning.is_string()) fmt::print("\n  note: {}\n", warning.get<std::string>());
  }
  fmt::print("\n");
}

// Marks an error as one of the command line.
template <typename T>
Result<T> OfFlags(Result<T> result) {
  if (result.ok() || result.error().code != ErrorCode::kInvalidArgument) return result;
  return Error{ErrorCode::kInvalidArgument, result.error().message, "--"};
}

Result<ReportJson> Measure(const BenchFlags& flags) {
  const OsClock clock;
  ASSIGN_OR_RETURN(HttpClientOptions client, OfFlags(MakeClientOptions(flags)));
  ASSIGN_OR_RETURN(SessionOptions options, OfFlags(MakeWorkloadOptions(flags)));
  std::optional<Trace> trace;
  if (flags.open_loop()) {
    ASSIGN_OR_RETURN(trace, MakeTrace(flags));
    if (trace->arrivals.empty())
      return InvalidArgument(
          "expected at least one request, found none: --duration is too short for this --rate or --trace");
  }
  BenchRunner runner(std::move(client), MakeRunOptions(flags), clock);
  RETURN_IF_ERROR(runner.Resolve());
  RETURN_IF_ERROR(AskForNames(runner, flags, options));
  ASSIGN_OR_RETURN(SessionMaker workload, SessionMaker::Make(std::move(options), trace ? &*trace : nullptr));
  if (workload.needs_scale()) {
    ASSIGN_OR_RETURN(const TokenScale scale, runner.MeasureScale(workload.options().base_model));
    workload.set_scale(scale);
  }
  if (flags.warmup) RETURN_IF_ERROR(WarmUp(runner, workload));

  const std::int64_t sessions = trace ? static_cast<std::int64_t>(trace->arrivals.size()) : flags.run.sessions;
  RunProgressBar bar(!flags.no_progress, sessions * flags.sessions.turns, flags.run.duration_s);
  const RunResult result =
      runner.Run(workload, trace ? &*trace : nullptr, [&](const RunProgress& now) { bar.Show(now); });
  bar.Finish();
  ReportJson report = BuildReport(result, workload.models(), flags.objective,
                                  ConfigurationJson(flags, workload.options()), flags.with_requests);
  report["warnings"] = Warnings(report, workload.options());
  return report;
}

Status ShowComparison(const BenchFlags& flags) {
  std::vector<NamedReport> reports;
  for (const std::string& path : flags.compare) {
    ASSIGN_OR_RETURN(ReportJson report, LoadReport(path));
    reports.push_back({std::filesystem::path(path).filename().string(), std::move(report)});
  }
  fmt::print("{}", ConsoleComparison(reports[0], reports[1]));
  if (flags.html.empty()) return Ok{};
  RETURN_IF_ERROR(WriteTextFile(flags.html, HtmlComparison(reports[0], reports[1])));
  fmt::print("\nreport: {}\n", flags.html);
  return Ok{};
}

constexpr int kExitFailedRequests = 3;

int Failed(const Error& error) { return FailCommand("bench", error); }

// The exit status that the result deserves.
int Judge(const ReportJson& report) {
  const double total = NumberAt(report, {"summary", "requests", "total"}),
               failed = NumberAt(report, {"summary", "requests", "failed"});
  if (failed > 0 || total == 0) {
    fmt::print(stderr, "loramux bench: {} of {} requests failed\n", FormatNumber(failed), FormatNumber(total));
    return kExitFailedRequests;
  }
  return TrueAt(report, "interrupted") ? 130 : 0;
}

}  // namespace

int RunBench(BenchFlags flags) {
  if (!flags.compare.empty()) {
    const Status status = ShowComparison(flags);
    return status.ok() ? 0 : Failed(status.error());
  }
  if (const Status status = CompleteFlags(flags); !status.ok()) {
    Failed(status.error());
    return kExitUsage;
  }
  std::signal(SIGPIPE, SIG_IGN);  // a server that went away is an error code
  AllowManyConnections();
  Result<ReportJson> report = flags.from.empty() ? Measure(flags) : LoadReport(flags.from);
  if (!report.ok()) return Failed(report.error());
  PrintReport(*report);
  std::fflush(stdout);
  if (const Status status = WriteFiles(flags, *report); !status.ok()) return Failed(status.error());
  return Judge(*report);
}

Command BenchCommand() {
  const auto flags = std::make_shared<BenchFlags>();
  Command command{.name = "bench",
                  .summary = "Send load to an OpenAI-compatible server, check its answers and measure it"};
  AddBenchFlags(command.line, *flags);
  command.run = [flags] { return RunBench(*flags); };
  return command;
}

}  // namespace loramux::load
