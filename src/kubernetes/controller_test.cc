// The controller between an API server that the test plays and a real etcd.
#include "kubernetes/controller.h"

#include <fstream>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/wait_until_for_test.h"
#include "etcd/etcd_for_test.h"
#include "http/json_reader.h"
#include "hub/byte_server_for_test.h"

namespace loramux::controller_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// LoraAdapters of the namespace `ml`, with lists, watches and merge patches of their status.
class ApiServer {
 public:
  ApiServer() : server_([this](const ScriptedRequest& request) { return Answer(request); }) {}

  void Put(const std::string& object, const std::string& source, const std::string& name = {}) {
    const std::lock_guard lock(mutex_);
    Json& stored = objects_[object];
    const bool is_new = stored.is_null();
    stored["metadata"]["name"] = object;
    stored["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z";
    stored["metadata"]["generation"] = is_new ? 1 : stored["metadata"]["generation"].get<int>() + 1;
    stored["spec"] = {{"source", source}};
    if (!name.empty()) stored["spec"]["name"] = name;
    Happen(is_new ? "ADDED" : "MODIFIED", stored);
  }
  void Remove(const std::string& object) {
    const std::lock_guard lock(mutex_);
    Json gone = objects_.at(object);
    objects_.erase(object);
    Happen("DELETED", gone);
  }
  // Forgets the events, as a compaction does: watches from before get 410.
  void Compact() {
    const std::lock_guard lock(mutex_);
    oldest_ = version_ + 1;
    events_.clear();
    ++version_;
  }
  Json StatusOf(const std::string& object) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(object);
    return found != objects_.end() && found->second.contains("status") ? found->second["status"] : Json();
  }
  std::string ReadyOf(const std::string& object) {
    const Json status = StatusOf(object);
    return status.is_null() ? std::string() : status["conditions"][0]["status"].get<std::string>();
  }
  int lists() const { return lists_; }
  std::string url() const { return server_.url(); }
  std::atomic<bool> broken{false};

 private:
  void Happen(const char* type, Json& stored) {
    stored["metadata"]["resourceVersion"] = std::to_string(++version_);
    events_.emplace_back(version_, DumpJson({{"type", type}, {"object", stored}}) + "\n");
  }
  static ScriptedReply Body(const std::string& body, const char* status = "200 OK") {
    return {fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status, body.size(), body)};
  }
  ScriptedReply Answer(const ScriptedRequest& request) {
    if (broken) return Body("{}", "500 Internal Server Error");
    if (request.headers.at("authorization") != "Bearer a-token") return Body("{}", "401 Unauthorized");
    const std::string path = "/apis/loramux.io/v1alpha1/namespaces/ml/loraadapters";
    if (request.method == "PATCH") return Patch(request, path);
    if (request.path == path) return List();
    const std::size_t at = request.path.find("resourceVersion=");
    if (!request.path.starts_with(path + "?watch=1") || at == std::string::npos) return Body("{}", "404 Not Found");
    return Watch(std::stoll(request.path.substr(at + 16)));
  }
  ScriptedReply List() {
    const std::lock_guard lock(mutex_);
    ++lists_;
    Json items = Json::array();
    for (const auto& [name, object] : objects_) items.push_back(object);
    return Body(DumpJson({{"metadata", {{"resourceVersion", std::to_string(version_)}}}, {"items", items}}));
  }
  // Ends after the first events, or after a while without.
  ScriptedReply Watch(std::int64_t after) {
    for (int i = 0; i < 20; ++i) {
      {
        const std::lock_guard lock(mutex_);
        std::string lines;
        if (after < oldest_) return Body("{\"type\":\"ERROR\",\"object\":{\"code\":410}}\n");
        const bool silent = broken;  // what happens from then on, a watch under way does not say either
        for (const auto& [version, line] : events_) lines += version > after && !silent ? line : "";
        if (!lines.empty() || silent) {
          return {
              fmt::format("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
                          "{:x}\r\n{}\r\n0\r\n\r\n",
                          lines.size(), lines)};
        }
      }
      std::this_thread::sleep_for(10ms);
    }
    return Body("");
  }
  ScriptedReply Patch(const ScriptedRequest& request, const std::string& path) {
    const std::lock_guard lock(mutex_);
    const std::size_t end = request.path.rfind("/status");
    if (end == std::string::npos || request.headers.at("content-type") != "application/merge-patch+json") {
      return Body("{}", "415 Unsupported Media Type");
    }
    const auto found = objects_.find(request.path.substr(path.size() + 1, end - path.size() - 1));
    if (found == objects_.end()) return Body("{}", "404 Not Found");
    found->second.merge_patch(*ParseJson(request.body));
    Happen("MODIFIED", found->second);
    return Body(DumpJson(found->second));
  }

  std::mutex mutex_;
  std::map<std::string, Json> objects_;
  std::vector<std::pair<std::int64_t, std::string>> events_;
  std::int64_t version_ = 1, oldest_ = 0;
  std::atomic<int> lists_{0};
  ByteServer server_;  // last: its threads use the rest
};

class ControllerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdForTest::Exists()) GTEST_SKIP() << "needs etcd (Debian: etcd-server)";
    std::string pattern = (std::filesystem::temp_directory_path() / "loramux_token_XXXXXX").string();
    const int file = ::mkstemp(pattern.data());
    ASSERT_EQ(::write(file, "a-token\n", 8), 8);
    ::close(file);
    token_ = pattern;
    store_.emplace();
    etcd_ = std::move(EtcdClient::Open(store_->Options(), clock_)).value();
    kubernetes_.emplace(KubeOptions{.server = *ParseUrl(api_.url(), "x"), .token_file = token_}, clock_);
    Start();
  }
  void TearDown() override {
    Stop();
    std::filesystem::remove(token_);
  }
  void Start() {
    controller_.emplace(ControllerOptions{.space = "ml", .status_interval = 50ms, .first_pause = 20ms}, *kubernetes_,
                        *etcd_, clock_);
    thread_ = std::jthread([this](std::stop_token stop) { controller_->Run(stop); });
  }
  void Stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
  }
  std::string SourceOf(const std::string& name) {
    const auto record = ReadCatalogue(*etcd_, name);
    return record.ok() && record->entry ? record->entry->source : "";
  }

  const OsClock clock_;
  ApiServer api_;
  std::string token_;
  std::optional<EtcdForTest> store_;
  std::unique_ptr<EtcdClient> etcd_;
  std::optional<KubeClient> kubernetes_;
  std::optional<KubernetesController> controller_;
  std::jthread thread_;
};

TEST_F(ControllerTest, ObjectsBecomeEntriesAndServersTheirStatus) {
  api_.Put("sql", "s3://b/sql", "sql-v1");
  ASSERT_TRUE(WaitUntil([&] { return SourceOf("sql-v1") == "s3://b/sql"; }));
  ASSERT_TRUE(WaitUntil([&] { return api_.ReadyOf("sql") == "Unknown"; }));
  const auto record = ReadCatalogue(*etcd_, "sql-v1");
  const AdapterStatus loaded{.loaded = true, .generation = record->entry->generation};
  ASSERT_TRUE(etcd_->Put(StatusKey("server-0", "sql-v1"), AdapterStatusAsJson(loaded)).ok());
  ASSERT_TRUE(WaitUntil([&] { return api_.ReadyOf("sql") == "True"; }));
  EXPECT_EQ(api_.StatusOf("sql")["loaded"], 1);
  api_.Put("sql", "s3://b/sql2", "sql-v1");
  ASSERT_TRUE(WaitUntil([&] { return SourceOf("sql-v1") == "s3://b/sql2"; }));
  ASSERT_TRUE(WaitUntil([&] { return api_.ReadyOf("sql") == "Unknown"; }));  // no server has the new one yet
  api_.Put("bad", "nowhere://x");
  ASSERT_TRUE(WaitUntil([&] { return api_.ReadyOf("bad") == "False"; }));
  EXPECT_EQ(api_.StatusOf("bad")["conditions"][0]["reason"], "Invalid");
}

TEST_F(ControllerTest, DeletionsRemoveWhatTheyOwnedAlsoThoseOfATimeWithoutController) {
  ASSERT_TRUE(WriteCatalogue(*etcd_, "by-hand", {.source = "/data/x"}, *ReadCatalogue(*etcd_, "by-hand")).ok());
  for (const char* object : {"a", "b"}) api_.Put(object, std::string("s3://b/") + object);
  ASSERT_TRUE(WaitUntil([&] { return SourceOf("a") == "s3://b/a" && SourceOf("b") == "s3://b/b"; }));
  api_.Remove("a");
  ASSERT_TRUE(WaitUntil([&] { return SourceOf("a").empty(); }));
  Stop();
  api_.Remove("b");
  api_.Put("c", "s3://b/c");
  Start();
  ASSERT_TRUE(WaitUntil([&] { return SourceOf("b").empty() && SourceOf("c") == "s3://b/c"; }));
  EXPECT_EQ(SourceOf("by-hand"), "/data/x");
}

TEST_F(ControllerTest, SilenceAndCompactionChangeNothing) {
  api_.Put("a", "s3://b/a");
  ASSERT_TRUE(WaitUntil([&] { return SourceOf("a") == "s3://b/a"; }));
  api_.broken = true;
  api_.Put("b", "s3://b/b");
  std::this_thread::sleep_for(300ms);  // many looks at what servers did
  EXPECT_EQ(SourceOf("a"), "s3://b/a");
  EXPECT_EQ(SourceOf("b"), "");
  api_.Compact();
  const int lists = api_.lists();
  api_.broken = false;
  ASSERT_TRUE(WaitUntil([&] { return SourceOf("b") == "s3://b/b"; }));
  EXPECT_GT(api_.lists(), lists);
}

}  // namespace
}  // namespace loramux::controller_test
