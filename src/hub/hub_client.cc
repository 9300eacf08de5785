#include "hub/hub_client.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include <curl/curl.h>
#include <fmt/format.h>
#include <openssl/evp.h>

namespace loramux {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxListBytes = std::size_t{32} << 20;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using OpenFile = std::unique_ptr<std::FILE, FileCloser>;

struct DigestFreer {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

std::string Hex(const unsigned char* bytes, unsigned size) {
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

// The digest in the form that the hub announced: of the content, or of git's blob with the content.
Result<std::string> DigestOf(const fs::path& path, const RepoFile& file) {
  const bool git = file.digest.size() == 40;
  const OpenFile input(std::fopen(path.c_str(), "rb"));
  const std::unique_ptr<EVP_MD_CTX, DigestFreer> context(EVP_MD_CTX_new());
  if (input == nullptr || context == nullptr) return IoError("cannot read " + path.string());
  EVP_DigestInit_ex(context.get(), git ? EVP_sha1() : EVP_sha256(), nullptr);
  const std::string header = fmt::format("blob {}", file.bytes);
  if (git) EVP_DigestUpdate(context.get(), header.c_str(), header.size() + 1);  // with its NUL
  std::vector<char> block(std::size_t{1} << 20);
  while (const std::size_t size = std::fread(block.data(), 1, block.size(), input.get())) {
    EVP_DigestUpdate(context.get(), block.data(), size);
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(context.get(), digest, &size);
  return Hex(digest, size);
}

bool IsSafeHeader(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

std::int64_t SizeOf(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return error ? 0 : static_cast<std::int64_t>(size);
}

}  // namespace

std::string TooSlow(const TransferLimits& limits, const TransferTime& time) {
  return fmt::format("the source is too slow: expected {} bytes a second after the first {} s, found {} bytes in all",
                     limits.floor_bytes_per_second, limits.patience_seconds, time.bytes());
}

// Where the body of one answer goes: into a string, or behind what a file holds.
struct HubClient::Transfer {
  std::string body;
  std::FILE* file = nullptr;
  std::int64_t have = 0, limit = 0;  // bytes, with those of earlier tries
  const OnBytes* on_bytes = nullptr;
  TransferTime* time = nullptr;
  const std::atomic<bool>* stop = nullptr;
  long http_status = 0;
  bool too_long = false, disk_full = false;
  Status refused = Ok{};  // by on_bytes

  std::size_t Take(const char* data, std::size_t size) {
    if (static_cast<std::int64_t>(size) > limit - have) return too_long = true, 0;
    if (file == nullptr) {
      body.append(data, size);
    } else if (std::fwrite(data, 1, size, file) != size) {
      return disk_full = true, 0;
    }
    have += static_cast<std::int64_t>(size);
    time->Came(static_cast<std::int64_t>(size));
    if (on_bytes != nullptr) refused = (*on_bytes)(have);
    return refused.ok() ? size : 0;
  }
  static std::size_t OnData(char* data, std::size_t one, std::size_t size, void* self) {
    return static_cast<Transfer*>(self)->Take(data, one * size);
  }
  static int OnProgress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const Transfer& transfer = *static_cast<Transfer*>(self);
    return transfer.time->Over(OsClock().Now()) || (transfer.stop != nullptr && transfer.stop->load()) ? 1 : 0;
  }
};

HubClient::HubClient(HubClientOptions options) : options_(std::move(options)), curl_(curl_easy_init()) {}
HubClient::~HubClient() { curl_easy_cleanup(static_cast<CURL*>(curl_)); }

Result<std::unique_ptr<HubClient>> HubClient::Create(HubClientOptions options) {
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  if (!options.endpoint.starts_with("http://") && !options.endpoint.starts_with("https://")) {
    return InvalidArgument("--hf-endpoint: expected http://HOST or https://HOST, found '" + options.endpoint + "'",
                           "--hf-endpoint");
  }
  if (!IsSafeHeader(options.token)) {
    return InvalidArgument("--hf-token: expected printable characters without blanks", "--hf-token");
  }
  std::unique_ptr<HubClient> client(new HubClient(std::move(options)));
  if (client->curl_ == nullptr) return Internal("cannot start libcurl");
  return client;
}

// Follows redirects; libcurl sends the token to no other host. From https it goes to https alone.
Status HubClient::Get(const std::string& path, Transfer& transfer) {
  CURL* curl = static_cast<CURL*>(curl_);
  curl_easy_reset(curl);
  const std::string url = options_.endpoint + path;
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, url.starts_with("https:") ? "https" : "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 5L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, options_.limits.connect_seconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, options_.limits.least_bytes_per_second);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, options_.limits.stall_seconds);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "loramux");
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Transfer::OnData);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  transfer.stop = options_.stop;
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Transfer::OnProgress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  if (transfer.have > 0) curl_easy_setopt(curl, CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(transfer.have));
  if (!options_.token.empty()) {
    curl_easy_setopt(curl, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, options_.token.c_str());
  }
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &transfer.http_status);
  if (code == CURLE_OK) return Ok{};
  if (code == CURLE_RANGE_ERROR) return Unsupported("the hub does not resume downloads");
  if (transfer.time->Over(OsClock().Now())) return Unavailable(TooSlow(options_.limits, *transfer.time));
  return Unavailable(curl_easy_strerror(code));
}

Error HubClient::Explain(const RepoName& repo, const std::string& failure, long http_status) const {
  const std::string where = fmt::format("{} at {}", repo.full(), options_.endpoint);
  const std::string token = options_.token.empty()
                                ? "it may need a token (HF_TOKEN), and its terms accepted on its page"
                                : "the token (HF_TOKEN) gives no access to it, or its terms are not accepted";
  if (http_status == 401 || http_status == 403) return NotFound(fmt::format("{}: no access: {}", where, token));
  if (http_status == 404) {
    return NotFound(
        fmt::format("{}: there is no such model or revision '{}', or it is private: {}", where, repo.revision, token));
  }
  if (http_status == 429) return Unavailable(where + ": too many requests; try again later");
  if (http_status >= 400) return Unavailable(fmt::format("{}: the hub answered with status {}", where, http_status));
  return Unavailable(where + ": " + failure);
}

Result<RepoFiles> HubClient::List(const RepoName& repo) {
  TransferTime time(options_.limits, OsClock().Now());
  Transfer transfer{.limit = static_cast<std::int64_t>(kMaxListBytes), .time = &time};
  const Status status = Get(fmt::format("/api/models/{}/revision/{}?blobs=true", repo.full(), repo.revision), transfer);
  if (!status.ok()) return Explain(repo, status.error().message, transfer.http_status);
  auto files = ParseRepoFiles(transfer.body);
  if (!files.ok()) return Error{files.error().code, repo.full() + ": " + files.error().message};
  return files;
}

Status HubClient::Download(const RepoName& repo, const RepoFiles& files, const RepoFile& file, const fs::path& partial,
                           const OnBytes& on_bytes) {
  const std::string path = fmt::format("/{}/resolve/{}/{}", repo.full(), files.commit, file.name);
  int tries = options_.limits.attempts;
  TransferTime time(options_.limits, OsClock().Now());
  std::int64_t have = SizeOf(partial);
  std::error_code error;
  if (have > file.bytes) {
    fs::remove(partial, error);
    have = 0;
  }
  if (OpenFile(std::fopen(partial.c_str(), "ab")) == nullptr) return IoError("cannot write " + partial.string());
  while (have < file.bytes) {
    const OpenFile output(std::fopen(partial.c_str(), "ab"));
    if (output == nullptr) return IoError("cannot write " + partial.string());
    Transfer transfer{.file = output.get(), .have = have, .limit = file.bytes, .on_bytes = &on_bytes, .time = &time};
    const Status status = Get(path, transfer);
    const bool flushed = std::fflush(output.get()) == 0;
    if (transfer.disk_full || !flushed) return IoError("cannot write " + partial.string() + ": the disk may be full");
    if (transfer.too_long) break;
    RETURN_IF_ERROR(transfer.refused);
    if (transfer.http_status >= 400) return Explain(repo, "refused", transfer.http_status);
    const bool from_the_start = !status.ok() && status.error().code == ErrorCode::kUnsupported;
    if (from_the_start) fs::resize_file(partial, 0, error);
    const bool progressed = transfer.have - have >= options_.limits.progress_bytes && !from_the_start;
    tries = progressed ? options_.limits.attempts : tries - 1;
    have = from_the_start ? 0 : transfer.have;
    const bool stopped = options_.stop != nullptr && options_.stop->load();
    if (stopped || time.Over(OsClock().Now())) tries = 0;
    if (tries == 0) return Explain(repo, status.ok() ? "the answer ends too early" : status.error().message, 0);
  }
  if (have == file.bytes) {
    ASSIGN_OR_RETURN(const std::string digest, DigestOf(partial, file));
    if (digest == file.digest) return Ok{};
  }
  fs::remove(partial, error);
  return IoError(fmt::format("{}: {} did not arrive as the hub announced it ({} bytes, digest {}); start again",
                             repo.full(), file.name, file.bytes, file.digest));
}

}  // namespace loramux
