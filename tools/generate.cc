#include "tools/generate.h"

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "tools/request_parts.h"
#include "tools/runtime_flags.h"

namespace loramux {
namespace {

struct GenerateFlags {
  RuntimeFlags runtime;
  std::string prompt;
  std::string lora;    // name of the adapter; empty: the base model
  std::string system;  // system message of the chat
  bool raw = false;    // no chat template
  std::int32_t max_tokens = -1;
  float temperature = 0.0f, top_p = 1.0f, min_p = 0.0f, repetition_penalty = 1.0f;
  std::int32_t top_k = 0;
  std::uint64_t seed = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
};

// Events of the one request, handed from the engine's thread to ours.
class EventQueue {
 public:
  struct Item {
    TokenId token = -1;
    FinishReason finish = FinishReason::kNone;
    std::string error;
    TimeNs now = 0, arrival = 0;
    std::int32_t generated = 0;
  };
  void Push(const GenerationEvent& event) {
    Item item{event.token ? event.token->id : -1,
              event.finish,
              event.error ? event.error->message : "",
              event.now,
              event.arrival,
              event.generated_tokens};
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    condition_.notify_one();
  }
  Item Pop() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return !items_.empty(); });
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::deque<Item> items_;
};

Error NoTemplate() {
  return InvalidArgument("the model has no chat template: use --raw to complete the prompt as it is", "--raw");
}

// `chat`: of the model that answers; null: it has none.
Result<std::vector<TokenId>> EncodePrompt(const GenerateFlags& flags, const Tokenizer& tokenizer,
                                          const ChatTemplate* chat) {
  if (flags.raw) return tokenizer.Encode(flags.prompt, /*add_special_tokens=*/true);
  if (chat == nullptr) return NoTemplate();
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  messages.push_back({{"role", "user"}, {"content", flags.prompt}});
  const std::string context = nlohmann::ordered_json({{"messages", std::move(messages)}})
                                  .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const std::int64_t now = OsClock().UnixSeconds();
  ASSIGN_OR_RETURN(
      const std::string text,
      chat->Render(context, {.unix_seconds = now, .utc_offset = LocalOffset(now), .content = chat->content_format()}));
  return tokenizer.Encode(text, /*add_special_tokens=*/false);
}

// Prints the answer as it comes. Returns false if it ended with an error.
Status StreamAnswer(const GenerateFlags& flags, const Tokenizer& tokenizer, Engine& engine, RequestId id,
                    EventQueue& events) {
  IncrementalDetokenizer detokenizer(tokenizer, /*skip_special_tokens=*/true);
  StopStringMatcher stops(flags.stop, /*include_stop=*/false);
  TimeNs first = 0;
  const auto print = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  while (true) {
    const EventQueue::Item item = events.Pop();
    if (item.finish == FinishReason::kError) return Internal(item.error);
    bool stopped = false;
    if (item.token >= 0) {
      if (first == 0) first = item.now;
      ASSIGN_OR_RETURN(const std::string piece, detokenizer.Push(item.token));
      const StopStringMatcher::Output output = stops.Push(piece);
      print(output.text);
      stopped = output.stopped;
    }
    if (stopped) engine.Cancel(id);
    if (!stopped && item.finish == FinishReason::kNone) continue;
    if (!stopped) {
      ASSIGN_OR_RETURN(const std::string rest, detokenizer.Finish());
      print(stops.Push(rest).text + stops.Finish());
    }
    print("\n");
    const double decode_seconds = static_cast<double>(item.now - first) / kNsPerSecond;
    fmt::print(stderr, "[{} tokens, TTFT {:.1f} ms, {:.1f} tokens/s]\n", item.generated,
               static_cast<double>(first == 0 ? 0 : first - item.arrival) / kNsPerMs,
               item.generated > 1 && decode_seconds > 0 ? (item.generated - 1) / decode_seconds : 0.0);
    return Ok{};
  }
}

Status Generate(GenerateFlags flags) {
  RETURN_IF_ERROR(InitLogging(flags.runtime.log_level, flags.runtime.log_format));
  RETURN_IF_ERROR(OpenDeviceOf(flags.runtime));
  RETURN_IF_ERROR(FetchNamed(flags.runtime));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(flags.runtime.text_directory()));
  ASSIGN_OR_RETURN(const ChatTemplates templates, LoadChatTemplates(flags.runtime, BaseNamesOf(flags.runtime)));
  if (!flags.raw && flags.lora.empty() && templates.of_base() == nullptr) return NoTemplate();
  AdapterTextReader texts(AdapterTextOptionsOf(flags.runtime, tokenizer, templates));
  EventQueue events;  // outlives the engine's thread: Stop is called before it goes
  GenerationRequest request;
  ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime, StartRuntime(flags.runtime, texts.Hook()));
  std::shared_ptr<const AdapterVersion> version;
  if (!flags.lora.empty()) {
    ASSIGN_OR_RETURN(version, runtime->registry().Resolve(flags.lora));
  }
  if (version != nullptr) request.adapter = version->generation;
  if (version != nullptr && version->text != nullptr) request.eos_token_ids = version->text->end_tokens;
  ASSIGN_OR_RETURN(request.prompt, EncodePrompt(flags, tokenizer, TemplateOf(templates.of_base(), version.get())));
  request.sampling.temperature = flags.temperature;
  request.sampling.top_k = flags.top_k;
  request.sampling.top_p = flags.top_p;
  request.sampling.min_p = flags.min_p;
  request.sampling.repetition_penalty = flags.repetition_penalty;
  request.sampling.seed = flags.seed;
  request.max_tokens = flags.max_tokens;
  request.ignore_eos = flags.ignore_eos;
  request.on_event = [&events](const GenerationEvent& event) { events.Push(event); };
  runtime->Start();
  const Status status = [&]() -> Status {
    ASSIGN_OR_RETURN(const RequestId id, runtime->engine().Submit(std::move(request)));
    return StreamAnswer(flags, tokenizer, runtime->engine(), id, events);
  }();
  runtime->Stop();
  return status;
}

void AddGenerateFlags(CommandLine& line, GenerateFlags& flags) {
  AddRuntimeFlags(line, flags.runtime);
  AddDeviceFlag(line, flags.runtime);
  flags.runtime.log_level = "warn";
  const std::string sampling = "Sampling";
  line.Add({.names = "-p,--prompt",
            .target = &flags.prompt,
            .unit = "TEXT",
            .help = "The user's message; with --raw, the text to continue",
            .required = true,
            .common = true});
  line.Add({.names = "--lora",
            .target = &flags.lora,
            .unit = "NAME",
            .help = "Adapter to answer with, by its name in --lora-modules or --adapter-dir",
            .default_text = "none: the base model",
            .common = true});
  line.Add({.names = "--system",
            .target = &flags.system,
            .unit = "TEXT",
            .help = "System message of the chat",
            .common = true});
  line.Add({.names = "--raw", .target = &flags.raw, .help = "Continue the prompt as it is, without the chat template"});
  line.Add({.names = "-n,--max-tokens",
            .target = &flags.max_tokens,
            .unit = "TOKENS",
            .group = sampling,
            .help = "Output tokens",
            .default_text = "as many as fit",
            .common = true});
  line.Add({.names = "--temperature",
            .target = &flags.temperature,
            .unit = "T",
            .group = sampling,
            .help = "Sampling temperature; 0: greedy",
            .common = true});
  line.Add({.names = "--top-k",
            .target = &flags.top_k,
            .unit = "N",
            .group = sampling,
            .help = "Sample from the N likeliest tokens; 0: from all"});
  line.Add({.names = "--top-p",
            .target = &flags.top_p,
            .unit = "P",
            .group = sampling,
            .help = "Sample from the likeliest tokens whose probabilities add up to P"});
  line.Add({.names = "--min-p",
            .target = &flags.min_p,
            .unit = "P",
            .group = sampling,
            .help = "Leave out tokens less likely than P times the likeliest"});
  line.Add({.names = "--repetition-penalty",
            .target = &flags.repetition_penalty,
            .unit = "FACTOR",
            .group = sampling,
            .help = "Divide the scores of tokens that occurred before; 1: off"});
  line.Add({.names = "--seed",
            .target = &flags.seed,
            .unit = "N",
            .group = sampling,
            .help = "Seed of the sampling; the same seed gives the same answer"});
  line.Add({.names = "--stop",
            .target = &flags.stop,
            .unit = "TEXT",
            .group = sampling,
            .help = "Texts that end the answer"});
  line.Add({.names = "--ignore-eos",
            .target = &flags.ignore_eos,
            .group = sampling,
            .help = "Continue after the end-of-sequence token"});
}

int RunGenerate(const GenerateFlags& flags) {
  const Status status = Generate(flags);
  return status.ok() ? 0 : FailCommand("generate", status.error());
}

}  // namespace

Command GenerateCommand() {
  const auto flags = std::make_shared<GenerateFlags>();
  Command command{.name = "generate", .summary = "Answer one prompt, without a server"};
  AddGenerateFlags(command.line, *flags);
  command.run = [flags] { return RunGenerate(*flags); };
  return command;
}

}  // namespace loramux
