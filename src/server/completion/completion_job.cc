#include "server/completion/completion_job.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/prng.h"
#include "cluster/prefix_blocks.h"
#include "cluster/prompt_text.h"
#include "server/completion/chat_prompt.h"
#include "server/completion/prompt_limit.h"

namespace loramux {
namespace {

using VersionPtr = std::shared_ptr<const AdapterVersion>;

// The length proxy reads only this many prompts of a request with many, because it takes time from other requests.
constexpr std::int32_t kGuessedPrompts = 16;

// The limit of a prompt by the adapter's tokenizer. Beside an adapter, the engine may allow less.
PromptLimit LimitOf(const ServingContext& context, const VersionPtr& adapter) {
  return PromptLimit::For(TokenizerOf(*context.tokenizer, adapter.get()),
                          context.generation->MaxSequenceTokens(kBaseModel));
}

RequestLimits LimitsOfRequest(const ServingContext& context) {
  const PromptLimit prompt = LimitOf(context, nullptr);
  RequestLimits limits;
  limits.vocab_size = context.registry->model().vocab_size;
  limits.max_tokens = prompt.tokens;
  limits.max_string = BoundedProduct(prompt.bytes, kJsonCharactersPerByte);
  limits.max_sequences = context.max_sequences;
  limits.speculates = context.defaults->speculates;
  limits.gone = context.gone;
  return limits;
}

// The version that serves the request. Where a router asks for a certain content, a server that has not got it says
// that another one may.
Result<VersionPtr> VersionOf(const ServingContext& context, ModelChoice choice) {
  if (!context.require_digest.empty()) choice.digest.clear();  // the router knows it too
  auto version = ResolveModel(*context.registry, *context.finder, *context.caller, choice);
  if (context.require_digest.empty()) return version;
  const bool permitted = context.caller->Allows(choice.name);
  if (!version.ok()) return permitted ? Elsewhere(context.require_digest, std::move(version).error()) : version;
  if (DigestOf(version->get()) == context.require_digest) return version;
  return Unavailable(OtherContent(choice.name, context.require_digest, version->get()), choice.field);
}

// What the adapter's folder says of text; null: nothing.
const AdapterText* TextOf(const VersionPtr& adapter) { return adapter == nullptr ? nullptr : adapter->text.get(); }

const Tokenizer& TokenizerOf(const ServingContext& context, const VersionPtr& adapter) {
  return TokenizerOf(*context.tokenizer, adapter.get());
}

// What compiles grammars for the adapter's tokenizer.
Result<GrammarCompiler*> GrammarsOf(const ServingContext& context, const VersionPtr& adapter) {
  const AdapterText* const text = TextOf(adapter);
  if (text == nullptr || text->tokenizer == nullptr || context.grammars->refuses()) return context.grammars;
  return text->tokenizer->Grammars(*context.grammars, context.registry->model().vocab_size);
}

// How many tokens of a prompt count at most. REQUIRES: `truncate_prompt_tokens`.
std::int64_t TokensToKeep(const CompletionRequest& request, const PromptLimit& limit) {
  if (*request.truncate_prompt_tokens > 0) return *request.truncate_prompt_tokens;
  const std::int32_t usual = request.endpoint == Endpoint::kCompletion ? kDefaultCompletionTokens : 1;
  return std::max<std::int64_t>(1, limit.tokens - request.max_tokens.value_or(usual));
}

// The tokens of a prompt that count.
std::vector<TokenId> Cut(const CompletionRequest& request, const PromptLimit& limit, std::vector<TokenId> tokens) {
  if (!request.truncate_prompt_tokens) return tokens;
  const std::int64_t rest = static_cast<std::int64_t>(tokens.size()) - TokensToKeep(request, limit);
  if (rest <= 0) return tokens;
  tokens.erase(request.embedding ? tokens.end() - rest : tokens.begin(),
               request.embedding ? tokens.end() : tokens.begin() + rest);
  return tokens;
}

// The prompt of a second text and its first, as the tokenizer joins them. REQUIRES: prompts are texts.
Result<std::vector<TokenId>> EncodePairOf(const ServingContext& context, const VersionPtr& adapter,
                                          const CompletionRequest& request, std::size_t second) {
  const PromptLimit limit = LimitOf(context, adapter);
  const std::size_t first = request.embedding->first == 1 ? 0 : second - request.embedding->first;
  return EncodePairOfTexts(TokenizerOf(context, adapter), std::get<std::string>(request.prompts[first]),
                           std::get<std::string>(request.prompts[second]), request.add_special_tokens, limit,
                           request.truncate_prompt_tokens ? TokensToKeep(request, limit) : 0);
}

// What a request for the adapter gets where it says nothing.
const RequestDefaults& DefaultsOf(const ServingContext& context, const VersionPtr& adapter) {
  const AdapterText* const text = TextOf(adapter);
  return text == nullptr || text->defaults == nullptr ? *context.defaults : *text->defaults;
}

// Admits the request, or returns an error. The base model has one account for all its names.
Result<AdmissionTicket> Admit(const ServingContext& context, const CompletionRequest& request,
                              const AdapterVersion* adapter) {
  AdmissionRequest wanted;
  wanted.adapter = adapter == nullptr ? context.registry->base_names().front() : adapter->account();
  wanted.sequences = request.n * std::max<std::int64_t>(1, static_cast<std::int64_t>(request.prompts.size()));
  wanted.key = context.caller->name;
  wanted.key_limits = context.caller->limits;
  return context.admission->Admit(wanted, context.clock->Now());
}

OutputFormats FormatsOf(const ServingContext& context, const VersionPtr& adapter) {
  if (adapter == nullptr) return context.formats->Of({});
  const bool own = TextOf(adapter) != nullptr && TextOf(adapter)->own != nullptr;
  return context.formats->Of(adapter->account(), own ? &TextOf(adapter)->own->formats : nullptr);
}

// The tokens of a prompt that count.
Result<std::vector<TokenId>> Encode(const ServingContext& context, const VersionPtr& adapter,
                                    const CompletionRequest& request, const std::string& text) {
  const PromptLimit limit = LimitOf(context, adapter);
  const bool special = request.add_special_tokens;
  if (!request.truncate_prompt_tokens) return EncodePrompt(TokenizerOf(context, adapter), text, special, limit);
  const auto encode = request.embedding ? EncodeBeginning : EncodeEndOfPrompt;
  return encode(TokenizerOf(context, adapter), text, special, limit, TokensToKeep(request, limit));
}

// The constraint of an answer that may also end as the adapter's answers do, and that reasoning may precede.
Result<std::shared_ptr<TokenConstraint>> Constrain(const ServingContext& context, const VersionPtr& adapter,
                                                   const CompletionRequest& request, const AnswerPlan& plan,
                                                   std::shared_ptr<TokenConstraint> answer) {
  ASSIGN_OR_RETURN(const GrammarCompiler* const grammars, GrammarsOf(context, adapter));
  std::vector<TokenId> ends = grammars->eos();
  if (TextOf(adapter) != nullptr && !TextOf(adapter)->end_tokens.empty()) {
    if (!request.ignore_eos) answer = AllowEnds(TextOf(adapter)->end_tokens, ends, std::move(answer));
    ends.insert(ends.end(), TextOf(adapter)->end_tokens.begin(), TextOf(adapter)->end_tokens.end());
  }
  if (!plan.prefix) return answer;
  FreePrefix prefix = *plan.prefix;
  prefix.excluded = std::move(ends);
  return AllowPrefix(std::move(prefix), grammars->vocab_size(), std::move(answer));
}

// A number that the client sends may be beyond the model's length, which is an error then. A default is reduced to what
// the length allows.
std::int32_t MaxTokens(const ServingContext& context, const VersionPtr& adapter, const CompletionRequest& request,
                       std::size_t prompt_tokens) {
  const auto bound = DefaultsOf(context, adapter).max_output_tokens;
  if (request.max_tokens) return std::min(*request.max_tokens, bound.value_or(*request.max_tokens));
  const bool completion = request.endpoint == Endpoint::kCompletion && !request.to_model_length;
  if (!completion && !bound) return GenerationRequest().max_tokens;  // up to the model's length
  const auto usual = completion ? std::max(kDefaultCompletionTokens, request.min_tokens) : *bound;
  const auto wanted = std::min(usual, bound.value_or(usual));
  const std::int64_t room =
      context.generation->MaxSequenceTokens(adapter == nullptr ? kBaseModel : adapter->generation) -
      static_cast<std::int64_t>(prompt_tokens);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(room, 1, wanted));
}

// Whether the answer cannot be told as far as it goes: the API has no word for it, or it would lack what was asked for.
bool FailsOfAbort(const GenerationEvent& event, const Dialect& dialect, const CompletionRequest& request,
                  bool started) {
  if (event.finish != FinishReason::kAborted) return false;
  return !dialect.tells_aborts() || (request.ScoredAlternatives() >= 0 && !started);
}

}  // namespace

std::uint64_t ChoiceSeed(std::uint64_t seed, std::int32_t choice) {
  return choice == 0 ? seed : SplitMix64(seed ^ SplitMix64(static_cast<std::uint64_t>(choice)));
}

CompletionJob::CompletionJob(const ServingContext& context, const Dialect& dialect, DialectRequest parsed,
                             std::string tenant)
    : context_(context),
      dialect_(&dialect),
      request_(std::move(parsed.request)),
      received_(context.received.value_or(context.clock->Now())),
      deadline_(request_.deadline_ms > 0 ? received_ + request_.deadline_ms * kNsPerMs
                : context.ttft > 0       ? received_ + context.ttft
                                         : 0),
      tenant_(std::move(tenant)),
      writer_(std::move(parsed.writer)) {}

CompletionJob::~CompletionJob() { Cancel(); }

Result<CompletionJob> CompletionJob::Prepare(const ServingContext& context, const Dialect& dialect,
                                             std::string_view body, std::string_view fairness_id) {
  ASSIGN_OR_RETURN(CompletionJob job, Parse(context, dialect, body, fairness_id));
  RETURN_IF_ERROR(job.Resolve());
  RETURN_IF_ERROR(job.Build());
  return job;
}

Result<CompletionJob> CompletionJob::Parse(const ServingContext& context, const Dialect& dialect, std::string_view body,
                                           std::string_view fairness_id) {
  auto job = Make(context, dialect, body, fairness_id);
  if (!job.ok()) return dialect.InOwnNames(std::move(job).error());
  return job;
}

Result<CompletionJob> CompletionJob::Make(const ServingContext& context, const Dialect& dialect, std::string_view body,
                                          std::string_view fairness_id) {
  ASSIGN_OR_RETURN(std::string tenant, TenantName(*context.caller, fairness_id));
  RequestLimits limits = LimitsOfRequest(context);
  std::string text;
  if (context.prefixes->wanted(context.clock->Now())) {
    limits.on_body = [&text](const Json& json) { text = PromptText(json); };
  }
  ASSIGN_OR_RETURN(DialectRequest parsed,
                   dialect.Parse(body, {.limits = std::move(limits),
                                        .number = fmt::format("{:016x}{:016x}", RandomIdBits(), RandomIdBits()),
                                        .created = context.clock->UnixSeconds(),
                                        .base_model = context.registry->base_names().front()}));
  CompletionJob job(context, dialect, std::move(parsed), std::move(tenant));
  job.prefix_text_ = std::move(text);
  ASSIGN_OR_RETURN(job.model_, ChooseModel(*context.registry, job.request_.model, job.request_.adapter));
  return job;
}

std::string CompletionJob::weight_version() const {
  return adapter_ == nullptr ? std::string() : WeightVersionOf(*adapter_);
}

bool CompletionJob::registered() const { return IsRegistered(*context_.registry, *context_.caller, model_); }

Status CompletionJob::Resolve() {
  Status resolved = ResolveVersion();
  if (resolved.ok()) return resolved;
  Error error = dialect_->InOwnNames(std::move(resolved).error());
  const std::string field = error.param;  // the dialect may call the model otherwise
  return error.code == ErrorCode::kNotFound ? NotServed(field, std::move(error)) : error;
}

Status CompletionJob::ResolveVersion() {
  ASSIGN_OR_RETURN(adapter_, VersionOf(context_, model_));
  request_.model = model_.parts.empty() ? model_.name : adapter_->name;
  writer_->SetModel({request_.model, weight_version()});
  if (!request_.embedding) RETURN_IF_ERROR(request_.TakeDefaults(DefaultsOf(context_, adapter_)));
  ASSIGN_OR_RETURN(ticket_, Admit(context_, request_, adapter_.get()));
  seed_ = request_.seed ? *request_.seed : context_.seeds->Next();
  const bool separate = context_.prefix_sharing == PrefixSharing::kTenant ||
                        (context_.prefix_sharing == PrefixSharing::kKeys && !context_.caller->nameless());
  prefix_domain_ = PrefixDomain(separate ? tenant_ : std::string(), request_.cache_salt);
  plan_ = PlanCalls(FormatsOf(context_, adapter_), request_);
  const std::string text = std::exchange(prefix_text_, {});
  prefix_blocks_ = PrefixBlocks(adapter_ == nullptr ? std::string_view() : adapter_->name, text);
  return Ok{};
}

bool CompletionJob::slow() const {
  if (!request_.output) return false;
  const bool own_tokenizer = TextOf(adapter_) != nullptr && TextOf(adapter_)->tokenizer != nullptr;
  return own_tokenizer || !context_.grammars->Has(*request_.output);
}

Status CompletionJob::Build() {
  Status built = BuildAnswers();
  if (!built.ok()) return dialect_->InOwnNames(std::move(built).error());
  return built;
}

Status CompletionJob::BuildAnswers() {
  if (*context_.gone) return ClientIsGone();
  RETURN_IF_ERROR(CompileGrammar());
  if (request_.embedding) {
    ASSIGN_OR_RETURN(embedding_, PlanEmbedding(*context_.embeddings, context_.registry->model(), adapter_.get(),
                                               *request_.embedding));
  } else {
    RETURN_IF_ERROR(CheckGenerates(adapter_.get()));
  }
  return BuildPrompts();
}

Status CompletionJob::CompileGrammar() {
  if (!request_.output) return Ok{};
  ASSIGN_OR_RETURN(GrammarCompiler* const grammars, GrammarsOf(context_, adapter_));
  ASSIGN_OR_RETURN(grammar_, grammars->Compile(*request_.output));
  return Ok{};
}

Status CompletionJob::BuildPrompts() {
  if (request_.endpoint == Endpoint::kChat) return AddChatPrompt();
  const bool in_pairs = embedding_.in_pairs();
  for (std::size_t i = in_pairs ? embedding_.first : 0; i < request_.prompts.size(); ++i) {
    if (*context_.gone) return ClientIsGone();
    Status added = Ok{};
    if (in_pairs) {
      auto tokens = EncodePairOf(context_, adapter_, request_, i);
      added = tokens.ok() ? AddChoices(std::move(*tokens), {}, 0) : Status(std::move(tokens).error());
    } else {
      added = AddPrompt(request_.prompts[i]);
    }
    if (!added.ok()) return Error{added.error().code, added.error().message, i < embedding_.first ? "first" : "prompt"};
  }
  request_.prompts.clear();
  return Ok{};
}

Status CompletionJob::AddChatPrompt() {
  ASSIGN_OR_RETURN(const std::string text, RenderChatPrompt(*TemplateOf(context_.chat_template, adapter_.get()),
                                                            request_.chat, context_.clock->UnixSeconds()));
  request_.chat.template_context.clear();
  if (!request_.embedding) {
    PlanReasoning(FormatsOf(context_, adapter_), request_, TokenizerOf(context_, adapter_), text, plan_);
  }
  auto tokens = Encode(context_, adapter_, request_, text);
  if (!tokens.ok()) return Error{tokens.error().code, tokens.error().message, "messages"};
  return AddChoices(std::move(*tokens), {}, Guess(text));
}

Status CompletionJob::AddPrompt(const Prompt& prompt) {
  const auto* text = std::get_if<std::string>(&prompt);
  std::vector<TokenId> tokens;
  if (text != nullptr) {
    ASSIGN_OR_RETURN(tokens, Encode(context_, adapter_, request_, *text));
  } else {
    tokens = Cut(request_, LimitOf(context_, adapter_), std::get<std::vector<TokenId>>(prompt));
  }
  std::string echo;
  if (request_.echo && text != nullptr && !request_.truncate_prompt_tokens) {
    echo = *text;
  } else if (request_.echo) {
    ASSIGN_OR_RETURN(echo, TokenizerOf(context_, adapter_).Decode(tokens, request_.skip_special_tokens));
  }
  const std::int32_t guess = text != nullptr ? Guess(*text) : GuessOfTokens(tokens);
  return AddChoices(std::move(tokens), echo, guess);
}

bool CompletionJob::WantsGuess() const {
  return context_.lengths->guesses() && !request_.embedding &&
         choices_.size() < static_cast<std::size_t>(kGuessedPrompts * request_.n);
}

std::int32_t CompletionJob::Guess(std::string_view text) const {
  if (!WantsGuess()) return 0;
  return context_.lengths->Guess(adapter_ == nullptr ? std::string_view() : std::string_view(adapter_->account()),
                                 text);
}

// Returns 0 for ids without text (the model may have more ids than the tokenizer): a missing guess is no error.
std::int32_t CompletionJob::GuessOfTokens(std::span<const TokenId> tokens) const {
  if (!WantsGuess()) return 0;
  const auto read = tokens.first(std::min(tokens.size(), context_.lengths->MaxPromptBytes()));
  const auto text = TokenizerOf(context_, adapter_).Decode(read, /*skip_special_tokens=*/false);
  return text.ok() ? Guess(*text) : 0;
}

Status CompletionJob::AddChoices(std::vector<TokenId> tokens, const std::string& echo, std::int32_t guess) {
  if (tokens.empty()) return InvalidArgument("The prompt: expected at least one token, found none");
  const std::int64_t entries = std::int64_t{request_.n} * (request_.ScoredAlternatives() + 1);
  prompt_scores_ += static_cast<std::int64_t>(tokens.size()) * entries;
  if (prompt_scores_ > kMaxPromptScores) {
    return InvalidArgument(
        fmt::format("The prompt: expected at most {} log-probabilities (prompt tokens times "
                    "alternatives, over all choices), found {}; ask for fewer alternatives or choices",
                    kMaxPromptScores, prompt_scores_));
  }
  if (choices_.empty()) stops_ = ChoiceStream::StopsOf(TokenizerOf(context_, adapter_), request_, plan_);
  const auto ids = request_.token_ids ? std::make_shared<const std::vector<TokenId>>(tokens) : nullptr;
  for (std::int32_t i = 0; i < request_.n; ++i) {
    ChoiceStream stream(TokenizerOf(context_, adapter_), request_, stops_, static_cast<std::int32_t>(choices_.size()),
                        plan_);
    if (request_.echo) stream.Prepend(echo);
    stream.GivePrompt(ids);
    ASSIGN_OR_RETURN(GenerationRequest request, MakeRequest(tokens, i));
    choices_.push_back({std::move(stream), std::move(request), {}});
    choices_.back().request.length_hint = guess;
    choices_.back().adapter = choices_.back().request.adapter;
    choices_.back().first_prompt_token = tokens.front();
    if (i == 0) choices_.back().request.prompt_logprobs = request_.ScoredAlternatives();
  }
  return Ok{};
}

Result<GenerationRequest> CompletionJob::MakeRequest(const std::vector<TokenId>& tokens, std::int32_t choice) const {
  GenerationRequest request;
  request.prompt = tokens;
  request.adapter = adapter_ == nullptr ? kBaseModel : adapter_->generation;
  request.keeps_version = !model_.digest.empty();  // NAME@DIGEST
  request.tenant = tenant_;
  request.prefix_domain = prefix_domain_;
  request.sampling = request_.sampling;
  request.sampling.seed = ChoiceSeed(seed_, choice);
  request.logit_bias = request_.logit_bias;
  request.logprob_token_ids = request_.logprob_token_ids;
  request.min_tokens = request_.min_tokens;
  request.ignore_eos = request_.ignore_eos;
  request.speculates = request_.speculate;
  request.priority = request_.priority;
  request.deadline = deadline_;
  request.stop_token_ids = request_.stop_token_ids;
  if (TextOf(adapter_) != nullptr) request.eos_token_ids = TextOf(adapter_)->end_tokens;
  request.max_tokens = MaxTokens(context_, adapter_, request_, tokens.size());
  if (request_.embedding) request.pooling = embedding_.pooling;
  if (grammar_ != nullptr) {
    ASSIGN_OR_RETURN(std::shared_ptr<TokenConstraint> answer, grammar_->Begin());
    ASSIGN_OR_RETURN(request.constraint, Constrain(context_, adapter_, request_, plan_, std::move(answer)));
  }
  return request;
}

void CompletionJob::Count(ServerMetrics& metrics, TimeNs received) {
  const std::string adapter = adapter_ == nullptr ? std::string() : adapter_->account();
  for (Choice& choice : choices_) choice.metrics = SequenceMetrics(metrics, adapter, tenant_, received);
}

Status CompletionJob::Submit(std::shared_ptr<GenerationInbox> inbox) {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].request.on_event = [inbox, i](GenerationEvent& event) {
      event.choice = i;
      inbox->Push(std::move(event));
    };
    auto id = context_.generation->Submit(std::move(choices_[i].request));
    if (!id.ok()) {
      Cancel();
      return std::move(id).error();
    }
    choices_[i].id = *id;
    choices_[i].submitted = began_ = true;
  }
  return Ok{};
}

Status CompletionJob::Apply(std::span<const GenerationEvent> events) {
  std::int64_t started = 0, tokens = 0;
  for (const GenerationEvent& event : events) {
    Choice& choice = choices_[event.choice];
    if (event.token && !choice.stream.finished()) ++tokens;  // not what follows a stop string in one step
    const bool computed = event.token || event.finish == FinishReason::kStop || event.finish == FinishReason::kLength;
    if (computed && !std::exchange(choice.started, true)) {
      ++started;
      tokens += event.prompt_tokens;
      SharePromptScores(event);
      if (event.choice == 0) context_.prefixes->Use(std::exchange(prefix_blocks_, {}), event.now);
    }
    const bool was_finished = choice.stream.finished();
    choice.metrics.Take(event);
    if (event.token || event.stop) FollowVersion(choice, event);
    Status applied = !was_finished && FailsOfAbort(event, *dialect_, request_, choice.started)
                         ? Status(Unavailable("The operator aborted all requests."))
                         : choice.stream.Apply(event);
    if (!applied.ok() && adapter_ != nullptr) {
      Error error = std::move(applied).error();
      error.message = WithoutPath(std::move(error.message), adapter_->path.string(), adapter_->name);
      applied = std::move(error);
    }
    if (!applied.ok()) choice.metrics.End(FinishReason::kError);
    if (choice.stream.finished()) choice.metrics.End(choice.stream.finish());
    RETURN_IF_ERROR(applied);
    if (!was_finished && choice.stream.finished() && !choice.stream.engine_done())
      context_.generation->Cancel(choice.id);
  }
  ticket_.Progress(started, tokens);
  if (HeldBytes() <= kMaxAnswerBytes) return Ok{};
  return InvalidArgument(
      fmt::format("The answer: expected at most {} bytes of text and log-probabilities, found more; "
                  "ask for fewer choices, tokens or log-probabilities, or for `stream`: true",
                  kMaxAnswerBytes));
}

void CompletionJob::FollowVersion(Choice& choice, const GenerationEvent& event) const {
  if (event.adapter == kBaseModel || std::exchange(choice.adapter, event.adapter) == event.adapter) return;
  const auto version = context_.registry->Find(event.adapter);
  if (version != nullptr) choice.stream.ChangeVersion(WeightVersionOf(*version));
}

void CompletionJob::SharePromptScores(const GenerationEvent& event) {
  const auto n = static_cast<std::size_t>(request_.n);
  if (request_.ScoredAlternatives() < 0 || event.choice % n != 0) return;
  const auto scores = std::make_shared<const PromptScores>(
      PromptScores{choices_[event.choice].first_prompt_token, event.prompt_scores});
  for (std::size_t i = 0; i < n; ++i) choices_[event.choice + i].stream.GivePromptScores(scores);
}

std::size_t CompletionJob::HeldBytes() const {
  std::size_t bytes = writer_->held_bytes();
  for (const Choice& choice : choices_) bytes += choice.stream.held_bytes();
  return bytes;
}

bool CompletionJob::finished() const {
  return std::all_of(choices_.begin(), choices_.end(), [](const Choice& choice) { return choice.stream.finished(); });
}

void CompletionJob::Cancel() {
  for (Choice& choice : choices_) {
    if (choice.submitted && !choice.stream.engine_done() && !choice.stream.finished())
      context_.generation->Cancel(choice.id);
    if (std::exchange(choice.submitted, false)) choice.metrics.End(FinishReason::kCancelled);
  }
}

std::vector<AccessDetail> CompletionJob::Summary() const {
  const Usage usage = TotalUsage();
  std::string finish;
  for (const Choice& choice : choices_) {
    const std::string reason = FinishedReason(choice.metrics.reason());
    if (finish.find(reason) == std::string::npos) finish += (finish.empty() ? "" : ",") + reason;
  }
  return {{"adapter", request_.model},
          {"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"finish", finish}};
}

std::vector<SequenceEnd> CompletionJob::Sequences() const {
  std::vector<SequenceEnd> sequences;
  for (const Choice& choice : choices_) sequences.push_back(choice.metrics.state());
  return sequences;
}

Usage CompletionJob::TotalUsage() const {
  Usage total;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Usage usage = choices_[i].stream.usage();
    total.completion_tokens += usage.completion_tokens;
    if (i % static_cast<std::size_t>(request_.n) != 0) continue;  // count the prompt once for all its choices
    total.prompt_tokens += usage.prompt_tokens;
    total.cached_tokens += usage.cached_tokens;
    total.reasoning_tokens += usage.reasoning_tokens;
  }
  return total;
}

std::string CompletionJob::TakeEvents() {
  std::string events;
  for (Choice& choice : choices_) {
    if (!choice.stream.HasOutput()) continue;
    const Usage usage = choice.stream.usage();
    events += writer_->Delta(choice.stream.TakeOutput(), usage);
  }
  if (finished()) events += writer_->End(TotalUsage());
  return events;
}

std::string CompletionJob::TakeBody() {
  std::vector<ChoiceOutput> outputs;
  outputs.reserve(choices_.size());
  for (Choice& choice : choices_) outputs.push_back(choice.stream.TakeOutput());
  if (request_.embedding) FinishPooled(embedding_, outputs);
  return writer_->Body(outputs, TotalUsage());
}

}  // namespace loramux
