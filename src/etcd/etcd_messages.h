// The messages of etcd's v3 API in the JSON form of its gateway: 64-bit numbers are strings, keys and values are
// base64. What a server sends is not trusted: its size, form and numbers are checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loramux {

// The head of every reply: whose state it is, and how new.
struct EtcdHeader {
  std::uint64_t cluster_id = 0;
  std::int64_t revision = 0;  // revision of the whole store; ascends with each change
  friend bool operator==(const EtcdHeader&, const EtcdHeader&) = default;
};

struct EtcdKeyValue {
  std::string key, value;
  std::int64_t mod_revision = 0;  // the revision of its last change
  std::int64_t lease = 0;         // 0: none
  friend bool operator==(const EtcdKeyValue&, const EtcdKeyValue&) = default;
};

// All keys from `key` to before `range_end`. `range_end` empty: `key` alone.
struct EtcdRangeRequest {
  std::string key, range_end;
  std::int64_t limit = 0;     // keys; 0: no limit
  std::int64_t revision = 0;  // as of this revision; 0: now
  // Answered by the member alone, also without a quorum; it may be old.
  bool serializable = false;
};

struct EtcdRangeReply {
  EtcdHeader header;
  std::vector<EtcdKeyValue> key_values;  // ascending by key
  bool more = false;                     // the limit cut it
};

// Puts or deletes a key if it has not changed since `mod_revision`.
struct EtcdSwapRequest {
  std::string key;
  std::int64_t mod_revision = 0;     // revision of the change that the caller has seen; 0: there is no such key
  std::optional<std::string> value;  // nullopt: delete
  std::int64_t lease = 0;            // lease of the new value; 0: none
};

struct EtcdSwapReply {
  EtcdHeader header;
  bool swapped = false;
  std::optional<EtcdKeyValue> current;  // if it was not: what is there; nullopt: nothing
};

struct EtcdLeaseReply {
  std::int64_t id = 0, ttl_seconds = 0;  // ttl 0: there is no such lease
};

struct EtcdEvent {
  bool deleted = false;
  EtcdKeyValue key_value;  // if deleted, key and mod_revision alone
};

// One message of a watch.
struct EtcdWatchReply {
  EtcdHeader header;
  bool created = false, canceled = false;
  std::int64_t compact_revision = 0;  // above 0: older revisions than this are gone
  std::string cancel_reason;
  std::vector<EtcdEvent> events;
};

std::string ToBase64(std::string_view bytes);
// Error: not base64 with padding.
Result<std::string> FromBase64(std::string_view text);

// The end of the range of all keys that begin with `prefix`. REQUIRES: `prefix` is not empty.
std::string PrefixEnd(std::string prefix);

std::string EtcdRangeBody(const EtcdRangeRequest& request);
std::string EtcdPutBody(std::string_view key, std::string_view value, std::int64_t lease);
std::string EtcdDeleteBody(std::string_view key, std::string_view range_end);
std::string EtcdSwapBody(const EtcdSwapRequest& request);
std::string EtcdGrantBody(std::int64_t ttl_seconds);
std::string EtcdLeaseBody(std::int64_t id);
std::string EtcdWatchBody(std::string_view key, std::string_view range_end, std::int64_t start_revision);
std::string EtcdAuthenticateBody(std::string_view user, std::string_view password);

// These parse whole replies. Errors (kUnavailable: the caller may ask another member): not such a message; the text
// names the field.
Result<EtcdHeader> ParseEtcdHeader(std::string_view text);
Result<EtcdRangeReply> ParseEtcdRange(std::string_view text);
Result<EtcdSwapReply> ParseEtcdSwap(std::string_view text);
Result<EtcdLeaseReply> ParseEtcdGrant(std::string_view text);
Result<EtcdLeaseReply> ParseEtcdKeepAlive(std::string_view text);
Result<EtcdWatchReply> ParseEtcdWatch(std::string_view text);
Result<std::string> ParseEtcdToken(std::string_view text);

// What a reply that is no success says.
struct EtcdFailure {
  std::int64_t code = 0;  // status code of gRPC; 0: unknown
  std::string message;
};
EtcdFailure ParseEtcdFailure(int http_status, std::string_view text);

}  // namespace loramux
