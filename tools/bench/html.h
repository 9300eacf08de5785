// The pieces of a self-contained HTML page. Every text goes through EscapeHtml; nothing is loaded from elsewhere.
#pragma once

#include <string>
#include <string_view>

namespace loramux::load {

// For text and for attributes in double quotes. Control characters and broken UTF-8 become replacement characters.
std::string EscapeHtml(std::string_view text);

// A whole page; `body` is HTML already.
std::string HtmlPage(std::string_view title, std::string_view body);

// A number with its meaning, as the tiles at the top of a report; all are text. `tone`: "", "good" or "bad".
std::string HtmlTile(std::string_view label, std::string_view value, std::string_view note, std::string_view tone = "");

}  // namespace loramux::load
