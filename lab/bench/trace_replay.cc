// A recorded trace against the dependency tree alone: hit rate by eviction policy and device size, compared with an
// infinite cache and with a policy that knows the future on the same device.
//
//   trace_replay mooncake_conversation.jsonl --json result.json --svg result.svg
//
// Prints the table as Markdown. The result is equal on every machine: nothing is timed.
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text_file.h"
#include "lab/bench/prefix_replay.h"
#include "lab/charts/line_chart.h"
#include "lab/raw_data.h"
#include "report/number_format.h"
#include "report/progress_bar.h"
#include "tools/command_line/command_line.h"
#include "worth/eviction_policy.h"

namespace loramux {
namespace {

// To express sizes in bytes: keys and values of a token in bf16 on Llama-3-8B (32 layers, 8 heads of 128).
constexpr double kLlama3_8BTokenBytes = 2.0 * 32 * 8 * 128 * 2;

struct Flags {
  std::string trace, json, svg;
  std::vector<std::int64_t> sizes = {500, 1000, 2000, 5000, 10'000, 20'000, 50'000, 100'000};
  std::vector<std::string> policies = EvictionPolicyNames();
  std::int64_t pages_per_block = 1;
};

struct Row {
  std::int64_t blocks = 0;
  double optimum = 0;            // shares of all prompt tokens
  std::vector<double> policies;  // as in Flags
};

struct Report {
  RecordedPrompts recorded;
  double infinite = 0;
  std::vector<Row> rows;
  double Share(const ReplayResult& result) const {
    return static_cast<double>(result.found_tokens) / static_cast<double>(recorded.tokens);
  }
};

// Rows of the table: sizes ascending, the last one as large as everything.
Result<Report> Run(const Flags& flags) {
  ASSIGN_OR_RETURN(const Trace trace, ReadTrace(flags.trace));
  Report report;
  ASSIGN_OR_RETURN(report.recorded, PromptsOf(trace, flags.pages_per_block));
  const RecordedPrompts& recorded = report.recorded;
  report.infinite = report.Share(ReplayKnowingTheFuture(recorded, recorded.distinct_pages));
  std::int64_t done = 0;
  const auto all = static_cast<std::int64_t>(recorded.prompts.size() * flags.sizes.size() * flags.policies.size());
  ProgressBar bar("replaying", "prompts", 1);
  for (const std::int64_t blocks : flags.sizes) {
    const std::int64_t capacity = blocks * flags.pages_per_block;
    if (capacity < recorded.most_pages) {
      return InvalidArgument(fmt::format("--sizes: expected at least {1} blocks, as the longest prompt has, found {0}",
                                         blocks, recorded.most_pages / flags.pages_per_block));
    }
    Row row{.blocks = blocks, .optimum = report.Share(ReplayKnowingTheFuture(recorded, capacity))};
    for (const std::string& policy : flags.policies) {
      bar.Note(fmt::format("{} with {} blocks", policy, FormatNumber(static_cast<double>(blocks))));
      ASSIGN_OR_RETURN(const ReplayResult result, Replay(recorded, policy, capacity, [&] { bar.Update(++done, all); }));
      row.policies.push_back(report.Share(result));
    }
    report.rows.push_back(std::move(row));
  }
  bar.Finish();
  return report;
}

double BlockTokens(const Flags& flags, const Report& report) {
  return static_cast<double>(report.recorded.page_tokens * flags.pages_per_block);
}

double GiB(double tokens) { return tokens * kLlama3_8BTokenBytes / (1024.0 * 1024 * 1024); }

void PrintTable(const Flags& flags, const Report& report) {
  const RecordedPrompts& recorded = report.recorded;
  fmt::print(
      "{} prompts, {} tokens, {} full pages of {} tokens, {} of them distinct; the longest prompt has {} pages.\n"
      "An infinite cache finds {:.1f} % of all prompt tokens.\n\n",
      FormatNumber(static_cast<double>(recorded.prompts.size())), FormatNumber(static_cast<double>(recorded.tokens)),
      FormatNumber(static_cast<double>(recorded.pages)), recorded.page_tokens,
      FormatNumber(static_cast<double>(recorded.distinct_pages)), recorded.most_pages, 100 * report.infinite);
  fmt::print("| blocks on the device | tokens | Llama-3-8B, bf16 |");
  for (const std::string& policy : flags.policies) fmt::print(" {} |", policy);
  fmt::print(" knowing the future |\n|---|---|---|");
  for (std::size_t i = 0; i <= flags.policies.size(); ++i) fmt::print("---|");
  fmt::print("\n");
  for (const Row& row : report.rows) {
    const double tokens = static_cast<double>(row.blocks) * BlockTokens(flags, report);
    fmt::print("| {} | {} | {} GiB |", FormatNumber(static_cast<double>(row.blocks)), FormatNumber(tokens),
               FormatNumber(GiB(tokens)));
    for (const double share : row.policies) fmt::print(" {:.1f} % |", 100 * share);
    fmt::print(" {:.1f} % |\n", 100 * row.optimum);
  }
}

std::string Json(const Flags& flags, const Report& report) {
  const RecordedPrompts& recorded = report.recorded;
  nlohmann::ordered_json json{{"prompts", recorded.prompts.size()},
                              {"prompt_tokens", recorded.tokens},
                              {"block_tokens", BlockTokens(flags, report)},
                              {"pages_per_block", flags.pages_per_block},
                              {"pages", recorded.pages},
                              {"distinct_pages", recorded.distinct_pages},
                              {"infinite_cache_hit_rate", report.infinite},
                              {"sizes", nlohmann::ordered_json::array()}};
  for (const Row& row : report.rows) {
    nlohmann::ordered_json rates;
    for (std::size_t i = 0; i < flags.policies.size(); ++i) rates[flags.policies[i]] = row.policies[i];
    json["sizes"].push_back(
        {{"blocks", row.blocks}, {"hit_rate", std::move(rates)}, {"hit_rate_knowing_the_future", row.optimum}});
  }
  return json.dump(1) + "\n";
}

std::string Svg(const Flags& flags, const Report& report) {
  Chart chart{
      .title = "Prompt tokens found in the cache, by eviction policy and size of the device",
      .subtitle = fmt::format("Mooncake conversation trace: {} prompts, {} million tokens, one request at a time",
                              FormatNumber(static_cast<double>(report.recorded.prompts.size())),
                              FormatNumber(static_cast<double>(report.recorded.tokens) / 1e6)),
      .x_label = "keys and values on the device, million tokens",
      .y_label = "% of prompt tokens",
      .log_x = true};
  ChartLine infinite{.name = "infinite cache", .reference = true},
      optimum{.name = "knowing the future", .reference = true};
  std::vector<ChartLine> lines(flags.policies.size());
  for (const Row& row : report.rows) {
    const double x = static_cast<double>(row.blocks) * BlockTokens(flags, report) / 1e6;
    infinite.points.emplace_back(x, 100 * report.infinite);
    optimum.points.emplace_back(x, 100 * row.optimum);
    for (std::size_t i = 0; i < lines.size(); ++i) lines[i].points.emplace_back(x, 100 * row.policies[i]);
  }
  chart.lines = {std::move(infinite), std::move(optimum)};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    lines[i].name = flags.policies[i];
    chart.lines.push_back(std::move(lines[i]));
  }
  return RenderSvg(chart);
}

Status Main(const Flags& flags) {
  ASSIGN_OR_RETURN(const Report report, Run(flags));
  PrintTable(flags, report);
  const std::string raw = Json(flags, report);
  fmt::print("\n{}\n", RawDataLine(raw));
  if (!flags.json.empty()) RETURN_IF_ERROR(WriteTextFile(flags.json, raw));
  if (!flags.svg.empty()) RETURN_IF_ERROR(WriteTextFile(flags.svg, Svg(flags, report)));
  return Ok{};
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) {
  loramux::Flags flags;
  loramux::Command command{
      .name = "trace_replay",
      .summary = "Replay a trace with prefix hashes (Mooncake's JSON lines) against the dependency tree alone"};
  command.line.Add({.names = "trace",
                    .target = &flags.trace,
                    .unit = "FILE",
                    .help = "Trace in Mooncake's format, for example ../shared/data/traces/mooncake_conversation.jsonl",
                    .path = loramux::FlagPath::kExistingFile,
                    .required = true});
  command.line.Add({.names = "--sizes",
                    .target = &flags.sizes,
                    .unit = "BLOCKS",
                    .help = "Sizes of the device in blocks of the trace, ascending, separated by commas",
                    .range = {{1, 1e12}},
                    .comma_list = true});
  command.line.Add({.names = "--policies",
                    .target = &flags.policies,
                    .unit = "NAME",
                    .help = "Eviction policies, separated by commas",
                    .comma_list = true});
  command.line.Add({.names = "--pages-per-block",
                    .target = &flags.pages_per_block,
                    .unit = "N",
                    .help = "Pages per block of the trace; 1: each eviction removes a whole block",
                    .range = {{1, 1 << 20}}});
  command.line.Add({.names = "--json", .target = &flags.json, .unit = "FILE", .help = "File for the raw data"});
  command.line.Add({.names = "--svg", .target = &flags.svg, .unit = "FILE", .help = "File for the plot"});
  command.run = [&flags] {
    const loramux::Status done = loramux::Main(flags);
    if (!done.ok()) fmt::print(stderr, "trace_replay: {}\n", done.error().message);
    return done.ok() ? 0 : loramux::kExitFailure;
  };
  return loramux::RunCommand(command, argc, argv);
}
