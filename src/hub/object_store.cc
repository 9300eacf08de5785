#include "hub/object_store.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/adapter_files.h"
#include "base/bytes.h"
#include "hub/file_digest.h"
#include "hub/partial_file.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = kAdapterConfigFile;
constexpr const char* kModulesName = "modules.json";
constexpr const char* kModelConfigName = "config.json";  // the labels of a head; beside a GGUF file it is a model's
// What an adapter's folder may say of prompts and answers (server/completion/adapter_text.h), by name; tokenizers are
// large.
constexpr const char* kTokenizerName = "tokenizer.json";
constexpr std::array kTextNames = {"added_tokens.json", "chat_template.jinja",    "chat_template.json",
                                   kModelConfigName,    "generation_config.json", "special_tokens_map.json",
                                   kTokenizerName,      "tokenizer_config.json"};
constexpr std::int64_t kMaxTokenizerObjectBytes = std::int64_t{64} << 20;
constexpr int kMostChanges = 3;  // times that an object may change while it is fetched
constexpr std::chrono::milliseconds kFirstPause(200);

bool IsWeights(std::string_view name) {
  return std::find(kAdapterTensorFiles.begin(), kAdapterTensorFiles.end(), name) != kAdapterTensorFiles.end();
}

bool IsGgufObject(std::string_view name) { return name.ends_with(".gguf") && !name.starts_with('.'); }

// A source that names an object, as one in the folder of that object; nullopt: the name cannot be a GGUF file's.
struct NamedObject {
  AdapterSource folder;
  std::string name;
};
std::optional<NamedObject> GgufObjectOf(const AdapterSource& source) {
  const std::size_t slash = source.prefix.rfind('/');
  NamedObject object{source, source.prefix.substr(slash == std::string::npos ? 0 : slash + 1)};
  if (!IsGgufObject(object.name)) return std::nullopt;
  object.folder.prefix.resize(slash == std::string::npos ? 0 : slash);
  return object;
}

// "N_Pooling/config.json" for the pooling that a modules.json names; empty: none that a server reads.
std::string PoolingConfigName(const fs::path& modules) {
  std::ifstream file(modules);
  const auto list = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return {};
  for (const auto& module : list) {
    const auto path = module.is_object() ? module.find("path") : module.end();
    if (!module.is_object() || path == module.end() || !path->is_string()) continue;
    const std::string name = path->get<std::string>() + "/config.json";
    if (IsPoolingConfig(name)) return name;
  }
  return {};
}

// The objects of one adapter in an S3 store.
class S3Store final : public ObjectStore {
 public:
  explicit S3Store(std::unique_ptr<S3Client> client) : client_(std::move(client)), time_(client_->limits(), 0) {}

  Result<std::vector<SourceFile>> Fetch(const AdapterSource& source, const fs::path& folder,
                                        const ReserveBytes& reserve) override {
    time_ = TransferTime(client_->limits(), OsClock().Now());
    if (const auto gguf = GgufObjectOf(source)) {
      ASSIGN_OR_RETURN(const std::optional<ObjectReply> there, LookFor(gguf->folder, gguf->name));
      if (there) return FetchGguf(*gguf, *there, folder, reserve);  // otherwise it is a prefix like others
    }
    for (int change = 0; change < kMostChanges; ++change) {
      ASSIGN_OR_RETURN(auto files, FetchOnce(source, folder, reserve));
      // The configuration came first: if it is still the same, it belongs to the weights.
      ASSIGN_OR_RETURN(const ObjectReply now, Look(source, kConfigName));
      if (now.etag == files.front().version) return files;
    }
    return Changing(source, kConfigName);
  }

  Result<bool> IsCurrent(const AdapterSource& named, const std::vector<SourceFile>& files) override {
    time_ = TransferTime(client_->limits(), OsClock().Now());
    std::set<std::string> absent(kTextNames.begin(), kTextNames.end());
    absent.insert(kModulesName);
    const auto gguf = GgufObjectOf(named);
    const bool is_gguf = gguf && !files.empty() && files.front().name == gguf->name;
    const AdapterSource& source = is_gguf ? gguf->folder : named;
    if (is_gguf) absent.erase(kModelConfigName);
    for (const SourceFile& file : files) {
      if (file.name == kConfigName || IsWeights(file.name) || IsGgufObject(file.name)) {
        ASSIGN_OR_RETURN(const ObjectReply reply, Look(source, file.name));
        if (reply.etag != file.version || reply.size != file.bytes) return false;
      } else {
        ASSIGN_OR_RETURN(const std::optional<ObjectReply> reply, LookFor(source, file.name));
        if (!reply || reply->etag != file.version || reply->size != file.bytes) return false;
      }
      absent.erase(file.name);
    }
    for (const std::string& name : absent) {
      ASSIGN_OR_RETURN(const std::optional<ObjectReply> reply, LookFor(source, name));
      if (reply) return false;
    }
    return true;
  }

 private:
  // The room of the files of one adapter, which is taken as they come.
  struct Room {
    const ReserveBytes& reserve;
    std::int64_t announced;
    std::int64_t done = 0;  // bytes of complete files
    Status Take(std::int64_t bytes) const { return reserve(announced, done + bytes); }
  };

  S3Client::Request RequestOf(const AdapterSource& source, const std::string& name, bool head) {
    const std::string key = source.prefix.empty() ? name : source.prefix + "/" + name;
    return {.bucket = source.bucket, .key = key, .head = head, .time = &time_};
  }

  static Error Changing(const AdapterSource& source, const std::string& name) {
    return Unavailable(fmt::format("{}: {} changed {} times while it was fetched; load it again once it rests",
                                   source.text, name, kMostChanges));
  }

  // One request without content, repeated after errors of the network.
  Status Try(const AdapterSource& source, const S3Client::Request& request, ObjectReply& reply) {
    for (int attempt = 1;; ++attempt) {
      reply = ObjectReply{};
      const Status status = client_->Get(
          request, reply, [](const ObjectReply&) { return true; }, [](const char*, std::size_t) { return true; });
      if (status.ok() && reply.status < 500) return Ok{};
      if (attempt == client_->limits().attempts || Ends()) {
        return Explain(source, request.key, reply, status.ok() ? "" : status.error().message);
      }
      Pause(attempt);
    }
  }

  // What the store says of an object that must be there.
  Result<ObjectReply> Look(const AdapterSource& source, const std::string& name) {
    const S3Client::Request request = RequestOf(source, name, /*head=*/true);
    ObjectReply reply;
    RETURN_IF_ERROR(Try(source, request, reply));
    if (reply.status != 200) return Explain(source, request.key, reply, "");
    RETURN_IF_ERROR(CheckAnnounced(source, name, reply));
    return reply;
  }

  static Status CheckAnnounced(const AdapterSource& source, const std::string& name, const ObjectReply& reply) {
    if (reply.size >= 0 && !reply.etag.empty()) return Ok{};
    return Unsupported(fmt::format("{}: {}: expected Content-Length and ETag from the store, found {}", source.text,
                                   name, reply.size < 0 ? "no length" : "no ETag"));
  }

  // The same of an object that need not be there. A store that may not be listed answers 403 for what is not there.
  Result<std::optional<ObjectReply>> LookFor(const AdapterSource& source, const std::string& name) {
    ObjectReply reply;
    RETURN_IF_ERROR(Try(source, RequestOf(source, name, /*head=*/true), reply));
    if (reply.status == 403 || reply.status == 404) return std::optional<ObjectReply>();
    if (reply.status != 200) return Explain(source, name, reply, "");
    return std::optional(std::move(reply));
  }

  // The file of tensors that is there, and what the store says of it.
  Result<std::pair<const char*, ObjectReply>> LookForWeights(const AdapterSource& source) {
    for (const char* name : kAdapterTensorFiles) {
      ASSIGN_OR_RETURN(std::optional<ObjectReply> reply, LookFor(source, name));
      if (!reply) continue;
      RETURN_IF_ERROR(CheckAnnounced(source, name, *reply));
      return std::pair(name, *std::move(reply));
    }
    ASSIGN_OR_RETURN(ObjectReply reply, Look(source, kAdapterTensorFiles.front()));  // says what is wrong
    return std::pair(kAdapterTensorFiles.front(), std::move(reply));
  }

  // Removes what an earlier call left of an object that is no longer there.
  static void Forget(const fs::path& folder, const std::string& name) {
    std::error_code ignored;
    fs::remove(folder / name, ignored);
    PartialFile(folder, name).Remove();
  }

  static std::int64_t MaxBytesOf(std::string_view name) {
    return name == kTokenizerName ? kMaxTokenizerObjectBytes : kMaxConfigObjectBytes;
  }

  Result<std::vector<SourceFile>> FetchOnce(const AdapterSource& source, const fs::path& folder,
                                            const ReserveBytes& reserve) {
    ASSIGN_OR_RETURN(const ObjectReply config, Look(source, kConfigName));
    ASSIGN_OR_RETURN(const auto found, LookForWeights(source));
    const auto& [weights_name, weights] = found;
    RETURN_IF_ERROR(CheckSize(source, kConfigName, config.size, kMaxConfigObjectBytes));
    RETURN_IF_ERROR(CheckSize(source, weights_name, weights.size, kMaxWeightObjectBytes));
    Room room{reserve, config.size + weights.size};
    RETURN_IF_ERROR(room.Take(0));
    std::vector<SourceFile> files;
    for (const char* name : {kConfigName, weights_name}) {
      const std::int64_t limit = name == kConfigName ? kMaxConfigObjectBytes : weights.size;
      ASSIGN_OR_RETURN(SourceFile file, FetchObject(source, name, folder, limit, room));
      files.push_back(std::move(file));
    }
    for (const char* name : kTextNames) RETURN_IF_ERROR(FetchOptional(source, name, folder, files, room));
    RETURN_IF_ERROR(FetchPooling(source, folder, files, room));
    return files;
  }

  // An adapter of llama.cpp, and what its folder says of prompts.
  Result<std::vector<SourceFile>> FetchGguf(const NamedObject& gguf, const ObjectReply& there, const fs::path& folder,
                                            const ReserveBytes& reserve) {
    RETURN_IF_ERROR(CheckAnnounced(gguf.folder, gguf.name, there));
    RETURN_IF_ERROR(CheckSize(gguf.folder, gguf.name, there.size, kMaxWeightObjectBytes));
    Room room{reserve, there.size};
    RETURN_IF_ERROR(room.Take(0));
    std::vector<SourceFile> files;
    ASSIGN_OR_RETURN(SourceFile file, FetchObject(gguf.folder, gguf.name, folder, there.size, room));
    files.push_back(std::move(file));
    // What an earlier call left of a prefix of this name.
    for (const char* name : {kConfigName, kAdapterTensorFiles[0], kAdapterTensorFiles[1]}) Forget(folder, name);
    for (const std::string_view name : kTextNames) {
      if (name == kModelConfigName) continue;
      RETURN_IF_ERROR(FetchOptional(gguf.folder, std::string(name), folder, files, room));
    }
    RETURN_IF_ERROR(FetchPooling(gguf.folder, folder, files, room));
    return files;
  }

  Status FetchPooling(const AdapterSource& source, const fs::path& folder, std::vector<SourceFile>& files, Room& room) {
    RETURN_IF_ERROR(FetchOptional(source, kModulesName, folder, files, room));
    const bool modules = files.back().name == kModulesName;
    const std::string pooling = modules ? PoolingConfigName(folder / kModulesName) : std::string();
    return pooling.empty() ? Ok{} : FetchOptional(source, pooling, folder, files, room);
  }

  // The other files came, so the keys are good.
  Status FetchOptional(const AdapterSource& source, const std::string& name, const fs::path& folder,
                       std::vector<SourceFile>& files, Room& room) {
    ASSIGN_OR_RETURN(const std::optional<ObjectReply> there, LookFor(source, name));
    if (!there) {
      Forget(folder, name);
      return Ok{};
    }
    RETURN_IF_ERROR(CheckSize(source, name, there->size, MaxBytesOf(name)));
    room.announced += std::max<std::int64_t>(0, there->size);
    ASSIGN_OR_RETURN(SourceFile file, FetchObject(source, name, folder, MaxBytesOf(name), room));
    files.push_back(std::move(file));
    return Ok{};
  }

  static Status CheckSize(const AdapterSource& source, const std::string& name, std::int64_t bytes,
                          std::int64_t limit) {
    if (bytes <= limit) return Ok{};
    return InvalidArgument(
        fmt::format("{}: {}: expected at most {}, found {}", source.text, name, FormatBytes(limit), FormatBytes(bytes)),
        "lora_path");
  }

  // Where one try of a download stands.
  struct Progress {
    Status disk = Ok{};
    std::optional<Error> refusal;  // the reply cannot be used, and no other try helps
    bool changed = false;          // the object is not the one that the partial file is of
    std::int64_t size = -1;        // bytes of the whole object; -1: not known yet
    std::string sha256;
  };

  Result<SourceFile> FetchObject(const AdapterSource& source, const std::string& name, const fs::path& folder,
                                 std::int64_t limit, Room& room) {
    PartialFile partial(folder, name);
    int attempts = 0, changes = 0;
    while (true) {
      const std::int64_t before = partial.bytes();
      Progress progress;
      ObjectReply reply;
      const Status status = FetchRest(source, name, limit, partial, room, progress, reply);
      if (!progress.disk.ok()) return AbandonFull(source, partial, progress.disk.error());
      if (progress.refusal) return *std::move(progress.refusal);
      if (progress.changed || reply.status == 412 || reply.status == 416) {
        partial.Remove();
        if (++changes >= kMostChanges) return Changing(source, name);
        attempts = 0;
        continue;
      }
      if (status.ok() && reply.status < 400 && reply.status >= 300) return Explain(source, name, reply, "");
      if (status.ok() && reply.status >= 400 && reply.status < 500 && reply.status != 429) {
        return Explain(source, name, reply, "");
      }
      if (reply.status == 200 || reply.status == 206) {
        if (partial.bytes() == progress.size) {
          room.done += partial.bytes();
          return Accept(source, name, partial, progress);
        }
      }
      attempts = partial.bytes() - before >= client_->limits().progress_bytes ? 0 : attempts + 1;
      if (attempts == client_->limits().attempts || Ends()) {
        return Explain(source, name, reply, status.ok() ? "the answer ends too early" : status.error().message);
      }
      Pause(attempts);
    }
  }

  // Asks for what the partial file lacks, and appends what comes.
  Status FetchRest(const AdapterSource& source, const std::string& name, std::int64_t limit, PartialFile& partial,
                   Room& room, Progress& progress, ObjectReply& reply) {
    S3Client::Request request = RequestOf(source, name, /*head=*/false);
    // A complete file is asked for its last byte, because no range can begin behind it.
    const std::int64_t overlap = partial.bytes() > 0 ? 1 : 0;
    request.offset = partial.bytes() - overlap;
    request.if_match = partial.version();
    std::int64_t skip = overlap;
    const auto begin = [&](const ObjectReply& now) {
      progress.size = now.size;
      progress.sha256 = now.sha256;
      if (now.size < 0 || now.etag.empty()) {
        progress.refusal = Unsupported(fmt::format("{}: {}: expected Content-Length and ETag, found {}", source.text,
                                                   name, now.size < 0 ? "no length" : "no ETag"));
        return false;
      }
      if (Status size = CheckSize(source, name, now.size, limit); !size.ok()) {
        progress.changed = partial.bytes() > 0;
        if (!progress.changed) progress.refusal = size.error();
        return false;
      }
      const bool continues = now.status == 206 && now.first == request.offset && now.etag == partial.version();
      if (request.offset > 0 && continues) return true;
      if (now.status == 206 && request.offset > 0) return progress.changed = true, false;
      skip = 0;
      progress.disk = partial.Restart(now.etag);  // the whole object comes
      return progress.disk.ok();
    };
    const auto take = [&](const char* data, std::size_t size) {
      const auto skipped = static_cast<std::size_t>(std::min<std::int64_t>(skip, static_cast<std::int64_t>(size)));
      skip -= static_cast<std::int64_t>(skipped);
      if (static_cast<std::int64_t>(size - skipped) > progress.size - partial.bytes()) {
        progress.refusal = InvalidArgument(
            fmt::format("{}: {}: expected {} bytes as announced, found more", source.text, name, progress.size));
        return false;
      }
      const Status taken = room.Take(partial.bytes() + static_cast<std::int64_t>(size - skipped));
      if (!taken.ok()) return progress.refusal = taken.error(), false;
      progress.disk = partial.Append(data + skipped, size - skipped);
      return progress.disk.ok();
    };
    return client_->Get(request, reply, begin, take);
  }

  Error AbandonFull(const AdapterSource& source, PartialFile& partial, Error error) {
    partial.Remove();  // a full disk harms others
    error.message =
        source.text + ": " + error.message + "; free some of the disk, or choose another " + "--adapter-cache-dir";
    return error;
  }

  Result<SourceFile> Accept(const AdapterSource& source, const std::string& name, PartialFile& partial,
                            const Progress& progress) {
    SourceFile file{name, partial.bytes(), partial.version()};
    RETURN_IF_ERROR(partial.Finish());
    if (progress.sha256.empty()) return file;
    const fs::path path = partial.path().parent_path() / fs::path(name).filename();
    ASSIGN_OR_RETURN(const std::string found, Sha256HexOfFile(path));
    if (found == progress.sha256) return file;
    std::error_code ignored;
    fs::remove(path, ignored);
    return InvalidArgument(fmt::format("{}: {}: expected content with SHA-256 {} as the store says, found {}; upload "
                                       "it again, then load it again",
                                       source.text, name, progress.sha256, found),
                           "lora_path");
  }

  // No further try helps.
  bool Ends() const { return client_->stopped() || time_.Over(OsClock().Now()); }

  void Pause(int attempt) const {
    for (auto left = kFirstPause * attempt; left.count() > 0 && !Ends(); left -= kFirstPause / 4) {
      std::this_thread::sleep_for(kFirstPause / 4);
    }
  }

  Error Explain(const AdapterSource& source, const std::string& name, const ObjectReply& reply,
                const std::string& failure) const {
    const std::string where =
        fmt::format("{}: {} at {}", source.text, fs::path(name).filename().string(), client_->HostOf(source.bucket));
    const std::string code = reply.code.empty() ? std::string() : " (" + reply.code + ")";
    const std::string region = reply.correct_region.empty() || reply.correct_region == client_->region()
                                   ? std::string()
                                   : "; the bucket is in " + reply.correct_region + ": set AWS_REGION";
    if (reply.status >= 300 && reply.status < 400) {
      return InvalidArgument(fmt::format("{}: expected the object, found a redirect to '{}'{}; redirects are not "
                                         "followed: AWS_ENDPOINT_URL and AWS_REGION choose the store",
                                         where, reply.location, region),
                             "lora_path");
    }
    if (reply.status == 401 || reply.status == 403) {
      return InvalidArgument(
          fmt::format("{}: no access{}{}; {}", where, code, region,
                      client_->has_keys() ? "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must permit s3:GetObject, or "
                                            "the object is not there"
                                          : "the environment has no AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
          "lora_path");
    }
    if (reply.status == 404) {
      return NotFound(fmt::format("{}: expected adapter_config.json and adapter_model.safetensors (or mlx-lm's "
                                  "adapters.safetensors) below this prefix, "
                                  "or a source that names a GGUF file, found no such object{}",
                                  where, code),
                      "lora_path");
    }
    if (reply.status >= 400 && reply.status < 500 && reply.status != 429) {
      return InvalidArgument(fmt::format("{}: the store refused with status {}{}{}", where, reply.status, code, region),
                             "lora_path");
    }
    if (reply.status >= 400) {
      return Unavailable(
          fmt::format("{}: the store answered with status {}{}; load it again later", where, reply.status, code));
    }
    return Unavailable(fmt::format("{}: {}; what came is kept, and a later load goes on from there", where, failure));
  }

  const std::unique_ptr<S3Client> client_;
  TransferTime time_;  // time that all files of an adapter may take
};

bool IsAdapterFile(const std::string& name) {
  return IsAdapterText(name) || IsWeights(name) || name == kConfigName || name == kModulesName || IsPoolingConfig(name);
}

// Whether the repository has what llama.cpp reads, and nothing that PEFT or mlx-lm does.
bool IsGgufAdapter(const RepoFiles& listed) {
  return !listed.gguf.empty() && std::ranges::none_of(listed.files, [](const RepoFile& file) {
    return file.name == kConfigName || IsWeights(file.name);
  });
}

// The GGUF file, and what the repository says of prompts. A config.json would be a model's: it has no head.
RepoFiles GgufAdapterOf(RepoFiles listed) {
  std::erase_if(listed.files, [](const RepoFile& file) { return file.name == kModelConfigName; });
  listed.files.push_back(std::move(listed.gguf.front()));
  listed.gguf.clear();
  std::ranges::sort(listed.files, {}, &RepoFile::name);
  return listed;
}

// The files of a repository on a model hub.
class HubStore final : public ObjectStore {
 public:
  explicit HubStore(std::unique_ptr<HubClient> client) : client_(std::move(client)) {}

  Result<std::vector<SourceFile>> Fetch(const AdapterSource& source, const fs::path& folder,
                                        const ReserveBytes& reserve) override {
    ASSIGN_OR_RETURN(const RepoFiles listed, List(source));
    RETURN_IF_ERROR(reserve(listed.Bytes(), 0));
    std::int64_t done = 0;
    std::vector<SourceFile> files;
    for (const RepoFile& file : listed.files) {
      PartialFile partial(folder, file.name);
      if (partial.version() != file.digest) RETURN_IF_ERROR(partial.Restart(file.digest));
      const auto on_bytes = [&](std::int64_t bytes) { return reserve(listed.Bytes(), done + bytes); };
      const Status status = client_->Download(source.repo, listed, file, partial.path(), on_bytes);
      if (!status.ok() && status.error().code == ErrorCode::kIoError) partial.Remove();
      if (!status.ok()) return Error{status.error().code, source.text + ": " + status.error().message, "lora_path"};
      RETURN_IF_ERROR(partial.Finish());
      done += file.bytes;
      files.push_back({file.name, file.bytes, file.digest});
    }
    return files;
  }

  Result<bool> IsCurrent(const AdapterSource& source, const std::vector<SourceFile>& files) override {
    ASSIGN_OR_RETURN(const RepoFiles listed, List(source));
    return std::equal(files.begin(), files.end(), listed.files.begin(), listed.files.end(),
                      [](const SourceFile& have, const RepoFile& now) {
                        return have.name == now.name && have.bytes == now.bytes && have.version == now.digest;
                      });
  }

 private:
  // The files of an adapter, by name.
  Result<RepoFiles> List(const AdapterSource& source) {
    auto listed = client_->List(source.repo);
    if (!listed.ok()) return Error{listed.error().code, source.text + ": " + listed.error().message, "lora_path"};
    std::erase_if(listed->files, [](const RepoFile& file) { return !IsAdapterFile(file.name); });
    if (IsGgufAdapter(*listed)) {
      if (listed->gguf.size() == 1) return GgufAdapterOf(*std::move(listed));
      return InvalidArgument(source.text + ": expected an adapter of llama.cpp in one GGUF file, found " +
                                 std::to_string(listed->gguf.size()) + ", from " + listed->gguf.front().name + " to " +
                                 listed->gguf.back().name + ": download one, and give its path",
                             "lora_path");
    }
    const auto has = [&](const char* name) {
      return std::any_of(listed->files.begin(), listed->files.end(),
                         [&](const auto& file) { return file.name == name; });
    };
    const auto* const weights = std::find_if(kAdapterTensorFiles.begin(), kAdapterTensorFiles.end(), has);
    if (!has(kConfigName) || weights == kAdapterTensorFiles.end()) {
      return InvalidArgument(source.text +
                                 ": expected an adapter (adapter_config.json, and adapter_model.safetensors or "
                                 "mlx-lm's adapters.safetensors), found a repository without " +
                                 (has(kConfigName) ? kAdapterTensorFiles.front() : kConfigName),
                             "lora_path");
    }
    std::erase_if(listed->files, [&](const RepoFile& file) { return IsWeights(file.name) && file.name != *weights; });
    return listed;
  }

  const std::unique_ptr<HubClient> client_;
};

}  // namespace

bool IsAdapterText(std::string_view name) {
  return std::find(kTextNames.begin(), kTextNames.end(), name) != kTextNames.end();
}

Result<std::unique_ptr<ObjectStore>> OpenS3Store(S3Options options, const std::atomic<bool>* stop) {
  ASSIGN_OR_RETURN(std::unique_ptr<S3Client> client, S3Client::Create(std::move(options), stop));
  return std::unique_ptr<ObjectStore>(std::make_unique<S3Store>(std::move(client)));
}

Result<std::unique_ptr<ObjectStore>> OpenHubStore(HubClientOptions options) {
  ASSIGN_OR_RETURN(std::unique_ptr<HubClient> client, HubClient::Create(std::move(options)));
  return std::unique_ptr<ObjectStore>(std::make_unique<HubStore>(std::move(client)));
}

}  // namespace loramux
