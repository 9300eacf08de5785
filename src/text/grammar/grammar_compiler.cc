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

// Whatever is wrong is wrong with the client's grammar, so it is never an internal error, unless memory is short.
Error Describe(const Error& error, const OutputConstraint& constraint) {
  if (error.code == ErrorCode::kUnavailable) return error;
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

std::unique_ptr<GrammarCompiler> GrammarCompiler::Refusing() {
  return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(nullptr, {}, {}));
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::Compile(const OutputConstraint& constraint) {
  if (refuses()) {
    return Unsupported("`" + constraint.field +
                           "`: this server cannot constrain the output of this model; the log of its start gives the "
                           "reason",
                       constraint.field);
  }
  std::string key = KeyOf(constraint);
  std::optional<Outcome> outcome = Find(key);
  if (!outcome) {
    outcome = Grammar::Compile(*environment_, constraint.kind, constraint.text, options_.max_time, threads_);
    const std::lock_guard lock(mutex_);
    Store& store = outcome->ok() ? grammars_ : refused_;
    const bool lasting = outcome->ok() || (outcome->error().code != ErrorCode::kInternal &&
                                           outcome->error().code != ErrorCode::kUnavailable);
    if (lasting) store.Keep(std::move(key), *outcome);
  }
  if (!outcome->ok()) return Describe(outcome->error(), constraint);
  return *std::move(outcome);
}

bool GrammarCompiler::Has(const OutputConstraint& constraint) const {
  if (refuses()) return true;
  const std::string key = KeyOf(constraint);
  const std::lock_guard lock(mutex_);
  return grammars_.Has(key) || refused_.Has(key);
}

std::optional<GrammarCompiler::Outcome> GrammarCompiler::Find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const Outcome* found = grammars_.Use(key);
  if (found == nullptr) found = refused_.Use(key);
  ++(found == nullptr ? misses_ : hits_);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

const GrammarCompiler::Outcome* GrammarCompiler::Store::Use(const std::string& key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return &found->second->outcome;
}

void GrammarCompiler::Store::Keep(std::string key, Outcome outcome) {
  if (index_.contains(key)) return;  // another thread compiled it too
  const std::size_t bytes = outcome.ok() ? (*outcome)->bytes() : outcome.error().message.size();
  bytes_ += bytes;
  text_bytes_ += key.size();
  kept_.push_front({std::move(key), std::move(outcome), bytes});
  index_.emplace(kept_.front().key, kept_.begin());
  while (kept_.size() > options_.max_grammars || bytes_ > options_.max_bytes || text_bytes_ > options_.max_text_bytes) {
    DropLast();
  }
}

void GrammarCompiler::Store::DropLast() {
  const Kept& last = kept_.back();
  bytes_ -= last.bytes;
  text_bytes_ -= last.key.size();
  index_.erase(last.key);
  kept_.pop_back();
}

GrammarCompilerStats GrammarCompiler::stats() const {
  const std::lock_guard lock(mutex_);
  return {hits_, misses_, grammars_.size(), grammars_.bytes()};
}

}  // namespace loramux
