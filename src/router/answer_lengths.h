// How long answers are, learned from those that passed. A router counts no tokens; events of a stream stand for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace loramux {

// A moving mean for each adapter, of the latest that were asked for. Not thread-safe.
class AnswerLengths {
 public:
  static constexpr double kUnknown = 128;  // tokens of an answer of which nothing is known
  static constexpr std::size_t kMostAdapters = 4096;

  // An answer of `adapter` (empty: the base model) had so many tokens.
  void Learn(const std::string& adapter, std::int64_t tokens) {
    if (tokens <= 0) return;
    if (means_.size() >= kMostAdapters && !means_.contains(adapter)) means_.clear();
    double& mean = means_.try_emplace(adapter, static_cast<double>(tokens)).first->second;
    mean += (static_cast<double>(tokens) - mean) / 16;
  }
  // The tokens to expect, at most `limit` (negative: none).
  std::int64_t Expect(const std::string& adapter, std::int64_t limit) const {
    const auto found = means_.find(adapter);
    const auto mean = static_cast<std::int64_t>((found == means_.end() ? kUnknown : found->second) + 0.5);
    return limit < 0 ? mean : std::min(limit, mean);
  }

 private:
  std::unordered_map<std::string, double> means_;
};

}  // namespace loramux
