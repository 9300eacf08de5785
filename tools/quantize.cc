#include "tools/quantize.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "formats/file.h"
#include "kernels/thread_pool.h"
#include "model/text_quality.h"
#include "model/write_quantised.h"
#include "report/progress_bar.h"
#include "text/tokenizer.h"
#include "tools/model_flags.h"
#include "tools/runtime_flags.h"
#include "tools/sample_text.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;
constexpr std::int64_t kWindow = 512;

struct QuantizeFlags : RuntimeFlags {
  std::string output;
  std::string compare;  // a model to measure in place of one that is written; empty: none
  std::string text;     // a file; empty: kSampleText
  std::int64_t tokens = 1024;
  bool check = true, json = false;
};

// What the command found; `quality` without --no-check.
struct Outcome {
  std::int64_t bytes_before = 0, bytes_after = 0;
  std::int64_t tokens = 0;
  std::optional<TextQuality> quality;
};

void AddQuantizeFlags(CommandLine& line, QuantizeFlags& flags) {
  AddModelFlags(line, flags);
  flags.weights = "q4";
  line.Add({.names = "-o,--output",
            .target = &flags.output,
            .unit = "DIR",
            .help = "The folder to write; new or empty",
            .excludes = "--compare",
            .common = true});
  line.Add({.names = "--compare",
            .target = &flags.compare,
            .unit = "MODEL",
            .help = "Write nothing: measure this model, in any format, against the original"});
  line.Add({.names = "--weights",
            .target = &flags.weights,
            .unit = "FORMAT",
            .help = "Format of the layers' weights: q8 (8 bits) or q4 (4 bits)",
            .choices = {"q8", "q4"},
            .common = true});
  line.Add({.names = "--embedding-weights",
            .target = &flags.embedding_weights,
            .unit = "FORMAT",
            .help = "Format of the embeddings and the output matrix: q8, q4, bf16, f16 or f32",
            .default_text = "q8"});
  line.Add({.names = "--text",
            .target = &flags.text,
            .unit = "FILE",
            .help = "Text to measure the error on, best of the kind that the model will see",
            .default_text = "a page of prose, letters, sums and code",
            .common = true});
  line.Add({.names = "--tokens",
            .target = &flags.tokens,
            .unit = "N",
            .help = "Tokens of the text to measure on. Each takes 4 bytes of memory for each entry of the vocabulary"});
  line.Add({.names = "--check,!--no-check",
            .target = &flags.check,
            .help = "Measure the error against the original",
            .default_text = "on"});
  line.Add({.names = "--threads", .target = &flags.options.threads, .unit = "N", .help = "Threads; 0: all processors"});
  line.Add({.names = "--json", .target = &flags.json, .help = "Print the result as a JSON object"});
}

Result<std::vector<TokenId>> TokensOf(const QuantizeFlags& flags) {
  std::string text(kSampleText);
  if (!flags.text.empty()) {
    ASSIGN_OR_RETURN(text, ReadTextFile(flags.text, kMaxTextBytes));
  }
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(flags.text_directory()));
  ASSIGN_OR_RETURN(std::vector<TokenId> tokens, tokenizer.Encode(text, /*add_special_tokens=*/true));
  if (tokens.size() < 16) {
    return InvalidArgument("--text: expected a text of at least 16 tokens, found " + std::to_string(tokens.size()),
                           "--text");
  }
  tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(flags.tokens)));
  return tokens;
}

// The logits of the model in a directory. `bytes` receives what its weights take in memory.
Result<TextLogits> LogitsOf(const fs::path& directory, const std::vector<TokenId>& tokens, int threads,
                            const std::string& title, std::int64_t& bytes) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, Model::Load(directory, {}, nullptr));
  for (const TokenId token : tokens) {
    if (token < 0 || token >= model->config().vocab_size) {
      return InvalidArgument("the tokenizer gives the token " + std::to_string(token) +
                             ", but the model has a vocabulary of " + std::to_string(model->config().vocab_size));
    }
  }
  bytes = WeightBytes(model->weights());
  ProgressBar bar(title, "tokens", 1);
  const std::int64_t window = std::min(kWindow, model->config().MostPositions());
  TextLogits logits = ComputeTextLogits(*model, tokens, window, threads > 0 ? threads : AvailableProcessors(),
                                        [&](std::int64_t done, std::int64_t total) { bar.Update(done, total); });
  bar.Finish();
  return logits;
}

Result<Outcome> Quantize(QuantizeFlags& flags) {
  RETURN_IF_ERROR(FetchModel(flags));
  if (flags.tokens < 16 || flags.tokens > (1 << 20)) {
    return InvalidArgument("--tokens: expected 16 to 1048576, found " + std::to_string(flags.tokens), "--tokens");
  }
  if (flags.output.empty() && flags.compare.empty()) {
    return InvalidArgument("expected --output DIR, the folder to write, or --compare MODEL, found neither", "--output");
  }
  ASSIGN_OR_RETURN(const WeightOptions options, WeightOptionsOf(flags));
  if (flags.compare.empty()) RETURN_IF_ERROR(CheckQuantisedDirectory(flags.output));
  Outcome outcome;
  std::vector<TokenId> tokens;
  TextLogits before;
  // One model at a time is in memory.
  if (flags.check) {
    ASSIGN_OR_RETURN(tokens, TokensOf(flags));
    ASSIGN_OR_RETURN(before,
                     LogitsOf(flags.model_dir, tokens, flags.options.threads, "original", outcome.bytes_before));
  }
  if (flags.compare.empty()) {
    ProgressBar bar("quantising", "MiB", 1 << 20);
    RETURN_IF_ERROR(WriteQuantisedModel(flags.model_dir, flags.output, options,
                                        [&](std::int64_t done, std::int64_t total) { bar.Update(done, total); }));
    bar.Finish();
  }
  if (!flags.check) return outcome;
  const std::string& quantised = flags.compare.empty() ? flags.output : flags.compare;
  ASSIGN_OR_RETURN(const TextLogits after,
                   LogitsOf(quantised, tokens, flags.options.threads, "quantised", outcome.bytes_after));
  if (after.vocab != before.vocab) {
    return InvalidArgument("--compare: expected a model with a vocabulary of " + std::to_string(before.vocab) +
                               ", found " + std::to_string(after.vocab),
                           "--compare");
  }
  outcome.quality = CompareTexts(before, after);
  outcome.tokens = static_cast<std::int64_t>(before.targets.size());
  return outcome;
}

void Print(const QuantizeFlags& flags, const Outcome& outcome) {
  if (flags.compare.empty()) fmt::print("wrote {}: serve it with `loramux serve {}`\n", flags.output, flags.output);
  if (!outcome.quality) return;
  const TextQuality& q = *outcome.quality;
  fmt::print("  weights in memory     {} -> {}\n", FormatBytes(outcome.bytes_before), FormatBytes(outcome.bytes_after));
  fmt::print("  perplexity            {:.4f} -> {:.4f} ({:+.2f} %)\n", q.perplexity_before, q.perplexity_after,
             100 * (q.perplexity_after / q.perplexity_before - 1));
  fmt::print("  KL divergence         {:.5f} nats a token, below {:.5f} for 99 % of them\n", q.mean_divergence,
             q.high_divergence);
  fmt::print("  same likeliest token  {:.2f} %\n", 100 * q.same_top);
  fmt::print("measured on {} tokens of {}\n", outcome.tokens, flags.text.empty() ? "the built-in text" : flags.text);
}

void PrintJson(const QuantizeFlags& flags, const Outcome& outcome) {
  nlohmann::ordered_json out = {{"model", flags.compare.empty() ? flags.output : flags.compare}};
  if (outcome.quality) {
    const TextQuality& q = *outcome.quality;
    out["bytes_before"] = outcome.bytes_before;
    out["bytes_after"] = outcome.bytes_after;
    out["tokens"] = outcome.tokens;
    out["perplexity_before"] = q.perplexity_before;
    out["perplexity_after"] = q.perplexity_after;
    out["kl_divergence_mean"] = q.mean_divergence;
    out["kl_divergence_p99"] = q.high_divergence;
    out["same_top"] = q.same_top;
  }
  fmt::print("{}\n", out.dump(2));
}

int RunQuantize(QuantizeFlags& flags) {
  const auto outcome = Quantize(flags);
  if (!outcome.ok()) return FailCommand("quantize", outcome.error());
  if (flags.json) {
    PrintJson(flags, *outcome);
  } else {
    Print(flags, *outcome);
  }
  return 0;
}

}  // namespace

Command QuantizeCommand() {
  const auto flags = std::make_shared<QuantizeFlags>();
  Command command{.name = "quantize",
                  .summary = "Write a model with weights in 8 or 4 bits, and measure what it costs"};
  AddQuantizeFlags(command.line, *flags);
  command.run = [flags] { return RunQuantize(*flags); };
  return command;
}

}  // namespace loramux
