// Reads objects of a store that speaks Amazon's S3: one signed request a call, without listing.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "hub/transfer_limits.h"

namespace loramux {

struct S3Options {
  std::string endpoint;  // http://HOST[:PORT] or https://...; empty: Amazon's of the region
  std::string region = "us-east-1";
  std::string access_key;                 // empty: requests are not signed
  std::string secret_key, session_token;  // secret
  TransferLimits limits;
};

// What the store said of an object.
struct ObjectReply {
  long status = 0;  // HTTP's
  std::string etag;
  std::int64_t size = -1;      // bytes of the whole object; -1: the store did not say
  std::int64_t first = 0;      // index of the first byte that came
  std::string sha256;          // SHA-256 of the whole object, in hexadecimal digits; empty: the store did not say
  std::string location;        // the host that a redirect names
  std::string correct_region;  // the region that a redirect or an error names, if any
  std::string code;            // S3's name of an error, such as NoSuchKey
};

// One thread uses it. Waits for the network. Redirects are not followed, so no signature reaches another host.
class S3Client {
 public:
  // Error: an endpoint that is no URL, a region or key with characters that no header may have.
  static Result<std::unique_ptr<S3Client>> Create(S3Options options, const std::atomic<bool>* stop);
  ~S3Client();
  S3Client(const S3Client&) = delete;
  S3Client& operator=(const S3Client&) = delete;

  // A part of an object. `head`: no content at all.
  struct Request {
    std::string bucket, key;
    bool head = false;
    std::int64_t offset = 0;       // content from this byte on
    std::string if_match;          // an ETag: 412 if the object has another one
    TransferTime* time = nullptr;  // is told the content, and ends the transfer; null: nothing does
  };
  // Takes content. False ends the transfer.
  using OnContent = std::function<bool(const char* data, std::size_t size)>;
  // Called once before any content, with status 200 or 206. False ends the transfer.
  using OnReply = std::function<bool(const ObjectReply& reply)>;

  // Returns the reply, also one with an error status, whose body OnContent does not get. Error (kUnavailable): the
  // network, a stall, its time, a callback or *stop ended it; `reply` then has what had come.
  Status Get(const Request& request, ObjectReply& reply, const OnReply& on_reply, const OnContent& on_content);

  // "s3.amazonaws.com" or the like: for errors.
  std::string HostOf(std::string_view bucket) const;
  bool has_keys() const { return !options_.access_key.empty(); }
  const TransferLimits& limits() const { return options_.limits; }
  const std::string& region() const { return options_.region; }
  bool stopped() const { return stop_ != nullptr && stop_->load(); }

 private:
  struct Transfer;
  S3Client(S3Options options, const std::atomic<bool>* stop);
  std::string UrlOf(const Request& request) const;
  Status Perform(const Request& request, Transfer& transfer);

  const S3Options options_;
  const std::atomic<bool>* stop_;
  void* curl_;  // CURL
};

}  // namespace loramux
