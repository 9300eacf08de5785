// Management of adapters at run time on a golden model (tests/golden), without sockets: load, reload, unload, discovery
// and restart, and the state that failures must not change.
#include "server/adapters/adapter_admin.h"

#include <atomic>
#include <fstream>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "auth/bearer_key.h"
#include "http/raw_client_for_test.h"
#include "http/server.h"
#include "runtime/runtime.h"
#include "server/adapters/adapter_request.h"
#include "server/adapters/adapter_service.h"
#include "server/api/openai/model_listing.h"

namespace loramux::adapter_admin_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kCase = fs::path(LORAMUX_SOURCE_DIR) / "tests/golden/models/tied_embed_only";

// A file system; the test can fill its disk.
class FullDisk final : public FileSystem {
 public:
  bool full = false;
  Status CreateDirectories(const fs::path& path) override { return os_.CreateDirectories(path); }
  Result<std::unique_ptr<WritableFile>> Create(const fs::path& path) override { return Wrap(os_.Create(path)); }
  Result<std::unique_ptr<WritableFile>> OpenForAppend(const fs::path& path) override {
    return Wrap(os_.OpenForAppend(path));
  }
  Result<std::string> Read(const fs::path& path) override { return os_.Read(path); }
  Status Rename(const fs::path& from, const fs::path& to) override { return os_.Rename(from, to); }
  Status SyncDirectory(const fs::path& path) override { return os_.SyncDirectory(path); }
  Result<std::unique_ptr<FileLock>> Lock(const fs::path& path) override { return os_.Lock(path); }

 private:
  struct File final : WritableFile {
    File(FullDisk* disk, std::unique_ptr<WritableFile> inner) : disk_(disk), inner_(std::move(inner)) {}
    Result<std::size_t> Append(std::string_view data) override {
      if (disk_->full) return IoError("adapters.journal: cannot write: No space left on device");
      return inner_->Append(data);
    }
    Status Sync() override { return inner_->Sync(); }
    Status Truncate(std::uint64_t size) override { return inner_->Truncate(size); }
    FullDisk* disk_;
    std::unique_ptr<WritableFile> inner_;
  };
  Result<std::unique_ptr<WritableFile>> Wrap(Result<std::unique_ptr<WritableFile>> file) {
    if (!file.ok()) return file;
    return std::unique_ptr<WritableFile>(std::make_unique<File>(this, std::move(*file)));
  }
  FileSystem& os_ = OsFileSystem();
};

class AdapterAdminTest : public testing::Test {
 protected:
  AdapterAdminTest() {
    std::string pattern = (fs::temp_directory_path() / "loramux_admin_XXXXXX").string();
    top_ = fs::canonical(::mkdtemp(pattern.data()));
    fs::create_directories(top_ / "dir");
    fs::create_directories(top_ / "outside");
    Copy("lm_head", "dir/first");
    Copy("lm_head", "a");
    Copy("lm_head_peft_auto", "b");
    Restart();
  }
  ~AdapterAdminTest() override {
    admin_.reset();
    runtime_.reset();
    fs::remove_all(top_);
  }

  fs::path Copy(const std::string& golden, const std::string& to) {
    fs::create_directories((top_ / to).parent_path());
    fs::copy(kCase / "adapters" / golden, top_ / to, fs::copy_options::recursive);
    return top_ / to;
  }
  // Restarts as after a kill: without any shutdown work, and with new objects.
  void Restart() {
    admin_.reset();
    runtime_.reset();
    RuntimeOptions options;
    options.device_memory = 4 << 20;
    options.host_memory = 1 << 20;
    options.threads = 1;
    options.base_names = {"base"};
    runtime_ = std::move(Runtime::Load(kCase / "model", options, {})).value();
    runtime_->Start();
    AdapterAdminParts parts;
    parts.clock = &clock_;
    parts.registry = &runtime_->registry();
    parts.roots = *AllowedRoots::Create({top_});
    parts.directory = std::move(AdapterDirectory::Open(top_ / "dir", &clock_)).value();
    parts.journal = std::move(AdapterJournal::Open(&disk_, top_ / "state")).value();
    parts.set_pinned = [this](auto version, bool pinned, auto done) {
      runtime_->engine().SetPinned(std::move(version), pinned, std::move(done));
    };
    parts.retarget = [this](const AdapterVersion& old, const auto& next) {
      EXPECT_EQ(*runtime_->registry().Resolve(next->name), next);  // the name was switched before
      retargeted_.emplace_back(old.file.digest, next->file.digest);
    };
    admin_ = std::make_unique<AdapterAdmin>(std::move(parts));
    admin_->Restore();
  }
  Result<AdapterAdmin::LoadOutcome> Load(const std::string& name, const fs::path& path, bool replace = false,
                                         bool pinned = false) {
    ASSIGN_OR_RETURN(const auto loaded, admin_->Load({name, path.string(), replace, pinned}));
    return loaded.outcome;
  }
  // Stops as a kill does, and replaces the journal's record of `adapter.name`.
  void StopAndRecord(const JournaledAdapter& adapter) {
    admin_.reset();
    ASSERT_TRUE((*AdapterJournal::Open(&disk_, top_ / "state"))->Load(adapter).ok());
  }
  JournaledAdapter RecordOf(const std::string& name) {
    admin_.reset();
    return (*AdapterJournal::Open(&disk_, top_ / "state"))->Adapters().at(name);
  }
  std::string DigestOf(const std::string& name) {
    const auto version = runtime_->registry().Resolve(name);
    return version.ok() ? (*version)->file.digest : "";
  }

  VirtualClock clock_;  // clock of what is tried again after a while
  fs::path top_;
  FullDisk disk_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<AdapterAdmin> admin_;
  std::vector<std::pair<std::string, std::string>> retargeted_;  // digests
};

using Outcome = AdapterAdmin::LoadOutcome;

TEST_F(AdapterAdminTest, LoadReloadUnload) {
  EXPECT_EQ(*Load("x", top_ / "a"), Outcome::kLoaded);
  const std::string first = DigestOf("x");
  EXPECT_EQ(Load("x", top_ / "b").error().param, "lora_name");  // the name is taken
  EXPECT_EQ(*Load("x", top_ / "a", true), Outcome::kUnchanged);
  EXPECT_EQ(*Load("x", top_ / "b", true), Outcome::kReloaded);
  EXPECT_NE(DigestOf("x"), first);
  EXPECT_EQ(retargeted_, (std::vector{std::pair(first, DigestOf("x"))}));
  EXPECT_TRUE(admin_->Unload("x").ok());
  EXPECT_EQ(admin_->Unload("x").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Load("y", top_ / "nowhere").error().code, ErrorCode::kNotFound);
  for (const char* name : {"", "a,b", "base"}) EXPECT_FALSE(Load(name, top_ / "a").ok()) << name;
}

TEST_F(AdapterAdminTest, Point5And6_ABadAdapterIsRefusedByNameAndHarmsNothing) {
  ASSERT_TRUE(Load("x", top_ / "a").ok());
  const std::string before = DigestOf("x");
  const fs::path bad = Copy("lm_head", "bad");
  fs::resize_file(bad / "adapter_model.safetensors", 100);
  EXPECT_THAT(Load("x", bad, true).error().message, HasSubstr("adapter_model.safetensors"));
  std::ofstream(bad / "adapter_config.json") << "{";
  EXPECT_THAT(Load("z", bad).error().message, HasSubstr("adapter_config.json"));
  EXPECT_EQ(DigestOf("x"), before);
  EXPECT_FALSE(runtime_->registry().Resolve("z").ok());
}

TEST_F(AdapterAdminTest, Point10_WhatWasAcknowledgedIsThereAfterARestart) {
  ASSERT_TRUE(Load("x", top_ / "a").ok());
  ASSERT_TRUE(Load("x", top_ / "b", true).ok());
  ASSERT_TRUE(Load("pinned", top_ / "a", false, true).ok());
  ASSERT_TRUE(Load("gone", top_ / "a").ok());
  ASSERT_TRUE(admin_->Unload("gone").ok());
  ASSERT_TRUE(admin_->Find("first").ok());
  ASSERT_TRUE(admin_->Unload("first").ok());  // the directory still offers it
  const std::string digest = DigestOf("x");
  Restart();
  EXPECT_EQ(DigestOf("x"), digest);
  EXPECT_EQ(admin_->Loaded().size(), 2u);
  EXPECT_FALSE(admin_->Find("first").ok());
  EXPECT_TRUE(admin_->Offered().empty());
  ASSERT_TRUE(Load("first", top_ / "dir/first").ok());
  Restart();
  EXPECT_TRUE(admin_->Find("first").ok());
}

TEST_F(AdapterAdminTest, Point10_AnAdapterThatChangedWhileTheServerWasDownIsNotServed) {
  ASSERT_TRUE(Load("x", top_ / "a").ok());
  ASSERT_TRUE(Load("y", top_ / "b").ok());
  fs::remove_all(top_ / "a");
  fs::copy(top_ / "b", top_ / "a");
  Restart();
  EXPECT_EQ(admin_->Failed().size(), 1u);
  EXPECT_THAT(admin_->Find("x").error().message, HasSubstr("has changed since it was loaded"));
  EXPECT_TRUE(admin_->Find("y").ok());
  EXPECT_EQ(*Load("x", top_ / "a"), Outcome::kLoaded);  // the operator confirms the new content
  EXPECT_TRUE(admin_->Find("x").ok());
  Restart();
  EXPECT_TRUE(admin_->Failed().empty());
}

TEST_F(AdapterAdminTest, ARecordOfAnOlderVersionIsComparedByItsDigestAndRenewed) {
  ASSERT_TRUE(Load("x", top_ / "a", false, true).ok());
  const AdapterFile& file = (*runtime_->registry().Resolve("x"))->file;
  const std::string digest = file.digest;
  const JournaledAdapter old = {"x", (top_ / "a").string(), *OldAdapterDigest(file), true, 77};
  StopAndRecord(old);
  Restart();
  EXPECT_TRUE(admin_->Failed().empty());
  EXPECT_EQ(DigestOf("x"), digest);
  const JournaledAdapter renewed = RecordOf("x");
  EXPECT_EQ(renewed, (JournaledAdapter{"x", old.path, digest, true, 77}));
  StopAndRecord(old);
  fs::remove_all(top_ / "a");
  fs::copy(top_ / "b", top_ / "a");
  Restart();
  EXPECT_THAT(admin_->Find("x").error().message, HasSubstr("expected " + old.digest));
  EXPECT_EQ(RecordOf("x"), old);  // what was not accepted is not renewed
}

// A failed read at the start must not keep an adapter away until an operator loads it again.
TEST_F(AdapterAdminTest, Point10_AnAdapterThatCouldNotBeReadAtTheStartComesBackWhenTheDiskDoes) {
  ASSERT_TRUE(Load("x", top_ / "a", false, true).ok());
  const std::string digest = DigestOf("x");
  const fs::path weights = top_ / "a/adapter_model.safetensors", whole = top_ / "whole";
  fs::rename(weights, whole);
  fs::create_symlink(weights, weights);  // opening it fails, although the file exists
  Restart();
  EXPECT_EQ(admin_->Failed().size(), 1u);
  const auto refused = admin_->Find("x");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("cannot open: Too many levels of symbolic links"));
  fs::rename(whole, weights);
  clock_.Advance(1900 * kNsPerMs);
  EXPECT_FALSE(admin_->Find("x").ok());  // the disk is not asked at each request
  clock_.Advance(200 * kNsPerMs);
  const auto found = admin_->Find("x");
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ((*found)->file.digest, digest);
  EXPECT_TRUE(admin_->Failed().empty());
  EXPECT_EQ(*Load("x", top_ / "a", true, true), Outcome::kUnchanged);
  EXPECT_EQ(runtime_->engine().Stats().adapters.kept, 1);  // pinned, as before the restart
}

TEST_F(AdapterAdminTest, AFullDiskFailsTheOperationAndChangesNothing) {
  ASSERT_TRUE(Load("x", top_ / "a").ok());
  const std::string before = DigestOf("x");
  disk_.full = true;
  EXPECT_EQ(Load("x", top_ / "b", true).error().code, ErrorCode::kIoError);
  EXPECT_EQ(Load("y", top_ / "b", false, true).error().code, ErrorCode::kIoError);
  EXPECT_THAT(admin_->Unload("x").error().message, HasSubstr("adapters.journal"));
  EXPECT_EQ(DigestOf("x"), before);
  EXPECT_EQ(admin_->Loaded().size(), 1u);
  disk_.full = false;
  EXPECT_TRUE(Load("y", top_ / "b", false, true).ok());
  Restart();
  EXPECT_EQ(DigestOf("x"), before);
  EXPECT_EQ(admin_->Loaded().size(), 2u);
}

TEST_F(AdapterAdminTest, Point11_NothingOutsideTheRootsIsRead) {
  const fs::path other = fs::path(testing::TempDir()) / ("loramux_elsewhere_" + std::to_string(::getpid()));
  fs::copy(kCase / "adapters/lm_head", other, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  EXPECT_THAT(Load("x", other).error().message, HasSubstr("--allowed-adapter-root"));
  EXPECT_FALSE(Load("x", top_ / "a/../.." / other.filename()).ok());
  fs::create_directory_symlink(other, top_ / "link");
  EXPECT_FALSE(Load("x", top_ / "link").ok());
  fs::create_directory_symlink(other, top_ / "dir/link");
  EXPECT_FALSE(admin_->Find("link").ok());
  for (const char* name : {"..", ".", "../a", "a/../../a", "/etc", ".hidden"}) {
    EXPECT_EQ(admin_->Find(name).error().message, UnknownModel(name).message);
  }
  // The directory is allowed, but a file in it is a link to another place.
  fs::remove(top_ / "a/adapter_config.json");
  fs::create_symlink(other / "adapter_config.json", top_ / "a/adapter_config.json");
  EXPECT_THAT(Load("x", top_ / "a").error().message, HasSubstr("is a link to a place"));
  fs::remove_all(other);
}

TEST_F(AdapterAdminTest, AdaptersInTheDirectoryAreFoundWhileRunning) {
  EXPECT_EQ(admin_->Offered().size(), 1u);
  EXPECT_FALSE(admin_->Find("later").ok());
  Copy("lm_head_peft_auto", "dir/second");
  std::atomic<int> found = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { found += admin_->Find("second").ok(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, 8);
  EXPECT_EQ((*runtime_->registry().Resolve("second"))->generation.value, 1u);  // opened only once
  const ModelListing listing{"/models/base", 1, 100};
  EXPECT_THAT(ModelListBody(runtime_->registry(), listing, *admin_), HasSubstr("\"id\":\"first\""));
  EXPECT_TRUE(ModelBody(runtime_->registry(), listing, "first", *admin_).ok());
  // Changes to its files have no effect on the name until it is reloaded.
  const std::string before = DigestOf("second");
  fs::remove_all(top_ / "dir/second");
  Copy("lm_head", "dir/second");
  EXPECT_EQ((*admin_->Find("second"))->file.digest, before);
  EXPECT_EQ(*Load("second", top_ / "dir/second", true), Outcome::kReloaded);
  EXPECT_NE(DigestOf("second"), before);
}

// What its owner takes for an adapter does not vanish without a word.
TEST_F(AdapterAdminTest, FoldersThatCannotBeServedAreListedWithTheReason) {
  Copy("lm_head", "dir/base");
  Copy("lm_head", "dir/run/checkpoint-20");
  fs::create_directories(top_ / "dir/notes");
  std::ofstream(top_ / "dir/notes/adapter.txt") << "nothing that looks like an adapter";
  fs::create_directories(top_ / "dir/model");
  fs::copy(kCase / "model/config.json", top_ / "dir/model/config.json");
  std::map<std::string, std::string> reasons;
  for (const BrokenAdapter& adapter : admin_->Broken()) reasons[adapter.name] = adapter.reason;
  ASSERT_EQ(reasons.size(), 2u);
  EXPECT_THAT(reasons["base"],
              HasSubstr("conflicts with a served base model: give the adapter (in --adapter-dir, its folder)"));
  EXPECT_THAT(reasons["run"], HasSubstr("such as checkpoint-20, the last"));
  EXPECT_EQ(admin_->Offered().size(), 1u);
  EXPECT_EQ(admin_->Find("base").value(), nullptr);  // still the base model
  EXPECT_THAT(admin_->Find("run").error().message, HasSubstr("checkpoints of a training"));
  const ModelListing listing{"/models/base", 1, 100};
  EXPECT_THAT(ModelListBody(runtime_->registry(), listing, *admin_), HasSubstr(R"("broken":[{"id":"base")"));
  fs::remove_all(top_ / "dir/base");
  fs::remove_all(top_ / "dir/run");
  EXPECT_THAT(Load("x", top_ / "dir").error().message,
              HasSubstr("('first'): give one of them, or all by --adapter-dir"));
}

TEST_F(AdapterAdminTest, OperationsOnOneNameComeOneAfterTheOther) {
  std::vector<std::thread> threads;
  std::atomic<int> loaded = 0, unloaded = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        loaded += Load("x", top_ / ((i + t) % 2 == 0 ? "a" : "b")).ok();
        unloaded += admin_->Unload("x").ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(loaded, unloaded);
  EXPECT_TRUE(admin_->Loaded().empty());
  runtime_->Stop();
  runtime_->engine().CheckIntegrity();
  EXPECT_EQ(runtime_->registry().held_generations(), 0u);
}

// What a web page can make an operator's browser send: its origin, and content types of forms.
TEST_F(AdapterAdminTest, TheRoutesRefuseWebPagesAndForms) {
  const OsClock clock;
  AdapterService service(ChangesOf(*admin_), clock, {.gate = {"", {"*", "https://admin.example.com"}}});
  RouteTable routes;
  service.AddRoutes(routes);
  HttpServerOptions options;
  options.port = 0;
  options.linger_timeout = std::chrono::milliseconds(200);
  HttpServer server(options, routes, clock);
  ASSERT_TRUE(server.Start().ok());
  const std::string body = R"({"lora_name":"x","lora_path":")" + (top_ / "a").string() + "\"}";
  const auto status = [&](const std::string& headers) {
    RawHttpClient client(server.port());
    client.Send("POST /v1/load_lora_adapter HTTP/1.1\r\nHost: x\r\n" + headers +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.Read().status;
  };
  const std::string json = "Content-Type: application/json\r\n";
  for (const char* page :
       {"https://evil.example.com", "http://127.0.0.1:8000", "null", "https://admin.example.com:1"}) {
    EXPECT_EQ(status("Origin: " + std::string(page) + "\r\n" + json), 403) << page;
  }
  for (const char* type : {"", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n",
                           "Content-Type: multipart/form-data; boundary=x\r\n", "Content-Type: application/jsonp\r\n",
                           "Content-Type: text/plain; application/json\r\n"}) {
    EXPECT_EQ(status(type), 415) << type;
  }
  EXPECT_TRUE(admin_->Loaded().empty());
  EXPECT_EQ(status("Content-Type: Application/JSON ; charset=utf-8\r\n"), 200);
  EXPECT_EQ(admin_->Loaded().size(), 1u);
  EXPECT_EQ(status("Origin: https://admin.example.com\r\n" + json), 400);  // served: the name is taken
}

// The server's own page has the origin that the request is for. So has a page whose name became this server's address,
// but it has no key, and no name that only this machine has.
TEST_F(AdapterAdminTest, TheServersOwnPageMayChangeAdapters) {
  constexpr const char* kKey = "0123456789abcdef";
  for (const bool has_key : {false, true}) {
    const OsClock clock;
    AdapterService service(ChangesOf(*admin_), clock, {.gate = {has_key ? kKey : "", {}}});
    RouteTable routes;
    service.AddRoutes(routes);
    HttpServerOptions options;
    options.port = 0;
    HttpServer server(options, routes, clock);
    ASSERT_TRUE(server.Start().ok());
    const auto status = [&](const std::string& host, const std::string& more) {
      RawHttpClient client(server.port());
      client.Send("POST /v1/unload_lora_adapter HTTP/1.1\r\nHost: " + host + "\r\n" + more + "Authorization: Bearer " +
                  kKey + "\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n{\"lora_name\":\"x\"}");
      return client.Read().status;
    };
    for (const char* local : {"localhost:8000", "127.0.0.1:8000", "[::1]:8000"}) {
      EXPECT_EQ(status(local, std::string("Origin: http://") + local + "\r\n"), 404) << local;  // there is no x
    }
    EXPECT_EQ(status("localhost:8000", "Origin: http://localhost:8001\r\n"), 403);
    EXPECT_EQ(status("example.com", "Origin: https://example.com\r\n"), has_key ? 404 : 403);
    // A proxy may have changed the host.
    const std::string proxied = "Origin: https://example.com\r\nSec-Fetch-Site: same-origin\r\n";
    EXPECT_EQ(status("10.0.0.7:8000", proxied), has_key ? 404 : 403);
    EXPECT_EQ(status("10.0.0.7:8000", "Origin: https://example.com\r\nSec-Fetch-Site: same-site\r\n"), 403);
  }
}

TEST(AdapterRequest, FieldsAndErrors) {
  const auto request =
      ParseLoadRequest(R"({"lora_name":"x","lora_path":"/p","load_inplace":true,"pinned":true,"other":1})");
  ASSERT_TRUE(request.ok());
  EXPECT_TRUE(request->name == "x" && request->path == "/p" && request->replace && request->pinned);
  EXPECT_THAT(AdapterErrorBody(ParseLoadRequest(R"({"lora_name":"x"})").error()), HasSubstr("InvalidUserInput"));
  EXPECT_THAT(AdapterErrorBody(ParseUnloadRequest("{}").error()), HasSubstr("InvalidUserInput"));
  for (const char* bad :
       {"", "[]", "{", R"({"lora_name":1,"lora_path":"/p"})", R"({"lora_name":"x","lora_path":"/p","pinned":"yes"})"}) {
    EXPECT_FALSE(ParseLoadRequest(bad).ok()) << bad;
  }
}

TEST(AdapterRequest, FieldsOfVllm) {
  for (const char* form : {"false", "true"}) {
    const std::string body = R"({"lora_name":"x","lora_path":"/p","is_3d_lora_weight":)" + std::string(form) + "}";
    EXPECT_TRUE(ParseLoadRequest(body).ok()) << form;
  }
  EXPECT_EQ(*ParseUnloadRequest(R"({"lora_name":"x","lora_int_id":3})"), "x");
  EXPECT_EQ(*ParseUnloadRequest(R"({"lora_name":"x","lora_int_id":null})"), "x");
  for (const char* bad : {R"({"lora_int_id":3})", R"({"lora_name":"x","lora_int_id":"3"})"}) {
    const auto unload = ParseUnloadRequest(bad);
    ASSERT_FALSE(unload.ok()) << bad;
    EXPECT_THAT(unload.error().message, HasSubstr("lora_int_id")) << bad;
  }
}

TEST(BearerKey, ReadsAndCompares) {
  EXPECT_EQ(BearerToken("Bearer abc"), "abc");
  EXPECT_EQ(BearerToken("bearer  abc "), "abc");
  for (const char* none : {"", "abc", "Basic abc", "Bearer", "Bearer "}) EXPECT_EQ(BearerToken(none), "") << none;
  EXPECT_TRUE(SameKey("0123456789abcdef", "0123456789abcdef"));
  for (const char* other : {"", "0123456789abcdee", "1123456789abcdef", "0123456789abcdef0"}) {
    EXPECT_FALSE(SameKey("0123456789abcdef", other)) << other;
  }
  const fs::path path = fs::path(testing::TempDir()) / "loramux_bearer_key";
  std::ofstream(path) << "  0123456789abcdef\n";
  EXPECT_EQ(*ReadKeyFile(path, "--admin-key-file"), "0123456789abcdef");
  for (const char* bad : {"", "short", "0123456789 abcdef", "0123456789\nabcdef"}) {
    std::ofstream(path) << bad;
    EXPECT_THAT(ReadKeyFile(path, "--admin-key-file").error().message, HasSubstr("--admin-key-file")) << bad;
  }
}

}  // namespace
}  // namespace loramux::adapter_admin_test
