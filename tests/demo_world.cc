#include "tests/demo_world.h"

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/must.h"

namespace loramux::demo {
namespace {

const std::filesystem::path kDemo = std::filesystem::path(LORAMUX_SOURCE_DIR) / "demo";

// Waits for a number of requests to end.
class Latch {
 public:
  explicit Latch(std::size_t count) : count_(count) {}
  void CountDown() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) condition_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::size_t count_;
};

}  // namespace

std::string ModelDirectory() { return (kDemo / "model").string(); }

std::vector<std::string> AdapterNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kDemo / "adapters")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<Question> Questions(std::size_t per_task) {
  std::vector<std::string> tasks = AdapterNames();
  tasks.push_back("base");
  std::vector<std::vector<Question>> by_task;
  for (const std::string& task : tasks) {
    std::ifstream file(kDemo / "eval" / (task + ".jsonl"));
    CHECK(file.good());
    auto& questions = by_task.emplace_back();
    for (std::string line; questions.size() < per_task && std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      questions.push_back({task, json.at("prompt"), json.at("answer")});
    }
    CHECK_EQ(questions.size(), per_task);
  }
  std::vector<Question> all;
  for (std::size_t i = 0; i < per_task; ++i) {
    for (const auto& questions : by_task) all.push_back(questions[i]);
  }
  return all;
}

World::World(RuntimeOptions options) {
  options.base_names = {"base"};
  runtime_ = Must(Runtime::Load(ModelDirectory(), std::move(options), {}));
  for (const std::string& name : AdapterNames()) {
    Must(runtime_->registry().Register(name, kDemo / "adapters" / name, 0));
  }
  tokenizer_ = std::make_unique<Tokenizer>(Must(Tokenizer::Load(ModelDirectory())));
  auto chat = Must(ChatTemplate::Load(ModelDirectory()));
  CHECK(chat.has_value());
  template_ = std::make_unique<ChatTemplate>(std::move(*chat));
  runtime_->Start();
}

World::~World() { runtime_->Stop(); }

GenerationRequest World::Request(const Question& question) const {
  const nlohmann::ordered_json context = {{"messages", {{{"role", "user"}, {"content", question.prompt}}}}};
  GenerationRequest request;
  request.prompt = Must(tokenizer_->Encode(Must(template_->Render(context.dump(), {})), false));
  const auto version = Must(runtime_->registry().Resolve(question.adapter));
  if (version != nullptr) request.adapter = version->generation;
  request.sampling.temperature = 0;
  request.max_tokens = 100;
  return request;
}

std::string World::Decode(const std::vector<TokenId>& tokens) const {
  return Must(tokenizer_->Decode(tokens, /*skip_special_tokens=*/true));
}

std::vector<Answer> World::Ask(const std::vector<Question>& questions, bool one_by_one,
                               const std::function<void(std::size_t, GenerationRequest&)>& adjust) {
  std::vector<Answer> answers(questions.size());
  // Made before the first is submitted, so that all are in flight at the same time even where tokenizing is slow.
  std::vector<GenerationRequest> requests;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    requests.push_back(Request(questions[i]));
    if (adjust) adjust(i, requests.back());
  }
  Latch all(questions.size());
  const auto ask = [&](std::size_t i) {
    GenerationRequest request = std::move(requests[i]);
    Latch one(1);
    Latch* done = one_by_one ? &one : &all;
    request.on_event = [&answer = answers[i], done](const GenerationEvent& event) {
      if (event.token.has_value()) {
        answer.tokens.push_back(event.token->id);
        answer.sampled.push_back(*event.token);
      }
      if (event.finish == FinishReason::kNone) return;
      answer.finish = event.finish;
      if (event.error.has_value()) answer.error = event.error->message;
      done->CountDown();
    };
    const auto id = runtime_->engine().Submit(std::move(request));
    if (!id.ok()) {
      answers[i].error = id.error().message;
      answers[i].finish = FinishReason::kError;
      done->CountDown();
    }
    if (one_by_one) one.Wait();
  };
  if (one_by_one) {
    for (std::size_t i = 0; i < questions.size(); ++i) ask(i);
  } else {
    constexpr std::size_t kClients = 8;
    std::vector<std::thread> clients;
    for (std::size_t c = 0; c < kClients; ++c) {
      clients.emplace_back([&, c] {
        for (std::size_t i = c; i < questions.size(); i += kClients) ask(i);
      });
    }
    for (std::thread& client : clients) client.join();
    all.Wait();
  }
  for (Answer& answer : answers) answer.text = Decode(answer.tokens);
  return answers;
}

RuntimeOptions Roomy() {
  RuntimeOptions options;
  options.device_memory = std::int64_t{256} << 20;
  options.host_memory = std::int64_t{64} << 20;
  options.spec.keep_history = false;                        // the reference answers are computed without reuse
  options.spec.cold_start_policy = ColdStartPolicy::kAuto;  // as `serve` does
  return options;
}

std::int64_t ExpectRightOrInjected(const std::vector<Question>& questions,
                                   const std::vector<std::vector<Answer>>& answers,
                                   const std::vector<std::vector<Answer>>& expected) {
  std::int64_t failed = 0;
  for (std::size_t turn = 0; turn < answers.size(); ++turn) {
    for (std::size_t i = 0; i < questions.size(); ++i) {
      const Answer& answer = answers[turn][i];
      failed += !answer.error.empty();
      if (!answer.error.empty()) {
        EXPECT_EQ(answer.error, "injected");
      } else {
        EXPECT_EQ(answer.tokens, expected[turn][i].tokens)
            << questions[i].adapter << ", session " << i << ", turn " << turn;
      }
    }
  }
  return failed;
}

RuntimeOptions Tight(World& roomy) {
  std::int64_t largest = 0;
  for (const auto& version : roomy.runtime().registry().List()) largest = std::max(largest, version->layout.pages);
  const std::int64_t page_bytes = roomy.runtime().geometry().page_bytes;
  RuntimeOptions options;
  options.device_memory = (largest + 24) * page_bytes;
  options.page_tokens = 4;                           // many small pages: decoding asks for new ones all the time
  options.host_memory = (largest + 8) * page_bytes;  // adapters go back and forth to the disk too
  options.spec.cold_start_policy = ColdStartPolicy::kAuto;
  options.spec.max_running = 32;
  options.spec.max_batch_tokens = 96;
  options.spec.prefill_chunk = 24;
  return options;
}

void ExpectEmptyAndExact(Runtime& runtime) {
  runtime.Stop();
  runtime.engine().CheckIntegrity();
  const EngineStats stats = runtime.engine().Stats();
  EXPECT_EQ(stats.device.used(PageCategory::kKv), stats.history_pages);
  EXPECT_EQ(stats.running + stats.waiting, 0);
}

std::vector<std::vector<Answer>> AskSessions(World& world, const std::vector<Question>& questions, std::size_t turns,
                                             const std::vector<std::vector<Answer>>* truth) {
  std::vector<std::vector<TokenId>> sessions(questions.size()), next = sessions;
  std::vector<std::vector<Answer>> answers;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    answers.push_back(world.Ask(questions, /*one_by_one=*/false, [&](std::size_t i, GenerationRequest& request) {
      request.prompt.insert(request.prompt.begin(), sessions[i].begin(), sessions[i].end());
      next[i] = request.prompt;
      request.ignore_eos = true;
      request.max_tokens = 10;
    }));
    for (std::size_t i = 0; i < questions.size(); ++i) {
      sessions[i] = next[i];
      const std::vector<TokenId>& said = (truth == nullptr ? answers : *truth)[turn][i].tokens;
      sessions[i].insert(sessions[i].end(), said.begin(), said.end());
    }
  }
  return answers;
}

}  // namespace loramux::demo
