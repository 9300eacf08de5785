#include "server/api/openai/embeddings_dialect.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <openssl/evp.h>

#include "base/check.h"
#include "http/json_reader.h"
#include "server/api/openai/openai_request.h"

namespace loramux {
namespace {

// The shortest digits that are read as the same float.
std::string NumberText(float value) {
  std::array<char, 32> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  CHECK(error == std::errc());
  return {digits.data(), end};
}

constexpr std::array<FieldName, 1> kInput = {{{"prompt", "input"}}};
constexpr std::array<FieldName, 2> kTexts = {{{"first", "text_1"}, {"prompt", "text_2"}}};
constexpr std::array<FieldName, 2> kDocuments = {{{"first", "query"}, {"prompt", "documents"}}};

// An answer that is never streamed: the parsers refuse that.
class PooledWriter : public AnswerWriter {
 public:
  PooledWriter(std::string id, std::int64_t created, std::string model)
      : id_(std::move(id)), created_(created), model_{std::move(model)} {}

  const std::string& id() const final { return id_; }
  void SetModel(const ServedModel& model) final { model_ = model; }

  std::string Delta(const ChoiceOutput&, const Usage&) final { CHECK(false); }
  std::string End(const Usage&) final { CHECK(false); }
  std::string Failure(const Error&) final { CHECK(false); }

 protected:
  const ServedModel& model() const { return model_; }
  // `item` writes the JSON of an output.
  template <typename Item>
  std::string List(std::span<const ChoiceOutput> choices, const Json& usage, const Item& item) const {
    std::string body = R"({"object":"list","id":)" + DumpJson(id_) + R"(,"created":)" + std::to_string(created_) +
                       R"(,"model":)" + DumpJson(model_.name) + WeightVersionField(model_) + R"(,"data":[)";
    for (const ChoiceOutput& choice : choices) body += (choice.index == 0 ? "" : ",") + item(choice);
    return body + R"(],"usage":)" + DumpJson(usage) + "}";
  }
  static Json UsageOf(const Usage& usage) {
    return {{"prompt_tokens", usage.prompt_tokens},
            {"total_tokens", usage.prompt_tokens},
            {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  }
  // vLLM has the number of generated tokens here.
  static Json UsageWithCompletion(const Usage& usage) {
    Json json = UsageOf(usage);
    json["completion_tokens"] = 0;
    return json;
  }

 private:
  const std::string id_;
  const std::int64_t created_;
  ServedModel model_;
};

std::string IndexOf(const ChoiceOutput& choice) { return R"("index":)" + std::to_string(choice.index); }

class EmbeddingsWriter final : public PooledWriter {
 public:
  EmbeddingsWriter(std::string id, std::int64_t created, std::string model, bool base64)
      : PooledWriter(std::move(id), created, std::move(model)), base64_(base64) {}

  std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) override {
    return List(choices, UsageOf(usage), [this](const ChoiceOutput& choice) {
      return R"({"object":"embedding",)" + IndexOf(choice) + R"(,"embedding":)" +
             (base64_ ? EmbeddingBase64(choice.embedding) : EmbeddingNumbers(choice.embedding)) + "}";
    });
  }

 private:
  const bool base64_;
};

class ClassifyWriter final : public PooledWriter {
 public:
  using PooledWriter::PooledWriter;

  std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) override {
    return List(choices, UsageWithCompletion(usage), [](const ChoiceOutput& choice) {
      return "{" + IndexOf(choice) + R"(,"label":)" + DumpJson(choice.text) + R"(,"probs":)" +
             EmbeddingNumbers(choice.embedding) + R"(,"num_classes":)" + std::to_string(choice.embedding.size()) + "}";
    });
  }
};

class ScoreWriter final : public PooledWriter {
 public:
  using PooledWriter::PooledWriter;

  std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) override {
    return List(choices, UsageWithCompletion(usage), [](const ChoiceOutput& choice) {
      return "{" + IndexOf(choice) + R"(,"object":"score","score":)" + NumberText(choice.embedding.at(0)) + "}";
    });
  }
};

class RerankWriter final : public PooledWriter {
 public:
  RerankWriter(std::string id, std::int64_t created, std::string model, RerankReply reply)
      : PooledWriter(std::move(id), created, std::move(model)), reply_(std::move(reply)) {}

  std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) override {
    std::vector<const ChoiceOutput*> sorted;
    for (const ChoiceOutput& choice : choices) sorted.push_back(&choice);
    std::ranges::stable_sort(sorted, std::greater(),
                             [](const ChoiceOutput* choice) { return choice->embedding.at(0); });
    if (reply_.top_n > 0 && reply_.top_n < sorted.size()) sorted.resize(reply_.top_n);
    std::string body = R"({"id":)" + DumpJson(id()) + R"(,"model":)" + DumpJson(model().name) +
                       WeightVersionField(model()) + R"(,"usage":)" + DumpJson(UsageOf(usage)) + R"(,"results":[)";
    for (const ChoiceOutput* choice : sorted) {
      body += (choice == sorted.front() ? "{" : ",{") + IndexOf(*choice);
      if (!reply_.documents.empty()) {
        const std::string& text = reply_.documents.at(static_cast<std::size_t>(choice->index));
        body += R"(,"document":{"text":)" + DumpJson(text) + "}";
      }
      body += R"(,"relevance_score":)" + NumberText(choice->embedding.at(0)) + "}";
    }
    return body + "]}";
  }

 private:
  const RerankReply reply_;
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
  std::span<const FieldName> names() const override { return kInput; }
};

class ClassifyEndpoint final : public Dialect {
 public:
  Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const override {
    auto parsed = ParseClassifyRequest(body, context.limits);
    if (!parsed.ok()) return std::move(parsed).error();
    auto writer = std::make_unique<ClassifyWriter>("classify-" + context.number, context.created, parsed->model);
    return DialectRequest{std::move(*parsed), std::move(writer)};
  }
  bool many_prompts() const override { return true; }
  std::span<const FieldName> names() const override { return kInput; }
};

class ScoreEndpoint final : public Dialect {
 public:
  Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const override {
    auto parsed = ParseScoreRequest(body, context.limits);
    if (!parsed.ok()) return std::move(parsed).error();
    auto writer = std::make_unique<ScoreWriter>("score-" + context.number, context.created, parsed->model);
    return DialectRequest{std::move(*parsed), std::move(writer)};
  }
  bool many_prompts() const override { return true; }
  std::span<const FieldName> names() const override { return kTexts; }
};

class RerankEndpoint final : public Dialect {
 public:
  Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const override {
    RerankReply reply;
    auto parsed = ParseRerankRequest(body, context.limits, reply);
    if (!parsed.ok()) return std::move(parsed).error();
    auto writer =
        std::make_unique<RerankWriter>("rerank-" + context.number, context.created, parsed->model, std::move(reply));
    return DialectRequest{std::move(*parsed), std::move(writer)};
  }
  bool many_prompts() const override { return true; }
  std::span<const FieldName> names() const override { return kDocuments; }
};

}  // namespace

const Dialect& EmbeddingsDialect() {
  static const EmbeddingsEndpoint dialect;
  return dialect;
}

const Dialect& ClassifyDialect() {
  static const ClassifyEndpoint dialect;
  return dialect;
}

const Dialect& ScoreDialect() {
  static const ScoreEndpoint dialect;
  return dialect;
}

const Dialect& RerankDialect() {
  static const RerankEndpoint dialect;
  return dialect;
}

std::string EmbeddingNumbers(std::span<const float> embedding) {
  std::string text = "[";
  for (const float value : embedding) text += (text.size() > 1 ? "," : "") + NumberText(value);
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
