// Flags of other servers that a command takes, so that a start script for another server works, or fails with what to
// write instead.
#pragma once

#include <cstdint>
#include <string_view>

namespace loramux {

// What a flag of another server means here.
enum class ForeignMeaning : std::uint8_t {
  kAlias,    // another name of a flag; `text` is that flag, or FLAG=VALUE for a switch that stands for a value
  kHolds,    // it asks for what is so anyway; `text` says what
  kIgnored,  // accepted with a warning; `text` says what it means here
  kRefused,  // an error; `text` says why, and what to use instead
};

// How many values the flag takes.
enum class ForeignValues : std::uint8_t { kNone, kOne, kMany };

struct ForeignFlag {
  std::string_view server;  // whose flag it is
  std::string_view names;   // with dashes, separated by commas
  ForeignMeaning meaning;
  std::string_view text;  // without a full stop
  ForeignValues values = ForeignValues::kNone;
  // Values, separated by '|', with which it asks for what holds: neither a warning nor an error.
  std::string_view holds_for = {};
};

}  // namespace loramux
