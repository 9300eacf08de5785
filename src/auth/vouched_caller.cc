#include "auth/vouched_caller.h"

#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "auth/bearer_key.h"
#include "http/exchange.h"

namespace loramux {
namespace {

constexpr std::size_t kMostBytes = 8192;
constexpr std::string_view kSignature = ";signature=";

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
}

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (IsPlain(c)) {
      out += c;
    } else {
      out += fmt::format("%{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

// `signed_text` has no line break, so the two parts cannot be confused.
std::string SignatureOf(std::string_view signed_text, std::string_view request_id, std::string_view fleet_key) {
  const std::string text = fmt::format("loramux caller 1\n{}\n{}", signed_text, request_id);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  HMAC(EVP_sha256(), fleet_key.data(), static_cast<int>(fleet_key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &size);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

// Takes "NAME=VALUE" and the ';' behind it off the front of `rest`.
std::optional<std::string> TakeField(std::string_view& rest, std::string_view name) {
  const std::string_view field = rest.substr(0, rest.find(';'));
  if (!field.starts_with(name) || field.substr(name.size(), 1) != "=") return std::nullopt;
  rest.remove_prefix(std::min(rest.size(), field.size() + 1));
  return PercentDecode(field.substr(name.size() + 1));
}

Error Refused(std::string_view why) {
  const std::string header(kVouchedCallerHeader);
  return InvalidArgument(fmt::format("{}: {}. Only routers (loramux route) send this header.", header, why), header);
}

}  // namespace

std::string Vouch(const VouchedCaller& caller, std::string_view fleet_key, std::string_view request_id,
                  std::int64_t unix_seconds) {
  std::string text = fmt::format("time={};key={};id={};address={}", unix_seconds, Escaped(caller.key),
                                 Escaped(caller.id), Escaped(caller.address));
  const std::string signature = SignatureOf(text, request_id, fleet_key);
  text += kSignature;
  return text += signature;
}

Result<VouchedCaller> ReadVouchedCaller(std::string_view value, std::string_view fleet_key, std::string_view request_id,
                                        std::int64_t unix_seconds) {
  const std::size_t at = value.rfind(kSignature);
  if (value.size() > kMostBytes || at == std::string_view::npos) {
    return Refused("expected a caller with a signature, found something else");
  }
  std::string_view rest = value.substr(0, at);
  if (!SameKey(value.substr(at + kSignature.size()), SignatureOf(rest, request_id, fleet_key))) {
    return Refused("the signature does not fit; give router and servers the same --fleet-key-file");
  }
  const auto time = TakeField(rest, "time"), key = TakeField(rest, "key"), id = TakeField(rest, "id"),
             address = TakeField(rest, "address");
  std::int64_t signed_at = 0;
  if (!time || !key || !id || !address || !rest.empty() ||
      std::from_chars(time->data(), time->data() + time->size(), signed_at).ec != std::errc()) {
    return Refused("expected time, key, id and address, as a router of this version signs them");
  }
  if (signed_at < unix_seconds - kVouchedForSeconds || signed_at > unix_seconds + kVouchedForSeconds) {
    return Refused(
        fmt::format("expected a signature of the last {} s, found one that is {} s old; compare the clocks "
                    "of router and server",
                    kVouchedForSeconds, unix_seconds - signed_at));
  }
  return VouchedCaller{*key, *id, *address};
}

}  // namespace loramux
