// Sends random requests from a grammar, randomly damaged and cut into random pieces, to the real connection code with
// the real routes. Every connection must end, and the server must still answer afterwards. ctest runs a small number;
// `http_grammar_fuzz_test --inputs=1000000` (and --seed=N, --first=N) runs any number.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>
#include <sys/socket.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/strand.hpp>

#include "auth/error_body.h"
#include "base/log.h"
#include "base/prng.h"
#include "http/connection.h"
#include "server/api/api_routes.h"
#include "server/api/openai/model_routes.h"
#include "server/completion/completion_service.h"
#include "server/server_fixture.h"

namespace loramux {

std::int64_t fuzz_inputs = 3000;
std::int64_t fuzz_first = 0;
std::uint64_t fuzz_seed = 1;

namespace {

namespace asio = boost::asio;

// ---- The grammar ----

class Grammar {
 public:
  explicit Grammar(std::uint64_t seed) : prng_(seed) {}

  // Returns the bytes of one connection: a few requests, some of them damaged.
  std::string Connection() {
    std::string bytes;
    const std::uint64_t requests = 1 + prng_.NextBelow(3);
    for (std::uint64_t i = 0; i < requests; ++i) bytes += Request();
    if (Chance(4)) Damage(bytes);
    return bytes;
  }
  std::uint64_t Below(std::uint64_t bound) { return prng_.NextBelow(bound); }
  bool Chance(std::uint64_t one_in) { return prng_.NextBelow(one_in) == 0; }

 private:
  using Choices = std::vector<std::string_view>;
  std::string_view Pick(const Choices& choices) { return choices[prng_.NextBelow(choices.size())]; }

  // Returns one of `good`, sometimes one of `bad`. The share of bad parts is small, so that requests are often wrong in
  // one part only.
  std::string_view Mostly(const Choices& good, const Choices& bad) { return Chance(25) ? Pick(bad) : Pick(good); }

  std::string Request() {
    std::string text(
        Mostly({"POST", "POST", "POST", "POST", "GET", "HEAD"}, {"OPTIONS", "DELETE", "PRI", "", "G\0T", "post"}));
    text += Mostly({" "}, {"  ", "\t", ""});
    text += Target();
    text += Mostly({" HTTP/1.1\r\n", " HTTP/1.1\r\n", " HTTP/1.0\r\n"},
                   {" HTTP/2.0\r\n", " HTTP/1.1\n", "\r\n", " HTTP/1.1\r\n\r\n"});
    const std::string body = Body();
    text += Fields(body);
    return text;
  }
  std::string Target() {
    std::string text(
        Mostly({"/v1/chat/completions", "/v1/completions", "/v1/chat/completions", "/v1/completions", "/v1/models",
                "/v1/models/sql", "/health", "/ping", "/version"},
               {"*", "/", "//", "http://x/health", "/%", "/%zz%00", "/v1/models/%2e%2e%2f", "/v1/models/"}));
    if (Chance(8)) text += "?" + Noise(20);
    if (Chance(60)) text += std::string(prng_.NextBelow(20'000), 'a');
    return text;
  }
  std::string Fields(const std::string& body) {
    std::string text(Mostly({"Host: x\r\n", "Host: 127.0.0.1:8000\r\n", "Host: [::1]:1\r\n"},
                            {"", "Host: x\r\nHost: y\r\n", "Host: a b\r\n", "Host:\r\n", "Host: x:99999\r\n"}));
    const std::uint64_t count = Chance(20) ? prng_.NextBelow(200) : prng_.NextBelow(5);
    for (std::uint64_t i = 0; i < count; ++i) text += Field();
    switch (prng_.NextBelow(20)) {
      case 0:
        return text + "\r\n" + body;
      case 1:
      case 4:
      case 5:
      case 6:
        return text + "Transfer-Encoding: chunked\r\n\r\n" + Chunked(body);
      case 2:
        return text + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n" + Chunked(body);
      case 3:
        return text + "Content-Length: " + Length(body.size()) + "\r\n\r\n" + body;
      default:
        return text + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    }
  }
  std::string Field() {
    std::string text(Mostly({"Connection: close", "Connection: keep-alive", "Connection: upgrade", "Upgrade: h2c",
                             "Expect: 100-continue", "Authorization: Bearer x", "Authorization:", "X: y", "Trailer: X",
                             "Content-Type: application/json", "TE: trailers", "Accept-Encoding: gzip", "Cookie: a=b"},
                            {"Transfer-Encoding: gzip, chunked", "Transfer-Encoding: identity", "Content-Length: 0",
                             "Host: z", ": x", " folded", "X\0Y: z", "Expect: 200-ok"}));
    if (Chance(50)) text += Noise(30);
    if (Chance(80)) text += std::string(prng_.NextBelow(40'000), 'b');
    return text + std::string(Mostly({"\r\n"}, {"\n", "\r", "\r\n\r\n"}));
  }
  std::string Length(std::size_t size) {
    switch (prng_.NextBelow(6)) {
      case 0:
        return "-1";
      case 1:
        return "99999999999999999999";
      case 2:
        return "0x10";
      case 3:
        return std::to_string(size + 1 + prng_.NextBelow(10));
      case 4:
        return std::to_string(size / 2);
      default:
        return std::to_string(prng_.Next());
    }
  }
  std::string Chunked(const std::string& body) {
    std::string text;
    for (std::size_t at = 0; at < body.size();) {
      const std::size_t n = std::min<std::size_t>(body.size() - at, 1 + prng_.NextBelow(40));
      char size[32];
      std::snprintf(size, sizeof size, Chance(20) ? "%zX;ext=%zu" : "%zx", n, n);
      text += std::string(size) + (Chance(200) ? "\n" : "\r\n") + body.substr(at, n) + (Chance(200) ? "" : "\r\n");
      at += n;
    }
    return text + std::string(Mostly({"0\r\n\r\n", "0\r\nX: trailer\r\n\r\n"},
                                     {"0\r\n", "-1\r\n\r\n", "ffffffffffffffff\r\n"}));
  }
  std::string Body() {
    if (Chance(12)) return Noise(200);
    if (Chance(40)) return std::string(prng_.NextBelow(5000), Chance(2) ? '[' : '{');
    std::string text = "{";
    const std::uint64_t count = Chance(2) ? 0 : prng_.NextBelow(4);
    text += "\"model\":" + std::string(Mostly({"\"sql\"", "\"base\""}, {"\"nobody\"", "1", "null", "\"\""}));
    text += ",\"stream\":" + std::string(Mostly({"true", "false"}, {"\"yes\""}));
    text += Chance(2) ? ",\"messages\":" + Messages() : ",\"prompt\":" + Prompt();
    for (std::uint64_t i = 0; i < count; ++i) text += "," + Member();
    return text + "}";
  }
  std::string Messages() {
    return std::string(
        Mostly({R"([{"role":"user","content":"hi"}])", R"([{"role":"user","content":[{"type":"text","text":"hi"}]}])"},
               {R"([{"role":"bad","content":""}])", "[]", "{}", R"([{"role":1}])", R"([{"role":"user"}])",
                R"([{"role":"user","content":"\ud800"}])"}));
  }
  std::string Prompt() {
    return std::string(
        Mostly({R"("p")", R"(["a","b"])", "[1,2,3]", "[[1],[2]]"}, {"[-1]", "[1e300]", "[]", "\"\"", "[299]", "[[]]"}));
  }
  std::string Member() {
    std::string name(Pick({"n",          "max_tokens", "temperature",          "top_p",           "top_k",
                           "stop",       "logprobs",   "top_logprobs",         "logit_bias",      "seed",
                           "min_tokens", "echo",       "stream_options",       "stop_token_ids",  "ignore_eos",
                           "model",      "tools",      "chat_template_kwargs", "response_format", "user"}));
    return "\"" + name + "\":" + Value(0);
  }
  std::string Value(int depth) {
    switch (prng_.NextBelow(depth > 3 ? 8 : 10)) {
      case 0:
        return "null";
      case 1:
        return "true";
      case 2:
        return std::to_string(prng_.NextBelow(30));
      case 3:
        return "-1e999";
      case 4:
        return "0.5";
      case 5:
        return "\"" + std::string(prng_.NextBelow(30), 'x') + "\"";
      case 6:
        return "18446744073709551616";
      case 7:
        return R"("\u0000\n\uFFFF")";
      case 8:
        return "[" + Value(depth + 1) + "," + Value(depth + 1) + "]";
      default:
        return "{\"" + std::to_string(prng_.NextBelow(300)) + "\":" + Value(depth + 1) + "}";
    }
  }
  std::string Noise(std::uint64_t most) {
    std::string text(prng_.NextBelow(most), '\0');
    for (char& c : text) c = static_cast<char>(prng_.NextBelow(256));
    return text;
  }
  void Damage(std::string& bytes) {
    for (std::uint64_t i = 1 + prng_.NextBelow(4); i-- > 0 && !bytes.empty();) {
      const std::size_t at = prng_.NextBelow(bytes.size());
      switch (prng_.NextBelow(5)) {
        case 0:
          bytes.resize(at);
          break;
        case 1:
          bytes.erase(at, 1 + prng_.NextBelow(8));
          break;
        case 2:
          bytes.insert(at, Noise(8));
          break;
        case 3:
          bytes.insert(at, bytes.substr(prng_.NextBelow(bytes.size()), prng_.NextBelow(60)));
          break;
        default:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << prng_.NextBelow(8)));
      }
    }
  }

  Prng prng_;
};

// ---- An engine that answers at once, on the calling thread ----

class ImmediateService final : public GenerationService {
 public:
  Result<RequestId> Submit(GenerationRequest request) override {
    if (request.prompt.size() > 1000) return InvalidArgument("`prompt`: too long", "prompt");
    GenerationEvent event;
    event.id = RequestId{++last_};
    event.prompt_tokens = static_cast<std::int32_t>(request.prompt.size());
    SampledToken token;
    token.id = 'x';
    for (int i = 0; i < request.sampling.top_logprobs; ++i) token.top_logprobs.push_back({'a' + i, -1.0f});
    event.token = std::move(token);
    event.finish = FinishReason::kLength;
    event.generated_tokens = 1;
    request.on_event(event);
    return event.id;
  }
  void Cancel(RequestId) override {}
  void SetHold(Hold) override {}
  void AbortAll() override {}
  void DropHistory(std::function<void(Result<std::int64_t>)> done) override { done(0); }
  std::int64_t MaxSequenceTokens(AdapterGeneration) const override { return kTestMaxTokens; }
  GenerationLoad Load() const override { return {}; }

 private:
  std::atomic<std::uint64_t> last_ = 0;
};

// ---- One input ----

class Harness {
 public:
  Harness()
      : admission_(QuotaTable()),
        models_(fixture_.registry, NoFinder(), {"base", 0, kTestMaxTokens}),
        metrics_(kTopAdapters, "base", kTestMaxTokens),
        service_(Context(), metrics_, {.max_model_len = kTestMaxTokens, .spans = fixture_.spans.get()}),
        activity_(64 << 20) {
    options_.linger_timeout = std::chrono::milliseconds(0);
    options_.idle_timeout = options_.header_timeout = options_.body_timeout = std::chrono::milliseconds(10'000);
    options_.max_header_bytes = 8 << 10;
    options_.max_body_bytes = 64 << 10;
    routes_.SetErrorForm(ErrorBody);
    service_.AddProbes(routes_);
    models_.AddRoutes(routes_);
    AddApiRoutes(routes_, service_, models_.listing());
  }

  // Plays one client: sends the pieces, reads what comes, leaves. Returns what the server sent. Fails after
  // kTestPatience.
  std::string Play(std::string_view bytes, Grammar& random) {
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    const auto strand = asio::make_strand(context_);
    asio::ip::tcp::socket socket(strand, asio::ip::tcp::v4(), ends[0]);
    const auto connection = std::make_shared<HttpConnection>(MakePlainStream(std::move(socket)),
                                                             HttpShared{options_, routes_, clock_, activity_});
    bool ended = false;
    asio::co_spawn(connection->executor(), connection->Run(), [&ended](std::exception_ptr failure) {
      CHECK(!failure);
      ended = true;
    });
    std::string answer;
    const bool hurried = random.Chance(4);  // disconnects without waiting for responses
    while (!bytes.empty() && !ended) {
      const std::size_t n = std::min<std::size_t>(bytes.size(), random.Chance(3) ? 1 + random.Below(50) : bytes.size());
      const ssize_t sent = send(ends[1], bytes.data(), n, MSG_NOSIGNAL);
      if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
      Step(ends[1], answer);
    }
    if (hurried) close(ends[1]);
    if (!hurried) shutdown(ends[1], SHUT_WR);
    const TimeNs start = clock_.Now();
    while (!ended) {
      Step(hurried ? -1 : ends[1], answer);
      if (!ended) context_.run_for(std::chrono::microseconds(200));
      CHECK_LT(clock_.Now() - start, kTestPatience);  // hung
    }
    if (!hurried) close(ends[1]);
    return answer;
  }

  void CheckClean() {
    EXPECT_TRUE(activity_.WaitUntilIdle(std::chrono::milliseconds(0)));
    EXPECT_EQ(admission_.Load().serving, 0);
    admission_.CheckIntegrity();
  }

 private:
  ServingContext Context() {
    ServingContext context = fixture_.Context(engine_);
    context.admission = &admission_;
    return context;
  }
  void Step(int client, std::string& answer) {
    context_.restart();
    context_.poll();
    char piece[8192];
    for (ssize_t n = 0; client >= 0 && (n = recv(client, piece, sizeof piece, 0)) > 0;) {
      answer.append(piece, static_cast<std::size_t>(n));
    }
  }

  ServingFixture fixture_;
  ImmediateService engine_;
  Admission admission_;
  asio::io_context context_{1};
  RouteTable routes_;
  ModelRoutes models_;
  ServerMetrics metrics_;
  CompletionService service_;
  HttpServerOptions options_;
  OsClock clock_;
  HttpActivity activity_;
};

TEST(HttpGrammarFuzz, NoInputEndsTheProcessOrHangs) {
  spdlog::set_level(spdlog::level::off);
  Harness harness;
  std::map<std::string, std::int64_t> statuses;
  std::int64_t slowest_ms = 0;
  OsClock clock;
  const TimeNs start = clock.Now();
  for (std::int64_t i = fuzz_first; i < fuzz_first + fuzz_inputs; ++i) {
    Grammar grammar(SplitMix64(fuzz_seed * 1'000'003 + static_cast<std::uint64_t>(i)));
    SCOPED_TRACE("input " + std::to_string(i) + " of seed " + std::to_string(fuzz_seed));
    const TimeNs begun = clock.Now();
    const std::string answer = harness.Play(grammar.Connection(), grammar);
    const std::int64_t took_ms = (clock.Now() - begun) / kNsPerMs;
    if (took_ms > 1000)
      std::printf("input %lld took %lld ms\n", static_cast<long long>(i), static_cast<long long>(took_ms));
    slowest_ms = std::max(slowest_ms, took_ms);
    if (!answer.empty()) {
      EXPECT_TRUE(answer.starts_with("HTTP/1.")) << answer.substr(0, 100);
    }
    ++statuses[answer.empty() ? "none" : answer.substr(9, 3)];
    if (i % 10'000 == 9'999) std::printf("%lld inputs\n", static_cast<long long>(i + 1));
  }
  harness.CheckClean();
  Grammar calm(0);
  const std::string alive = harness.Play("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", calm);
  std::printf("%lld inputs in %.1f s, the slowest %lld ms; first answers:", static_cast<long long>(fuzz_inputs),
              static_cast<double>(clock.Now() - start) / kNsPerSecond, static_cast<long long>(slowest_ms));
  for (const auto& [status, count] : statuses) std::printf(" %s: %lld", status.c_str(), static_cast<long long>(count));
  std::printf("\n");
  if (fuzz_inputs >= 1000) {  // the grammar reaches all these cases
    for (const char* status : {"200", "400", "404", "405", "431"}) EXPECT_GT(statuses[status], 0) << status;
  }
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--inputs=")) loramux::fuzz_inputs = std::atoll(argv[i] + 9);
    if (argument.starts_with("--first=")) loramux::fuzz_first = std::atoll(argv[i] + 8);
    if (argument.starts_with("--seed=")) loramux::fuzz_seed = std::strtoull(argv[i] + 7, nullptr, 10);
  }
  return RUN_ALL_TESTS();
}
