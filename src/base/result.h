// Result<T>: the error channel for files, HTTP and configuration. "No capacity" is not an error (null handles and false
// express it), and bugs of the program are CHECKs (check.h).
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/check.h"

namespace loramux {

// The kind of an error; the server maps it to an HTTP status.
enum class ErrorCode {
  kInvalidArgument,    // wrong input from the caller: a field, a flag, a file's content
  kNotFound,           // a named thing does not exist
  kUnsupported,        // well-formed, but explicitly not supported by loramux
  kResourceExhausted,  // it can never fit: larger than the configured memory or limit
  kIoError,            // the operating system reported an error
  kUnavailable,        // not available now, e.g. shutting down: a later try may succeed
  kRateLimited,        // a quota or a queue is full: a later try succeeds
  kInternal,           // a fault of loramux that is not worth ending the process for
};

// Stable lower-case name, e.g. "invalid_argument".
const char* ErrorCodeName(ErrorCode code);

// An error. `message` says what was expected, what was found, where, and what to do. `param` names the request field or
// file concerned (empty if none).
struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string param;
  std::int32_t retry_after_seconds = 0;  // when a retry may succeed; 0: unknown
};

// Either a T or an Error. Thread-compatible, like T.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit by design
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // REQUIRES: ok().
  T& value() & {
    CheckOk();
    return std::get<0>(state_);
  }
  const T& value() const& {
    CheckOk();
    return std::get<0>(state_);
  }
  T&& value() && {
    CheckOk();
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // REQUIRES: !ok().
  const Error& error() const& {
    CHECK(!ok());
    return std::get<1>(state_);
  }
  Error&& error() && {
    CHECK(!ok());
    return std::get<1>(std::move(state_));
  }

 private:
  void CheckOk() const {
    if (!ok()) [[unlikely]]
      CheckFailed(__FILE__, __LINE__, "Result holds an error: " + std::get<1>(state_).message);
  }
  std::variant<T, Error> state_;
};

// Success without a value, or an Error.
struct Ok {};
using Status = Result<Ok>;

inline Error InvalidArgument(std::string message, std::string param = {}) {
  return {ErrorCode::kInvalidArgument, std::move(message), std::move(param)};
}
inline Error NotFound(std::string message, std::string param = {}) {
  return {ErrorCode::kNotFound, std::move(message), std::move(param)};
}
inline Error Unsupported(std::string message, std::string param = {}) {
  return {ErrorCode::kUnsupported, std::move(message), std::move(param)};
}
inline Error ResourceExhausted(std::string message, std::string param = {}) {
  return {ErrorCode::kResourceExhausted, std::move(message), std::move(param)};
}
inline Error IoError(std::string message, std::string param = {}) {
  return {ErrorCode::kIoError, std::move(message), std::move(param)};
}
inline Error Unavailable(std::string message, std::string param = {}) {
  return {ErrorCode::kUnavailable, std::move(message), std::move(param)};
}
inline Error Internal(std::string message, std::string param = {}) {
  return {ErrorCode::kInternal, std::move(message), std::move(param)};
}

}  // namespace loramux

// Evaluates an expression of type Result<...>; on error returns the Error from the enclosing function.
#define RETURN_IF_ERROR(expression)                              \
  do {                                                           \
    if (auto result_ = (expression); !result_.ok()) [[unlikely]] \
      return std::move(result_).error();                         \
  } while (false)

#define LORAMUX_CONCAT_INNER(a, b) a##b
#define LORAMUX_CONCAT(a, b) LORAMUX_CONCAT_INNER(a, b)

// ASSIGN_OR_RETURN(auto x, F()): x = *F(), or returns F()'s Error.
#define ASSIGN_OR_RETURN(lhs, expression) LORAMUX_ASSIGN_OR_RETURN(LORAMUX_CONCAT(result_, __LINE__), lhs, expression)
#define LORAMUX_ASSIGN_OR_RETURN(temporary, lhs, expression) \
  auto temporary = (expression);                             \
  if (!temporary.ok()) [[unlikely]]                          \
    return std::move(temporary).error();                     \
  lhs = std::move(temporary).value()
