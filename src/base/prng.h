// Seeded random numbers, always injected. The sequences are the same on every platform (unlike
// std::uniform_*_distribution). A few outputs give all others: what clients must not predict comes from
// http/random_source.h.
#pragma once

#include <cstdint>

namespace loramux {

// One step of SplitMix64 (Steele, Lea and Flood 2014): a bijective mix of 64 bits; good for deriving seeds.
constexpr std::uint64_t SplitMix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Uniform double in [0, 1) from 64 random bits.
constexpr double UnitDouble(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

// xoshiro256** (Blackman and Vigna 2018). Value type; not thread-safe.
class Prng {
 public:
  explicit constexpr Prng(std::uint64_t seed) {
    for (auto& word : state_) word = seed = SplitMix64(seed);
  }

  // The next 64 random bits.
  constexpr std::uint64_t Next() {
    const std::uint64_t result = RotateLeft(state_[1] * 5, 7) * 9;
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = RotateLeft(state_[3], 45);
    return result;
  }

  // Uniform in [0, 1).
  constexpr double NextDouble() { return UnitDouble(Next()); }

  // Uniform in [0, bound). REQUIRES: bound > 0. The bias is below 2^-32 for bounds under 2^32.
  constexpr std::uint64_t NextBelow(std::uint64_t bound) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }

 private:
  static constexpr std::uint64_t RotateLeft(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  std::uint64_t state_[4] = {};
};

}  // namespace loramux
