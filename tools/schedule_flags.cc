#include "tools/schedule_flags.h"

#include <vector>

#include "schedule/queue_order.h"

namespace loramux {
namespace {

std::string Listed(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

Result<RequestSizeForm> SizeForm(const std::string& text) {
  if (text == "product") return RequestSizeForm::kProduct;
  if (text == "sum") return RequestSizeForm::kSum;
  if (text == "output") return RequestSizeForm::kOutputOnly;
  return InvalidArgument("--request-size: expected product, sum or output, found '" + text + "'", "--request-size");
}

Result<LaneCountRule> CountRule(const std::string& text) {
  if (text == "worth-it") return LaneCountRule::kWorthIt;
  if (text == "least-squares") return LaneCountRule::kLeastSquares;
  return InvalidArgument("--lane-count: expected worth-it or least-squares, found '" + text + "'", "--lane-count");
}

}  // namespace

void AddScheduleFlags(CLI::App& command, ScheduleFlags& flags) {
  const std::string group = "Order of service";
  command.add_option("--schedule", flags.schedule, "Who is let in first, of a tenant: " + Listed(QueueOrderNames()))
      ->group(group)
      ->default_str("the preset's, or fifo");
  command
      .add_option("--age-bound", flags.age_bound_seconds,
                  "Seconds after which whoever waits goes before everybody (of his tenant), in any order")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
  command
      .add_option("--ttft-objective", flags.ttft_objective_seconds,
                  "Seconds from arrival to the first token that are wanted; --schedule objective keeps as few as "
                  "possible beyond it")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(0.001, 86400.0));
  command
      .add_option(
          "--request-size", flags.request_size,
          "What makes a request large, for mlq: product or sum of input, predicted output and adapter; output alone")
      ->group(group)
      ->default_str("the preset's, or product");
  command
      .add_option("--lane-count", flags.lane_count,
                  "Lanes of mlq: as many as are worth-it, or least-squares (nearly always 4)")
      ->group(group)
      ->capture_default_str();
  command
      .add_option(
          "--length-predictor", flags.length_predictor,
          "Who guesses output lengths: history (of the adapter; kept in --state-dir), proxy (reads the prompt), none")
      ->group(group)
      ->capture_default_str();
  command
      .add_option("--length-proxy", flags.length_proxy,
                  "Directory of the proxy: a Hugging Face BertForSequenceClassification over ranges of output tokens")
      ->group(group);
}

Status ApplyScheduleFlags(const ScheduleFlags& flags, RuntimeOptions& options) {
  if (!flags.schedule.empty()) options.queue.name = flags.schedule;
  options.scheduler.age_bound = static_cast<TimeNs>(flags.age_bound_seconds * static_cast<double>(kNsPerSecond));
  options.queue.objective = static_cast<TimeNs>(flags.ttft_objective_seconds * static_cast<double>(kNsPerSecond));
  if (!flags.request_size.empty()) {
    ASSIGN_OR_RETURN(options.queue.lanes.form, SizeForm(flags.request_size));
  }
  ASSIGN_OR_RETURN(options.queue.lanes.count_rule, CountRule(flags.lane_count));
  options.length_predictor = flags.length_predictor;
  if ((flags.length_predictor == "proxy") == flags.length_proxy.empty()) {
    return InvalidArgument("--length-proxy: expected a directory with --length-predictor proxy, and with no other",
                           "--length-proxy");
  }
  return Ok{};
}

}  // namespace loramux
