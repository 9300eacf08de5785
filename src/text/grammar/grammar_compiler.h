// Compiles the grammars of requests, and keeps those that were used last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "text/grammar/grammar.h"
#include "text/grammar/output_constraint.h"
#include "text/tokenizer.h"

namespace loramux {

// Settings of a GrammarCompiler.
struct GrammarCompilerOptions {
  int mask_threads = 1;                                // that compute masks beside the forward pass
  std::size_t max_grammars = 512;                      // kept
  std::size_t max_bytes = std::size_t{256} << 20;      // of all that are kept
  std::size_t max_text_bytes = std::size_t{16} << 20;  // of their texts
};

// Counts since the start.
struct GrammarCompilerStats {
  std::int64_t hits = 0, misses = 0;    // of grammars that were kept, and of those that were compiled
  std::size_t grammars = 0, bytes = 0;  // kept now
};

// Thread-safe. Grammars and matchers may outlive it; masks are then computed on the threads that need them.
class GrammarCompiler {
 public:
  // `eos` are the tokens that end a text. Error: the tokenizer's tokens have no text of their own, or there is no
  // `eos`.
  static Result<std::unique_ptr<GrammarCompiler>> Create(const Tokenizer& tokenizer, std::span<const TokenId> eos,
                                                         GrammarCompilerOptions options = {});
  ~GrammarCompiler();

  // Returns the kept grammar, or compiles it, which takes milliseconds. Errors are meant for the client and name
  // OutputConstraint::field.
  Result<std::shared_ptr<const Grammar>> Compile(const OutputConstraint& constraint);

  GrammarCompilerStats stats() const;
  // One more than the largest token id that a mask can allow.
  std::size_t vocab_size() const;
  // The tokens that end a text.
  const std::vector<TokenId>& eos() const { return eos_; }

 private:
  struct Kept {
    std::string key;
    std::shared_ptr<const Grammar> grammar;
    std::size_t bytes = 0;
  };

  GrammarCompiler(std::unique_ptr<grammar_internal::Environment> environment, std::span<const TokenId> eos,
                  GrammarCompilerOptions options);
  std::shared_ptr<const Grammar> Find(const std::string& key);
  void Keep(std::string key, std::shared_ptr<const Grammar> grammar);
  void DropLast();

  const GrammarCompilerOptions options_;
  const std::unique_ptr<grammar_internal::Environment> environment_;
  const std::vector<TokenId> eos_;
  const std::shared_ptr<MaskThreads> threads_;

  mutable std::mutex mutex_;
  std::list<Kept> kept_;                                                   // the one used last is first
  std::unordered_map<std::string_view, std::list<Kept>::iterator> index_;  // by Kept::key; looked up, never iterated
  std::size_t bytes_ = 0, text_bytes_ = 0;
  std::int64_t hits_ = 0, misses_ = 0;
};

}  // namespace loramux
