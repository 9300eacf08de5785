#include "server/output/json_scanner.h"

#include <fmt/format.h>

namespace loramux {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsHex(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20; }

}  // namespace

JsonScanner::Result JsonScanner::Step(char c) {
  const bool string = state_ == State::kString || state_ == State::kEscape || state_ == State::kHex;
  const bool right = string ? StepString(c) : in_number() ? StepNumber(c) : StepOther(c);
  if (!right) return Result::kError;
  return done_ ? Result::kEnd : Result::kMore;
}

bool JsonScanner::StepString(char c) {
  if (state_ == State::kHex) {
    if (--hex_left_ == 0) state_ = State::kString;
    return IsHex(c);
  }
  if (state_ == State::kEscape) {
    state_ = c == 'u' ? State::kHex : State::kString;
    hex_left_ = 4;
    return std::string_view("\"\\/bfnrtu").find(c) != std::string_view::npos;
  }
  if (c == '\\') state_ = State::kEscape;
  if (c == '"') {
    state_ = in_key_ ? State::kColon : State::kAfterValue;
    in_key_ = false;
    done_ = open_.empty();
  }
  return !IsControl(c);
}

bool JsonScanner::NumberEnds(char c) {
  if (state_ != State::kZero && state_ != State::kDigits && state_ != State::kFraction && state_ != State::kExponent) {
    return false;
  }
  state_ = State::kAfterValue;
  return AfterValue(c);
}

bool JsonScanner::StepNumber(char c) {
  const bool exponent = c == 'e' || c == 'E';
  State next = state_;
  if (IsDigit(c)) {
    if (state_ == State::kZero) return false;
    if (state_ == State::kMinus) next = c == '0' ? State::kZero : State::kDigits;
    if (state_ == State::kPoint) next = State::kFraction;
    if (state_ == State::kE || state_ == State::kSign) next = State::kExponent;
  } else if (c == '.' && (state_ == State::kZero || state_ == State::kDigits)) {
    next = State::kPoint;
  } else if (exponent && (state_ == State::kZero || state_ == State::kDigits || state_ == State::kFraction)) {
    next = State::kE;
  } else if ((c == '+' || c == '-') && state_ == State::kE) {
    next = State::kSign;
  } else {
    return NumberEnds(c);
  }
  state_ = next;
  return true;
}

bool JsonScanner::StepOther(char c) {
  if (state_ == State::kLiteral) {
    const bool right = c == literal_.front();
    literal_.remove_prefix(1);
    if (literal_.empty()) state_ = State::kAfterValue;
    done_ = literal_.empty() && open_.empty();
    return right;
  }
  if (IsJsonSpace(c)) return true;
  switch (state_) {
    case State::kFirstItem:
      if (c == ']') return Close(c);
      return BeginValue(c);
    case State::kValue:
      return BeginValue(c);
    case State::kFirstKey:
      if (c == '}') return Close(c);
      return BeginKey(c);
    case State::kKey:
      return BeginKey(c);
    case State::kColon:
      state_ = State::kValue;
      return c == ':';
    default:
      return AfterValue(c);
  }
}

bool JsonScanner::BeginKey(char c) {
  state_ = State::kString;
  in_key_ = true;
  return c == '"';
}

bool JsonScanner::Open(char c, State state) {
  if (open_.size() == kMaxDepth) return false;
  open_ += c;
  state_ = state;
  return true;
}

bool JsonScanner::BeginValue(char c) {
  if (c == '{') return Open(c, State::kFirstKey);
  if (c == '[') return Open(c, State::kFirstItem);
  if (c == '"') {
    state_ = State::kString;
    return true;
  }
  if (c == '-' || IsDigit(c)) {
    state_ = c == '-' ? State::kMinus : c == '0' ? State::kZero : State::kDigits;
    return true;
  }
  state_ = State::kLiteral;
  literal_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
  return c == 't' || c == 'f' || c == 'n';
}

bool JsonScanner::AfterValue(char c) {
  if (IsJsonSpace(c)) return true;
  if (open_.empty()) return false;
  if (c == ',') {
    state_ = open_.back() == '{' ? State::kKey : State::kValue;
    return true;
  }
  return Close(c);
}

bool JsonScanner::Close(char c) {
  if (c != (open_.back() == '{' ? '}' : ']')) return false;
  open_.pop_back();
  state_ = State::kAfterValue;
  done_ = open_.empty();
  return true;
}

void AppendEscaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsControl(c)) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
}

}  // namespace loramux
