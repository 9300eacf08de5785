#include "tools/schedule_flags.h"

#include "schedule/queue/queue_order.h"
#include "tools/system_flags.h"

namespace loramux {
namespace {

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

void AddScheduleFlags(CommandLine& line, ScheduleFlags& flags) {
  const std::string group = "Order of service";
  line.Add(InGroup(ScheduleFlag(flags.schedule), group, "the preset's, or fifo"));
  line.Add(InGroup(AgeBoundFlag(flags.age_bound_seconds), group));
  line.Add({.names = "--ttft-objective",
            .target = &flags.ttft_objective_seconds,
            .unit = "SECONDS",
            .group = group,
            .help = "Time to first token that --schedule objective aims at: it minimises requests that miss it. Lanes "
                    "of mlq have "
                    "their quotas by it",
            .range = {{0.001, 86400.0}}});
  line.Add(InGroup(MaxDecodeStepFlag(flags.max_decode_step_seconds), group));
  line.Add(
      {.names = "--request-size",
       .target = &flags.request_size,
       .unit = "FORM",
       .group = group,
       .help = "Size of a request for mlq: product or sum of input, predicted output and adapter size, or output alone",
       .default_text = "the preset's, or product"});
  line.Add({.names = "--lane-count",
            .target = &flags.lane_count,
            .unit = "RULE",
            .group = group,
            .help = "Number of mlq lanes: worth-it adds a lane while it pays, least-squares follows Chameleon (nearly "
                    "always 4)"});
  line.Add(InGroup(CountCachedFlag(flags.count_cached), group));
  line.Add({.names = "--length-predictor",
            .target = &flags.length_predictor,
            .unit = "NAME",
            .group = group,
            .help = "Source of predicted output lengths: history (per adapter, kept in --state-dir), proxy (a model "
                    "that reads the prompt) or none"});
  line.Add({.names = "--length-proxy",
            .target = &flags.length_proxy,
            .unit = "DIR",
            .group = group,
            .help = "Model of the proxy: a Hugging Face BertForSequenceClassification over ranges of output tokens"});
  AddConstantFlags(line, flags.constants);
}

Status ApplyScheduleFlags(const ScheduleFlags& flags, RuntimeOptions& options) {
  if (!flags.schedule.empty()) options.queue.name = flags.schedule;
  if (!flags.request_size.empty()) {
    ASSIGN_OR_RETURN(options.queue.lanes.form, SizeForm(flags.request_size));
  }
  ASSIGN_OR_RETURN(options.queue.lanes.count_rule, CountRule(flags.lane_count));
  ASSIGN_OR_RETURN(options.constants, ConstantsOf(flags.constants));
  options.length_predictor = flags.length_predictor;
  if ((flags.length_predictor == "proxy") == flags.length_proxy.empty()) {
    return InvalidArgument("--length-proxy: expected a directory with --length-predictor proxy, and with no other",
                           "--length-proxy");
  }
  return Ok{};
}

}  // namespace loramux
