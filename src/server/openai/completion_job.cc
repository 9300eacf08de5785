#include "server/openai/completion_job.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/prng.h"
#include "cluster/prefix_blocks.h"
#include "cluster/prompt_text.h"
#include "server/openai/chat_prompt.h"
#include "server/openai/model_choice.h"
#include "server/openai/prompt_limit.h"

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
  limits.defaults = context.defaults;
  limits.gone = context.gone;
  return limits;
}

// The version that the body asks for, if it is registered; null: the base model, or none.
VersionPtr Registered(const AdapterRegistry& registry, const std::string& model,
                      const std::optional<AdapterField>& adapter) {
  const auto choice = ChooseModel(registry, model, adapter);
  if (!choice.ok()) return nullptr;
  if (choice->parts.empty()) {
    auto version = registry.Resolve(choice->name);
    return version.ok() ? *std::move(version) : nullptr;
  }
  std::vector<WeightedAdapter> parts;
  for (const NamedWeight& part : choice->parts) {
    auto version = registry.Resolve(part.name);
    if (!version.ok() || *version == nullptr) return nullptr;
    parts.push_back({*std::move(version), part.weight});
  }
  return registry.FindComposite(parts);
}

// `text` receives the beginning of the prompt's text, if routers want to know of it. `version` receives the version
// whose defaults the request has.
Result<DialectRequest> Parse(const ServingContext& context, const Dialect& dialect, std::string_view body,
                             std::string& text, VersionPtr& version) {
  RequestLimits limits = LimitsOfRequest(context);
  limits.defaults_of = [&](const std::string& model, const std::optional<AdapterField>& adapter) {
    version = Registered(*context.registry, model, adapter);
    return version == nullptr || version->text == nullptr ? nullptr : version->text->defaults.get();
  };
  if (context.prefixes != nullptr && context.prefixes->wanted(context.clock->Now())) {
    limits.on_body = [&text](const Json& json) { text = PromptText(json); };
  }
  return dialect.Parse(body, {.limits = std::move(limits),
                              .number = fmt::format("{:016x}{:016x}", RandomIdBits(), RandomIdBits()),
                              .created = context.clock->UnixSeconds(),
                              .base_model = context.registry->base_names().front()});
}

// The version that serves the request. Where the request asks for a certain content, a server that has not got it says
// that another one may.
Result<VersionPtr> Resolve(const ServingContext& context, const ModelChoice& choice) {
  auto version = ResolveModel(*context.registry, context.finder, context.caller, choice);
  if (context.require_digest.empty()) return version;
  const bool permitted = context.caller == nullptr || context.caller->Allows(choice.name);
  if (!version.ok()) return permitted ? Elsewhere(context.require_digest, std::move(version).error()) : version;
  const std::string_view digest = *version == nullptr ? std::string_view("none") : (*version)->file.digest;
  if (digest == context.require_digest) return version;
  return Unavailable(fmt::format("The model '{}' has other content on this server: expected the digest {}, found {}",
                                 choice.name, context.require_digest, digest),
                     choice.field);
}

// What the adapter's folder says of text; null: nothing.
const AdapterText* TextOf(const VersionPtr& adapter) { return adapter == nullptr ? nullptr : adapter->text.get(); }

const Tokenizer& TokenizerOf(const ServingContext& context, const VersionPtr& adapter) {
  return TokenizerOf(*context.tokenizer, adapter.get());
}

// What compiles grammars for the adapter's tokenizer. REQUIRES: the context has one for the base model's.
Result<GrammarCompiler*> GrammarsOf(const ServingContext& context, const VersionPtr& adapter) {
  const AdapterText* const text = TextOf(adapter);
  if (text == nullptr || text->tokenizer == nullptr) return context.grammars;
  return text->tokenizer->Grammars(*context.grammars, context.registry->model().vocab_size);
}

// How many tokens of a prompt count at most. REQUIRES: `truncate_prompt_tokens`.
std::int64_t TokensToKeep(const OpenAiRequest& request, const PromptLimit& limit) {
  if (*request.truncate_prompt_tokens > 0) return *request.truncate_prompt_tokens;
  const std::int32_t usual = request.endpoint == Endpoint::kCompletion ? kDefaultCompletionTokens : 1;
  return std::max<std::int64_t>(1, limit.tokens - request.max_tokens.value_or(usual));
}

// The tokens of a prompt that count.
std::vector<TokenId> Cut(const OpenAiRequest& request, const PromptLimit& limit, std::vector<TokenId> tokens) {
  if (!request.truncate_prompt_tokens) return tokens;
  const std::int64_t rest = static_cast<std::int64_t>(tokens.size()) - TokensToKeep(request, limit);
  if (rest <= 0) return tokens;
  tokens.erase(request.embedding ? tokens.end() - rest : tokens.begin(),
               request.embedding ? tokens.end() : tokens.begin() + rest);
  return tokens;
}

// The prompt of a second text and its first, as the tokenizer joins them. REQUIRES: prompts are texts.
Result<std::vector<TokenId>> EncodePairOf(const ServingContext& context, const VersionPtr& adapter,
                                          const OpenAiRequest& request, std::size_t second) {
  const PromptLimit limit = LimitOf(context, adapter);
  const std::size_t first = request.embedding->first == 1 ? 0 : second - request.embedding->first;
  return EncodePairOfTexts(TokenizerOf(context, adapter), std::get<std::string>(request.prompts[first]),
                           std::get<std::string>(request.prompts[second]), request.add_special_tokens, limit,
                           request.truncate_prompt_tokens ? TokensToKeep(request, limit) : 0);
}

// Admits the request, or returns an error. The base model has one account for all its names.
Result<AdmissionTicket> Admit(const ServingContext& context, const OpenAiRequest& request,
                              const AdapterVersion* adapter) {
  if (context.admission == nullptr) return AdmissionTicket();
  AdmissionRequest wanted;
  wanted.adapter = adapter == nullptr ? context.registry->base_names().front() : adapter->account();
  wanted.sequences = request.n * std::max<std::int64_t>(1, static_cast<std::int64_t>(request.prompts.size()));
  if (context.caller != nullptr) {
    wanted.key = context.caller->name;
    wanted.key_limits = context.caller->limits;
  }
  return context.admission->Admit(wanted, context.clock->Now());
}

}  // namespace

std::uint64_t ChoiceSeed(std::uint64_t seed, std::int32_t choice) {
  return choice == 0 ? seed : SplitMix64(seed ^ SplitMix64(static_cast<std::uint64_t>(choice)));
}

CompletionJob::CompletionJob(const ServingContext& context, DialectRequest request)
    : generation_(context.generation),
      request_(std::move(request.request)),
      received_(context.received.value_or(context.clock->Now())),
      deadline_(request_.deadline_ms > 0 ? received_ + request_.deadline_ms * kNsPerMs
                : context.ttft > 0       ? received_ + context.ttft
                                         : 0),
      seed_(request_.seed ? *request_.seed : context.seeds->Next()),
      writer_(std::move(request.writer)) {}

CompletionJob::~CompletionJob() { Cancel(); }

Result<CompletionJob> CompletionJob::Prepare(const ServingContext& context, const Dialect& dialect,
                                             std::string_view body, std::string_view fairness_id) {
  auto job = Make(context, dialect, body, fairness_id);
  if (!job.ok()) return dialect.InOwnNames(std::move(job).error());
  return job;
}

Result<CompletionJob> CompletionJob::Make(const ServingContext& context, const Dialect& dialect, std::string_view body,
                                          std::string_view fairness_id) {
  ASSIGN_OR_RETURN(std::string tenant, TenantName(context.caller, fairness_id));
  std::string text;
  VersionPtr seen;
  ASSIGN_OR_RETURN(DialectRequest parsed, Parse(context, dialect, body, text, seen));
  OpenAiRequest& request = parsed.request;
  ASSIGN_OR_RETURN(ModelChoice choice, ChooseModel(*context.registry, request.model, request.adapter));
  ASSIGN_OR_RETURN(VersionPtr adapter, Resolve(context, choice));
  const bool reloaded = seen != nullptr && adapter != nullptr && seen != adapter && seen->name == adapter->name;
  if (reloaded && context.require_digest.empty()) adapter = std::move(seen);  // whose defaults the request has
  request.model = choice.parts.empty() ? std::move(choice.name) : adapter->name;
  parsed.writer->SetModel(request.model);
  ASSIGN_OR_RETURN(AdmissionTicket ticket, Admit(context, request, adapter.get()));
  CompletionJob job(context, std::move(parsed));
  job.ticket_ = std::move(ticket);
  job.adapter_ = std::move(adapter);
  const bool separate = context.prefix_sharing == PrefixSharing::kTenant ||
                        (context.prefix_sharing == PrefixSharing::kKeys && context.caller != nullptr);
  job.prefix_domain_ = PrefixDomain(separate ? tenant : std::string(), job.request_.cache_salt);
  job.tenant_ = std::move(tenant);
  job.plan_ = PlanCalls(job.Formats(context), job.request_);
  job.prefixes_ = context.prefixes;
  job.prefix_blocks_ = PrefixBlocks(job.adapter_ == nullptr ? std::string_view() : job.adapter_->name, text);
  const auto& output = job.request_.output;
  const bool own_tokenizer = TextOf(job.adapter_) != nullptr && TextOf(job.adapter_)->tokenizer != nullptr;
  job.unfinished_ = context.compile_later && output && context.grammars != nullptr &&
                    (own_tokenizer || !context.grammars->Has(*output));
  if (!job.unfinished_) RETURN_IF_ERROR(job.Build(context));
  return job;
}

Status CompletionJob::Finish(const ServingContext& context, const Dialect& dialect) {
  unfinished_ = false;
  Status built = Build(context);
  if (!built.ok()) return dialect.InOwnNames(std::move(built).error());
  return built;
}

Status CompletionJob::Build(const ServingContext& context) {
  if (context.gone != nullptr && *context.gone) return ClientIsGone();
  RETURN_IF_ERROR(CompileGrammar(context));
  if (request_.embedding) {
    const EmbeddingOptions usual;
    const EmbeddingOptions& options = context.embeddings == nullptr ? usual : *context.embeddings;
    ASSIGN_OR_RETURN(embedding_,
                     PlanEmbedding(options, context.registry->model(), adapter_.get(), *request_.embedding));
  } else {
    RETURN_IF_ERROR(CheckGenerates(adapter_.get()));
  }
  return BuildPrompts(context);
}

Status CompletionJob::CompileGrammar(const ServingContext& context) {
  if (!request_.output) return Ok{};
  if (context.grammars == nullptr) {
    return Unsupported("`" + request_.output->field +
                           "`: this server cannot constrain the output of this model; the "
                           "log of its start gives the reason",
                       request_.output->field);
  }
  ASSIGN_OR_RETURN(GrammarCompiler* const grammars, GrammarsOf(context, adapter_));
  ASSIGN_OR_RETURN(grammar_, grammars->Compile(*request_.output));
  return Ok{};
}

Status CompletionJob::BuildPrompts(const ServingContext& context) {
  if (request_.endpoint == Endpoint::kChat) return AddChatPrompt(context);
  const bool in_pairs = embedding_.in_pairs();
  for (std::size_t i = in_pairs ? embedding_.first : 0; i < request_.prompts.size(); ++i) {
    if (context.gone != nullptr && *context.gone) return ClientIsGone();
    Status added = Ok{};
    if (in_pairs) {
      auto tokens = EncodePairOf(context, adapter_, request_, i);
      added = tokens.ok() ? AddChoices(context, std::move(*tokens), {}, 0) : Status(std::move(tokens).error());
    } else {
      added = AddPrompt(context, request_.prompts[i]);
    }
    if (!added.ok()) return Error{added.error().code, added.error().message, i < embedding_.first ? "first" : "prompt"};
  }
  request_.prompts.clear();
  return Ok{};
}

Status CompletionJob::AddChatPrompt(const ServingContext& context) {
  ASSIGN_OR_RETURN(const std::string text, RenderChatPrompt(TemplateOf(context.chat_template, adapter_.get()),
                                                            request_.chat, context.clock->UnixSeconds()));
  request_.chat.template_context.clear();
  if (!request_.embedding) {
    PlanReasoning(Formats(context), request_, TokenizerOf(context, adapter_), text, plan_);
  }
  auto tokens = Encode(context, text);
  if (!tokens.ok()) return Error{tokens.error().code, tokens.error().message, "messages"};
  return AddChoices(context, std::move(*tokens), {}, Guess(context, text));
}

OutputFormats CompletionJob::Formats(const ServingContext& context) const {
  if (context.formats == nullptr) return {};
  if (adapter_ == nullptr) return context.formats->Of({});
  const bool own = TextOf(adapter_) != nullptr && TextOf(adapter_)->own != nullptr;
  return context.formats->Of(adapter_->account(), own ? &TextOf(adapter_)->own->formats : nullptr);
}

Status CompletionJob::AddPrompt(const ServingContext& context, const Prompt& prompt) {
  const auto* text = std::get_if<std::string>(&prompt);
  std::vector<TokenId> tokens;
  if (text != nullptr) {
    ASSIGN_OR_RETURN(tokens, Encode(context, *text));
  } else {
    tokens = Cut(request_, LimitOf(context, adapter_), std::get<std::vector<TokenId>>(prompt));
  }
  std::string echo;
  if (request_.echo && text != nullptr && !request_.truncate_prompt_tokens) {
    echo = *text;
  } else if (request_.echo) {
    ASSIGN_OR_RETURN(echo, TokenizerOf(context, adapter_).Decode(tokens, request_.skip_special_tokens));
  }
  const std::int32_t guess = text != nullptr ? Guess(context, *text) : GuessOfTokens(context, tokens);
  return AddChoices(context, std::move(tokens), echo, guess);
}

Result<std::vector<TokenId>> CompletionJob::Encode(const ServingContext& context, const std::string& text) const {
  const PromptLimit limit = LimitOf(context, adapter_);
  const bool special = request_.add_special_tokens;
  if (!request_.truncate_prompt_tokens) return EncodePrompt(TokenizerOf(context, adapter_), text, special, limit);
  const auto encode = request_.embedding ? EncodeBeginning : EncodeEndOfPrompt;
  return encode(TokenizerOf(context, adapter_), text, special, limit, TokensToKeep(request_, limit));
}

bool CompletionJob::WantsGuess(const ServingContext& context) const {
  return context.lengths != nullptr && !request_.embedding &&
         choices_.size() < static_cast<std::size_t>(kGuessedPrompts * request_.n);
}

std::int32_t CompletionJob::Guess(const ServingContext& context, std::string_view text) const {
  if (!WantsGuess(context)) return 0;
  return context.lengths->Guess(adapter_ == nullptr ? std::string_view() : std::string_view(adapter_->account()), text);
}

// Returns 0 for ids without text (the model may have more ids than the tokenizer): a missing guess is no error.
std::int32_t CompletionJob::GuessOfTokens(const ServingContext& context, std::span<const TokenId> tokens) const {
  if (!WantsGuess(context)) return 0;
  const auto read = tokens.first(std::min(tokens.size(), context.lengths->MaxPromptBytes()));
  const auto text = TokenizerOf(context, adapter_).Decode(read, /*skip_special_tokens=*/false);
  return text.ok() ? Guess(context, *text) : 0;
}

Status CompletionJob::AddChoices(const ServingContext& context, std::vector<TokenId> tokens, const std::string& echo,
                                 std::int32_t guess) {
  if (tokens.empty()) return InvalidArgument("The prompt: expected at least one token, found none");
  const std::int64_t entries = std::int64_t{request_.n} * (request_.ScoredAlternatives() + 1);
  prompt_scores_ += static_cast<std::int64_t>(tokens.size()) * entries;
  if (prompt_scores_ > kMaxPromptScores) {
    return InvalidArgument(
        fmt::format("The prompt: expected at most {} log-probabilities (prompt tokens times "
                    "alternatives, over all choices), found {}; ask for fewer alternatives or choices",
                    kMaxPromptScores, prompt_scores_));
  }
  if (choices_.empty()) stops_ = ChoiceStream::StopsOf(TokenizerOf(context, adapter_), request_, plan_);
  for (std::int32_t i = 0; i < request_.n; ++i) {
    ChoiceStream stream(TokenizerOf(context, adapter_), request_, stops_, static_cast<std::int32_t>(choices_.size()),
                        plan_);
    if (request_.echo) stream.Prepend(echo);
    ASSIGN_OR_RETURN(GenerationRequest request, MakeRequest(context, tokens, i));
    choices_.push_back({std::move(stream), std::move(request), {}});
    choices_.back().request.length_hint = guess;
    choices_.back().first_prompt_token = tokens.front();
    if (i == 0) choices_.back().request.prompt_logprobs = request_.ScoredAlternatives();
  }
  return Ok{};
}

Result<GenerationRequest> CompletionJob::MakeRequest(const ServingContext& context, const std::vector<TokenId>& tokens,
                                                     std::int32_t choice) const {
  GenerationRequest request;
  request.prompt = tokens;
  request.adapter = adapter_ == nullptr ? kBaseModel : adapter_->generation;
  request.tenant = tenant_;
  request.prefix_domain = prefix_domain_;
  request.sampling = request_.sampling;
  request.sampling.seed = ChoiceSeed(seed_, choice);
  request.logit_bias = request_.logit_bias;
  request.min_tokens = request_.min_tokens;
  request.ignore_eos = request_.ignore_eos;
  request.priority = request_.priority;
  request.deadline = deadline_;
  request.stop_token_ids = request_.stop_token_ids;
  if (TextOf(adapter_) != nullptr) request.eos_token_ids = TextOf(adapter_)->end_tokens;
  request.max_tokens = MaxTokens(context, request.adapter, tokens.size());
  if (request_.embedding) request.pooling = embedding_.pooling;
  if (grammar_ != nullptr) {
    ASSIGN_OR_RETURN(std::shared_ptr<TokenConstraint> answer, grammar_->Begin());
    ASSIGN_OR_RETURN(request.constraint, Constrain(context, std::move(answer)));
  }
  return request;
}

Result<std::shared_ptr<TokenConstraint>> CompletionJob::Constrain(const ServingContext& context,
                                                                  std::shared_ptr<TokenConstraint> answer) const {
  ASSIGN_OR_RETURN(const GrammarCompiler* const grammars, GrammarsOf(context, adapter_));
  std::vector<TokenId> ends = grammars->eos();
  if (TextOf(adapter_) != nullptr && !TextOf(adapter_)->end_tokens.empty()) {
    if (!request_.ignore_eos) answer = AllowEnds(TextOf(adapter_)->end_tokens, ends, std::move(answer));
    ends.insert(ends.end(), TextOf(adapter_)->end_tokens.begin(), TextOf(adapter_)->end_tokens.end());
  }
  if (!plan_.prefix) return answer;
  FreePrefix prefix = *plan_.prefix;
  prefix.excluded = std::move(ends);
  return AllowPrefix(std::move(prefix), grammars->vocab_size(), std::move(answer));
}

// A number that the client sends may be beyond the model's length, which is an error then. A default is reduced to what
// the length allows.
std::int32_t CompletionJob::MaxTokens(const ServingContext& context, AdapterGeneration adapter,
                                      std::size_t prompt_tokens) const {
  const RequestDefaults* own = TextOf(adapter_) == nullptr ? nullptr : TextOf(adapter_)->defaults.get();
  const RequestDefaults* defaults = own == nullptr ? context.defaults : own;
  const auto bound = defaults == nullptr ? std::nullopt : defaults->max_output_tokens;
  if (request_.max_tokens) return std::min(*request_.max_tokens, bound.value_or(*request_.max_tokens));
  const bool completion = request_.endpoint == Endpoint::kCompletion && !request_.to_model_length;
  if (!completion && !bound) return GenerationRequest().max_tokens;  // up to the model's length
  const auto usual = completion ? std::max(kDefaultCompletionTokens, request_.min_tokens) : *bound;
  const auto wanted = std::min(usual, bound.value_or(usual));
  const std::int64_t room = context.generation->MaxSequenceTokens(adapter) - static_cast<std::int64_t>(prompt_tokens);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(room, 1, wanted));
}

void CompletionJob::Count(ServerMetrics* metrics, TimeNs received) {
  const std::string adapter = adapter_ == nullptr ? std::string() : adapter_->account();
  for (Choice& choice : choices_) choice.metrics = SequenceMetrics(metrics, adapter, tenant_, received);
}

Status CompletionJob::Submit(std::shared_ptr<GenerationInbox> inbox) {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].request.on_event = [inbox, i](const GenerationEvent& event) { inbox->Push(TokenEvent(i, event)); };
    auto id = generation_->Submit(std::move(choices_[i].request));
    if (!id.ok()) {
      Cancel();
      return std::move(id).error();
    }
    choices_[i].id = *id;
    choices_[i].submitted = began_ = true;
  }
  return Ok{};
}

Status CompletionJob::Apply(std::span<const TokenEvent> events) {
  std::int64_t started = 0, tokens = 0;
  for (const TokenEvent& event : events) {
    Choice& choice = choices_[event.choice];
    if (event.token) ++tokens;
    const bool computed = event.token || event.finish == FinishReason::kStop || event.finish == FinishReason::kLength;
    if (computed && !std::exchange(choice.started, true)) {
      ++started;
      tokens += event.prompt_tokens;
      SharePromptScores(event);
      if (event.choice == 0) RememberPrefix(event.now);
    }
    const bool was_finished = choice.stream.finished();
    choice.metrics.Take(event);
    Status applied = choice.stream.Apply(event);
    if (!applied.ok() && adapter_ != nullptr) {
      Error error = std::move(applied).error();
      error.message = WithoutPath(std::move(error.message), adapter_->path.string(), adapter_->name);
      applied = std::move(error);
    }
    if (!applied.ok()) choice.metrics.End(FinishReason::kError);
    if (choice.stream.finished()) choice.metrics.End(choice.stream.finish());
    RETURN_IF_ERROR(applied);
    if (!was_finished && choice.stream.finished() && !choice.stream.engine_done()) generation_->Cancel(choice.id);
  }
  ticket_.Progress(started, tokens);
  if (HeldBytes() <= kMaxAnswerBytes) return Ok{};
  return InvalidArgument(
      fmt::format("The answer: expected at most {} bytes of text and log-probabilities, found more; "
                  "ask for fewer choices, tokens or log-probabilities, or for `stream`: true",
                  kMaxAnswerBytes));
}

void CompletionJob::RememberPrefix(TimeNs now) {
  if (prefixes_ != nullptr) prefixes_->Use(prefix_blocks_, now);
  prefix_blocks_ = {};
}

void CompletionJob::SharePromptScores(const TokenEvent& event) {
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
    if (choice.submitted && !choice.stream.engine_done() && !choice.stream.finished()) generation_->Cancel(choice.id);
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

void CompletionJob::AppendEvents(Choice& choice, std::string& events) {
  if (!choice.stream.HasOutput()) return;
  const Usage usage = choice.stream.usage();
  events += writer_->Delta(choice.stream.TakeOutput(), usage);
}

std::string CompletionJob::TakeEvents() {
  std::string events;
  for (Choice& choice : choices_) AppendEvents(choice, events);
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
