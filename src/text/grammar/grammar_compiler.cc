#include "text/grammar/grammar_compiler.h"

#include <utility>

#include "text/grammar/grammar_handles.h"
#include "text/tokenizer_impl.h"

namespace loramux {
namespace {

// Kind and text: what a grammar is compiled from.
std::string KeyOf(const OutputConstraint& constraint) {
  return static_cast<char>('0' + static_cast<int>(constraint.kind)) + constraint.text;
}

// Whatever is wrong is wrong with the client's grammar, so it is never an internal error.
Error Describe(const Error& error, const OutputConstraint& constraint) {
  const ErrorCode code = error.code == ErrorCode::kUnsupported ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument;
  const char* what =
      constraint.kind == GrammarKind::kToolCalls ? "no call can be demanded" : "the grammar cannot be used";
  return {code, "`" + constraint.field + "`: " + what + ": " + error.message, constraint.field};
}

}  // namespace

GrammarCompiler::GrammarCompiler(std::unique_ptr<grammar_internal::Environment> environment,
                                 std::span<const TokenId> eos, GrammarCompilerOptions options)
    : options_(options),
      environment_(std::move(environment)),
      eos_(eos.begin(), eos.end()),
      threads_(std::make_shared<MaskThreads>(options.mask_threads)) {}

GrammarCompiler::~GrammarCompiler() = default;

std::size_t GrammarCompiler::vocab_size() const { return environment_->vocab_size(); }

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(const Tokenizer& tokenizer,
                                                                 std::span<const TokenId> eos,
                                                                 GrammarCompilerOptions options) {
  loramux_grammars* raw = nullptr;
  text_internal::Buffer error;
  const auto status = loramux_grammars_new(tokenizer.impl_->handle.get(), eos.data(), eos.size(), &raw, error.out());
  if (status != LORAMUX_TEXT_OK) return text_internal::ToError(status, error, "");
  auto environment = std::make_unique<grammar_internal::Environment>(grammar_internal::EnvironmentHandle(raw));
  return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(std::move(environment), eos, options));
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::Compile(const OutputConstraint& constraint) {
  std::string key = KeyOf(constraint);
  if (auto kept = Find(key)) return kept;
  auto compiled = Grammar::Compile(*environment_, constraint.kind, constraint.text, threads_);
  if (!compiled.ok()) return Describe(compiled.error(), constraint);
  Keep(std::move(key), *compiled);
  return compiled;
}

std::shared_ptr<const Grammar> GrammarCompiler::Find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(key);
  if (found == index_.end()) {
    ++misses_;
    return nullptr;
  }
  ++hits_;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->grammar;
}

void GrammarCompiler::Keep(std::string key, std::shared_ptr<const Grammar> grammar) {
  const std::lock_guard lock(mutex_);
  if (index_.contains(key)) return;  // another thread compiled it too
  const std::size_t bytes = grammar->bytes();
  bytes_ += bytes;
  text_bytes_ += key.size();
  kept_.push_front({std::move(key), std::move(grammar), bytes});
  index_.emplace(kept_.front().key, kept_.begin());
  while (kept_.size() > options_.max_grammars || bytes_ > options_.max_bytes || text_bytes_ > options_.max_text_bytes) {
    DropLast();
  }
}

void GrammarCompiler::DropLast() {
  const Kept& last = kept_.back();
  bytes_ -= last.bytes;
  text_bytes_ -= last.key.size();
  index_.erase(last.key);
  kept_.pop_back();
}

GrammarCompilerStats GrammarCompiler::stats() const {
  const std::lock_guard lock(mutex_);
  return {hits_, misses_, kept_.size(), bytes_};
}

}  // namespace loramux
