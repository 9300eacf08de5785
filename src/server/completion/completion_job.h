// One completion request from its body to its response: parse, resolve the model, render the template, tokenize, submit
// and collect. completion_service.h adds HTTP and threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/registry.h"
#include "auth/access.h"
#include "auth/admission.h"
#include "auth/tenancy.h"
#include "base/clock.h"
#include "http/access_line.h"
#include "http/random_source.h"
#include "server/adapters/adapter_finder.h"
#include "server/completion/adapter_text.h"
#include "server/completion/answer_plan.h"
#include "server/completion/choice_output.h"
#include "server/completion/choice_stream.h"
#include "server/completion/completion_request.h"
#include "server/completion/dialect.h"
#include "server/completion/embedding_plan.h"
#include "server/completion/length_guesser.h"
#include "server/completion/model_choice.h"
#include "server/completion/prompt_limit.h"
#include "server/fleet/prefix_memory.h"
#include "server/generation/generation_inbox.h"
#include "server/generation/generation_service.h"
#include "server/metrics/metrics.h"
#include "text/chat_template.h"
#include "text/grammar/grammar_compiler.h"
#include "text/tokenizer.h"

namespace loramux {

// The most text and log-probabilities that the server collects for an answer that is not streamed.
inline constexpr std::size_t kMaxAnswerBytes = std::size_t{64} << 20;

// Stays false: for work that no client can leave.
inline constinit const std::atomic<bool> kNeverGone = false;

// What completion jobs work with. Owns nothing; everything must outlive the jobs. No pointer is null: a part that a
// server does not need does nothing, or refuses.
struct ServingContext {
  const Clock* clock = nullptr;
  GenerationService* generation = nullptr;
  const AdapterRegistry* registry = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;
  SeedSource* seeds = nullptr;  // seeds of requests that bring none
  Admission* admission = nullptr;
  AdapterFinder* finder = &NoFinder();  // finds adapters that are not registered; may block on the disk
  const LengthGuesser* lengths = nullptr;
  GrammarCompiler* grammars = nullptr;
  const RequestDefaults* defaults = nullptr;   // defaults of sampling and lengths
  const OutputFormatTable* formats = nullptr;  // forms of calls and reasoning
  const EmbeddingOptions* embeddings = nullptr;
  PrefixMemory* prefixes = nullptr;                            // is told the prompts that were computed
  std::int64_t max_sequences = RequestLimits().max_sequences;  // most sequences of a request: prompts times `n`
  PrefixSharing prefix_sharing = PrefixSharing::kAll;          // what GenerationRequest::prefix_domain says
  // What belongs to one request:
  const ApiKey* caller = &NoKey();
  std::string_view require_digest = {};  // the adapter's content must have this digest; empty: any will do
  // When the HTTP request was received; its deadline counts from then. nullopt: when it is parsed.
  std::optional<TimeNs> received = {};
  const std::atomic<bool>* gone =
      &kNeverGone;  // turns true once the client is gone: long work then stops with an error
  TimeNs ttft = 0;  // by which the first token is wanted, if the body has no `deadline_ms`; 0: no such time
};

// Returns the seed of choice number `choice` of a prompt: `seed` itself for choice 0, unrelated seeds for the others.
std::uint64_t ChoiceSeed(std::uint64_t seed, std::int32_t choice);

// Movable; not thread-safe.
class CompletionJob {
 public:
  // Parses a request. Then come Resolve and Build, once each and in this order; an error ends the job. The time of all
  // three grows with the body, so call them off the I/O threads. Errors are meant for the client. `fairness_id` is
  // HttpRequest::tenant (TenantName).
  static Result<CompletionJob> Parse(const ServingContext& context, const Dialect& dialect, std::string_view body,
                                     std::string_view fairness_id = {});
  // All three on this thread.
  static Result<CompletionJob> Prepare(const ServingContext& context, const Dialect& dialect, std::string_view body,
                                       std::string_view fairness_id = {});
  // Whether Resolve will not ask the finder, so that it does not block.
  bool registered() const;
  // Finds the version that serves the request, and admits the request.
  Status Resolve();
  // Whether Build will take much longer than other work: a grammar is to be compiled. REQUIRES: it is resolved.
  bool slow() const;
  // Renders and tokenizes the prompts.
  Status Build();

  CompletionJob(CompletionJob&&) = default;
  CompletionJob& operator=(CompletionJob&&) = delete;
  // Cancels the sequences that still run.
  ~CompletionJob();

  // What the client asked for, with what Resolve and Build have made of it: `model` is the name of the base model or
  // adapter that serves it, and the prompts are gone.
  const CompletionRequest& request() const { return request_; }
  // The answer's id, such as "chatcmpl-...".
  const std::string& id() const { return writer_->id(); }
  // The digest of that adapter's content; empty for the base model.
  std::string_view adapter_digest() const {
    return adapter_ == nullptr ? std::string_view() : std::string_view(adapter_->file.digest);
  }

  // WeightVersionOf that adapter; empty for the base model.
  std::string weight_version() const;

  // Makes `metrics` count every choice from now on; `received` is when the HTTP request was received. REQUIRES: Submit
  // was not called yet.
  void Count(ServerMetrics& metrics, TimeNs received);
  // Submits every choice; events go to `inbox`. On error no choice stays submitted. REQUIRES: not called before.
  Status Submit(std::shared_ptr<GenerationInbox> inbox);
  // Whether a choice was submitted, also if a later one was refused: the engine may have computed something.
  bool began() const { return began_; }

  // Applies events, and cancels sequences that a stop string has ended. Error: the response cannot be completed.
  // No more than kMaxAnswerBytes of an answer may be held.
  Status Apply(std::span<const GenerationEvent> events);
  // Returns about how many bytes of text and log-probabilities wait to be taken.
  std::size_t HeldBytes() const;
  // True if every choice is complete.
  bool finished() const;

  // Streaming: returns the server-sent events of all output since the last call, and at last those of the end.
  std::string TakeEvents();
  // Streaming: what else its API writes: the events that end it with an error, and what keeps an idle stream open.
  AnswerWriter& writer() { return *writer_; }
  // Not streaming: returns the whole body. REQUIRES: finished().
  std::string TakeBody();

  // Returns the fields for the access log: the model's name, tokens and finish reasons.
  std::vector<AccessDetail> Summary() const;

  // What is known of each sequence; whole once it has ended. REQUIRES: Count was called.
  std::vector<SequenceEnd> Sequences() const;

  // Cancels all sequences that still run.
  void Cancel();

 private:
  struct Choice {
    ChoiceStream stream;
    GenerationRequest request;  // moved out by Submit
    RequestId id;
    bool submitted = false;
    bool started = false;  // true once it has its first token, or has ended
    TokenId first_prompt_token = 0;
    AdapterGeneration adapter = kBaseModel;  // that computed its last token
    SequenceMetrics metrics = {};
  };

  CompletionJob(const ServingContext& context, const Dialect& dialect, DialectRequest parsed, std::string tenant);
  // Parse, Resolve and Build, with errors about the internal request.
  static Result<CompletionJob> Make(const ServingContext& context, const Dialect& dialect, std::string_view body,
                                    std::string_view fairness_id);
  Status ResolveVersion();
  // Notes where an answer goes on with another version of its adapter.
  void FollowVersion(Choice& choice, const GenerationEvent& event) const;
  Status BuildAnswers();
  Status CompileGrammar();
  Status BuildPrompts();
  Status AddChatPrompt();
  Status AddPrompt(const Prompt& prompt);
  // Whether to predict the output length of the next prompt, and the predictions. Guesses are in tokens; 0: not wanted,
  // or not possible.
  bool WantsGuess() const;
  std::int32_t Guess(std::string_view text) const;
  std::int32_t GuessOfTokens(std::span<const TokenId> tokens) const;
  Status AddChoices(std::vector<TokenId> tokens, const std::string& echo, std::int32_t guess);
  Result<GenerationRequest> MakeRequest(const std::vector<TokenId>& tokens, std::int32_t choice) const;
  // Gives the prompt's log-probabilities of a choice's first event to all choices of the prompt.
  void SharePromptScores(const GenerationEvent& event);
  Usage TotalUsage() const;

  ServingContext context_;
  const Dialect* dialect_;
  CompletionRequest request_;
  ModelChoice model_;  // that the request asks for
  TimeNs received_ = 0;
  TimeNs deadline_ = 0;  // deadline of the first tokens; 0: none
  std::uint64_t seed_ = 0;
  std::string tenant_;                             // TenantName
  std::string prefix_domain_;                      // GenerationRequest::prefix_domain
  std::shared_ptr<const AdapterVersion> adapter_;  // null: the base model
  std::int64_t prompt_scores_ = 0;                 // log-probabilities of prompts in the answer
  std::shared_ptr<const Grammar> grammar_;         // null: the output is free
  AdmissionTicket ticket_;
  std::string prefix_text_;                   // beginning of the first prompt, until it is resolved
  std::vector<std::uint32_t> prefix_blocks_;  // blocks of the first prompt; empty: not wanted, or noted already
  std::vector<Choice> choices_;               // ordered by prompt, with `n` choices each
  bool began_ = false;                        // a choice was submitted
  AnswerPlan plan_;                           // how answers of a chat are read
  EmbeddingPlan embedding_;                   // how a request that pools is answered
  StopStringMatcher stops_;                   // has seen no text; each choice has a copy
  std::unique_ptr<AnswerWriter> writer_;
};

}  // namespace loramux
