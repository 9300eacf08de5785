#include "tools/bench/flags.h"

#include <filesystem>

#include <fmt/format.h>

namespace loramux::load {
namespace {

constexpr double kMax = 1e9;

void AddServerFlags(CLI::App& command, BenchFlags& flags) {
  const std::string group = "Server";
  command.add_option("--url", flags.url, "Where it listens; https too")->group(group)->capture_default_str();
  command.add_option("--model", flags.model, "Name of the base model (default: the first of /v1/models)")->group(group);
  command.add_option("--endpoint", flags.endpoint, "chat or completions")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::IsMember({"chat", "completions"}));
  command.add_flag("--no-stream", flags.no_stream, "Ask for whole answers; only end-to-end times are measured")
      ->group(group);
  command.add_option("--api-key", flags.api_key, "Sent as a bearer token (visible to other users of this machine)")
      ->group(group);
  command.add_option("--api-key-file", flags.api_key_file, "File with the key on its first line")
      ->group(group)
      ->check(CLI::ExistingFile);
  command.add_option("--header", flags.headers, "Another header, 'Name: value'; may be repeated")
      ->group(group)
      ->allow_extra_args(false);
  command.add_option("--timeout", flags.timeout_s, "Seconds for one request, from connecting to its last byte")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(0.001, 86400.0));
  command.add_flag("--insecure", flags.insecure, "Do not check the server's certificate")->group(group);
}

void AddLoadFlags(CLI::App& command, BenchFlags& flags) {
  const std::string group = "Load: open loop (--rate or --trace) or closed loop (--concurrency)";
  command
      .add_option("--rate", flags.rate,
                  "Requests a second on average, arriving at random (Poisson); with --trace: its average "
                  "is scaled to this")
      ->group(group)
      ->check(CLI::Range(1e-6, 1e6));
  command
      .add_option("--trace", flags.trace,
                  "Replay arrivals: a CSV TIMESTAMP,ContextTokens,GeneratedTokens (Azure), JSON lines "
                  "(*.jsonl, Mooncake), or a folder of ServeGen clients")
      ->group(group)
      ->check(CLI::ExistingPath);
  command.add_option("--trace-start", flags.trace_start_s, "Seconds of the trace to skip")
      ->group(group)
      ->check(CLI::Range(0.0, kMax));
  command.add_option("--time-scale", flags.time_scale, "Multiplies the trace's times: 0.1 is ten times as fast")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(1e-6, 1e6));
  command.add_option("--length-scale", flags.length_scale, "Multiplies the trace's token counts")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(1e-6, 1e6));
  command
      .add_option("--concurrency", flags.concurrency,
                  "So many at once, each sending its next when it has its answer (default: 8)")
      ->group(group)
      ->check(CLI::Range(1, 100'000));
  command
      .add_option("--num-requests", flags.num_requests,
                  "End after so many (with --turns: sessions; default: 100, or the whole trace)")
      ->group(group)
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{20'000'000}));
  command.add_option("--duration", flags.duration_s, "Send nothing new after so many seconds; what runs is waited for")
      ->group(group)
      ->check(CLI::Range(0.001, kMax));
  command.add_option("--seed", flags.seed, "The same seed sends the same requests at the same times")
      ->group(group)
      ->capture_default_str();
}

void AddAdapterFlags(CLI::App& command, BenchFlags& flags) {
  const std::string group = "Adapters";
  command.add_option("--adapters", flags.adapters, "Names to ask, separated by commas")
      ->group(group)
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_flag("--adapters-from-server", flags.adapters_from_server, "All that /v1/models lists with a parent")
      ->group(group);
  command
      .add_option("--adapter-distribution", flags.adapter_distribution,
                  "uniform; zipf: the first is the busiest; distinct: one after "
                  "the other; trace: by the trace's clients, the busiest first")
      ->group(group)
      ->capture_default_str();
  command.add_option("--zipf-s", flags.zipf_s, "Exponent of zipf")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(0.0, 20.0));
  command
      .add_option("--base-share", flags.base_share,
                  "Share of sessions that ask the base model (default: 0; 1 without adapters)")
      ->group(group)
      ->check(CLI::Range(0.0, 1.0));
  command.add_flag("--warmup", flags.warmup, "First ask every model once, unmeasured")->group(group);
}

void AddQuestionFlags(CLI::App& command, BenchFlags& flags) {
  const std::string group = "Questions: random words, or --tasks with known answers";
  command.add_option("--input-tokens", flags.input_tokens, "N, uniform:LOW:HIGH or exponential:MEAN")
      ->group(group)
      ->capture_default_str();
  command.add_option("--output-tokens", flags.output_tokens, "Likewise; asked for exactly (ignore_eos, min_tokens)")
      ->group(group)
      ->capture_default_str();
  command.add_flag("--stop-at-eos", flags.stop_at_eos, "Let answers end early")->group(group);
  command.add_option("--max-input-tokens", flags.max_input_tokens, "Cut longer ones, of a trace for example")
      ->group(group)
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100'000'000}));
  command.add_option("--max-output-tokens", flags.max_output_tokens, "Likewise")
      ->group(group)
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100'000'000}));
  command
      .add_option("--prefix-tokens", flags.prefix_tokens,
                  "A system message of this length, the same for all sessions of a model")
      ->group(group)
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{10'000'000}));
  command
      .add_option("--tasks", flags.tasks,
                  "Folder of ADAPTER.jsonl (base.jsonl: the base model) with lines {\"prompt\", \"answer\"}; "
                  "an answer that is not exactly that counts as failed")
      ->group(group)
      ->check(CLI::ExistingDirectory);
  command.add_option("--answer-tokens", flags.answer_tokens, "max_tokens with --tasks")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}));
  command.add_option("--turns", flags.turns, "Of each session; every turn sends the whole dialogue so far")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command.add_option("--think-time", flags.think_s, "Seconds between an answer and the next turn")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
  command.add_option("--temperature", flags.temperature, "Of the sampling; 0: the likeliest token")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(0.0, 10.0));
}

void AddResultFlags(CLI::App& command, BenchFlags& flags) {
  const std::string group = "Result";
  command
      .add_option("--slo-ttft", flags.slo_ttft_ms, "Goodput counts requests whose first token came within so many ms")
      ->group(group)
      ->check(CLI::Range(1e-3, kMax));
  command.add_option("--slo-tpot", flags.slo_tpot_ms, "... and whose later tokens took at most so many ms on average")
      ->group(group)
      ->check(CLI::Range(1e-3, kMax));
  command.add_option("--json", flags.json, "Write the result to this file")->group(group);
  command.add_flag("--json-requests", flags.json_requests, "With a record for every request")->group(group);
  command.add_option("--html", flags.html, "Write a report with plots: one file, nothing loaded from elsewhere")
      ->group(group);
  command.add_flag("--no-progress", flags.no_progress, "No progress bar")->group(group);
  command
      .add_option("--compare", flags.compare,
                  "Sets two earlier results side by side (and into --html) instead of running")
      ->group(group)
      ->expected(2)
      ->type_name("A.json B.json");
  command.add_option("--from", flags.from, "Shows an earlier result again (and writes --html) instead of running")
      ->group(group)
      ->check(CLI::ExistingFile);
}

}  // namespace

void AddBenchFlags(CLI::App& command, BenchFlags& flags) {
  AddServerFlags(command, flags);
  AddLoadFlags(command, flags);
  AddAdapterFlags(command, flags);
  AddQuestionFlags(command, flags);
  AddResultFlags(command, flags);
  command.footer(
      "Examples:\n"
      "  Is every adapter right, 16 requests at once?\n"
      "    loramux bench --tasks demo/eval --concurrency 16 --num-requests 500\n"
      "  How much load within half a second to the first token? (Open loop: slow answers do not slow the arrivals.)\n"
      "    loramux bench --rate 8 --duration 60 --adapters-from-server --adapter-distribution zipf --slo-ttft 500 "
      "--html run.html\n"
      "  Recorded traffic, ten times as fast, at a quarter of its lengths\n"
      "    loramux bench --trace AzureLLMInferenceTrace_conv.csv --time-scale 0.1 --length-scale 0.25 --duration 120\n"
      "  Conversations of five turns\n"
      "    loramux bench --concurrency 8 --turns 5 --think-time 1 --adapters a,b,c\n"
      "  Before and after\n"
      "    loramux bench --compare before.json after.json --html both.html\n"
      "The exit status is 0 only if every request was answered, and rightly where that can be told; 2 if some failed.");
}

Status CompleteFlags(BenchFlags& flags) {
  if (flags.open_loop() && flags.concurrency > 0) {
    return InvalidArgument("--concurrency is a closed loop, --rate and --trace are open loops: give one of them");
  }
  if (flags.trace.empty() && (flags.time_scale != 1 || flags.length_scale != 1 || flags.trace_start_s > 0)) {
    return InvalidArgument("--time-scale, --length-scale and --trace-start need --trace");
  }
  if (!flags.adapters.empty() && flags.adapters_from_server) {
    return InvalidArgument("--adapters and --adapters-from-server: give one of them");
  }
  if (flags.endpoint == "completions" && !flags.tasks.empty()) {
    return InvalidArgument("--tasks asks by chat: leave --endpoint completions away");
  }
  if (flags.no_stream && (flags.slo_ttft_ms > 0 || flags.slo_tpot_ms > 0)) {
    return InvalidArgument("--slo-ttft and --slo-tpot need streams: leave --no-stream away");
  }
  if (flags.json_requests && flags.json.empty()) return InvalidArgument("--json-requests needs --json FILE");
  if (!flags.open_loop() && flags.concurrency == 0) flags.concurrency = 8;
  if (flags.num_requests == 0 && flags.duration_s == 0 && flags.trace.empty()) flags.num_requests = 100;
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
  return fmt::format("closed loop, {} at once", flags.concurrency);
}

}  // namespace loramux::load
