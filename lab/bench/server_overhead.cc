// The cost of the server beside the model: 16 streams over HTTP (server-sent events) and the same 16 directly through
// the engine, alternating, on a synthetic bf16 model of the 160M shape. Two figures. The first is the processor time of
// the server's threads per token, as a share of the engine's cost of a token; it does not depend on the machine's other
// load, and has a target. The second is tokens per second, where the client on the same processors is part of the cost.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "lab/bench/shapes.h"
#include "runtime/runtime.h"
#include "server/generation/engine_service.h"
#include "server/server.h"
#include "tools/command_line/command_line.h"
#include "workload/statistics.h"

namespace loramux {
namespace {

constexpr int kVocab = 32000;

// A byte-level tokenizer with a word for every id.
std::string TokenizerJson() {
  std::string vocab;
  for (int i = 0; i < kVocab; ++i) {
    vocab += (i == 0 ? "\"\xC4\xA0word" : ",\"\xC4\xA0word") + std::to_string(i) + "\":" + std::to_string(i);
  }
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)"
         R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},)"
         R"("post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},)"
         R"("model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
         R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"vocab":{)" +
         vocab + R"(},"merges":[]}})";
}

struct Flags {
  int streams = 16, threads = 2, repetitions = 5;
  std::int32_t output = 128;
};

struct Stream {
  std::vector<TokenId> prompt;
  TimeNs first = 0, end = 0;
  std::int64_t tokens = 0;
};

std::vector<Stream> MakeStreams(const Flags& flags) {
  std::vector<Stream> streams(static_cast<std::size_t>(flags.streams));
  for (std::size_t i = 0; i < streams.size(); ++i) {
    for (std::size_t t = 0; t < 16; ++t)
      streams[i].prompt.push_back(static_cast<TokenId>((t * 37 + i * 101 + 5) % kVocab));
  }
  return streams;
}

// Tokens per second of all streams, from the last first token to the last end.
double DecodeRate(const std::vector<Stream>& streams, const Flags& flags) {
  TimeNs first = 0, end = 0;
  for (const Stream& stream : streams) {
    CHECK_EQ(stream.tokens, flags.output);
    first = std::max(first, stream.first);
    end = std::max(end, stream.end);
  }
  return static_cast<double>(flags.streams) * (flags.output - 1) / (static_cast<double>(end - first) / kNsPerSecond);
}

double RunInProcess(Runtime& runtime, const Flags& flags) {
  std::vector<Stream> streams = MakeStreams(flags);
  std::mutex mutex;
  std::condition_variable ended;
  int open = flags.streams;
  for (Stream& stream : streams) {
    GenerationRequest request;
    request.prompt = stream.prompt;
    request.sampling.temperature = 0;
    request.max_tokens = flags.output;
    request.ignore_eos = true;
    request.on_event = [&](const GenerationEvent& event) {
      const TimeNs now = runtime.clock().Now();
      const std::lock_guard lock(mutex);
      if (stream.tokens++ == 0) stream.first = now;
      if (event.finish == FinishReason::kNone) return;
      stream.end = now;
      if (--open == 0) ended.notify_one();
    };
    CHECK(runtime.engine().Submit(std::move(request)).ok());
  }
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return open == 0; });
  return DecodeRate(streams, flags);
}

int Connect(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

void SendRequest(int fd, const Stream& stream, const Flags& flags) {
  std::string ids;
  for (const TokenId id : stream.prompt) ids += (ids.empty() ? "" : ",") + std::to_string(id);
  const std::string body = R"({"model":"base","prompt":[)" + ids +
                           R"(],"stream":true,"ignore_eos":true,"temperature":0,"max_tokens":)" +
                           std::to_string(flags.output) + "}";
  const std::string text =
      "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  CHECK_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

// Counts a stream's events as their bytes arrive. An event is never split here: the server writes it in one piece.
void TakeBytes(Stream& stream, std::string_view bytes, TimeNs now) {
  for (std::size_t at = 0; (at = bytes.find("data: ", at)) != std::string_view::npos; at += 6) {
    if (bytes.substr(at + 6).starts_with("[DONE]")) {
      stream.end = now;
    } else if (stream.tokens++ == 0) {
      stream.first = now;
    }
  }
}

double ThreadCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

std::set<std::string> Threads() {
  std::set<std::string> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    threads.insert(entry.path().filename());
  return threads;
}

// Processor time of these threads (the first number of schedstat: nanoseconds).
double CpuSeconds(const std::set<std::string>& threads) {
  double seconds = 0;
  for (const std::string& thread : threads) {
    double nanoseconds = 0;
    std::ifstream("/proc/self/task/" + thread + "/schedstat") >> nanoseconds;
    seconds += nanoseconds / 1e9;
  }
  return seconds;
}

struct OverHttp {
  double rate = 0, client_us_per_token = 0;
};

OverHttp RunOverHttp(const Server& server, const Clock& clock, const Flags& flags) {
  std::vector<Stream> streams = MakeStreams(flags);
  std::vector<pollfd> polled;
  const double cpu = ThreadCpuSeconds();
  for (Stream& stream : streams) {
    polled.push_back({Connect(server.port()), POLLIN, 0});
    SendRequest(polled.back().fd, stream, flags);
  }
  std::vector<char> buffer(1 << 16);
  for (std::size_t open = streams.size(); open > 0;) {
    CHECK(poll(polled.data(), polled.size(), -1) > 0);
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      const ssize_t n = read(polled[i].fd, buffer.data(), buffer.size());
      if (n > 0) {
        TakeBytes(streams[i], {buffer.data(), static_cast<std::size_t>(n)}, clock.Now());
        continue;
      }
      close(polled[i].fd);
      polled[i].fd = -1;
      --open;
    }
  }
  const double tokens = static_cast<double>(flags.streams) * flags.output;
  return {DecodeRate(streams, flags), (ThreadCpuSeconds() - cpu) * 1e6 / tokens};
}

// The server's parts that have nothing to do here.
struct Idle {
  LengthGuesser lengths;
  std::unique_ptr<GrammarCompiler> grammars = GrammarCompiler::Refusing();
  std::unique_ptr<SpanExporter> spans = SpanExporter::None();
};

std::unique_ptr<Server> StartServer(Runtime& runtime, EngineService& service, const Tokenizer& tokenizer,
                                    const Idle& idle) {
  ServerOptions options;
  options.http.port = 0;
  options.completion.max_model_len = runtime.max_model_len();
  return std::move(Server::Start(options, {.clock = &runtime.clock(),
                                           .generation = &service,
                                           .registry = &runtime.registry(),
                                           .tokenizer = &tokenizer,
                                           .chat_template = &ChatTemplate::None(),
                                           .lengths = &idle.lengths,
                                           .grammars = idle.grammars.get(),
                                           .spans = idle.spans.get()}))
      .value();
}

int Run(const Flags& flags) {
  RuntimeOptions options;
  options.threads = flags.threads;
  options.device_memory = std::int64_t{3} << 30;
  options.host_memory = 0;
  options.spec.keep_history = false;  // every prompt is computed
  options.base_names = {"base"};
  const ModelConfig config = Shape160M();
  auto runtime =
      std::move(Runtime::Create(std::make_unique<Model>(config, RandomModelWeights(config, DType::kBF16, 1)), options))
          .value();
  const Tokenizer tokenizer = std::move(Tokenizer::Parse(TokenizerJson(), "bench")).value();
  EngineService service(&runtime->engine());
  runtime->Start();
  const std::set<std::string> engine_threads = Threads();  // and this one, which sleeps or is the client
  const Idle idle;
  const auto server = StartServer(*runtime, service, tokenizer, idle);
  std::set<std::string> server_threads = Threads();
  for (const std::string& thread : engine_threads) server_threads.erase(thread);
  spdlog::set_level(spdlog::level::warn);
  RunInProcess(*runtime, flags);  // warm-up
  RunOverHttp(*server, runtime->clock(), flags);
  std::vector<double> inside, outside, client, model_us, server_us;
  const double tokens = static_cast<double>(flags.streams) * flags.output;
  for (int i = 0; i < flags.repetitions; ++i) {
    const double engine_before = CpuSeconds(engine_threads);
    inside.push_back(RunInProcess(*runtime, flags));
    model_us.push_back((CpuSeconds(engine_threads) - engine_before) * 1e6 / tokens);
    const double server_before = CpuSeconds(server_threads);
    const OverHttp http = RunOverHttp(*server, runtime->clock(), flags);
    outside.push_back(http.rate);
    server_us.push_back((CpuSeconds(server_threads) - server_before) * 1e6 / tokens);
    client.push_back(http.client_us_per_token);
  }
  server->Shutdown();
  runtime->Stop();
  const double best_inside = *std::max_element(inside.begin(), inside.end());
  const double best_outside = *std::max_element(outside.begin(), outside.end());
  const double overhead = 100 * UpperMedian(server_us) / UpperMedian(model_us);
  std::printf("160M shape, bf16, %d threads, %d streams, %d tokens each, %d repetitions; decode\n", flags.threads,
              flags.streams, flags.output, flags.repetitions);
  std::printf("  processor time per token: engine %.0f us, server %.1f us, client %.1f us\n", UpperMedian(model_us),
              UpperMedian(server_us), UpperMedian(client));
  std::printf("  through the engine  best %8.1f tok/s, median %8.1f\n", best_inside, UpperMedian(inside));
  std::printf("  over HTTP           best %8.1f tok/s, median %8.1f\n", best_outside, UpperMedian(outside));
  std::printf("  server's share of the engine's processor time %.2f %%  target 3 %%  %s\n", overhead,
              overhead <= 3 ? "met" : "MISSED");
  return 0;
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) {
  loramux::Flags flags;
  loramux::Command command{.name = "server_overhead",
                           .summary = "Streams over HTTP against the same streams directly through the engine"};
  command.line.Add(
      {.names = "--streams", .target = &flags.streams, .unit = "N", .help = "Streams at a time", .range = {{1, 256}}});
  command.line.Add({.names = "--threads", .target = &flags.threads, .unit = "N", .help = "Threads of the executor"});
  command.line.Add({.names = "--repetitions",
                    .target = &flags.repetitions,
                    .unit = "N",
                    .help = "Repetitions of both measurements",
                    .range = {{1, 1000}}});
  command.line.Add({.names = "--output",
                    .target = &flags.output,
                    .unit = "N",
                    .help = "Tokens that each stream generates",
                    .range = {{2, 1900}}});
  command.run = [&flags] { return loramux::Run(flags); };
  return loramux::RunCommand(command, argc, argv);
}
