// Building blocks of a self-contained HTML page. Every text passes through EscapeHtml; the page loads nothing.
#pragma once

#include <string>
#include <string_view>

namespace loramux {

// Escapes `text` for use as text or within an attribute in double quotes. Replaces control characters and invalid UTF-8
// with the replacement character.
std::string EscapeHtml(std::string_view text);

// Returns a whole page. `title` is text; `body` is HTML.
std::string HtmlPage(std::string_view title, std::string_view body);

// Returns a tile for the top of a report: a number with its label and a note, all as text. `tone`: "", "good" or "bad".
std::string HtmlTile(std::string_view label, std::string_view value, std::string_view note, std::string_view tone = "");

}  // namespace loramux
