// What a server tells routers about itself: the content of GET /internal/snapshot. A simulated server makes the same.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loramux {

// Where a server has an adapter, best first.
enum class AdapterPlace : std::uint8_t {
  kDevice,    // usable at once
  kArriving,  // on its way to the device
  kHost,      // in the host tier
  kDisk,      // only on disk, but requests for it are waiting
};

// One adapter that a server holds in a tier, or has requests for.
struct SnapshotAdapter {
  std::string name;
  std::string digest;  // digest of its content
  AdapterPlace place = AdapterPlace::kDisk;
  std::int32_t rank = 0;                  // the largest of its modules
  std::int64_t bytes = 0;                 // bytes of its pages
  std::int64_t running = 0, waiting = 0;  // requests
  friend bool operator==(const SnapshotAdapter&, const SnapshotAdapter&) = default;
};

// A server's state at one time. Counts are of requests or tokens, sizes of pages.
struct ServerSnapshot {
  std::string instance;       // random, new with each start of the server
  std::uint64_t version = 0;  // ascends with each change within an instance; at least 1
  bool draining = false;      // it finishes what it has and takes nothing new
  std::string profile;        // names the performance profile of its plans; empty: it has none
  std::string base_model;     // the name of the base model

  std::int64_t running = 0, waiting = 0;
  std::int64_t waiting_prompt_tokens = 0;  // prompt tokens of the waiting requests
  std::int64_t running_prompt_tokens = 0;  // prompt tokens of the running requests that are not computed yet
  std::int64_t running_context = 0;        // positions that the running requests hold
  std::int64_t max_running = 0, max_batch_tokens = 0;
  std::vector<std::int64_t> lane_waiting;  // requests in the queue, by lane

  std::int64_t page_tokens = 0, page_bytes = 0;
  std::int64_t device_pages = 0, free_pages = 0;
  std::int64_t history_pages = 0, idle_adapter_pages = 0;  // pages that may be evicted

  std::vector<SnapshotAdapter> adapters;  // ascending by name
  // Fingerprints of the blocks of prompts whose keys and values are probably cached (prefix_blocks.h). Ascending.
  std::vector<std::uint32_t> prefixes;

  // The models that the server takes requests for, loaded or not, by NameFingerprint (offered_names.h). Ascending.
  // Empty: it does not say, or it says it by the version alone, because the router has the list.
  std::vector<std::uint64_t> offered;
  std::uint64_t offered_version = 0;  // stands for the content of `offered`; 0: it does not say

  // The adapter of this name; null: the server has it in no tier and no requests for it.
  const SnapshotAdapter* Find(std::string_view name) const;
  // Whether the prefix with this fingerprint is probably cached.
  bool HasPrefix(std::uint32_t fingerprint) const;

  friend bool operator==(const ServerSnapshot&, const ServerSnapshot&) = default;
};

// The JSON text of a snapshot. `prefixes` and `offered` are written compactly: base64 of little-endian numbers of 32
// and 64 bits. The fields of what is offered are left out if they say nothing.
std::string ServerSnapshotAsJson(const ServerSnapshot& snapshot);
// Reads an untrusted text of at most kMaxSnapshotBytes. Unknown fields are ignored, so that servers may be newer than
// routers. Errors: a field is missing, has another type or is out of range; the message names it.
Result<ServerSnapshot> ParseServerSnapshot(std::string_view json);
inline constexpr std::size_t kMaxSnapshotBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxOffered = 65536;  // names in ServerSnapshot::offered

}  // namespace loramux
