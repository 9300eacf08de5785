// Fuzzes the compilation of grammars, and the masks of what compiles. The first byte selects the kind, the rest is the
// text, which also chooses among the allowed tokens.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/grammar/byte_tokenizer_for_test.h"
#include "text/grammar/grammar_compiler.h"

namespace {

constexpr int kMaxTokens = 24;
constexpr std::size_t kMaxText = 4096;

loramux::GrammarCompiler& Compiler() {
  static const loramux::Tokenizer tokenizer = loramux::MakeByteTokenizer();
  constexpr loramux::TokenId kEos[] = {loramux::kByteEos};
  static const auto compiler = loramux::GrammarCompiler::Create(tokenizer, kEos, {.max_grammars = 4});
  return **compiler;
}

// Takes the allowed token after `hint`, which may be the end.
void Follow(loramux::TokenConstraint& matcher, std::string_view hints) {
  for (int i = 0; i < kMaxTokens; ++i) {
    const auto allowed = matcher.Allowed();
    if (allowed.empty()) {
      CHECK(matcher.failure() != nullptr && !matcher.failure()->message.empty());
      return;
    }
    const std::size_t bits = allowed.size() * 32;
    const std::size_t hint =
        hints.empty() ? 0 : static_cast<unsigned char>(hints[static_cast<std::size_t>(i) % hints.size()]);
    std::size_t token = bits;
    for (std::size_t k = 0; k < bits && token == bits; ++k) {
      const std::size_t candidate = (hint + k) % bits;
      if ((allowed[candidate / 32] >> (candidate % 32) & 1) != 0) token = candidate;
    }
    CHECK_LT(token, std::size_t{258});
    if (token == static_cast<std::size_t>(loramux::kByteEos)) return;
    matcher.Advance(static_cast<loramux::TokenId>(token));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace loramux;
  if (size == 0 || size > kMaxText) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto kind = static_cast<GrammarKind>(data[0] % 6);
  const auto grammar = Compiler().Compile({kind, text, "grammar"});
  if (!grammar.ok()) {
    CHECK_EQ(grammar.error().param, "grammar");
    CHECK(grammar.error().code == ErrorCode::kInvalidArgument || grammar.error().code == ErrorCode::kUnsupported);
    CHECK_LT(grammar.error().message.size(), 2000u);
    return 0;
  }
  const auto matcher = (*grammar)->Begin();
  CHECK(matcher.ok());
  Follow(**matcher, text);
  return 0;
}
