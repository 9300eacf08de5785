// Recognises one JSON value byte by byte, so that a value can be passed on while it is still being written.
#pragma once

#include <string>
#include <string_view>

namespace loramux {

// Accepts exactly one value of RFC 8259, nested kMaxDepth deep at most. It does not check that strings are UTF-8.
class JsonScanner {
 public:
  static constexpr std::size_t kMaxDepth = 64;
  enum class Result {
    kMore,   // the value goes on
    kEnd,    // this byte ended the value
    kError,  // no value goes on like this; only Reset may follow
  };

  // Takes the next byte. A number alone never ends: the byte after it is an error. REQUIRES: no kEnd and no kError yet.
  Result Step(char c);
  void Reset() { *this = JsonScanner(); }

  // Arrays and objects that are open.
  std::size_t depth() const { return open_.size(); }
  // True where a value may begin (or, in an array, its end).
  bool expects_value() const { return state_ == State::kValue || state_ == State::kFirstItem; }
  // True within the quotes of a key.
  bool in_key() const { return in_key_; }
  // True within a number: the next byte may be the first that is not part of it.
  bool in_number() const { return state_ >= State::kMinus && state_ <= State::kExponent; }
  // True behind a value in an array or object.
  bool after_value() const { return state_ == State::kAfterValue; }

 private:
  enum class State {
    kValue,
    kFirstItem,  // behind [
    kFirstKey,   // behind {
    kKey,        // behind a comma of an object
    kColon,
    kAfterValue,
    kString,
    kEscape,
    kHex,
    kLiteral,
    kMinus,
    kZero,
    kDigits,
    kPoint,
    kFraction,
    kE,
    kSign,
    kExponent,
  };

  bool StepString(char c);
  bool StepNumber(char c);
  bool NumberEnds(char c);
  bool BeginValue(char c);
  bool BeginKey(char c);
  bool Open(char c, State state);
  bool StepOther(char c);
  bool AfterValue(char c);
  bool Close(char c);

  State state_ = State::kValue;
  std::string open_;  // the brackets that are open
  std::string_view literal_;
  int hex_left_ = 0;
  bool in_key_ = false;
  bool done_ = false;
};

// True for the four characters that JSON counts as white space.
inline bool IsJsonSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Appends `text` as the inside of a JSON string: quotes, backslashes and control characters are escaped.
void AppendEscaped(std::string& out, std::string_view text);

}  // namespace loramux
