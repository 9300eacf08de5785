#include "server/adapters/upload_service.h"

#include <algorithm>
#include <utility>
#include <vector>
#include <sys/mman.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/log.h"
#include "etcd/etcd_messages.h"
#include "http/error_status.h"
#include "http/json_reader.h"
#include "http/run_on.h"
#include "server/adapters/adapter_request.h"
#include "server/adapters/ticket.h"
#include "server/adapters/upload_parser.h"
#include "server/adapters/upload_store.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

constexpr const char* kPath = "/v1/adapters/*";
constexpr JsonLimits kTensorLimits = {.max_depth = 16, .max_values = 65536};
// Base64 and JSON in memory; what is larger comes as files, or in shared memory.
constexpr std::size_t kMostTextBytes = std::size_t{256} << 20;
constexpr std::size_t kCopiedAtOnce = std::size_t{1} << 20;

HttpReply Failed(const Error& error) {
  spdlog::warn("an upload is refused ({}): {}", ErrorCodeName(error.code), error.message);
  return ErrorReply(error);
}

const char* OutcomeName(AdapterAdmin::LoadOutcome outcome) {
  switch (outcome) {
    case AdapterAdmin::LoadOutcome::kLoaded:
      return "loaded";
    case AdapterAdmin::LoadOutcome::kReloaded:
      return "reloaded";
    case AdapterAdmin::LoadOutcome::kUnchanged:
      break;
  }
  return "unchanged";
}

// Copies the first `size` bytes of a POSIX shared memory object.
Status CopySharedMemory(const std::string& name, std::int64_t size, UploadedFiles& files) {
  const bool plain = !name.empty() && name.find('/') == std::string::npos && name.size() < 256;
  const int descriptor = plain ? ::shm_open(("/" + name).c_str(), O_RDONLY | O_CLOEXEC, 0) : -1;
  const auto wrong = [&](std::string_view found) {
    return InvalidArgument(
        fmt::format("shared_memory: expected {} bytes in an object of this machine with the name {}, "
                    "found {}",
                    size, DumpJson(Json(name)), found),
        "shared_memory");
  };
  if (descriptor < 0) return wrong("none that this server may read");
  struct stat status = {};
  Status copied = Ok{};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size < size) {
    copied = wrong(fmt::format("{} bytes", status.st_size));
  }
  std::string bytes(std::min<std::size_t>(kCopiedAtOnce, static_cast<std::size_t>(size)), '\0');
  for (std::int64_t at = 0; copied.ok() && at < size;) {
    const auto wanted = std::min<std::int64_t>(size - at, static_cast<std::int64_t>(bytes.size()));
    // Not a mapping: its owner may shorten it meanwhile.
    const ssize_t read = ::pread(descriptor, bytes.data(), static_cast<std::size_t>(wanted), at);
    copied = read > 0 ? files.Append(std::string_view(bytes).substr(0, static_cast<std::size_t>(read)))
                      : Status(wrong("that it was shortened"));
    at += std::max<ssize_t>(0, read);
  }
  ::close(descriptor);
  return copied;
}

bool IsTrue(std::string_view query, std::string_view name) {
  const auto value = QueryParameter(query, name);
  return value && (*value == "true" || *value == "1");
}

}  // namespace

// The files of an upload as they arrive.
class UploadService::Upload final : public BodyReceiver {
 public:
  explicit Upload(UploadService& service) : service_(service) {}

  // Error: uploads are refused, or there are too many; or another type of body is sent.
  Status Begin(std::string_view content_type) {
    RETURN_IF_ERROR(service_.CheckRoom(ticket_));
    ASSIGN_OR_RETURN(folder_, service_.changes_.uploads->Begin());
    ASSIGN_OR_RETURN(parser_, UploadParser::For(content_type, *folder_));
    return Ok{};
  }
  asio::awaitable<Status> Take(std::string bytes) override {
    Status taken = Ok{};
    co_await RunOn(service_.workers_, [&] { taken = parser_->Feed(bytes); });
    co_return taken;
  }
  // The folder, once all of it is on disk.
  Result<std::shared_ptr<UploadFolder>> Finish() {
    RETURN_IF_ERROR(parser_->Finish());
    RETURN_IF_ERROR(folder_->Finish());
    return std::exchange(folder_, nullptr);
  }

 private:
  UploadService& service_;
  const Ticket ticket_{service_.in_, service_.options_.max_uploads};
  std::shared_ptr<UploadFolder> folder_;
  std::unique_ptr<UploadParser> parser_;
};

// A text that is longer than other bodies may be.
class UploadService::Text final : public BodyReceiver {
 public:
  explicit Text(UploadService& service) : ticket_(service.in_, service.options_.max_uploads) {}
  const Ticket& ticket() const { return ticket_; }
  asio::awaitable<Status> Take(std::string bytes) override {
    text_ += bytes;
    Status taken = Ok{};
    co_return taken;
  }
  const std::string& text() const { return text_; }

 private:
  const Ticket ticket_;
  std::string text_;
};

UploadService::UploadService(AdapterChanges changes, UploadServiceOptions options)
    : changes_(std::move(changes)),
      options_(std::move(options)),
      workers_(static_cast<std::size_t>(options_.threads)) {}

UploadService::~UploadService() { workers_.join(); }

void UploadService::AddRoutes(RouteTable& routes) {
  const HttpGate gate = [this](HttpRequest& request) { return options_.gate.Refusal(request); };
  HttpRoute put{.method = "PUT", .path = kPath, .access = RouteAccess::kOpen, .gate = gate};
  put.max_body_bytes = options_.max_bytes;
  put.receiver = [this](const HttpRequest& request) -> Result<std::shared_ptr<BodyReceiver>> {
    auto upload = std::make_shared<Upload>(*this);
    RETURN_IF_ERROR(upload->Begin(request.Header("Content-Type")));
    return std::shared_ptr<BodyReceiver>(std::move(upload));
  };
  put.handler = [this](HttpExchange& exchange) {
    return Answer(exchange, [this](const HttpRequest& request) {
      return Load(request, static_cast<Upload&>(*request.receiver));
    });
  };
  routes.Add(std::move(put));
  routes.Add({.method = "DELETE",
              .path = kPath,
              .handler =
                  [this](HttpExchange& exchange) {
                    return Answer(exchange, [this](const HttpRequest& request) { return Remove(request); });
                  },
              .access = RouteAccess::kOpen,
              .gate = gate});
  HttpRoute tensors{.method = "POST",
                    .path = "/load_lora_adapter_from_tensors",
                    .access = RouteAccess::kOpen,
                    .max_body_bytes = std::min(options_.max_bytes, kMostTextBytes)};
  tensors.gate = [this](HttpRequest& request) {
    auto refusal = options_.gate.Refusal(request);
    return refusal ? std::move(refusal) : AdminGate::TypeRefusal(request);
  };
  tensors.receiver = [this](const HttpRequest&) -> Result<std::shared_ptr<BodyReceiver>> {
    auto text = std::make_shared<Text>(*this);
    RETURN_IF_ERROR(CheckRoom(text->ticket()));
    return std::shared_ptr<BodyReceiver>(std::move(text));
  };
  tensors.handler = [this](HttpExchange& exchange) {
    return Answer(exchange, [this](const HttpRequest& request) {
      return LoadTensors(static_cast<Text&>(*request.receiver).text());
    });
  };
  routes.Add(std::move(tensors));
}

Status UploadService::CheckRoom(const Ticket& ticket) const {
  if (changes_.uploads == nullptr) {
    return Unsupported(
        "This server keeps no uploads: expected --state-dir DIR, where they live, and no --etcd, because other servers "
        "do not have them; or load the adapter from a folder or a source");
  }
  if (ticket.ok()) return Ok{};
  return Unavailable("too many uploads at the same time; try again later");
}

template <typename Work>
asio::awaitable<void> UploadService::Answer(HttpExchange& exchange, Work work) {
  HttpReply reply;
  co_await RunOn(workers_, [&] { reply = work(exchange.request()); });
  co_await exchange.Send(std::move(reply));
}

// The client does not know the folder that errors name.
Result<AdapterAdmin::LoadResult> UploadService::LoadFolder(const AdapterAdmin::LoadRequest& request) const {
  auto loaded = changes_.load(request);
  if (loaded.ok()) return loaded;
  Error error = std::move(loaded).error();
  error.message = WithoutPath(std::move(error.message), request.path, request.name);
  return error;
}

HttpReply UploadService::Load(const HttpRequest& request, Upload& upload) {
  const auto folder = upload.Finish();
  if (!folder.ok()) return Failed(folder.error());
  AdapterAdmin::LoadRequest wanted{.name = request.tail, .path = (*folder)->path().string()};
  wanted.replace = request.Header("If-None-Match") != "*";
  wanted.pinned = IsTrue(request.query, "pinned");
  wanted.digest = QueryParameter(request.query, "lora_digest").value_or("");
  if (const Status digest = CheckDigestText(wanted.digest); !digest.ok()) return Failed(digest.error());
  const auto loaded = LoadFolder(wanted);
  if (!loaded.ok()) return Failed(loaded.error());
  HttpReply reply;
  reply.headers = VersionHeaders(*loaded->version);
  reply.status = loaded->outcome == AdapterAdmin::LoadOutcome::kLoaded ? 201 : 200;
  reply.body = DumpJson({{"name", wanted.name},
                         {"outcome", OutcomeName(loaded->outcome)},
                         {"digest", loaded->version->file.digest},
                         {"weight_version", WeightVersionOf(*loaded->version)}});
  return reply;
}

HttpReply UploadService::Remove(const HttpRequest& request) {
  const std::string& name = request.tail;
  const Status status = changes_.unload(name);
  if (!status.ok()) return Failed(status.error());
  HttpReply reply;
  reply.body = DumpJson({{"name", name}, {"outcome", "unloaded"}});
  return reply;
}

Status UploadService::WriteTensors(const std::string& json, UploadFolder& folder,
                                   AdapterAdmin::LoadRequest& request) const {
  ASSIGN_OR_RETURN(const Json body, ParseJson(json, kTensorLimits));
  if (!body.is_object()) {
    return InvalidArgument("The request body: expected a JSON object, found " + DescribeJson(body));
  }
  FieldReader fields(body, "");
  std::string tensors, format;
  fields.String("lora_name", request.name);
  fields.Boolean("load_inplace", request.replace);
  fields.Boolean("pinned", request.pinned);
  fields.String("load_format", format);
  const Json* const config = fields.Object("config_dict");
  const Json* const memory = fields.Object("shared_memory");
  if (const Json* added = fields.Object("added_tokens_config"); added != nullptr && !added->empty()) {
    fields.Fail(ErrorCode::kUnsupported, "added_tokens_config",
                "added_tokens_config: expected none, found some; send an adapter with its own tokens to PUT "
                "/v1/adapters/NAME, its tokenizer among the files");
  }
  if (format != "safetensors") {
    fields.Fail(ErrorCode::kUnsupported, "load_format",
                "load_format: expected \"safetensors\", where serialized_tensors is base64 of a safetensors file, or "
                "shared_memory {name, size} holds one. Pickled tensors are Python objects, which run code");
  }
  if (memory == nullptr) fields.String("serialized_tensors", tensors);
  std::string name;
  std::int64_t size = 0;
  if (memory != nullptr) {
    FieldReader place(*memory, "shared_memory.");
    place.String("name", name);
    place.Integer("size", 1, static_cast<std::int64_t>(options_.max_bytes), size);
    if (!place.ok()) return place.error();
  }
  if (!fields.ok()) return fields.error();
  if (request.name.empty() || config == nullptr || (memory == nullptr && tensors.empty())) {
    return InvalidArgument("expected `lora_name`, `config_dict`, and `serialized_tensors` or `shared_memory`",
                           "lora_name");
  }
  RETURN_IF_ERROR(folder.Begin("adapter_config.json"));
  RETURN_IF_ERROR(folder.Append(DumpJson(*config)));
  RETURN_IF_ERROR(folder.Begin("adapter_model.safetensors"));
  if (memory != nullptr) return CopySharedMemory(name, size, folder);
  ASSIGN_OR_RETURN(const std::string bytes, FromBase64(tensors));
  return folder.Append(bytes);
}

HttpReply UploadService::LoadTensors(const std::string& json) {
  HttpReply reply;
  const auto fail = [&](const Error& error) {
    spdlog::warn("an upload is refused ({}): {}", ErrorCodeName(error.code), error.message);
    reply.status = std::max(400, HttpStatus(error) == 404 ? 400 : HttpStatus(error));  // SGLang knows no 404 here
    reply.body = SglangBody(&error, changes_.loaded());
    return reply;
  };
  auto folder = changes_.uploads->Begin();
  if (!folder.ok()) return fail(folder.error());
  AdapterAdmin::LoadRequest wanted;
  wanted.path = (*folder)->path().string();
  if (const Status written = WriteTensors(json, **folder, wanted); !written.ok()) return fail(written.error());
  if (const Status finished = (*folder)->Finish(); !finished.ok()) return fail(finished.error());
  const auto loaded = LoadFolder(wanted);
  if (!loaded.ok()) return fail(loaded.error());
  reply.body = SglangBody(nullptr, changes_.loaded());
  reply.headers = VersionHeaders(*loaded->version);
  return reply;
}

}  // namespace loramux
