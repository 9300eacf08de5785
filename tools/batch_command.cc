#include "tools/batch_command.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "base/log.h"
#include "http/random_source.h"
#include "report/progress_bar.h"
#include "server/adapters/adapter_finder.h"
#include "server/batch/batch_format.h"
#include "server/batch/batch_run.h"
#include "server/completion/answer_plan.h"
#include "server/generation/engine_service.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "tools/output_flags.h"
#include "tools/request_parts.h"
#include "tools/runtime_flags.h"

namespace loramux {
namespace {

// The exit status if everything was answered, but some answers are errors.
constexpr int kSomeFailed = 3;

struct BatchFlags {
  RuntimeFlags runtime;
  std::string input, output;
  std::int64_t concurrency = 0;  // 0: twice --max-num-seqs
  std::string generation_config = "auto";
  std::string pooling = "auto";
  std::vector<std::string> tool_call_parsers, reasoning_parsers;
};

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

Result<File> OpenInput(const BatchFlags& flags) {
  std::error_code ignored;
  if (std::filesystem::equivalent(flags.input, flags.output, ignored)) {
    return InvalidArgument("--output: expected another file than the input, found the same", "--output");
  }
  File file(std::fopen(flags.input.c_str(), "re"), std::fclose);
  if (file == nullptr) return Error{ErrorCode::kIoError, flags.input + ": " + std::strerror(errno), flags.input};
  return file;
}

// The lines of a file that are not blank, for the progress bar; leaves the file at its beginning.
std::int64_t CountLines(std::FILE* file) {
  LineReader reader(file);
  std::string line;
  std::int64_t lines = 0;
  while (reader.Next(line)) lines += line.find_first_not_of(" \t\r") == std::string::npos ? 0 : 1;
  std::rewind(file);
  return lines;
}

// The bar, with what a person wants to know beside it.
class BatchBar {
 public:
  BatchBar(std::int64_t lines, const Clock& clock) : lines_(lines), clock_(clock), start_(clock.Now()) {}

  void Update(const BatchProgress& progress) {
    const double seconds = static_cast<double>(clock_.Now() - start_) / kNsPerSecond;
    const double rate = seconds > 0 ? static_cast<double>(progress.tokens) / seconds : 0;
    bar_.Note(fmt::format("{:.0f} tokens/s{}", rate,
                          progress.failed > 0 ? fmt::format(", {} failed", progress.failed) : std::string()));
    bar_.Update(progress.lines, std::max(lines_, progress.lines));
  }
  void Finish() { bar_.Finish(); }

 private:
  const std::int64_t lines_;
  const Clock& clock_;
  const TimeNs start_;
  ProgressBar bar_{"requests", "", 1};
};

// What is read before the weights are.
struct EarlyParts {
  Tokenizer tokenizer;
  ChatTemplates templates;
  RequestDefaults defaults;
};

Result<EarlyParts> ReadEarlyParts(const BatchFlags& flags) {
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(flags.runtime.text_directory()));
  ASSIGN_OR_RETURN(ChatTemplates templates, LoadChatTemplates(flags.runtime, BaseNamesOf(flags.runtime)));
  ASSIGN_OR_RETURN(RequestDefaults defaults, RequestDefaultsOf(flags.generation_config, flags.runtime.model_dir));
  return EarlyParts{std::move(tokenizer), std::move(templates), std::move(defaults)};
}

// Adds adapters up for requests that ask for several. All adapters are registered.
class Composer final : public AdapterFinder {
 public:
  explicit Composer(Runtime& runtime) : runtime_(runtime) {}
  Result<std::shared_ptr<const AdapterVersion>> Find(std::string_view name) override { return UnknownModel(name); }
  std::vector<OfferedAdapter> Offered() override { return {}; }
  Result<std::shared_ptr<const AdapterVersion>> Compose(const std::vector<WeightedAdapter>& parts) override {
    return runtime_.registry().Compose(parts, runtime_.clock().UnixSeconds());
  }

 private:
  Runtime& runtime_;
};

Result<BatchProgress> RunOn(Runtime& runtime, const BatchFlags& flags, const EarlyParts& early, std::FILE* input,
                            BatchOutput& output) {
  ASSIGN_OR_RETURN(const EmbeddingOptions embeddings, EmbeddingOptionsOf(flags.pooling, flags.runtime.model_dir));
  const std::unique_ptr<GrammarCompiler> grammars = MakeGrammarCompiler(early.tokenizer, runtime);
  ASSIGN_OR_RETURN(const OutputFormatTable formats,
                   ReadOutputFormats(early.templates.served(), flags.tool_call_parsers, flags.reasoning_parsers));
  EngineService service(&runtime.engine());
  SeedSource seeds(0);
  Composer composer(runtime);
  const LengthGuesser lengths;  // no guesses
  Admission admission(QuotaTable(), /*max_queued=*/0);
  PrefixMemory prefixes;
  const ServingContext context = {.clock = &runtime.clock(),
                                  .generation = &service,
                                  .registry = &runtime.registry(),
                                  .tokenizer = &early.tokenizer,
                                  .chat_template = &early.templates.served(),
                                  .seeds = &seeds,
                                  .admission = &admission,
                                  .finder = &composer,
                                  .lengths = &lengths,
                                  .grammars = grammars.get(),
                                  .defaults = &early.defaults,
                                  .formats = &formats,
                                  .embeddings = &embeddings,
                                  .prefixes = &prefixes};
  BatchBar bar(CountLines(input), runtime.clock());
  SystemSpec spec;
  RETURN_IF_ERROR(flags.runtime.settings.ApplyTo(spec));
  BatchRunOptions options;
  options.text = TextLimitsOf(runtime.max_model_len());
  options.max_jobs = flags.concurrency > 0 ? flags.concurrency : 2 * spec.max_running;
  options.progress = [&bar](const BatchProgress& progress) { bar.Update(progress); };
  auto progress = RunBatch(context, options, input, output);
  bar.Finish();
  return progress;
}

// Returns the number of failed lines in the output, those of earlier runs too.
Result<std::int64_t> RunWholeBatch(BatchFlags flags) {
  RETURN_IF_ERROR(CheckOutputFlags(flags.tool_call_parsers, flags.reasoning_parsers));
  RETURN_IF_ERROR(OpenDeviceOf(flags.runtime));
  RETURN_IF_ERROR(FetchNamed(flags.runtime));
  ASSIGN_OR_RETURN(const File input, OpenInput(flags));
  ASSIGN_OR_RETURN(const std::unique_ptr<BatchOutput> output, BatchOutput::Open(flags.output));
  ASSIGN_OR_RETURN(EarlyParts early, ReadEarlyParts(flags));
  AdapterTextOptions text = AdapterTextOptionsOf(flags.runtime, early.tokenizer, early.templates);
  text.defaults = DefaultsOfAdapters(flags.generation_config, early.defaults);
  AdapterTextReader texts(std::move(text));
  ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime, StartRuntime(flags.runtime, texts.Hook()));
  early.defaults.speculates = runtime->speculates();
  runtime->Start();
  const auto progress = RunOn(*runtime, flags, early, input.get(), *output);
  runtime->Stop();
  const Status closed = output->Close();
  if (!progress.ok()) return progress.error();
  if (!closed.ok()) return closed.error();
  const std::int64_t failed = progress->failed + output->failed_before();
  fmt::print(stderr, "{}: {} lines, {} of them from earlier runs; {} failed; {} tokens generated\n", flags.output,
             progress->lines, progress->skipped, failed, progress->tokens);
  return failed;
}

int RunBatchCommand(const BatchFlags& flags) {
  const auto failed = RunWholeBatch(flags);
  if (failed.ok()) return *failed == 0 ? 0 : kSomeFailed;
  fmt::print(stderr, "loramux batch: {}\n", failed.error().message);
  return 1;
}

void AddBatchFlags(CommandLine& line, BatchFlags& flags) {
  line.Add({.names = "input",
            .target = &flags.input,
            .unit = "FILE",
            .help = "Requests, one a line: JSON {\"custom_id\", \"method\", \"url\", \"body\"} as in OpenAI's batches",
            .path = FlagPath::kExistingFile,
            .required = true});
  AddRuntimeFlags(line, flags.runtime);
  AddDeviceFlag(line, flags.runtime);
  flags.runtime.log_level = "warn";
  line.Add({.names = "-o,--output",
            .target = &flags.output,
            .unit = "FILE",
            .help = "Where the answers go, one a line. A file that exists is continued: requests that it answers are "
                    "not asked again",
            .required = true});
  line.Add({.names = "--concurrency",
            .target = &flags.concurrency,
            .unit = "N",
            .group = "Batching",
            .help = "Requests in work at a time",
            .default_text = "twice --max-num-seqs",
            .range = {{1, 1 << 20}}});
  line.Add(GenerationConfigFlag(flags.generation_config));
  line.Add(PoolingFlag(flags.pooling));
  AddOutputFlags(line, flags.tool_call_parsers, flags.reasoning_parsers);
  line.set_footer(
      "The exit status is 0 if every line was answered, 3 if some answers are errors, and 1 if the run could not end.");
}

}  // namespace

Command BatchCommand() {
  const auto flags = std::make_shared<BatchFlags>();
  Command command{.name = "batch", .summary = "Answer a file of requests, without a server"};
  AddBatchFlags(command.line, *flags);
  command.run = [flags] { return RunBatchCommand(*flags); };
  return command;
}

}  // namespace loramux
