// Random numbers that no client may predict: ids, and the sampling seeds of requests that bring none. Clients see ids,
// so ids and seeds come from different generators: an id tells nothing of any other id, nor of any seed.
#pragma once

#include <atomic>
#include <cstdint>

namespace loramux {

// Returns 64 bits for ids that clients see, from OpenSSL's generator for public numbers. Thread-safe.
std::uint64_t RandomIdBits();

// The sampling seeds of requests that bring none. Thread-safe.
class SeedSource {
 public:
  // `seed` is secret. 0: the seeds come from OpenSSL's generator for secret numbers. Otherwise each is the HMAC-SHA-256
  // of a counter under `seed`: every run has the same ones, but a client that knows some of them cannot compute others.
  explicit SeedSource(std::uint64_t seed) : seed_(seed) {}
  // Returns the next seed.
  std::uint64_t Next();

 private:
  const std::uint64_t seed_;
  std::atomic<std::uint64_t> count_ = 0;
};

}  // namespace loramux
