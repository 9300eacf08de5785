#include "hub/s3_client.h"

#include <algorithm>
#include <charconv>

#include <curl/curl.h>
#include <fmt/format.h>

#include "hub/file_digest.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxErrorBytes = 4096;

bool IsHeaderText(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// As RFC 3986 and S3's signatures want it: everything but unreserved characters, and the slashes between parts.
std::string EncodeKey(std::string_view key) {
  std::string text;
  for (const char c : key) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
                       c == '_' || c == '.' || c == '~' || c == '/';
    text += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return text;
}

std::int64_t NumberIn(std::string_view text) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0 ? number : -1;
}

std::string_view HostIn(std::string_view url) {
  if (const std::size_t scheme = url.find("://"); scheme != std::string_view::npos) url.remove_prefix(scheme + 3);
  return url.substr(0, std::min(url.find_first_of("/?#"), std::size_t{200}));
}

// The text of the first <Code> of S3's answer, if it is one word.
std::string CodeIn(std::string_view xml) {
  constexpr std::string_view kBegin = "<Code>", kEnd = "</Code>";
  const std::size_t begin = xml.find(kBegin);
  const std::size_t end = begin == std::string_view::npos ? begin : xml.find(kEnd, begin);
  if (end == std::string_view::npos) return {};
  const std::string_view code = xml.substr(begin + kBegin.size(), end - begin - kBegin.size());
  return code.size() <= 100 && IsHeaderText(code) ? std::string(code) : std::string();
}

struct HeaderListFreer {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, HeaderListFreer>;

void AddHeader(HeaderList& list, const std::string& line) {
  curl_slist* longer = curl_slist_append(list.get(), line.c_str());
  CHECK(longer != nullptr);
  static_cast<void>(list.release());
  list.reset(longer);
}

}  // namespace

struct S3Client::Transfer {
  CURL* curl;
  const std::atomic<bool>* stop;
  ObjectReply& reply;
  const OnReply& on_reply;
  const OnContent& on_content;
  TransferTime* time;
  std::int64_t content_length = -1;
  std::string error_body;
  bool began = false, refused = false;

  void Header(std::string_view line) {
    while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {  // a further reply: what the one before said is void
      reply = ObjectReply{};
      content_length = -1;
      return;
    }
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    std::string_view value = line.substr(colon + 1);
    while (value.starts_with(' ')) value.remove_prefix(1);
    while (value.ends_with(' ')) value.remove_suffix(1);
    if (name == "etag" && value.size() <= 256 && IsHeaderText(value)) reply.etag = value;
    if (name == "content-length") content_length = NumberIn(value);
    if (name == "content-range") Range(value);
    if (name == "x-amz-checksum-sha256") reply.sha256 = HexOfBase64Sha256(value);
    if (name == "location") reply.location = HostIn(value);
    if (name == "x-amz-bucket-region" && IsHeaderText(value)) reply.correct_region = value.substr(0, 64);
  }
  // "bytes 5-9/10"
  void Range(std::string_view value) {
    const std::size_t dash = value.find('-'), slash = value.find('/');
    if (!value.starts_with("bytes ") || dash == value.npos || slash == value.npos || dash < 6) return;
    reply.first = NumberIn(value.substr(6, dash - 6));
    reply.size = NumberIn(value.substr(slash + 1));
  }
  // What can only be said once all headers are there.
  bool Begin() {
    began = true;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &reply.status);
    if (reply.status == 200 && reply.size < 0) reply.size = content_length;
    if (reply.status != 200 && reply.status != 206) return true;
    refused = !on_reply(reply);
    return !refused;
  }
  std::size_t Content(const char* data, std::size_t size) {
    if (time != nullptr) time->Came(static_cast<std::int64_t>(size));
    if (!began && !Begin()) return 0;
    if (reply.status == 200 || reply.status == 206) {
      refused = !on_content(data, size);
      return refused ? 0 : size;
    }
    if (error_body.size() >= kMaxErrorBytes) return 0;
    error_body.append(data, std::min(size, kMaxErrorBytes - error_body.size()));
    return size;
  }

  static std::size_t OnHeader(char* data, std::size_t one, std::size_t size, void* self) {
    static_cast<Transfer*>(self)->Header(std::string_view(data, one * size));
    return one * size;
  }
  static std::size_t OnData(char* data, std::size_t one, std::size_t size, void* self) {
    return static_cast<Transfer*>(self)->Content(data, one * size);
  }
  static int OnProgress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const Transfer& transfer = *static_cast<Transfer*>(self);
    const bool over = transfer.time != nullptr && transfer.time->Over(OsClock().Now());
    return over || (transfer.stop != nullptr && transfer.stop->load()) ? 1 : 0;
  }
};

S3Client::S3Client(S3Options options, const std::atomic<bool>* stop)
    : options_(std::move(options)), stop_(stop), curl_(curl_easy_init()) {}
S3Client::~S3Client() { curl_easy_cleanup(static_cast<CURL*>(curl_)); }

Result<std::unique_ptr<S3Client>> S3Client::Create(S3Options options, const std::atomic<bool>* stop) {
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  const std::string& url = options.endpoint;
  if (!url.empty() && ((!url.starts_with("http://") && !url.starts_with("https://")) || !IsHeaderText(url))) {
    return InvalidArgument("AWS_ENDPOINT_URL: expected http://HOST or https://HOST, found '" + url + "'");
  }
  const auto region_part = [](char c) { return c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z'); };
  if (options.region.empty() || !std::all_of(options.region.begin(), options.region.end(), region_part)) {
    return InvalidArgument("AWS_REGION: expected a region such as us-east-1, found '" + options.region + "'");
  }
  const auto safe_key = [](const std::string& key) { return IsHeaderText(key) && key.find(':') == std::string::npos; };
  if (!safe_key(options.access_key) || !IsHeaderText(options.secret_key) || !IsHeaderText(options.session_token)) {
    return InvalidArgument(
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN: expected printable characters without blanks");
  }
  if (options.access_key.empty() != options.secret_key.empty()) {
    return InvalidArgument("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: expected both or none, found one");
  }
  std::unique_ptr<S3Client> client(new S3Client(std::move(options), stop));
  if (client->curl_ == nullptr) return Internal("cannot start libcurl");
  return client;
}

// Amazon has a host for each bucket; its certificate does not cover names with dots. Other stores take a path.
std::string S3Client::UrlOf(const Request& request) const {
  const std::string key = EncodeKey(request.key);
  if (!options_.endpoint.empty()) return fmt::format("{}/{}/{}", options_.endpoint, request.bucket, key);
  if (request.bucket.find('.') != std::string::npos) {
    return fmt::format("https://s3.{}.amazonaws.com/{}/{}", options_.region, request.bucket, key);
  }
  return fmt::format("https://{}.s3.{}.amazonaws.com/{}", request.bucket, options_.region, key);
}

std::string S3Client::HostOf(std::string_view bucket) const {
  return std::string(HostIn(UrlOf({.bucket = std::string(bucket), .key = "x"})));
}

Status S3Client::Perform(const Request& request, Transfer& transfer) {
  CURL* curl = static_cast<CURL*>(curl_);
  curl_easy_reset(curl);
  curl_easy_setopt(curl, CURLOPT_URL, UrlOf(request).c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, options_.limits.connect_seconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, options_.limits.least_bytes_per_second);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, options_.limits.stall_seconds);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "loramux");
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Transfer::OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Transfer::OnData);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Transfer::OnProgress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  if (request.head) curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  HeaderList headers;
  AddHeader(headers, "x-amz-checksum-mode: ENABLED");
  if (request.offset > 0) AddHeader(headers, fmt::format("Range: bytes={}-", request.offset));
  if (!request.if_match.empty()) AddHeader(headers, "If-Match: " + request.if_match);
  const std::string keys = options_.access_key + ":" + options_.secret_key;
  const std::string scope = "aws:amz:" + options_.region + ":s3";
  if (has_keys()) {
    curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, scope.c_str());
    curl_easy_setopt(curl, CURLOPT_USERPWD, keys.c_str());
    if (!options_.session_token.empty()) AddHeader(headers, "x-amz-security-token: " + options_.session_token);
  }
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  const CURLcode code = curl_easy_perform(curl);
  if (!transfer.began && code == CURLE_OK) transfer.Begin();  // a reply without content
  curl_easy_reset(curl);                                      // it points to what ends here
  if (code == CURLE_OK || (code == CURLE_WRITE_ERROR && !transfer.refused)) return Ok{};
  if (stopped()) return Unavailable("the server is shutting down");
  const bool over = transfer.time != nullptr && transfer.time->Over(OsClock().Now());
  return Unavailable(over ? TooSlow(options_.limits, *transfer.time) : curl_easy_strerror(code));
}

Status S3Client::Get(const Request& request, ObjectReply& reply, const OnReply& on_reply, const OnContent& on_content) {
  Transfer transfer{static_cast<CURL*>(curl_), stop_, reply, on_reply, on_content, request.time};
  const Status status = Perform(request, transfer);
  reply.code = CodeIn(transfer.error_body);
  return status;
}

}  // namespace loramux
