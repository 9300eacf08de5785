// Compiles the grammars of requests, and keeps those that were used last.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
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
  // Processor time for one grammar. The largest take a second.
  std::chrono::milliseconds max_time{5000};
  int mask_threads = 1;                                // threads that compute masks beside the forward pass
  std::size_t max_grammars = 512;                      // grammars that are kept; as many refused ones too
  std::size_t max_bytes = std::size_t{256} << 20;      // size of all grammars that are kept
  std::size_t max_text_bytes = std::size_t{16} << 20;  // size of their texts; as many of refused ones too
};

// Counts since the start.
struct GrammarCompilerStats {
  std::int64_t hits = 0, misses = 0;    // grammars that were kept or refused before; grammars that were compiled
  std::size_t grammars = 0, bytes = 0;  // what is kept now
};

// Thread-safe. Grammars and matchers may outlive it; masks are then computed on the threads that need them.
class GrammarCompiler {
 public:
  // `eos` are the tokens that end a text. Error: the tokenizer's tokens have no text of their own, or there is no
  // `eos`.
  static Result<std::unique_ptr<GrammarCompiler>> Create(const Tokenizer& tokenizer, std::span<const TokenId> eos,
                                                         GrammarCompilerOptions options = {});
  // Refuses every constraint: for models whose output cannot be constrained.
  static std::unique_ptr<GrammarCompiler> Refusing();
  ~GrammarCompiler();

  bool refuses() const { return environment_ == nullptr; }
  // Returns the kept grammar, or compiles it, which takes up to some seconds. Errors are meant for the
  // client and name OutputConstraint::field; they are kept too.
  Result<std::shared_ptr<const Grammar>> Compile(const OutputConstraint& constraint);
  // Whether Compile would take no time, because the grammar or its error is kept, or because all are refused.
  bool Has(const OutputConstraint& constraint) const;

  GrammarCompilerStats stats() const;
  // One more than the largest token id that a mask can allow. REQUIRES: !refuses().
  std::size_t vocab_size() const;
  // The tokens that end a text.
  const std::vector<TokenId>& eos() const { return eos_; }

 private:
  using Outcome = Result<std::shared_ptr<const Grammar>>;  // errors are without the field

  // What texts led to, the one used last first. Not thread-safe.
  class Store {
   public:
    explicit Store(const GrammarCompilerOptions& options) : options_(options) {}
    // Null: it is not kept.
    const Outcome* Use(const std::string& key);
    bool Has(const std::string& key) const { return index_.contains(key); }
    void Keep(std::string key, Outcome outcome);
    std::size_t size() const { return kept_.size(); }
    std::size_t bytes() const { return bytes_; }

   private:
    struct Kept {
      std::string key;
      Outcome outcome;
      std::size_t bytes = 0;
    };
    void DropLast();

    const GrammarCompilerOptions& options_;
    std::list<Kept> kept_;
    std::unordered_map<std::string_view, std::list<Kept>::iterator> index_;  // by Kept::key; looked up, never iterated
    std::size_t bytes_ = 0, text_bytes_ = 0;
  };

  GrammarCompiler(std::unique_ptr<grammar_internal::Environment> environment, std::span<const TokenId> eos,
                  GrammarCompilerOptions options);
  std::optional<Outcome> Find(const std::string& key);

  const GrammarCompilerOptions options_;
  const std::unique_ptr<grammar_internal::Environment> environment_;
  const std::vector<TokenId> eos_;
  const std::shared_ptr<MaskThreads> threads_;

  mutable std::mutex mutex_;
  Store grammars_{options_};
  Store refused_{options_};  // apart, so that refusals displace no grammar
  std::int64_t hits_ = 0, misses_ = 0;
};

}  // namespace loramux
