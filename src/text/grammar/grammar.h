// Compiled grammars, and the matchers that follow one sequence each: llguidance behind the C interface of
// src/text/bindings.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "base/result.h"
#include "step/token_constraint.h"
#include "text/grammar/mask_threads.h"
#include "text/grammar/output_constraint.h"

namespace loramux {

namespace grammar_internal {
class Environment;
class Compiled;
}  // namespace grammar_internal

// A compiled grammar over the tokens of one model. Immutable and thread-safe.
class Grammar {
 public:
  // Compiles. Takes milliseconds of the processor, `most` at most, so call it off the I/O threads. Masks of its
  // matchers are computed on `threads`, as long as those exist. Errors: the text is wrong, too large or too complex, or
  // uses what is not supported.
  static Result<std::shared_ptr<const Grammar>> Compile(const grammar_internal::Environment& environment,
                                                        GrammarKind kind, const std::string& text,
                                                        std::chrono::milliseconds most,
                                                        const std::shared_ptr<MaskThreads>& threads);
  ~Grammar();

  // Begins a sequence. Error: a fault of the library.
  Result<std::shared_ptr<TokenConstraint>> Begin() const;
  // About how much memory it takes, in bytes.
  std::size_t bytes() const;

 private:
  explicit Grammar(std::unique_ptr<grammar_internal::Compiled> compiled);
  std::unique_ptr<grammar_internal::Compiled> compiled_;
};

}  // namespace loramux
