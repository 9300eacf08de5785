// CHECK macros, for bugs of the program only. They stay on in release builds. A failure prints the place, the condition
// and the two values, and aborts. Malformed input must never cause one; it is reported through Result (result.h).
#pragma once

#include <sstream>
#include <string>

namespace loramux {

// Prints "file:line: CHECK failed: what" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const std::string& what);

// The text of a failed comparison: the expression and both values.
template <typename A, typename B>
std::string CheckOpMessage(const char* expression, const A& a, const B& b) {
  std::ostringstream out;
  out << expression << " (" << a << " vs " << b << ")";
  return out.str();
}

}  // namespace loramux

// Aborts unless `condition` holds.
#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) [[unlikely]]                            \
      ::loramux::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

// Aborts unless `a op b` holds; evaluates each operand once.
#define LORAMUX_CHECK_OP(a, op, b)                                                                                \
  do {                                                                                                            \
    const auto& check_a = (a);                                                                                    \
    const auto& check_b = (b);                                                                                    \
    if (!(check_a op check_b)) [[unlikely]]                                                                       \
      ::loramux::CheckFailed(__FILE__, __LINE__, ::loramux::CheckOpMessage(#a " " #op " " #b, check_a, check_b)); \
  } while (false)

#define CHECK_EQ(a, b) LORAMUX_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) LORAMUX_CHECK_OP(a, !=, b)
#define CHECK_LT(a, b) LORAMUX_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) LORAMUX_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) LORAMUX_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) LORAMUX_CHECK_OP(a, >=, b)
