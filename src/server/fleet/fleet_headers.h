// Headers between a router and its servers, besides those of http/exchange.h.
#pragma once

namespace loramux {

// Request: the content (AdapterFile::digest) that the answer must come from. A server that has other content under the
// adapter's name answers 503 with kNotStartedHeader.
inline constexpr const char* kRequireDigestHeader = "x-loramux-require-digest";
// Response of GET /internal/snapshot: how old the state is, in milliseconds.
inline constexpr const char* kSnapshotAgeHeader = "x-loramux-snapshot-age-ms";

}  // namespace loramux
