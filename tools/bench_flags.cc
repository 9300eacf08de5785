#include "tools/bench_flags.h"

#include <filesystem>

#include <fmt/format.h>

namespace loramux::load {
namespace {

constexpr double kMax = 1e9;

void AddServerFlags(CommandLine& line, BenchFlags& flags) {
  const std::string group = "Server";
  line.Add({.names = "--url",
            .target = &flags.url,
            .unit = "URL",
            .group = group,
            .help = "Address of the server, http or https"});
  line.Add({.names = "--model",
            .target = &flags.model,
            .unit = "NAME",
            .group = group,
            .help = "Name of the base model",
            .default_text = "the first of /v1/models"});
  line.Add({.names = "--endpoint",
            .target = &flags.endpoint,
            .unit = "NAME",
            .group = group,
            .help = "API to call: chat or completions",
            .choices = {"chat", "completions"}});
  line.Add({.names = "--no-stream",
            .target = &flags.no_stream,
            .group = group,
            .help = "Request answers without streaming; only end-to-end times are measured"});
  line.Add({.names = "--api-key",
            .target = &flags.api_key,
            .unit = "KEY",
            .group = group,
            .help = "Key sent as a bearer token; other users of this machine may see it",
            .secret = true});
  line.Add({.names = "--api-key-file",
            .target = &flags.api_key_file,
            .unit = "FILE",
            .group = group,
            .help = "File whose first line is the key",
            .path = FlagPath::kExistingFile});
  line.Add({.names = "--header",
            .target = &flags.headers,
            .unit = "NAME: VALUE",
            .group = group,
            .help = "Another request header. Repeatable",
            .one_value_each = true});
  line.Add({.names = "--timeout",
            .target = &flags.timeout_s,
            .unit = "SECONDS",
            .group = group,
            .help = "Time for one request, from connecting to its last byte",
            .range = {{0.001, 86400.0}}});
  line.Add({.names = "--insecure",
            .target = &flags.client.insecure,
            .group = group,
            .help = "Do not verify the server's certificate"});
}

void AddLoadFlags(CommandLine& line, BenchFlags& flags) {
  const std::string group = "Load: open loop (--rate or --trace) or closed loop (--concurrency)";
  line.Add({.names = "--rate",
            .target = &flags.rate,
            .unit = "REQUESTS/S",
            .group = group,
            .help = "Mean rate of Poisson arrivals; with --trace, its mean rate is scaled to this",
            .range = {{1e-6, 1e6}}});
  line.Add({.names = "--trace",
            .target = &flags.trace,
            .unit = "PATH",
            .group = group,
            .help = "Replay arrivals: CSV (Azure's, or your own with a header), Mooncake's JSON lines (*.jsonl), or a "
                    "folder of ServeGen clients",
            .path = FlagPath::kExistingPath});
  line.Add({.names = "--trace-start",
            .target = &flags.trace_start_s,
            .unit = "SECONDS",
            .group = group,
            .help = "Skip this much of the trace",
            .default_text = "0",
            .range = {{0.0, kMax}}});
  line.Add({.names = "--time-scale",
            .target = &flags.time_scale,
            .unit = "FACTOR",
            .group = group,
            .help = "Multiplies the trace's times: 0.1 is ten times as fast",
            .range = {{1e-6, 1e6}}});
  line.Add({.names = "--length-scale",
            .target = &flags.length_scale,
            .unit = "FACTOR",
            .group = group,
            .help = "Multiplies the trace's token counts",
            .range = {{1e-6, 1e6}}});
  line.Add({.names = "--concurrency",
            .target = &flags.run.concurrency,
            .unit = "N",
            .group = group,
            .help = "Requests in flight: each answer is followed by the next request",
            .default_text = "8",
            .range = {{1, 100'000}}});
  line.Add({.names = "--num-requests",
            .target = &flags.run.sessions,
            .unit = "N",
            .group = group,
            .help = "Requests to send (with --turns: sessions)",
            .default_text = "100, or the whole trace",
            .range = {{1, 20'000'000}}});
  line.Add({.names = "--duration",
            .target = &flags.run.duration_s,
            .unit = "SECONDS",
            .group = group,
            .help = "Send no new request after this time; running ones may finish",
            .range = {{0.001, kMax}}});
  line.Add({.names = "--seed",
            .target = &flags.sessions.seed,
            .unit = "N",
            .group = group,
            .help = "The same seed sends the same requests at the same times"});
}

void AddAdapterFlags(CommandLine& line, BenchFlags& flags) {
  const std::string group = "Adapters";
  line.Add({.names = "--adapters",
            .target = &flags.sessions.adapters,
            .unit = "NAME",
            .group = group,
            .help = "Adapters to send requests to, separated by commas",
            .comma_list = true,
            .one_value_each = true});
  line.Add({.names = "--adapters-from-server",
            .target = &flags.adapters_from_server,
            .group = group,
            .help = "Send requests to every adapter that /v1/models lists, but those with a head for classes"});
  line.Add({.names = "--adapter-distribution",
            .target = &flags.adapter_distribution,
            .unit = "NAME",
            .group = group,
            .help = "uniform; zipf (the first is the busiest); distinct (in turn); trace (by the trace's clients, the "
                    "busiest first)"});
  line.Add({.names = "--zipf-s",
            .target = &flags.sessions.zipf_exponent,
            .unit = "X",
            .group = group,
            .help = "Exponent of zipf",
            .range = {{0.0, 20.0}}});
  line.Add({.names = "--base-share",
            .target = &flags.base_share,
            .unit = "SHARE",
            .group = group,
            .help = "Share of sessions for the base model",
            .default_text = "0, or 1 without adapters",
            .range = {{0.0, 1.0}}});
  line.Add({.names = "--warmup",
            .target = &flags.warmup,
            .group = group,
            .help = "First send one unmeasured request to every model"});
}

void AddQuestionFlags(CommandLine& line, BenchFlags& flags) {
  const std::string group = "Questions: random words, or --tasks with known answers";
  line.Add({.names = "--input-tokens",
            .target = &flags.input_tokens,
            .unit = "LENGTH",
            .group = group,
            .help = "Prompt length: N, uniform:LOW:HIGH or exponential:MEAN"});
  line.Add({.names = "--output-tokens",
            .target = &flags.output_tokens,
            .unit = "LENGTH",
            .group = group,
            .help = "Output length in the same forms; requested exactly (ignore_eos, min_tokens)"});
  line.Add({.names = "--stop-at-eos", .target = &flags.stop_at_eos, .group = group, .help = "Let answers end early"});
  line.Add({.names = "--max-input-tokens",
            .target = &flags.sessions.max_input_tokens,
            .unit = "TOKENS",
            .group = group,
            .help = "Cut longer prompts, for example of a trace",
            .range = {{1, 100'000'000}}});
  line.Add({.names = "--max-output-tokens",
            .target = &flags.sessions.max_output_tokens,
            .unit = "TOKENS",
            .group = group,
            .help = "Cut longer outputs",
            .range = {{1, 100'000'000}}});
  line.Add({.names = "--prefix-tokens",
            .target = &flags.sessions.prefix_tokens,
            .unit = "TOKENS",
            .group = group,
            .help = "Length of a system message that all sessions of a model share",
            .range = {{1, 10'000'000}}});
  line.Add({.names = "--tasks",
            .target = &flags.tasks,
            .unit = "DIR",
            .group = group,
            .help = "Folder of ADAPTER.jsonl (base.jsonl for the base model) with lines {\"prompt\", \"answer\"}. An "
                    "answer that differs counts as failed",
            .path = FlagPath::kExistingDirectory});
  line.Add({.names = "--answer-tokens",
            .target = &flags.sessions.answer_tokens,
            .unit = "TOKENS",
            .group = group,
            .help = "max_tokens with --tasks",
            .range = {{1, 1'000'000}}});
  line.Add({.names = "--turns",
            .target = &flags.sessions.turns,
            .unit = "N",
            .group = group,
            .help = "Turns of a session; each one sends the whole dialogue so far",
            .range = {{1, 1000}}});
  line.Add({.names = "--think-time",
            .target = &flags.run.think_s,
            .unit = "SECONDS",
            .group = group,
            .help = "Time between an answer and the next turn",
            .range = {{0.0, 86400.0}}});
  line.Add({.names = "--temperature",
            .target = &flags.run.temperature,
            .unit = "T",
            .group = group,
            .help = "Sampling temperature; 0: greedy",
            .range = {{0.0, 10.0}}});
}

void AddResultFlags(CommandLine& line, BenchFlags& flags) {
  const std::string group = "Result";
  line.Add({.names = "--slo-ttft",
            .target = &flags.objective.ttft_ms,
            .unit = "MS",
            .group = group,
            .help = "TTFT objective: goodput counts requests that meet it",
            .range = {{1e-3, kMax}}});
  line.Add({.names = "--slo-tpot",
            .target = &flags.objective.tpot_ms,
            .unit = "MS",
            .group = group,
            .help = "TPOT objective: goodput counts requests whose mean is within it",
            .range = {{1e-3, kMax}}});
  line.Add({.names = "--json", .target = &flags.json, .unit = "FILE", .group = group, .help = "Write the result"});
  line.Add({.names = "--json-requests",
            .target = &flags.with_requests,
            .group = group,
            .help = "Add a record of every request to --json"});
  line.Add({.names = "--html",
            .target = &flags.html,
            .unit = "FILE",
            .group = group,
            .help = "Write a self-contained report with plots"});
  line.Add({.names = "--no-progress", .target = &flags.no_progress, .group = group, .help = "Show no progress bar"});
  line.Add({.names = "--compare",
            .target = &flags.compare,
            .unit = "A.json B.json",
            .group = group,
            .help = "Compare two earlier results (and write --html) instead of running",
            .exact_values = 2});
  line.Add({.names = "--from",
            .target = &flags.from,
            .unit = "FILE",
            .group = group,
            .help = "Show an earlier result again (and write --html) instead of running",
            .path = FlagPath::kExistingFile});
}

}  // namespace

void AddBenchFlags(CommandLine& line, BenchFlags& flags) {
  AddServerFlags(line, flags);
  AddLoadFlags(line, flags);
  AddAdapterFlags(line, flags);
  AddQuestionFlags(line, flags);
  AddResultFlags(line, flags);
  line.set_footer(
      "Examples:\n"
      "  Check the answers of all adapters with 16 requests at once\n"
      "    loramux bench --tasks demo/eval --concurrency 16 --num-requests 500\n"
      "  Measure which share of requests meets a TTFT objective of 500 ms (open loop: slow answers do not slow "
      "arrivals)\n"
      "    loramux bench --rate 8 --duration 60 --adapters-from-server --adapter-distribution zipf --slo-ttft 500 "
      "--html run.html\n"
      "  Replay recorded traffic ten times as fast, with a quarter of its lengths\n"
      "    loramux bench --trace AzureLLMInferenceTrace_conv.csv --time-scale 0.1 --length-scale 0.25 --duration 120\n"
      "  Hold conversations of five turns\n"
      "    loramux bench --concurrency 8 --turns 5 --think-time 1 --adapters a,b,c\n"
      "  Compare two results\n"
      "    loramux bench --compare before.json after.json --html both.html\n"
      "The exit status is 0 if every request was answered and every checked answer was right, and 2 if some failed.");
}

Status CompleteFlags(BenchFlags& flags) {
  if (flags.open_loop() && flags.run.concurrency > 0) {
    return InvalidArgument("--concurrency is a closed loop, --rate and --trace are open loops: give one of them");
  }
  if (flags.trace.empty() && (flags.time_scale != 1 || flags.length_scale != 1 || flags.trace_start_s > 0)) {
    return InvalidArgument("--time-scale, --length-scale and --trace-start need --trace");
  }
  if (!flags.sessions.adapters.empty() && flags.adapters_from_server) {
    return InvalidArgument("--adapters and --adapters-from-server: give one of them");
  }
  if (flags.endpoint == "completions" && !flags.tasks.empty()) {
    return InvalidArgument("--tasks needs the chat API: remove --endpoint completions");
  }
  if (flags.no_stream && (flags.objective.ttft_ms > 0 || flags.objective.tpot_ms > 0)) {
    return InvalidArgument("--slo-ttft and --slo-tpot need streamed answers: remove --no-stream");
  }
  if (flags.with_requests && flags.json.empty()) return InvalidArgument("--json-requests needs --json FILE");
  if (!flags.open_loop() && flags.run.concurrency == 0) flags.run.concurrency = 8;
  if (flags.run.sessions == 0 && flags.run.duration_s == 0 && flags.trace.empty()) flags.run.sessions = 100;
  return Ok{};
}

std::string DescribeLoad(const BenchFlags& flags) {
  if (!flags.trace.empty()) {
    std::string text = "open loop, trace " + std::filesystem::path(flags.trace).filename().string();
    if (flags.time_scale != 1) text += fmt::format(", times x {}", flags.time_scale);
    if (flags.length_scale != 1) text += fmt::format(", lengths x {}", flags.length_scale);
    return flags.rate > 0 ? text + fmt::format(", {} /s", flags.rate) : text;
  }
  if (flags.rate > 0) return fmt::format("open loop, {} /s at random", flags.rate);
  return fmt::format("closed loop, {} at once", flags.run.concurrency);
}

}  // namespace loramux::load
