// Fixtures for this directory's tests: a byte-level tokenizer, a chat template and a registry with one adapter.
#pragma once

#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "adapter/registry.h"
#include "base/clock.h"
#include "server/completion/completion_job.h"
#include "server/scripted_service_for_test.h"
#include "server/server.h"
#include "server/tracing/span_exporter.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace loramux {

// A model "base" and an adapter "sql" (generation 1).
struct ServingFixture {
  ServingFixture() : registry(Model(), {"base"}, {}), tokenizer(LoadTokenizer()), chat_template(ParseTemplate()) {
    auto adapter = std::make_shared<AdapterVersion>();
    adapter->name = "sql";
    adapter->path = "adapters/sql";
    EXPECT_TRUE(registry.Commit(std::move(adapter)).ok());
  }

  static ModelConfig Model() {
    ModelConfig model;
    model.vocab_size = kTestVocabSize;
    model.hidden_size = 4;
    return model;
  }
  static Tokenizer LoadTokenizer() {
    auto loaded = Tokenizer::Load(LORAMUX_SOURCE_DIR "/src/server/testdata");
    return std::move(loaded).value();
  }
  // Writes the beginning-of-sequence token itself, as Llama's templates do.
  static ChatTemplate ParseTemplate() {
    auto parsed = ChatTemplate::Parse(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no such role') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        R"({"bos_token":"<s>"})", "test template");
    return std::move(parsed).value();
  }
  ServingContext Context(GenerationService& service) {
    return {.clock = &clock,
            .generation = &service,
            .registry = &registry,
            .tokenizer = &tokenizer,
            .chat_template = &chat_template,
            .seeds = &seeds,
            .admission = &admission,
            .lengths = &lengths,
            .grammars = grammars.get(),
            .defaults = &defaults,
            .formats = &formats,
            .embeddings = &embeddings,
            .prefixes = &prefixes};
  }
  ServerParts Parts(GenerationService& service) {
    return {.clock = &clock,
            .generation = &service,
            .registry = &registry,
            .tokenizer = &tokenizer,
            .chat_template = &chat_template,
            .lengths = &lengths,
            .grammars = grammars.get(),
            .spans = spans.get()};
  }

  OsClock clock;
  AdapterRegistry registry;
  Tokenizer tokenizer;
  ChatTemplate chat_template;
  SeedSource seeds{7};
  Admission admission{QuotaTable(), /*max_queued=*/0};
  LengthGuesser lengths;
  std::unique_ptr<GrammarCompiler> grammars = GrammarCompiler::Refusing();
  RequestDefaults defaults;
  OutputFormatTable formats;
  EmbeddingOptions embeddings;
  PrefixMemory prefixes;
  std::unique_ptr<SpanExporter> spans = SpanExporter::None();
};

}  // namespace loramux
