// One completion request from its body to its response, without the sockets: parse, resolve the model, render the
// template, tokenize, submit, collect. HTTP and threads are openai_service.h's business.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/registry.h"
#include "base/clock.h"
#include "base/prng.h"
#include "server/access.h"
#include "server/access_line.h"
#include "server/adapter_finder.h"
#include "server/admission.h"
#include "server/choice_stream.h"
#include "server/generation_inbox.h"
#include "server/generation_service.h"
#include "server/length_guesser.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace loramux {

// Random bits for ids and for requests without a seed. Thread-safe.
class SeedSource {
 public:
  explicit SeedSource(std::uint64_t seed) : prng_(seed) {}
  std::uint64_t Next() {
    const std::lock_guard lock(mutex_);
    return prng_.Next();
  }

 private:
  std::mutex mutex_;
  Prng prng_;
};

// Names the tenant of a request (schedule/fairness.h); at most kMaxTenantBytes.
inline constexpr std::string_view kFairnessHeader = "x-gateway-inference-fairness-id";
inline constexpr std::size_t kMaxTenantBytes = 256;

// What requests are served from. Owns nothing; everything must outlive the jobs.
struct ServingContext {
  const Clock* clock = nullptr;
  GenerationService* generation = nullptr;
  const AdapterRegistry* registry = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: chat requests are refused
  SeedSource* seeds = nullptr;
  ServerMetrics* metrics = nullptr;        // null: nothing is counted
  Admission* admission = nullptr;          // null: everything is let in
  AdapterFinder* finder = nullptr;         // null: only registered adapters are served; it may block
  const ApiKey* caller = nullptr;          // of this request; null: no API keys are configured
  const LengthGuesser* lengths = nullptr;  // null: nobody guesses from the text how long an answer gets
  // when this HTTP request was; a deadline counts from it. Absent: at Prepare
  std::optional<TimeNs> received = {};
};

// The seed of the i-th choice of a prompt: the request's own for the first, unrelated streams for the others.
std::uint64_t ChoiceSeed(std::uint64_t seed, std::int32_t choice);

// Movable, not thread-safe.
class CompletionJob {
 public:
  // Parses and tokenizes; takes time in proportion to the body, so call it off the I/O threads. Errors are for the
  // client. `tenant`, from a header, names whose share of the server the request takes (empty: its adapter's).
  static Result<CompletionJob> Prepare(const ServingContext& context, Endpoint endpoint, std::string_view body,
                                       std::string_view tenant = {});

  CompletionJob(CompletionJob&&) = default;
  CompletionJob& operator=(CompletionJob&&) = delete;
  // Cancels what still runs.
  ~CompletionJob();

  bool stream() const { return request_.stream; }
  const std::string& id() const { return head_.id; }
  const std::string& model() const { return request_.model; }

  // From now on every choice is counted there; its HTTP request was received at `received`.
  // REQUIRES: comes before Submit.
  void Count(ServerMetrics* metrics, TimeNs received);
  // Submits every choice; events go to `inbox`. On error nothing stays submitted. REQUIRES: not called before.
  Status Submit(std::shared_ptr<GenerationInbox> inbox);

  // Takes in what arrived; cancels sequences that a stop string has ended. Error: the response cannot be completed.
  Status Apply(const std::vector<TokenEvent>& events);
  // Every choice is complete.
  bool finished() const;

  // Streaming: the events of everything new since the last call; at the end with usage, if asked for, and [DONE].
  std::string TakeEvents();
  // Not streaming: the whole body. REQUIRES: finished().
  std::string TakeBody();

  // What the log says of it: the model's name, tokens and how the choices ended.
  CompletionSummary Summary() const;

  // Ends all sequences that still run.
  void Cancel();

 private:
  struct Choice {
    ChoiceStream stream;
    GenerationRequest request;  // moved out by Submit
    RequestId id;
    bool submitted = false;
    bool role_sent = false;
    bool started = false;  // it has its first token
    SequenceMetrics metrics = {};
  };

  CompletionJob(const ServingContext& context, OpenAiRequest request);
  Status BuildPrompts(const ServingContext& context);
  Status AddChatPrompt(const ServingContext& context);
  Status AddPrompt(const ServingContext& context, const Prompt& prompt);
  // How long the next prompt's answer gets; 0: it is not wanted, or cannot be told.
  bool WantsGuess(const ServingContext& context) const;
  std::int32_t Guess(const ServingContext& context, std::string_view text) const;
  std::int32_t GuessOfTokens(const ServingContext& context, std::span<const TokenId> tokens) const;
  Status AddChoices(const ServingContext& context, std::vector<TokenId> tokens, const std::string& echo,
                    std::int32_t guess);
  GenerationRequest MakeRequest(const ServingContext& context, const std::vector<TokenId>& tokens,
                                std::int32_t choice) const;
  void AppendEvents(Choice& choice, std::string& events);
  Usage TotalUsage() const;

  GenerationService* generation_;
  OpenAiRequest request_;
  TimeNs received_ = 0;
  ResponseHead head_;
  std::uint64_t seed_ = 0;
  std::string tenant_;
  std::shared_ptr<const AdapterVersion> adapter_;  // null: the base model
  AdmissionTicket ticket_;
  std::vector<Choice> choices_;          // prompt by prompt, n each
  std::unique_ptr<EventWriter> writer_;  // if streaming
};

}  // namespace loramux
