#include "http/random_source.h"

#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/check.h"

namespace loramux {
namespace {

constexpr std::string_view kPurpose = "loramux sampling seed";  // no other use of the same seed gives these numbers

// OpenSSL's generators fail only if the system has no entropy. Then no id or seed would be safe.
std::uint64_t Drawn(int (*generator)(unsigned char*, int)) {
  std::array<unsigned char, sizeof(std::uint64_t)> bytes;
  CHECK_EQ(generator(bytes.data(), static_cast<int>(bytes.size())), 1);
  return std::bit_cast<std::uint64_t>(bytes);
}

std::uint64_t Derived(std::uint64_t seed, std::uint64_t count) {
  std::array<unsigned char, kPurpose.size() + sizeof(count)> message;
  std::memcpy(message.data(), kPurpose.data(), kPurpose.size());
  std::memcpy(message.data() + kPurpose.size(), &count, sizeof(count));
  std::array<unsigned char, EVP_MAX_MD_SIZE> code;
  CHECK(HMAC(EVP_sha256(), &seed, sizeof(seed), message.data(), message.size(), code.data(), nullptr) != nullptr);
  std::uint64_t derived = 0;
  std::memcpy(&derived, code.data(), sizeof(derived));
  return derived;
}

}  // namespace

std::uint64_t RandomIdBits() { return Drawn(RAND_bytes); }

std::uint64_t SeedSource::Next() { return seed_ == 0 ? Drawn(RAND_priv_bytes) : Derived(seed_, count_++); }

}  // namespace loramux
