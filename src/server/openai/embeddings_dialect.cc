#include "server/openai/embeddings_dialect.h"

#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <utility>
#include <vector>

#include <openssl/evp.h>

#include "base/check.h"
#include "http/json_reader.h"

namespace loramux {
namespace {

constexpr std::array<FieldName, 1> kNames = {{{"prompt", "input"}}};

class EmbeddingsWriter final : public AnswerWriter {
 public:
  EmbeddingsWriter(std::string id, std::int64_t created, std::string model, bool base64)
      : id_(std::move(id)), created_(created), model_(std::move(model)), base64_(base64) {}

  const std::string& id() const override { return id_; }
  void SetModel(const std::string& model) override { model_ = model; }

  std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) override {
    std::string body = R"({"object":"list","id":)" + DumpJson(id_) + R"(,"created":)" + std::to_string(created_) +
                       R"(,"model":)" + DumpJson(model_) + R"(,"data":[)";
    for (const ChoiceOutput& choice : choices) {
      body += choice.index == 0 ? "" : ",";
      body += R"({"object":"embedding","index":)" + std::to_string(choice.index) + R"(,"embedding":)";
      body += base64_ ? EmbeddingBase64(choice.embedding) : EmbeddingNumbers(choice.embedding);
      body += "}";
    }
    return body + R"(],"usage":)" +
           DumpJson({{"prompt_tokens", usage.prompt_tokens},
                     {"total_tokens", usage.prompt_tokens},
                     {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}}) +
           "}";
  }

  // The parser refuses streams.
  std::string Delta(const ChoiceOutput&, const Usage&) override { CHECK(false); }
  std::string End(const Usage&) override { CHECK(false); }
  std::string Failure(const Error&) override { CHECK(false); }

 private:
  const std::string id_;
  const std::int64_t created_;
  std::string model_;
  const bool base64_;
};

class EmbeddingsEndpoint final : public Dialect {
 public:
  Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const override {
    auto parsed = ParseEmbeddingRequest(body, context.limits);
    if (!parsed.ok()) return std::move(parsed).error();
    auto writer = std::make_unique<EmbeddingsWriter>("embd-" + context.number, context.created, parsed->model,
                                                     parsed->embedding->base64);
    return DialectRequest{std::move(*parsed), std::move(writer)};
  }
  bool many_prompts() const override { return true; }
  std::span<const FieldName> names() const override { return kNames; }
};

}  // namespace

const Dialect& EmbeddingsDialect() {
  static const EmbeddingsEndpoint dialect;
  return dialect;
}

// The shortest digits that are read as the same float.
std::string EmbeddingNumbers(std::span<const float> embedding) {
  std::string text = "[";
  for (const float value : embedding) {
    std::array<char, 32> digits;
    const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
    CHECK(error == std::errc());
    if (text.size() > 1) text += ',';
    text.append(digits.data(), end);
  }
  return text + "]";
}

std::string EmbeddingBase64(std::span<const float> embedding) {
  std::vector<unsigned char> bytes;
  bytes.reserve(embedding.size() * sizeof(float));
  for (const float value : embedding) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<unsigned char>(bits >> shift));
  }
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // EVP_EncodeBlock adds a NUL
  const int length =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes.data(), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return '"' + text + '"';
}

}  // namespace loramux
