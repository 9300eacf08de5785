// Adapters from an S3 store that a test plays, faults included: downloads, resumption, refusals, and the cache.
#include "hub/remote_adapters.h"

#include <csignal>
#include <fstream>
#include <thread>
#include <sys/resource.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hub/byte_server_for_test.h"
#include "hub/file_digest.h"

namespace loramux::remote_adapters_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string Base64OfHex(const std::string& hex) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes, text;
  for (std::size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      word = word << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
    }
    for (std::size_t k = 0; k < 4; ++k) text += i + k > bytes.size() ? '=' : kDigits[word >> (18 - 6 * k) & 63];
  }
  return text;
}

TEST(AdapterSource, NamesThatAreTaken) {
  const auto s3 = ParseAdapterSource("s3://my-bucket/team a/v1/");
  EXPECT_FALSE(s3.ok());
  const auto good = ParseAdapterSource("s3://my.bucket/team/v1/");
  ASSERT_TRUE(good.ok()) << good.error().message;
  EXPECT_EQ(good->bucket, "my.bucket");
  EXPECT_EQ(good->prefix, "team/v1");
  EXPECT_EQ(good->text, "s3://my.bucket/team/v1");
  EXPECT_EQ(ParseAdapterSource("s3://bucket")->prefix, "");
  const auto hub = ParseAdapterSource("hf://org/name@v2");
  ASSERT_TRUE(hub.ok());
  EXPECT_EQ(hub->repo.full(), "org/name");
  EXPECT_EQ(hub->repo.revision, "v2");
  for (const char* text : {"s3://", "s3:///x", "s3://b//x", "s3://b/../x", "s3://b/x/..", "s3://b/./x", "s3://b//",
                           "s3://-b/x", "s3://b/x\r\nHost: y", "hf://org", "hf://org/../x", "gs://b/x", "/local", ""}) {
    EXPECT_FALSE(ParseAdapterSource(text).ok()) << text;
  }
  EXPECT_TRUE(IsRemoteSource("s3://b/x"));
  EXPECT_TRUE(IsRemoteSource("gs://b/x"));
  EXPECT_FALSE(IsRemoteSource("file:///x"));
  EXPECT_FALSE(IsRemoteSource("/data/s3://x"));
  EXPECT_EQ(LocalPathOf("file:///data/x"), "/data/x");
}

TEST(AdapterSource, PrefixesAllowWholeParts) {
  const auto allowed = AllowedSources::Create({"s3://bucket/team/", "hf://org", "hf://other/one"});
  ASSERT_TRUE(allowed.ok()) << allowed.error().message;
  const auto ok = [&](const char* text) { return allowed->Check(*ParseAdapterSource(text)).ok(); };
  for (const char* text : {"s3://bucket/team", "s3://bucket/team/x", "hf://org/x", "hf://org/x@v1", "hf://other/one",
                           "hf://other/one@v1"}) {
    EXPECT_TRUE(ok(text)) << text;
  }
  for (const char* text :
       {"s3://bucket/team-x", "s3://bucket", "s3://bucket2/team", "hf://org2/x", "hf://other/onex"}) {
    EXPECT_FALSE(ok(text)) << text;
  }
  EXPECT_THAT(AllowedSources().Check(*ParseAdapterSource("s3://b/x")).error().message,
              HasSubstr("--allowed-adapter-sources"));
  for (const char* text : {"", "s3://", "/data", "hf://", "http://host"}) {
    EXPECT_FALSE(AllowedSources::Create({text}).ok()) << text;
  }
}

struct Object {
  std::string content, etag;
  bool checksum = true, wrong_checksum = false;
};

class RemoteAdaptersTest : public testing::Test {
 protected:
  RemoteAdaptersTest() : server_([this](const ScriptedRequest& request) { return Answer(request); }) {
    std::string pattern = (fs::temp_directory_path() / "loramux_remote_XXXXXX").string();
    top_ = fs::canonical(::mkdtemp(pattern.data()));
    Put("a", std::string(100'000, 'a'));
    Restart();
  }
  ~RemoteAdaptersTest() override { fs::remove_all(top_); }

  void Put(const std::string& name, const std::string& weights) {
    const std::lock_guard lock(mutex_);
    objects_["/bucket/" + name + "/adapter_config.json"] = {"{\"of\": \"" + name + "\"}", "\"c-" + name + "\""};
    objects_["/bucket/" + name + "/adapter_model.safetensors"] = {weights,
                                                                  "\"" + Sha256Hex(weights).substr(0, 32) + "\""};
  }
  Object& Weights(const std::string& name) { return objects_.at("/bucket/" + name + "/adapter_model.safetensors"); }

  // Changes what the server's threads read.
  void Change(const std::function<void()>& change) {
    const std::lock_guard lock(mutex_);
    change();
  }

  // As after a kill: what is on the disk is all that is left.
  void Restart(std::int64_t cache_bytes = 1 << 20) {
    remote_.reset();
    RemoteAdapterOptions options{.cache_directory = top_ / "cache", .cache_bytes = cache_bytes};
    options.s3 = {.endpoint = server_.url(),
                  .access_key = "an-id",
                  .secret_key = "a-secret-key",
                  .limits = {.stall_seconds = 1, .attempts = attempts_, .patience_seconds = patience_}};
    remote_ = std::move(RemoteAdapters::Open(options)).value();
  }

  // Uses an adapter; its digest is that of the weights. Weights with "bad" in them are refused.
  Result<std::string> Use(const std::string& name, const std::string& digest = {}, AskSource ask = AskSource::kAlways) {
    opened_.clear();
    lease_.reset();
    const auto open = [this](const fs::path& folder, const std::shared_ptr<const void>& lease) -> Result<std::string> {
      const std::string weights = ReadAll(folder / weights_name_);
      if (weights.find("bad") != std::string::npos) {
        return InvalidArgument((folder / "adapter_model.safetensors").string() + ": tensor x: expected a, found b");
      }
      opened_ = weights;
      folder_ = folder;
      lease_ = lease;
      return Sha256Hex(weights);
    };
    auto warning = remote_->Use(*ParseAdapterSource("s3://bucket/" + name), digest, ask, open);
    if (!warning.ok()) opened_.clear();
    return warning;
  }
  std::vector<ScriptedRequest> Gets() const {
    std::vector<ScriptedRequest> gets;
    for (const auto& request : server_.seen()) {
      if (request.method == "GET" && request.path.ends_with("safetensors")) gets.push_back(request);
    }
    return gets;
  }

  ScriptedReply Answer(const ScriptedRequest& request) {
    const std::lock_guard lock(mutex_);
    if (hook_) {
      if (auto reply = hook_(request)) return *reply;
    }
    const auto found = objects_.find(request.path);
    if (found == objects_.end()) {
      const std::string body = "<?xml?><Error><Code>NoSuchKey</Code></Error>";
      return {fmt::format("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n\r\n{}", body.size(),
                          request.method == "HEAD" ? "" : body)};
    }
    const Object& object = found->second;
    const auto match = request.headers.find("if-match");
    if (match != request.headers.end() && match->second != object.etag) {
      return {"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"};
    }
    std::size_t begin = 0;
    if (const auto range = request.headers.find("range"); range != request.headers.end()) {
      begin = std::stoul(range->second.substr(6));
    }
    std::string head = begin > 0 ? fmt::format("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{}\r\n",
                                               begin, object.content.size() - 1, object.content.size())
                                 : "HTTP/1.1 200 OK\r\n";
    const std::string digest = Sha256Hex(object.wrong_checksum ? "else" : object.content);
    if (object.checksum) head += "x-amz-checksum-sha256: " + Base64OfHex(digest) + "\r\n";
    std::string body = request.method == "HEAD" ? "" : object.content.substr(begin);
    head += fmt::format("ETag: {}\r\nContent-Length: {}\r\n\r\n", object.etag, object.content.size() - begin);
    if (cuts_ > 0 && body.size() > cut_at_) {
      --cuts_;
      body.resize(cut_at_);
      if (after_cut_) after_cut_();
    }
    return {head + body};
  }

  std::mutex mutex_;  // what follows, against the server's threads
  std::map<std::string, Object> objects_;
  int cuts_ = 0;
  std::size_t cut_at_ = 40'000;
  std::function<void()> after_cut_;
  std::function<std::optional<ScriptedReply>(const ScriptedRequest&)> hook_;
  ByteServer server_;

  int attempts_ = 3;
  long patience_ = 60;
  fs::path top_, folder_;
  std::string opened_, weights_name_ = "adapter_model.safetensors";
  std::shared_ptr<const void> lease_;
  std::unique_ptr<RemoteAdapters> remote_;
};

TEST_F(RemoteAdaptersTest, IsFetchedOnceAndThenOnlyAskedFor) {
  ASSERT_TRUE(Use("a").ok());
  EXPECT_EQ(opened_, Weights("a").content);
  EXPECT_EQ(ReadAll(folder_ / "adapter_config.json"), R"({"of": "a"})");
  EXPECT_EQ(Gets().size(), 1u);
  for (const auto& request : server_.seen()) {
    EXPECT_THAT(request.headers.at("authorization"), HasSubstr("AWS4-HMAC-SHA256 Credential=an-id/"));
    EXPECT_THAT(request.path, Not(HasSubstr("list")));
  }
  ASSERT_TRUE(Use("a").ok());
  EXPECT_EQ(Gets().size(), 1u);
  Restart();
  server_.Forget();
  ASSERT_TRUE(Use("a", Sha256Hex(opened_)).ok());  // with a digest no one is asked
  EXPECT_TRUE(server_.seen().empty());
  EXPECT_EQ(opened_, Weights("a").content);
}

TEST_F(RemoteAdaptersTest, ACutDownloadGoesOnWhereItBroke) {
  Change([&] { cuts_ = 2; });
  ASSERT_TRUE(Use("a").ok());
  EXPECT_EQ(opened_, Weights("a").content);
  const auto gets = Gets();
  ASSERT_EQ(gets.size(), 3u);
  EXPECT_EQ(gets[1].headers.at("range"), "bytes=39999-");  // one byte once more, so that a range is never empty
  EXPECT_EQ(gets[1].headers.at("if-match"), Weights("a").etag);
}

TEST_F(RemoteAdaptersTest, AKilledDownloadGoesOnAfterTheRestart) {
  attempts_ = 1;
  Restart();
  Change([&] { cuts_ = 1; });
  const auto failed = Use("a");
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(failed.error().message, HasSubstr("s3://bucket/a"));
  EXPECT_TRUE(fs::is_empty(top_ / "cache/entries"));
  Restart();
  server_.Forget();
  ASSERT_TRUE(Use("a").ok());
  EXPECT_EQ(opened_, Weights("a").content);
  ASSERT_EQ(Gets().size(), 1u);
  EXPECT_EQ(Gets()[0].headers.at("range"), "bytes=39999-");
}

TEST_F(RemoteAdaptersTest, AnObjectThatChangesMeanwhileIsBegunAgain) {
  Change([&] { cuts_ = 1; });
  Change([&] { after_cut_ = [this] { Weights("a") = {std::string(100'000, 'b'), "\"new\""}; }; });
  ASSERT_TRUE(Use("a").ok());
  EXPECT_EQ(opened_, std::string(100'000, 'b'));  // nothing of the old one
}

TEST_F(RemoteAdaptersTest, AnObjectThatKeepsChangingIsRefused) {
  Change([&] { cuts_ = 100; });
  int version = 0;
  Change([&] { after_cut_ = [&] { Weights("a").etag = fmt::format("\"{}\"", ++version); }; });
  const auto failed = Use("a");
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("changed 3 times"));
}

TEST_F(RemoteAdaptersTest, TheFileOfTensorsMayBeThatOfMlx) {
  Change([&] {
    auto node = objects_.extract("/bucket/a/adapter_model.safetensors");
    node.key() = "/bucket/a/adapters.safetensors";
    objects_.insert(std::move(node));
  });
  weights_name_ = "adapters.safetensors";
  const auto used = Use("a");
  ASSERT_TRUE(used.ok()) << used.error().message;
  EXPECT_EQ(opened_, std::string(100'000, 'a'));
}

// An adapter of llama.cpp has any name, and stores are never listed: the source names it.
TEST_F(RemoteAdaptersTest, ASourceMayNameAGgufFile) {
  Change([&] {
    objects_["/bucket/b/v1-f16.gguf"] = {std::string(100'000, 'g'), "\"g\""};
    objects_["/bucket/b/v2-f16.gguf"] = {std::string(1000, 'h'), "\"h\""};
    objects_["/bucket/b/config.json"] = {R"({"of": "a model"})", "\"m\""};
    objects_["/bucket/b/chat_template.jinja"] = {"a template", "\"t\""};
    cuts_ = 1;
  });
  weights_name_ = "v1-f16.gguf";
  const auto used = Use("b/v1-f16.gguf");
  ASSERT_TRUE(used.ok()) << used.error().message;
  EXPECT_EQ(opened_, std::string(100'000, 'g'));
  EXPECT_EQ(ReadAll(folder_ / "chat_template.jinja"), "a template");
  EXPECT_FALSE(fs::exists(folder_ / "config.json"));
  EXPECT_FALSE(fs::exists(folder_ / "v2-f16.gguf"));
  for (const auto& request : server_.seen()) EXPECT_THAT(request.path, Not(HasSubstr("list")));

  server_.Forget();
  ASSERT_TRUE(Use("b/v1-f16.gguf").ok());
  for (const auto& request : server_.seen()) EXPECT_EQ(request.method, "HEAD") << request.path;
  Change([&] { objects_["/bucket/b/v1-f16.gguf"] = {std::string(500, 'n'), "\"n\""}; });
  ASSERT_TRUE(Use("b/v1-f16.gguf").ok());
  EXPECT_EQ(opened_, std::string(500, 'n'));
  Change([&] { objects_["/bucket/b/chat_template.jinja"] = {"another", "\"u\""}; });
  ASSERT_TRUE(Use("b/v1-f16.gguf").ok());
  EXPECT_EQ(ReadAll(folder_ / "chat_template.jinja"), "another");
}

TEST_F(RemoteAdaptersTest, AGgufFileAtTheTopOfABucketAndAPrefixWithSuchAName) {
  Change([&] { objects_["/bucket/top.gguf"] = {std::string(1000, 'g'), "\"g\""}; });
  weights_name_ = "top.gguf";
  ASSERT_TRUE(Use("top.gguf").ok());
  EXPECT_EQ(opened_, std::string(1000, 'g'));
  Put("x.gguf", std::string(1000, 'x'));
  weights_name_ = "adapter_model.safetensors";
  ASSERT_TRUE(Use("x.gguf").ok());
  EXPECT_EQ(opened_, std::string(1000, 'x'));
  ASSERT_TRUE(Use("x.gguf").ok());
  const auto none = Use("none.gguf");
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(none.error().message, HasSubstr("or a source that names a GGUF file"));
  EXPECT_EQ(Use("b/.hidden.gguf").error().code, ErrorCode::kNotFound);
}

TEST_F(RemoteAdaptersTest, RefusalsSaySourceFoundAndWhatToDo) {
  const auto failed = Use("nowhere");
  EXPECT_EQ(failed.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(failed.error().message,
              testing::AllOf(HasSubstr("s3://bucket/nowhere"), HasSubstr("adapter_config.json")));
  Change([&] {
    hook_ = [](const ScriptedRequest&) {
      return ScriptedReply{"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nx-amz-bucket-region: eu-west-1\r\n\r\n"};
    };
  });
  const auto denied = Use("a");
  EXPECT_EQ(denied.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(denied.error().message, testing::AllOf(HasSubstr("no access"), HasSubstr("AWS_ACCESS_KEY_ID"),
                                                     HasSubstr("eu-west-1"), Not(HasSubstr("a-secret-key"))));
}

TEST_F(RemoteAdaptersTest, ContentThatIsNotWhatTheStoreSaysIsRefused) {
  Change([&] { Weights("a").wrong_checksum = true; });
  const auto failed = Use("a");
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, testing::AllOf(HasSubstr("SHA-256"), HasSubstr("upload")));
  Change([&] { Weights("a").wrong_checksum = false; });
  EXPECT_TRUE(Use("a").ok());
}

TEST_F(RemoteAdaptersTest, ContentOfAnotherDigestIsRefused) {
  const auto failed = Use("a", Sha256Hex("other"));
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message,
              testing::AllOf(HasSubstr(Sha256Hex("other")), HasSubstr(Sha256Hex(Weights("a").content))));
  EXPECT_TRUE(fs::is_empty(top_ / "cache/entries"));
}

TEST_F(RemoteAdaptersTest, ABadAdapterIsRefusedBeforeItIsPublished) {
  Put("broken", "bad weights");
  const auto failed = Use("broken");
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("s3://bucket/broken/adapter_model.safetensors: tensor x"));
  EXPECT_TRUE(fs::is_empty(top_ / "cache/entries"));
  EXPECT_EQ(remote_->cache().Bytes(), 0);
}

TEST_F(RemoteAdaptersTest, AnEndlessBodyIsRefused) {
  Change([&] {
    hook_ = [](const ScriptedRequest& request) -> std::optional<ScriptedReply> {
      if (request.method == "HEAD" || !request.path.ends_with("safetensors")) return std::nullopt;
      std::string body = "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nTransfer-Encoding: chunked\r\n\r\n";
      for (int i = 0; i < 1000; ++i) body += "400\r\n" + std::string(1024, 'x') + "\r\n";
      return ScriptedReply{body};
    };
  });
  auto failed = Use("a");
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("Content-Length"));
  // Longer than what the store had said of it.
  Change([&] {
    hook_ = [](const ScriptedRequest& request) -> std::optional<ScriptedReply> {
      if (request.method == "HEAD" || !request.path.ends_with("safetensors")) return std::nullopt;
      return ScriptedReply{"HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 99999999999\r\n\r\n" +
                           std::string(300'000, 'x')};
    };
  });
  failed = Use("a");
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("expected at most"));
  EXPECT_LT(remote_->cache().Bytes(), 200'000);
}

TEST_F(RemoteAdaptersTest, RedirectsAreNotFollowed) {
  ByteServer other(
      [](const ScriptedRequest&) { return ScriptedReply{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}; });
  Change([&] {
    hook_ = [&](const ScriptedRequest&) {
      return ScriptedReply{"HTTP/1.1 307 Temporary Redirect\r\nLocation: " + other.url() +
                           "/x\r\nContent-Length: 0\r\n\r\n"};
    };
  });
  const auto failed = Use("a");
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message,
              testing::AllOf(HasSubstr("redirect to '127.0.0.1:"), HasSubstr("AWS_ENDPOINT_URL")));
  EXPECT_TRUE(other.seen().empty());
}

TEST_F(RemoteAdaptersTest, AStoreThatDripsIsGivenUp) {
  attempts_ = 2;
  Restart();
  Change([&] {
    hook_ = [](const ScriptedRequest& request) -> std::optional<ScriptedReply> {
      if (request.method == "HEAD" || !request.path.ends_with("safetensors")) return std::nullopt;
      return ScriptedReply{
          "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 100000\r\n\r\n" + std::string(100'000, 'x'),
          /*drip=*/true};
    };
  });
  const auto failed = Use("a");
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kUnavailable);
}

// Faster than a stall, and so slow that it would take a day.
TEST_F(RemoteAdaptersTest, AStoreThatDripsAboveTheStallIsGivenUpToo) {
  patience_ = 1;
  Restart(std::int64_t{1} << 30);
  Change([&] {
    hook_ = [](const ScriptedRequest& request) -> std::optional<ScriptedReply> {
      if (!request.path.ends_with("safetensors")) return std::nullopt;
      const std::string head = "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 200000000\r\n\r\n";
      if (request.method == "HEAD") return ScriptedReply{head};
      return ScriptedReply{head + std::string(1'000'000, 'x'), /*drip=*/true, /*drip_bytes=*/200};
    };
  });
  const auto failed = Use("a");
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(failed.error().message, testing::AllOf(HasSubstr("too slow"), HasSubstr("s3://bucket/a")));
}

TEST(TransferTime, BytesThatComeEarnTime) {
  const TransferLimits limits{.patience_seconds = 10, .floor_bytes_per_second = 1000};
  TransferTime time(limits, 0);
  EXPECT_FALSE(time.Over(10 * kNsPerSecond));
  EXPECT_TRUE(time.Over(11 * kNsPerSecond));
  time.Came(5000);
  EXPECT_FALSE(time.Over(15 * kNsPerSecond));
  EXPECT_TRUE(time.Over(16 * kNsPerSecond));
  EXPECT_FALSE(TransferTime({.patience_seconds = 0}, 0).Over(1'000'000 * kNsPerSecond));
}

TEST_F(RemoteAdaptersTest, WhatIsOnlyAnnouncedEvictsNothing) {
  attempts_ = 1;
  Restart(300'000);
  Put("b", std::string(100'000, 'b'));
  ASSERT_TRUE(Use("a").ok());
  const fs::path a = folder_;
  ASSERT_TRUE(Use("b").ok());
  const fs::path b = folder_;
  lease_.reset();
  Put("liar", std::string(240'000, 'x'));
  Change([&] {
    cuts_ = 1;
    cut_at_ = 10;
  });
  EXPECT_EQ(Use("liar").error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(fs::exists(a) && fs::exists(b));
  ASSERT_TRUE(Use("liar").ok());  // room is taken for what comes
  EXPECT_FALSE(fs::exists(a) || fs::exists(b));
  EXPECT_LE(remote_->cache().Bytes(), 300'000);
}

TEST_F(RemoteAdaptersTest, StopEndsADownload) {
  Change([&] {
    hook_ = [](const ScriptedRequest&) {
      return ScriptedReply{"HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 100000\r\n\r\n", /*drip=*/true};
    };
  });
  std::thread stopper([this] {
    while (server_.seen().empty()) std::this_thread::yield();
    remote_->Stop();
  });
  const auto failed = Use("a");
  stopper.join();
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("shutting down"));
}

TEST_F(RemoteAdaptersTest, WhatTheSourceNoLongerHasIsTakenFromTheCacheWhereThatIsAllowed) {
  ASSERT_TRUE(Use("a").ok());
  const std::string content = opened_;
  Change([&] { objects_.clear(); });
  EXPECT_EQ(Use("a").error().code, ErrorCode::kNotFound);
  const auto warning = Use("a", {}, AskSource::kOrTake);
  ASSERT_TRUE(warning.ok());
  EXPECT_THAT(*warning, HasSubstr("the cache"));
  EXPECT_EQ(opened_, content);
  EXPECT_TRUE(Use("a", {}, AskSource::kNever).ok());
  EXPECT_EQ(Use("b", {}, AskSource::kNever).error().code, ErrorCode::kUnavailable);
}

TEST_F(RemoteAdaptersTest, ANewVersionIsFetchedAndTheOldOneStaysWhileItIsUsed) {
  ASSERT_TRUE(Use("a").ok());
  const auto old_lease = lease_;
  const fs::path old = folder_;
  Put("a", std::string(100'000, 'c'));
  ASSERT_TRUE(Use("a").ok());
  EXPECT_EQ(opened_, std::string(100'000, 'c'));
  EXPECT_TRUE(fs::exists(old));
  ASSERT_TRUE(Use("a", Sha256Hex(std::string(100'000, 'a'))).ok());  // as after a restart: by its digest
  EXPECT_EQ(folder_, old);
}

TEST_F(RemoteAdaptersTest, TheLongestUnusedGoesFirstAndUsedOnesNever) {
  Restart(250'000);
  for (const char* name : {"b", "c", "d"}) Put(name, std::string(100'000, *name));
  ASSERT_TRUE(Use("a").ok());
  const fs::path a = folder_;
  const auto lease_of_a = lease_;
  ASSERT_TRUE(Use("b").ok());
  const fs::path b = folder_;
  ASSERT_TRUE(Use("c").ok());
  EXPECT_TRUE(fs::exists(a));
  EXPECT_FALSE(fs::exists(b));  // a is older, and in use
  const auto lease_of_c = lease_;
  const auto failed = Use("d");
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(failed.error().message, testing::AllOf(HasSubstr("s3://bucket/d"), HasSubstr("--adapter-cache-bytes")));
  Put("huge", std::string(300'000, 'x'));
  EXPECT_EQ(Use("huge").error().code, ErrorCode::kResourceExhausted);
  EXPECT_LE(remote_->cache().Bytes(), 250'000);
}

TEST_F(RemoteAdaptersTest, AnEntryThatChangedOnTheDiskIsFetchedAgain) {
  ASSERT_TRUE(Use("a").ok());
  const std::string content = opened_;
  std::ofstream(folder_ / "adapter_model.safetensors") << "bad";
  ASSERT_TRUE(Use("a").ok());
  EXPECT_EQ(opened_, content);
}

TEST_F(RemoteAdaptersTest, AFullDiskIsToldAndLeftAsItWas) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{50'000, before.rlim_max};  // bytes of a file: stands for the disk
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto failed = Use("a");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kIoError);
  EXPECT_THAT(failed.error().message, testing::AllOf(HasSubstr("s3://bucket/a"), HasSubstr("--adapter-cache-dir")));
  EXPECT_EQ(remote_->cache().Bytes(), 0);
  EXPECT_TRUE(Use("a").ok());
}

TEST_F(RemoteAdaptersTest, SeveralAtOnceDownloadOnce) {
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      std::string weights;
      const auto open = [&](const fs::path& folder, const std::shared_ptr<const void>&) -> Result<std::string> {
        weights = ReadAll(folder / "adapter_model.safetensors");
        return Sha256Hex(weights);
      };
      const std::string digest = Sha256Hex(std::string(100'000, 'a'));
      const auto done = remote_->Use(*ParseAdapterSource("s3://bucket/a"), digest, AskSource::kAlways, open);
      good += done.ok() && weights == std::string(100'000, 'a');
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 4);
  EXPECT_EQ(Gets().size(), 1u);
}

TEST_F(RemoteAdaptersTest, TheEmbeddingFilesComeToo) {
  Change([&] {
    objects_["/bucket/a/modules.json"] = {R"([{"path": ""}, {"path": "1_Pooling"}, {"path": "../x"}])", "\"m\""};
  });
  Change([&] { objects_["/bucket/a/1_Pooling/config.json"] = {"{}", "\"p\""}; });
  ASSERT_TRUE(Use("a").ok());
  EXPECT_EQ(ReadAll(folder_ / "1_Pooling/config.json"), "{}");
  EXPECT_EQ(std::distance(fs::recursive_directory_iterator(folder_), {}), 5);
}

// What an adapter says of prompts comes with its weights, and is not taken from another source of the same weights.
TEST_F(RemoteAdaptersTest, TheTokenizersFilesComeToo) {
  for (const char* name : {"chat_template.jinja", "tokenizer.json", "generation_config.json"}) {
    Change([&] { objects_[std::string("/bucket/a/") + name] = {name, std::string("\"") + name + "\""}; });
  }
  ASSERT_TRUE(Use("a").ok());
  EXPECT_EQ(ReadAll(folder_ / "chat_template.jinja"), "chat_template.jinja");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 5);
  const std::string digest = Sha256Hex(std::string(100'000, 'a'));
  EXPECT_TRUE(remote_->cache().Find(*ParseAdapterSource("s3://bucket/a"), digest));
  EXPECT_FALSE(remote_->cache().Find(*ParseAdapterSource("s3://bucket/other"), digest));
  Change([&] { objects_["/bucket/a/chat_template.jinja"] = {"new", "\"new\""}; });
  ASSERT_TRUE(Use("a").ok());
  EXPECT_EQ(ReadAll(folder_ / "chat_template.jinja"), "new");
  Change([&] { objects_.erase("/bucket/a/chat_template.jinja"); });
  ASSERT_TRUE(Use("a").ok());
  EXPECT_FALSE(fs::exists(folder_ / "chat_template.jinja"));
  EXPECT_TRUE(fs::exists(folder_ / "tokenizer.json"));
}

}  // namespace
}  // namespace loramux::remote_adapters_test
