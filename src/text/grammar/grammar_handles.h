// Owning handles of the library's grammars. Internal to this directory.
#pragma once

#include "text/c_interface.h"

namespace loramux::grammar_internal {

using EnvironmentHandle = std::unique_ptr<loramux_grammars, text_internal::Deleter<loramux_grammars_free>>;
using GrammarHandle = std::unique_ptr<loramux_grammar, text_internal::Deleter<loramux_grammar_free>>;
using MatcherHandle = std::unique_ptr<loramux_matcher, text_internal::Deleter<loramux_matcher_free>>;

// What all grammars of a tokenizer share. Immutable and thread-safe.
class Environment {
 public:
  explicit Environment(EnvironmentHandle handle) : handle_(std::move(handle)) {}

  const loramux_grammars* handle() const { return handle_.get(); }
  // One more than the largest token id that a mask can allow.
  std::size_t vocab_size() const { return loramux_grammars_vocab_size(handle_.get()); }

 private:
  EnvironmentHandle handle_;
};

}  // namespace loramux::grammar_internal
