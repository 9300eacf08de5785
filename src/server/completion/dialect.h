// How one API writes its requests and answers. Every dialect is a translation onto one internal request, so admission,
// the engine, metrics and logs know nothing of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/completion/choice_output.h"
#include "server/completion/completion_request.h"

namespace loramux {

// What answers a request.
struct ServedModel {
  std::string name;                 // a base model's or an adapter's
  std::string weight_version = {};  // WeightVersionOf the adapter; empty: the base model
};

// The field `weight_version` of an answer with a comma before it; empty: the base model answers.
std::string WeightVersionField(const ServedModel& model);

// Writes the answer of one request. Belongs to one job; not thread-safe.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // Returns the answer's id.
  virtual const std::string& id() const = 0;
  // Sets the model that answers, which may have another name than in the request. Called before anything is written.
  virtual void SetModel(const ServedModel& model) = 0;

  // Not streaming: returns the whole body. `choices` are complete, ordered by index.
  virtual std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) = 0;

  // Streaming: return server-sent events. Delta: the new output of a choice, and that choice's tokens so far.
  virtual std::string Delta(const ChoiceOutput& output, const Usage& usage) = 0;
  // The end of the stream; `usage` is that of all choices.
  virtual std::string End(const Usage& usage) = 0;
  // The end of a stream that failed. Some of its events may have been sent.
  virtual std::string Failure(const Error& error) = 0;
  // What keeps an idle stream open. Clients ignore it.
  virtual std::string_view KeepAlive() const { return ": keep-alive\n\n"; }
  // Returns about how many bytes of a streamed answer the writer keeps.
  virtual std::size_t held_bytes() const { return 0; }
};

// What a translation needs beside the body.
struct DialectContext {
  RequestLimits limits;
  std::string number;                // 32 hexadecimal digits that no client can predict, for the answer's id
  std::int64_t created = 0;          // Unix seconds
  std::string_view base_model = {};  // the model of a dialect whose requests need not name one
};

// A request in the internal form, and the writer of its answer. REQUIRES: `writer` is not null.
struct DialectRequest {
  CompletionRequest request;
  std::unique_ptr<AnswerWriter> writer;
};

// A field of the internal request, and what the dialect calls it.
struct FieldName {
  std::string_view internal, own;
};

// Immutable, thread-safe. An instance lives as long as the program.
class Dialect {
 public:
  virtual ~Dialect() = default;
  // Parses, checks and translates a body. Errors name the dialect's own fields. Never throws.
  virtual Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const = 0;
  // Returns the body of an error response with this HTTP status. Default: OpenAI's.
  virtual std::string ErrorBody(int status, std::string_view message, std::string_view param) const;
  // True if a body may hold several prompts; otherwise it is as long as one prompt allows.
  virtual bool many_prompts() const { return false; }
  // True if an answer says that it was aborted, and what there was of it (FinishReason::kAborted). Otherwise the
  // request fails.
  virtual bool tells_aborts() const { return false; }
  // Fields whose names differ from those of the internal request.
  virtual std::span<const FieldName> names() const { return {}; }

  // Returns an error about the internal request as one about the client's.
  Error InOwnNames(Error error) const;
};

}  // namespace loramux
