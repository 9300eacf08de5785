#include "server/completion/completion_job.h"

#include <set>

#include <gmock/gmock.h>

#include "http/json_reader.h"
#include "http/raw_client_for_test.h"
#include "server/api/openai/openai_dialect.h"
#include "server/completion/chat_prompt.h"
#include "server/completion/length_guesser.h"
#include "server/server_fixture.h"

namespace loramux::completion_job_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Records the requests submitted; the test plays the engine.
class RecordingService final : public GenerationService {
 public:
  Result<RequestId> Submit(GenerationRequest request) override {
    if (static_cast<int>(requests.size()) == refuse_at) return Unavailable("full");
    requests.push_back(std::move(request));
    return RequestId{requests.size()};
  }
  void Cancel(RequestId id) override { cancelled.push_back(static_cast<int>(id.value)); }
  void SetHold(Hold) override {}
  void AbortAll() override {}
  void DropHistory(std::function<void(Result<std::int64_t>)> done) override { done(0); }
  std::int64_t MaxSequenceTokens(AdapterGeneration) const override { return max_tokens; }
  GenerationLoad Load() const override { return {}; }

  void Emit(std::size_t request, TokenId id, FinishReason finish = FinishReason::kNone) {
    SampledToken token;
    token.id = id;
    token.logprob = -1;
    token.top_logprobs = {{'x', -0.5f}};
    GenerationEvent event = Event(request, finish);
    event.token = std::move(token);
    requests[request].on_event(event);
  }
  void Say(std::size_t request, std::string_view text) {
    for (const TokenId id : Bytes(text)) Emit(request, id);
  }
  void End(std::size_t request, FinishReason finish, TokenId stop_token = kEosToken) {
    GenerationEvent event = Event(request, finish);
    if (finish == FinishReason::kStop)
      event.stop = SampledToken{.id = stop_token, .logprob = -0.125f, .top_logprobs = {}};
    requests[request].on_event(event);
  }
  // The whole prompt was computed: its log-probabilities come with the end.
  void EndWithScores(std::size_t request, std::span<const ScoredToken> scores, const SampledToken* stop = nullptr) {
    GenerationEvent event = Event(request, stop == nullptr ? FinishReason::kLength : FinishReason::kStop);
    event.prompt_scores.assign(scores.begin(), scores.end());
    if (stop != nullptr) event.stop = *stop;
    requests[request].on_event(event);
  }

  std::vector<GenerationRequest> requests;
  std::vector<int> cancelled;
  std::int64_t max_tokens = kTestMaxTokens;
  int refuse_at = -1;

 private:
  GenerationEvent Event(std::size_t request, FinishReason finish) const {
    GenerationEvent event;
    event.finish = finish;
    event.prompt_tokens = static_cast<std::int32_t>(requests[request].prompt.size());
    event.cached_prompt_tokens = 1;
    return event;
  }
};

class CompletionJobTest : public testing::Test {
 protected:
  Result<CompletionJob> Prepare(Endpoint endpoint, const std::string& body) {
    return CompletionJob::Prepare(fixture_.Context(service_), OpenAiDialect(endpoint), body);
  }
  CompletionJob Submitted(Endpoint endpoint, const std::string& body) {
    auto job = Prepare(endpoint, body);
    EXPECT_TRUE(job.ok()) << job.error().message;
    EXPECT_TRUE(job->Submit(inbox_).ok());
    return std::move(job).value();
  }
  Status Apply(CompletionJob& job) { return job.Apply(inbox_->Take()); }
  Json Body(CompletionJob& job) {
    EXPECT_TRUE(job.finished());
    return *ParseJson(job.TakeBody());
  }

  ServingFixture fixture_;
  RecordingService service_;
  std::shared_ptr<GenerationInbox> inbox_ = std::make_shared<GenerationInbox>(std::size_t{1} << 20, [] {});
};

TEST_F(CompletionJobTest, ChatPromptHasOneBeginning) {
  const auto job = Submitted(Endpoint::kChat, R"({"model":"sql","messages":[{"role":"user","content":"hi"}]})");
  ASSERT_EQ(service_.requests.size(), 1u);
  std::vector<TokenId> expected = {kBosToken};
  for (const TokenId id : Bytes("[user]hi[assistant]")) expected.push_back(id);
  EXPECT_EQ(service_.requests[0].prompt, expected);
  EXPECT_EQ(service_.requests[0].adapter, AdapterGeneration{1});
  EXPECT_EQ(service_.requests[0].max_tokens, -1);
}

// Registers the adapter "late" when it is asked for it, which it counts.
class LateFinder final : public AdapterFinder {
 public:
  explicit LateFinder(AdapterRegistry& registry) : registry_(registry) {}
  Result<std::shared_ptr<const AdapterVersion>> Find(std::string_view name) override {
    ++asked;
    if (name != "late") return UnknownModel(name);
    auto text = std::make_shared<AdapterText>();
    text->defaults = std::make_shared<const RequestDefaults>(RequestDefaults{.sampling = {.temperature = 0.25f}});
    auto adapter = std::make_shared<AdapterVersion>();
    adapter->name = name;
    adapter->text = std::move(text);
    return registry_.Commit(std::move(adapter));
  }
  std::vector<OfferedAdapter> Offered() override { return {}; }

  int asked = 0;

 private:
  AdapterRegistry& registry_;
};

// An adapter is found between the parse and the build: the body is read before anything asks for it, and its defaults
// count all the same.
TEST_F(CompletionJobTest, AnAdapterThatIsNotRegisteredIsFoundAfterTheParse) {
  LateFinder finder(fixture_.registry);
  ServingContext context = fixture_.Context(service_);
  context.finder = &finder;
  std::string body = R"({"model":"late","prompt":"hi","top_p":0.5})";
  auto job = CompletionJob::Parse(context, OpenAiDialect(Endpoint::kCompletion), body);
  ASSERT_TRUE(job.ok()) << job.error().message;
  body.assign(body.size(), 'x');  // it is not read again
  EXPECT_FALSE(job->registered());
  EXPECT_EQ(finder.asked, 0);
  ASSERT_TRUE(job->Resolve().ok());
  EXPECT_EQ(finder.asked, 1);
  EXPECT_FALSE(job->slow());
  ASSERT_TRUE(job->Build().ok());
  ASSERT_TRUE(job->Submit(inbox_).ok());
  EXPECT_EQ(service_.requests[0].adapter, AdapterGeneration{2});
  EXPECT_EQ(service_.requests[0].sampling.temperature, 0.25f);
  EXPECT_EQ(service_.requests[0].sampling.top_p, 0.5f);
  EXPECT_THAT(service_.requests[0].prompt, ElementsAre(kBosToken, 'h', 'i'));
  const auto known =
      CompletionJob::Parse(context, OpenAiDialect(Endpoint::kCompletion), R"({"model":"late","prompt":"a"})");
  ASSERT_TRUE(known.ok());
  EXPECT_TRUE(known->registered());
  auto gone = CompletionJob::Parse(context, OpenAiDialect(Endpoint::kCompletion), R"({"model":"none","prompt":"a"})");
  ASSERT_TRUE(gone.ok());
  EXPECT_FALSE(gone->registered());
  EXPECT_EQ(gone->Resolve().error().code, ErrorCode::kNotFound);
}

TEST_F(CompletionJobTest, CompletionPromptsGetSpecialTokensUnlessIds) {
  const auto job = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"hi"})");
  EXPECT_THAT(service_.requests[0].prompt, ElementsAre(kBosToken, 'h', 'i'));
  EXPECT_EQ(service_.requests[0].adapter, kBaseModel);
  EXPECT_EQ(service_.requests[0].max_tokens, 16);
  const auto ids = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":[65,66]})");
  EXPECT_THAT(service_.requests[1].prompt, ElementsAre('A', 'B'));
}

TEST_F(CompletionJobTest, UrgencyGoesToTheEngine) {
  const TimeNs before = fixture_.clock.Now();
  const auto job =
      Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":["a","b"],"priority":-3,"deadline_ms":250})");
  ASSERT_EQ(service_.requests.size(), 2u);
  for (const GenerationRequest& request : service_.requests) {
    EXPECT_EQ(request.priority, -3);
    EXPECT_GE(request.deadline, before + 250 * kNsPerMs);
    EXPECT_LE(request.deadline, fixture_.clock.Now() + 250 * kNsPerMs);
    EXPECT_EQ(request.length_hint, 0);
  }
  const auto calm = Submitted(Endpoint::kChat, R"({"model":"sql","messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(service_.requests[2].priority, 0);
  EXPECT_EQ(service_.requests[2].deadline, 0);
}

// With API keys the key is charged, not the adapter, and finds only what it cached itself.
TEST_F(CompletionJobTest, TheKeyIsTheTenantAndItsPrefixesAreItsOwn) {
  const ApiKey acme{.name = "acme", .models = {"*"}};
  ServingContext context = fixture_.Context(service_);
  context.caller = &acme;
  context.prefix_sharing = PrefixSharing::kKeys;
  const std::string body = R"({"model":"sql","prompt":"a"})";
  std::vector<CompletionJob> jobs;
  for (const char* id : {"", "team"}) {
    auto job = CompletionJob::Prepare(context, OpenAiDialect(Endpoint::kCompletion), body, id);
    ASSERT_TRUE(job.ok() && job->Submit(inbox_).ok());
    jobs.push_back(std::move(job).value());
  }
  EXPECT_EQ(service_.requests[0].tenant, "acme");
  EXPECT_EQ(service_.requests[1].tenant, *TenantName(acme, "team"));
  for (const GenerationRequest& request : service_.requests) EXPECT_EQ(request.prefix_domain, request.tenant);
  context.prefix_sharing = PrefixSharing::kAll;
  auto shared = CompletionJob::Prepare(context, OpenAiDialect(Endpoint::kCompletion), body);
  ASSERT_TRUE(shared.ok() && shared->Submit(inbox_).ok());
  EXPECT_EQ(service_.requests[2].prefix_domain, "");
  EXPECT_FALSE(CompletionJob::Prepare(context, OpenAiDialect(Endpoint::kCompletion), body, "a\nb").ok());
}

// As in vLLM: max_new_tokens of the model bounds what requests ask for, and is the default of chats.
TEST_F(CompletionJobTest, TheModelMayBoundTheOutput) {
  const RequestDefaults defaults{.sampling = {}, .max_output_tokens = 20};
  ServingContext context = fixture_.Context(service_);
  context.defaults = &defaults;
  const auto max_tokens = [&](Endpoint endpoint, const std::string& body) {
    auto job = CompletionJob::Prepare(context, OpenAiDialect(endpoint), body);
    EXPECT_TRUE(job.ok() && job->Submit(inbox_).ok());
    return service_.requests.back().max_tokens;
  };
  const std::string chat = R"({"model":"sql","messages":[{"role":"user","content":"hi"}])";
  EXPECT_EQ(max_tokens(Endpoint::kChat, chat + "}"), 20);
  EXPECT_EQ(max_tokens(Endpoint::kChat, chat + R"(,"max_tokens":7})"), 7);
  EXPECT_EQ(max_tokens(Endpoint::kChat, chat + R"(,"max_tokens":21})"), 20);
  EXPECT_EQ(max_tokens(Endpoint::kCompletion, R"({"model":"sql","prompt":"a"})"), 16);
  EXPECT_EQ(max_tokens(Endpoint::kCompletion, R"({"model":"sql","prompt":"a","max_tokens":100})"), 20);
  EXPECT_EQ(max_tokens(Endpoint::kCompletion, R"({"model":"sql","prompt":"a","min_tokens":18})"), 18);
}

TEST_F(CompletionJobTest, ASaltIsPartOfTheDomain) {
  const auto plain = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"a"})");
  const auto salted = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"a","cache_salt":"s"})");
  const auto other = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"a","cache_salt":"t"})");
  const auto again = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"a","cache_salt":"s"})");
  EXPECT_EQ(service_.requests[0].prefix_domain, "");
  EXPECT_EQ(service_.requests[1].prefix_domain, PrefixDomain("", "s"));
  EXPECT_EQ(service_.requests[2].prefix_domain, PrefixDomain("", "t"));
  EXPECT_EQ(service_.requests[3].prefix_domain, service_.requests[1].prefix_domain);
}

TEST_F(CompletionJobTest, AnAdapterIsNamedByOtherFieldsToo) {
  for (const char* body : {R"({"model":"base:sql","prompt":"a"})", R"({"model":"base","prompt":"a","lora_path":"sql"})",
                           R"({"model":"base","prompt":"a","lora":[{"id":"sql"}]})"}) {
    auto job = Submitted(Endpoint::kCompletion, body);
    EXPECT_EQ(service_.requests.back().adapter, AdapterGeneration{1});
    EXPECT_EQ(job.request().model, "sql");
  }
  const auto unknown = Prepare(Endpoint::kCompletion, R"({"model":"base","prompt":"a","adapter_id":"none"})");
  EXPECT_EQ(unknown.error().param, "adapter_id");
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(CompletionJobTest, ARequestStartsABoundedNumberOfSequences) {
  ServingContext context = fixture_.Context(service_);
  context.max_sequences = 4;
  const auto refusal = [&](Endpoint endpoint, const std::string& body) {
    const auto job = CompletionJob::Prepare(context, OpenAiDialect(endpoint), body);
    return job.ok() ? std::string("accepted") : job.error().message;
  };
  EXPECT_EQ(refusal(Endpoint::kCompletion, R"({"model":"base","prompt":["a","b"],"n":2})"), "accepted");
  const std::string most = "expected at most 4 sequences in a request (prompts times `n`), found ";
  const std::string remedy = "; send several requests, or let the operator raise --max-sequences-per-request";
  EXPECT_THAT(refusal(Endpoint::kCompletion, R"({"model":"base","prompt":["a","b"],"n":3})"),
              HasSubstr("`n`: " + most + "6" + remedy));
  EXPECT_THAT(refusal(Endpoint::kCompletion, R"({"model":"base","prompt":["a","b","c","d","e"],"n":2})"),
              HasSubstr("`prompt`: " + most + "10" + remedy));
  EXPECT_THAT(refusal(Endpoint::kChat, R"({"model":"sql","messages":[{"role":"user","content":"a"}],"n":5})"),
              HasSubstr("`n`: " + most + "5" + remedy));
}

TEST_F(CompletionJobTest, DeadlinesCountFromTheRequestsArrival) {
  ServingContext context = fixture_.Context(service_);
  context.received = 5 * kNsPerMs;
  auto job = CompletionJob::Prepare(context, OpenAiDialect(Endpoint::kCompletion),
                                    R"({"model":"base","prompt":"a","deadline_ms":250})");
  ASSERT_TRUE(job.ok() && job->Submit(inbox_).ok());
  EXPECT_EQ(service_.requests[0].deadline, 255 * kNsPerMs);
}

// The model has 300 tokens, its tokenizer 258. A prompt with an id without text must work with and without the length
// proxy.
TEST_F(CompletionJobTest, TokenIdsNeedNoTextToBeGuessed) {
  const auto guesser = LengthGuesser::Load(std::string(LORAMUX_SOURCE_DIR) + "/demo/length_proxy");
  ASSERT_TRUE(guesser.ok()) << guesser.error().message;
  ServingContext context = fixture_.Context(service_);
  context.lengths = &*guesser;
  const auto submit = [&](const std::string& prompt) {
    auto job = CompletionJob::Prepare(context, OpenAiDialect(Endpoint::kCompletion),
                                      R"({"model":"sql","prompt":)" + prompt + "}");
    ASSERT_TRUE(job.ok()) << job.error().message;
    ASSERT_TRUE(job->Submit(inbox_).ok());
  };
  submit("[65,299]");
  EXPECT_EQ(service_.requests[0].length_hint, 0);
  submit("[65,66]");
  submit("\"AB\"");
  EXPECT_GT(service_.requests[1].length_hint, 0);
  EXPECT_EQ(service_.requests[1].length_hint, service_.requests[2].length_hint);
  // Tokens beyond the beginning that the proxy reads make no difference.
  std::string ids = "[65";
  for (std::size_t i = 1; i < guesser->MaxPromptBytes(); ++i) ids += ",65";
  submit(ids + "]");
  submit(ids + ",299]");
  EXPECT_GT(service_.requests[3].length_hint, 0);
  EXPECT_EQ(service_.requests[4].length_hint, service_.requests[3].length_hint);
}

TEST_F(CompletionJobTest, TheDefaultLengthGivesWay) {
  service_.max_tokens = 10;
  const auto job = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"123456"})");
  EXPECT_EQ(service_.requests[0].max_tokens, 3);  // <s> and six bytes are taken
}

TEST_F(CompletionJobTest, PreparationErrors) {
  const auto message = [&](Endpoint endpoint, const char* body) { return Prepare(endpoint, body).error().message; };
  EXPECT_EQ(message(Endpoint::kCompletion, R"({"model":"nope","prompt":"x"})"), "The model `nope` does not exist.");
  EXPECT_THAT(message(Endpoint::kChat, R"({"model":"sql","messages":[{"role":"bad"}]})"), HasSubstr("no such role"));
  EXPECT_THAT(message(Endpoint::kCompletion, R"({"model":"sql","prompt":"","add_special_tokens":false})"),
              HasSubstr("at least one token"));
  EXPECT_THAT(message(Endpoint::kCompletion, R"({"model":"sql","prompt":[300]})"), HasSubstr("found 300"));
  ServingContext context = fixture_.Context(service_);
  const ChatTemplate& none = ChatTemplate::None();
  context.chat_template = &none;
  const auto job = CompletionJob::Prepare(context, OpenAiDialect(Endpoint::kChat),
                                          R"({"model":"sql","messages":[{"role":"user"}]})");
  EXPECT_THAT(job.error().message, HasSubstr("no chat template"));
}

TEST_F(CompletionJobTest, SeedsFollowFromTheRequest) {
  const auto job = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":["a","b"],"n":2,"seed":5})");
  ASSERT_EQ(service_.requests.size(), 4u);
  EXPECT_EQ(service_.requests[0].sampling.seed, 5u);
  EXPECT_EQ(service_.requests[1].sampling.seed, ChoiceSeed(5, 1));
  EXPECT_EQ(service_.requests[2].sampling.seed, 5u);
  std::set<std::uint64_t> drawn;
  for (int i = 0; i < 3; ++i) {
    const auto other = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"a"})");
    drawn.insert(service_.requests.back().sampling.seed);
  }
  EXPECT_EQ(drawn.size(), 3u);
}

TEST_F(CompletionJobTest, CollectsTextAndUsage) {
  auto job = Submitted(Endpoint::kCompletion, R"({"model":"sql","prompt":["a","bc"],"n":2})");
  const char* texts[] = {"zero", "one", "two", "three"};
  for (std::size_t i = 4; i-- > 0;) {
    service_.Say(i, texts[i]);
    service_.End(i, i == 3 ? FinishReason::kLength : FinishReason::kStop);
  }
  ASSERT_TRUE(Apply(job).ok());
  const Json body = Body(job);
  EXPECT_EQ(body["model"], "sql");
  EXPECT_THAT(body["id"].get<std::string>(), testing::StartsWith("cmpl-"));
  ASSERT_EQ(body["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], texts[i]);
    EXPECT_EQ(body["choices"][i]["finish_reason"], i == 3 ? "length" : "stop");
  }
  EXPECT_EQ(DumpJson(body["usage"]), R"({"prompt_tokens":5,"total_tokens":20,"completion_tokens":15,)"
                                     R"("prompt_tokens_details":{"cached_tokens":2}})");
  EXPECT_TRUE(service_.cancelled.empty());
}

TEST_F(CompletionJobTest, AnAnswerThatIsNotStreamedIsBounded) {
  auto job = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"x","logprobs":1,"max_tokens":4000})");
  const std::string text(1000, 'a');
  Status applied = Ok{};
  std::size_t rounds = 0;
  for (; applied.ok() && rounds < 1000; ++rounds) {
    service_.Say(0, text);
    applied = Apply(job);
  }
  EXPECT_GT(rounds, 100u);
  ASSERT_FALSE(applied.ok());
  EXPECT_THAT(applied.error().message, HasSubstr("expected at most 67108864 bytes"));
}

TEST_F(CompletionJobTest, StopStringsAcrossTokensCancel) {
  auto job = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"p","stop":["END","\n"],"max_tokens":50})");
  service_.Say(0, "some E");
  ASSERT_TRUE(Apply(job).ok());
  EXPECT_FALSE(job.finished());
  service_.Say(0, "NDless");
  ASSERT_TRUE(Apply(job).ok());
  EXPECT_THAT(service_.cancelled, ElementsAre(1));
  service_.End(0, FinishReason::kCancelled);
  ASSERT_TRUE(Apply(job).ok());  // the sequence has ended already, so this has no effect
  const Json body = Body(job);
  EXPECT_EQ(body["choices"][0]["text"], "some ");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], "END");
  EXPECT_EQ(body["usage"]["completion_tokens"], 8);
}

TEST_F(CompletionJobTest, MinTokensHoldStopStringsOff) {
  auto job = Submitted(Endpoint::kCompletion,
                       R"({"model":"base","prompt":"p","stop":"a","min_tokens":3,"include_stop_str_in_output":true})");
  service_.Say(0, "abab-");
  ASSERT_TRUE(Apply(job).ok());
  EXPECT_FALSE(job.finished());
  service_.Say(0, "ab");
  ASSERT_TRUE(Apply(job).ok());
  EXPECT_EQ(Body(job)["choices"][0]["text"], "abab-a");
}

TEST_F(CompletionJobTest, AStopTokenStaysIfAskedFor) {
  const std::string body = R"({"model":"base","prompt":"p","n":2,"stop_token_ids":[65],"include_stop_str_in_output":)";
  for (const bool stays : {true, false}) {
    const std::size_t first = service_.requests.size();
    auto job = Submitted(Endpoint::kCompletion, body + (stays ? "true}" : "false}"));
    service_.Say(first, "x");
    service_.End(first, FinishReason::kStop, 65);
    service_.End(first + 1, FinishReason::kStop, kEosToken);
    ASSERT_TRUE(Apply(job).ok());
    const Json choices = Body(job)["choices"];
    EXPECT_EQ(choices[0]["text"], stays ? "xA" : "x");
    EXPECT_EQ(choices[1]["text"], "");
  }
}

TEST_F(CompletionJobTest, StopTokensAreNamedIfAskedFor) {
  auto job = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"p","n":2,"stop_token_ids":[65]})");
  service_.End(0, FinishReason::kStop, 65);
  service_.End(1, FinishReason::kStop, kEosToken);
  ASSERT_TRUE(Apply(job).ok());
  const Json body = Body(job);
  EXPECT_EQ(body["choices"][0]["stop_reason"], 65);
  EXPECT_TRUE(body["choices"][1]["stop_reason"].is_null());
}

TEST_F(CompletionJobTest, CharactersSplitOverTokens) {
  auto job = Submitted(Endpoint::kChat, R"({"model":"base","messages":[{"role":"user"}],"stream":true})");
  std::string text;
  for (const TokenId id : Bytes("a😀ä")) {
    service_.Emit(0, id);
    ASSERT_TRUE(Apply(job).ok());
    text += job.TakeEvents();
  }
  service_.Emit(0, 0xE2, FinishReason::kLength);  // half a character at the end
  ASSERT_TRUE(Apply(job).ok());
  text += job.TakeEvents();
  EXPECT_TRUE(ParseJson(DumpJson(Json(text))).ok());
  EXPECT_THAT(text, HasSubstr("{\"content\":\"😀\"}"));
  EXPECT_THAT(text, HasSubstr("{\"content\":\"ä\"}"));
  EXPECT_THAT(text, HasSubstr("{\"content\":\"\xEF\xBF\xBD\"}"));
  EXPECT_THAT(text, testing::EndsWith("data: [DONE]\n\n"));
}

TEST_F(CompletionJobTest, IdsBeyondTheTokenizerHaveNoText) {
  auto job = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"p","logprobs":1})");
  service_.Say(0, "a");
  service_.Emit(0, 299);
  service_.Emit(0, kEosToken);  // special token: skipped
  service_.Emit(0, 'b', FinishReason::kLength);
  ASSERT_TRUE(Apply(job).ok());
  const Json body = Body(job);
  EXPECT_EQ(body["choices"][0]["text"], "ab");
  EXPECT_EQ(DumpJson(body["choices"][0]["logprobs"]["tokens"]), R"(["a","","</s>","b"])");
  EXPECT_EQ(DumpJson(body["choices"][0]["logprobs"]["text_offset"]), "[0,1,1,5]");
}

TEST_F(CompletionJobTest, EchoComesFirst) {
  auto text = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"once","echo":true})");
  service_.Emit(0, '!', FinishReason::kLength);
  ASSERT_TRUE(Apply(text).ok());
  EXPECT_EQ(Body(text)["choices"][0]["text"], "once!");
  auto ids = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":[65,66],"echo":true})");
  service_.Emit(1, '!', FinishReason::kLength);
  ASSERT_TRUE(Apply(ids).ok());
  EXPECT_EQ(Body(ids)["choices"][0]["text"], "AB!");
}

// "bc" after "a": what the model thinks of both.
const std::vector<ScoredToken> kScores = {{'b', -1.5f, 2, {{'x', -0.5f}, {'b', -1.5f}}},
                                          {'c', -0.25f, 1, {{'c', -0.25f}}}};

TEST_F(CompletionJobTest, AnEchoedPromptHasLogProbabilities) {
  auto job = Submitted(Endpoint::kCompletion,
                       R"({"model":"base","prompt":[97,98,99],"echo":true,"logprobs":1,"max_tokens":0})");
  EXPECT_EQ(service_.requests[0].prompt_logprobs, 1);
  EXPECT_EQ(service_.requests[0].max_tokens, 0);
  service_.EndWithScores(0, kScores);
  ASSERT_TRUE(Apply(job).ok());
  const Json choice = Body(job)["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
  EXPECT_EQ(choice["finish_reason"], "length");
  const Json& logprobs = choice["logprobs"];
  EXPECT_EQ(DumpJson(logprobs["tokens"]), R"(["a","b","c"])");
  EXPECT_EQ(DumpJson(logprobs["token_logprobs"]), "[null,-1.5,-0.25]");
  EXPECT_EQ(DumpJson(logprobs["top_logprobs"]), R"([null,{"x":-0.5,"b":-1.5},{"c":-0.25}])");
  EXPECT_EQ(DumpJson(logprobs["text_offset"]), "[0,1,2]");
  EXPECT_FALSE(choice.contains("prompt_logprobs"));
}

// lm-eval asks for one token after the prompt and leaves the last log-probability out.
TEST_F(CompletionJobTest, TheTokenThatEndsACompletionHasALogProbabilityToo) {
  const SampledToken stop{.id = kEosToken, .logprob = -0.125f, .top_logprobs = {{'x', -2.5f}}};
  for (const bool stream : {false, true}) {
    auto job = Submitted(Endpoint::kCompletion,
                         std::string(R"({"model":"base","prompt":[97,98,99],"echo":true,"logprobs":1,"max_tokens":1)") +
                             (stream ? R"(,"stream":true})" : "}"));
    service_.EndWithScores(service_.requests.size() - 1, kScores, &stop);
    ASSERT_TRUE(Apply(job).ok());
    const std::string answer = stream ? job.TakeEvents() : job.TakeBody();
    EXPECT_THAT(answer, HasSubstr(R"("token_logprobs":[null,-1.5,-0.25,-0.125])"));
    EXPECT_THAT(answer, HasSubstr(R"("tokens":["a","b","c","</s>"])"));
    EXPECT_THAT(answer, HasSubstr(R"("text":"abc")"));
  }
}

// The ids are those that the engine computed and sampled, with the one that ended the answer, so that a trainer never
// has to tokenize a text again. Log-probabilities are as many.
TEST_F(CompletionJobTest, IdsOfTheAnswerAreThoseThatWereSampled) {
  auto job = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":[[7,8],[9]],"n":2,"return_token_ids":true,)"
                                              R"("logprobs":0})");
  for (std::size_t i = 0; i < 4; ++i) {
    service_.Emit(i, static_cast<TokenId>('a' + i));
    service_.End(i, i == 3 ? FinishReason::kLength : FinishReason::kStop);
  }
  ASSERT_TRUE(Apply(job).ok());
  const Json body = Body(job);
  for (std::size_t i = 0; i < 4; ++i) {
    const Json& choice = body["choices"][i];
    EXPECT_EQ(DumpJson(choice["prompt_token_ids"]), i < 2 ? "[7,8]" : "[9]");
    std::vector<TokenId> ids = {static_cast<TokenId>('a' + i)};
    if (i != 3) ids.push_back(kEosToken);
    EXPECT_EQ(choice["token_ids"], Json(ids));
    EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), ids.size());
  }
}

TEST_F(CompletionJobTest, IdsOfAChatStandBesideItsChoicesAndInItsStream) {
  const std::string body =
      R"({"model":"base","messages":[{"role":"user","content":"x"}],"max_tokens":5,"return_token_ids":true,"logprobs":true,)"
      R"("stop":["ok"])";
  auto job = Submitted(Endpoint::kChat, body + "}");
  service_.Say(0, "a");
  service_.End(0, FinishReason::kStop);
  ASSERT_TRUE(Apply(job).ok());
  const Json whole = Body(job);
  EXPECT_EQ(whole["prompt_token_ids"], Json(service_.requests[0].prompt));
  EXPECT_EQ(whole["choices"][0]["token_ids"], Json({int{'a'}, int{kEosToken}}));
  EXPECT_EQ(whole["choices"][0]["logprobs"]["content"].size(), 2u);
  EXPECT_FALSE(whole["choices"][0].contains("prompt_token_ids"));

  auto stream = Submitted(Endpoint::kChat, body + R"(,"stream":true})");
  service_.Say(1, "oh");
  ASSERT_TRUE(Apply(stream).ok());
  std::string events = stream.TakeEvents();
  service_.Say(1, "ok!");  // the stop string ends it within these
  ASSERT_TRUE(Apply(stream).ok());
  events += stream.TakeEvents();
  std::vector<Json> parsed;
  for (const std::string& data : ClientResponse{.body = events}.events()) {
    if (data != "[DONE]") parsed.push_back(Json::parse(data));
  }
  ASSERT_EQ(parsed.size(), 3u);
  EXPECT_EQ(parsed[0]["prompt_token_ids"], Json(service_.requests[1].prompt));
  EXPECT_FALSE(parsed[1].contains("prompt_token_ids"));
  EXPECT_EQ(parsed[1]["choices"][0]["token_ids"], Json(Bytes("oh")));
  EXPECT_EQ(parsed[2]["choices"][0]["token_ids"], Json(Bytes("ok")));
}

TEST_F(CompletionJobTest, PromptLogprobsHaveTokenIdsAndRanks) {
  auto job = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":[97,98,99],"prompt_logprobs":1,"n":2})");
  EXPECT_EQ(service_.requests[0].prompt_logprobs, 1);
  EXPECT_EQ(service_.requests[1].prompt_logprobs, -1);  // choices of one prompt share them
  service_.End(1, FinishReason::kStop);
  service_.EndWithScores(0, kScores);
  ASSERT_TRUE(Apply(job).ok());
  const Json body = Body(job);
  for (const Json& choice : body["choices"]) {
    EXPECT_EQ(DumpJson(choice["prompt_logprobs"]), R"([null,{"98":{"logprob":-1.5,"rank":2,"decoded_token":"b"},)"
                                                   R"("120":{"logprob":-0.5,"rank":1,"decoded_token":"x"}},)"
                                                   R"({"99":{"logprob":-0.25,"rank":1,"decoded_token":"c"}}])");
    EXPECT_EQ(choice["text"], "");
  }
}

TEST_F(CompletionJobTest, PromptLogprobsOfAChatStandBesideItsChoices) {
  auto job = Submitted(Endpoint::kChat, R"({"model":"base","messages":[{"role":"user"}],"prompt_logprobs":0})");
  service_.EndWithScores(0, kScores);
  ASSERT_TRUE(Apply(job).ok());
  const Json body = Body(job);
  EXPECT_EQ(body["prompt_logprobs"][1].size(), 1u);  // without alternatives
  EXPECT_FALSE(body["choices"][0].contains("prompt_logprobs"));
}

TEST_F(CompletionJobTest, TheEngineIsToldOfTheModeAndTheTokens) {
  fixture_.defaults.sampling.logprobs_mode = LogprobsMode::kProcessedLogits;
  Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"a","logprobs":1,"logprob_token_ids":[5,3]})");
  EXPECT_EQ(service_.requests[0].sampling.logprobs_mode, LogprobsMode::kProcessedLogits);
  EXPECT_THAT(service_.requests[0].logprob_token_ids, ElementsAre(5, 3));
}

TEST_F(CompletionJobTest, AStreamWaitsForTheLogProbabilitiesOfTheEcho) {
  auto job = Submitted(Endpoint::kCompletion,
                       R"({"model":"base","prompt":[97,98,99],"echo":true,"logprobs":0,"n":2,"stream":true})");
  service_.Emit(1, '!');
  ASSERT_TRUE(Apply(job).ok());
  EXPECT_EQ(job.TakeEvents(), "");
  service_.EndWithScores(0, kScores);
  ASSERT_TRUE(Apply(job).ok());
  const std::string events = job.TakeEvents();
  EXPECT_THAT(events, HasSubstr(R"("index":1,"text":"abc!")"));
  EXPECT_THAT(events, HasSubstr(R"("token_logprobs":[null,-1.5,-0.25,-1.0])"));
}

TEST_F(CompletionJobTest, AnAnswerHoldsALimitedNumberOfPromptLogProbabilities) {
  std::string prompt = "[1";
  for (int i = 1; i < 2000; ++i) prompt += ",1";
  prompt += "]";
  const auto body = [&](int n) {
    return R"({"model":"base","prompt_logprobs":20,"n":)" + std::to_string(n) + R"(,"prompt":)" + prompt + "}";
  };
  EXPECT_TRUE(Prepare(Endpoint::kCompletion, body(6)).ok());
  const auto refused = Prepare(Endpoint::kCompletion, body(7));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("at most 262144 log-probabilities"));
}

// They take more memory than an inbox holds of tokens.
TEST_F(CompletionJobTest, AsManyPromptLogProbabilitiesAsAreAllowedArrive) {
  constexpr std::size_t kTokens = kMaxPromptScores / 21;
  service_.max_tokens = kTokens + 1;
  std::string prompt = "97";
  for (std::size_t i = 1; i < kTokens; ++i) prompt += ",97";
  auto job = Submitted(Endpoint::kCompletion,
                       R"({"model":"base","prompt_logprobs":20,"max_tokens":0,"prompt":[)" + prompt + "]}");
  std::vector<ScoredToken> scores(kTokens - 1, ScoredToken{'a', -1, 21, {}});
  for (ScoredToken& score : scores) {
    for (TokenId id = 'b'; id < 'b' + 20; ++id) score.top_logprobs.push_back({id, -0.5f});
  }
  service_.EndWithScores(0, scores);
  ASSERT_TRUE(Apply(job).ok());
  ASSERT_TRUE(job.finished());
  const Json entries = Json::parse(job.TakeBody())["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(entries.size(), kTokens);
  EXPECT_EQ(entries.back().size(), 21u);
}

TEST_F(CompletionJobTest, StreamsRoleUsageAndDone) {
  auto job = Submitted(Endpoint::kChat, R"({"model":"base","messages":[{"role":"user"}],"stream":true,
      "stream_options":{"include_usage":true,"continuous_usage_stats":true}})");
  EXPECT_EQ(job.TakeEvents(), "");
  service_.Say(0, "ab");
  ASSERT_TRUE(Apply(job).ok());
  const std::string first = job.TakeEvents();
  EXPECT_LT(first.find("\"role\":\"assistant\""), first.find("\"content\":\"ab\""));
  EXPECT_THAT(first, HasSubstr("\"completion_tokens\":2"));
  service_.End(0, FinishReason::kStop);
  ASSERT_TRUE(Apply(job).ok());
  const std::string last = job.TakeEvents();
  EXPECT_THAT(last, HasSubstr("\"finish_reason\":\"stop\""));
  EXPECT_LT(last.find("\"finish_reason\""), last.find("\"choices\":[]"));
  EXPECT_THAT(last, testing::EndsWith("data: [DONE]\n\n"));
}

TEST_F(CompletionJobTest, ARefusedChoiceTakesTheOthersBack) {
  service_.refuse_at = 2;
  auto job = Prepare(Endpoint::kCompletion, R"({"model":"base","prompt":"p","n":4})");
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->Submit(inbox_).error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(service_.cancelled, ElementsAre(1, 2));
}

TEST_F(CompletionJobTest, ADroppedJobCancelsWhatRuns) {
  {
    auto job = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"p","n":2})");
    service_.End(0, FinishReason::kStop);
    ASSERT_TRUE(Apply(job).ok());
  }
  EXPECT_THAT(service_.cancelled, ElementsAre(2));
}

TEST_F(CompletionJobTest, TheEnginesErrorsComeThrough) {
  auto job = Submitted(Endpoint::kCompletion, R"({"model":"base","prompt":"p"})");
  service_.End(0, FinishReason::kCancelled);
  EXPECT_EQ(Apply(job).error().code, ErrorCode::kUnavailable);
}

TEST(GenerationInbox, OverflowsAndCloses) {
  int woken = 0;
  GenerationInbox inbox(sizeof(GenerationEvent) * 3, [&] { ++woken; });
  inbox.Push({});
  inbox.Push({});
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(inbox.Take().size(), 2u);
  for (int i = 0; i < 5; ++i) inbox.Push({});
  EXPECT_TRUE(inbox.overflowed());
  EXPECT_EQ(woken, 3);  // at the first event after each Take, and at the overflow
  inbox.Close();
  inbox.Push({});
  EXPECT_EQ(woken, 3);
  EXPECT_TRUE(inbox.Take().empty());
}

TEST(ChatPrompt, CutsAfterTheFinalMessage) {
  EXPECT_EQ(*CutAfterFinalMessage("[user]so[assistant]so<end>\n", "so"), "[user]so[assistant]so");
  EXPECT_EQ(*CutAfterFinalMessage("[assistant]so <end>", "so "), "[assistant]so ");
  EXPECT_EQ(*CutAfterFinalMessage("[assistant]so<end>", " so "), "[assistant]so");
  EXPECT_EQ(CutAfterFinalMessage("[assistant]SO<end>", "so").error().param, "continue_final_message");
}

}  // namespace
}  // namespace loramux::completion_job_test
