#include "lab/charts/svg_page.h"

#include <fmt/format.h>

#include "report/html.h"

namespace loramux {

std::string BeginSvgPage(double width, double height, const std::string& title, const std::string& subtitle) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n"
      "<style>text{{font:13px system-ui,sans-serif;fill:#5b6577}}.title{{font-size:16px;font-weight:600;fill:#1b2230}}"
      ".grid{{stroke:#e3e7ed}}.page{{fill:#fff}}polyline,.key{{fill:none;stroke-linejoin:round}}</style>\n"
      "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n"
      "<text class=\"title\" x=\"24\" y=\"26\">{}</text><text x=\"24\" y=\"46\">{}</text>\n",
      width, height, EscapeHtml(title), EscapeHtml(title), EscapeHtml(subtitle));
}

}  // namespace loramux
