#include "text/tokenizer.h"

#include <utility>

#include "formats/model_files.h"
#include "text/c_interface.h"
#include "text/tokenizer_impl.h"

namespace loramux {

using text_internal::Buffer;
using text_internal::Bytes;
using text_internal::ToError;

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Load(const std::filesystem::path& directory) {
  const std::string path = (directory / "tokenizer.json").string();
  ASSIGN_OR_RETURN(const std::string json, ReadModelFile(path, text_internal::kMaxFileBytes));
  return Parse(json, path);
}

Result<Tokenizer> Tokenizer::Parse(std::string_view json, const std::string& label) {
  loramux_tokenizer* raw = nullptr;
  Buffer error;
  const auto status = loramux_tokenizer_parse(Bytes(json), json.size(), &raw, error.out());
  if (status != LORAMUX_TEXT_OK) return ToError(status, error, label);
  return Tokenizer(std::make_unique<Impl>(Impl{text_internal::TokenizerHandle(raw)}));
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, bool add_special_tokens) const {
  loramux_ids ids{};
  Buffer error;
  const auto status =
      loramux_tokenizer_encode(impl_->handle.get(), Bytes(text), text.size(), add_special_tokens, &ids, error.out());
  if (status != LORAMUX_TEXT_OK) return ToError(status, error, "");
  std::vector<TokenId> result(ids.data, ids.data + ids.size);
  loramux_text_ids_free(ids);
  return result;
}

Result<std::vector<TokenId>> Tokenizer::EncodePair(std::string_view first, std::string_view second,
                                                   bool add_special_tokens, std::size_t max_tokens) const {
  loramux_ids ids{};
  Buffer error;
  const auto status = loramux_tokenizer_encode_pair(impl_->handle.get(), Bytes(first), first.size(), Bytes(second),
                                                    second.size(), add_special_tokens, max_tokens, &ids, error.out());
  if (status != LORAMUX_TEXT_OK) return ToError(status, error, "");
  std::vector<TokenId> result(ids.data, ids.data + ids.size);
  loramux_text_ids_free(ids);
  return result;
}

Result<std::string> Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  Buffer text, error;
  const auto status = loramux_tokenizer_decode(impl_->handle.get(), ids.data(), ids.size(), skip_special_tokens,
                                               text.out(), error.out());
  if (status != LORAMUX_TEXT_OK) return ToError(status, error, "");
  return text.ToString();
}

std::int64_t Tokenizer::VocabSize() const { return loramux_tokenizer_vocab_size(impl_->handle.get()); }

std::optional<std::size_t> Tokenizer::MaxTokenBytes() const {
  const std::size_t bytes = loramux_tokenizer_max_token_bytes(impl_->handle.get());
  return bytes == 0 ? std::nullopt : std::optional(bytes);
}

std::string Tokenizer::IdToToken(TokenId id) const {
  return Buffer(loramux_tokenizer_id_to_token(impl_->handle.get(), id)).ToString();
}

TokenId Tokenizer::TokenToId(std::string_view token) const {
  return loramux_tokenizer_token_to_id(impl_->handle.get(), Bytes(token), token.size());
}

bool Tokenizer::IsSpecial(TokenId id) const { return loramux_tokenizer_is_special(impl_->handle.get(), id); }

}  // namespace loramux
