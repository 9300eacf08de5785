// What stands around a constrained answer: text that a model may write freely before it, such as reasoning, and the
// tokens that end it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "step/token_constraint.h"
#include "text/tokenizer.h"

namespace loramux {

// Where the prefix begins and ends, in tokens.
struct FreePrefix {
  TokenId begin = -1;                  // begins it, as the first token of the sequence. -1: only the prompt can
  TokenId end = -1;                    // its last token
  bool begun = false;                  // by the prompt
  std::vector<TokenId> gap = {};       // one of these may stand between it and the answer, and belongs to neither
  std::vector<TokenId> excluded = {};  // not part of it: the tokens that end a text
};

// The prefix between two tags, with line breaks in the gap. nullopt: a tag that is needed is no single token, so the
// prefix could end, or begin, within a token.
std::optional<FreePrefix> PrefixBetween(const Tokenizer& tokenizer, std::string_view begin, std::string_view end,
                                        bool begun);

// Follows a sequence whose answer `answer` constrains, behind `prefix`. Where the prompt has not begun the prefix, the
// sequence has it or not. `vocab_size`: one more than the largest token id that the prefix may have. REQUIRES: `answer`
// has advanced by no token.
std::shared_ptr<TokenConstraint> AllowPrefix(FreePrefix prefix, std::size_t vocab_size,
                                             std::shared_ptr<TokenConstraint> answer);

// Lets one of `ends` stand where `answer` allows one of `eos`: tokens that also end a text, though the grammar does not
// know them. REQUIRES: `answer` has advanced by no token, and never does by an end.
std::shared_ptr<TokenConstraint> AllowEnds(std::vector<TokenId> ends, std::vector<TokenId> eos,
                                           std::shared_ptr<TokenConstraint> answer);

}  // namespace loramux
