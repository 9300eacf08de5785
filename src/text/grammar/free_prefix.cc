#include "text/grammar/free_prefix.h"

#include <algorithm>
#include <utility>

namespace loramux {
namespace {

constexpr std::string_view kLineBreaks[] = {"\n", "\n\n"};

void SetBit(std::vector<std::uint32_t>& mask, TokenId token, bool allowed) {
  const auto id = static_cast<std::size_t>(token);
  if (token < 0 || id / 32 >= mask.size()) return;
  const std::uint32_t bit = std::uint32_t{1} << (id % 32);
  mask[id / 32] = allowed ? mask[id / 32] | bit : mask[id / 32] & ~bit;
}

class PrefixedConstraint final : public TokenConstraint {
 public:
  PrefixedConstraint(FreePrefix prefix, std::size_t vocab_size, std::shared_ptr<TokenConstraint> answer)
      : prefix_(std::move(prefix)),
        answer_(std::move(answer)),
        place_(prefix_.begun ? Place::kPrefix : Place::kStart),
        free_((vocab_size + 31) / 32, ~std::uint32_t{0}) {
    for (const TokenId token : prefix_.excluded) SetBit(free_, token, false);
  }

  void Advance(TokenId token) override {
    switch (place_) {
      case Place::kStart:
        if (token != prefix_.begin) break;
        place_ = Place::kPrefix;
        return;
      case Place::kPrefix:
        if (token == prefix_.end) place_ = Place::kGap;
        return;
      case Place::kGap:
        if (!InGap(token)) break;
        place_ = Place::kAnswer;
        return;
      case Place::kAnswer:
        break;
    }
    place_ = Place::kAnswer;
    answer_->Advance(token);
  }

  std::span<const std::uint32_t> Allowed() override {
    if (place_ == Place::kPrefix) return free_;
    const auto allowed = answer_->Allowed();
    if (place_ == Place::kAnswer || allowed.empty()) return allowed;
    either_.assign(free_.size(), 0);
    std::copy_n(allowed.begin(), std::min(allowed.size(), either_.size()), either_.begin());
    if (place_ == Place::kStart) SetBit(either_, prefix_.begin, true);
    if (place_ == Place::kGap) {
      for (const TokenId token : prefix_.gap) SetBit(either_, token, true);
    }
    return either_;
  }

  const Error* failure() const override { return place_ == Place::kPrefix ? nullptr : answer_->failure(); }

 private:
  enum class Place { kStart, kPrefix, kGap, kAnswer };

  bool InGap(TokenId token) const { return std::ranges::find(prefix_.gap, token) != prefix_.gap.end(); }

  const FreePrefix prefix_;
  const std::shared_ptr<TokenConstraint> answer_;
  Place place_;
  std::vector<std::uint32_t> free_;    // what the prefix may have
  std::vector<std::uint32_t> either_;  // the answer's first token, or one that is not the answer's
};

class EndedConstraint final : public TokenConstraint {
 public:
  EndedConstraint(std::vector<TokenId> ends, std::vector<TokenId> eos, std::shared_ptr<TokenConstraint> answer)
      : ends_(std::move(ends)), eos_(std::move(eos)), answer_(std::move(answer)) {}

  void Advance(TokenId token) override { answer_->Advance(token); }

  std::span<const std::uint32_t> Allowed() override {
    const auto allowed = answer_->Allowed();
    const auto has = [&](TokenId token) {
      const auto id = static_cast<std::size_t>(token);
      return token >= 0 && id / 32 < allowed.size() && (allowed[id / 32] >> (id % 32) & 1) != 0;
    };
    if (!std::any_of(eos_.begin(), eos_.end(), has)) return allowed;
    mask_.assign(allowed.begin(), allowed.end());
    for (const TokenId token : ends_) {
      // The model may have more tokens than the grammar's tokenizer.
      if (token >= 0) mask_.resize(std::max(mask_.size(), static_cast<std::size_t>(token) / 32 + 1));
      SetBit(mask_, token, true);
    }
    return mask_;
  }

  const Error* failure() const override { return answer_->failure(); }

 private:
  const std::vector<TokenId> ends_, eos_;
  const std::shared_ptr<TokenConstraint> answer_;
  std::vector<std::uint32_t> mask_;
};

}  // namespace

std::optional<FreePrefix> PrefixBetween(const Tokenizer& tokenizer, std::string_view begin, std::string_view end,
                                        bool begun) {
  FreePrefix prefix{.begin = tokenizer.TokenToId(begin), .end = tokenizer.TokenToId(end), .begun = begun};
  if (prefix.end < 0 || (!begun && prefix.begin < 0)) return std::nullopt;
  for (const std::string_view text : kLineBreaks) {
    const auto tokens = tokenizer.Encode(text, /*add_special_tokens=*/false);
    if (tokens.ok() && tokens->size() == 1) prefix.gap.push_back(tokens->front());
  }
  return prefix;
}

std::shared_ptr<TokenConstraint> AllowEnds(std::vector<TokenId> ends, std::vector<TokenId> eos,
                                           std::shared_ptr<TokenConstraint> answer) {
  return std::make_shared<EndedConstraint>(std::move(ends), std::move(eos), std::move(answer));
}

std::shared_ptr<TokenConstraint> AllowPrefix(FreePrefix prefix, std::size_t vocab_size,
                                             std::shared_ptr<TokenConstraint> answer) {
  return std::make_shared<PrefixedConstraint>(std::move(prefix), vocab_size, std::move(answer));
}

}  // namespace loramux
