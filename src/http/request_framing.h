// Which requests have a length and a host beyond doubt. Two servers in a row that read a doubtful one differently let a
// client hide a second request in the body of the first (RFC 9112, 11.2).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <boost/beast/http/fields.hpp>

namespace loramux {

// True for "name", "1.2.3.4" and "[::1]", each with or without a port.
bool IsHost(std::string_view text);

// Returns the host of a target in absolute form, "name:80" of "http://name:80/path"; nullopt: it is none. Clients write
// this form to proxies, and some to servers (RFC 9112, 3.2.2).
std::optional<std::string_view> AuthorityOf(std::string_view target);
// Returns the target without scheme and host: "/path?query".
std::string OriginForm(std::string_view target);

// Returns what is wrong with the fields that say where the body ends and which host is meant; empty: nothing. Stricter
// than RFC 9112: one Content-Length with one number, or Transfer-Encoding: chunked and nothing else, or neither.
// `version`: 10 or 11.
std::string FramingFault(const boost::beast::http::fields& fields, unsigned version);

}  // namespace loramux
