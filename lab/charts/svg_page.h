// Common parts of the charts kept in the repository: SVG files, readable on light and dark pages.
#pragma once

#include <array>
#include <string>

namespace loramux {

// Okabe and Ito's colours, which the colour-blind can distinguish too.
inline constexpr std::array<const char*, 8> kChartColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                             "#56b4e9", "#e69f00", "#7f3fbf", "#8a6d3b"};

// Begins a white page of the given size, with a title and a line below it. The caller adds its shapes and "</svg>".
// Classes: grid (lines), title, key (lines without fill). Escapes the texts.
std::string BeginSvgPage(double width, double height, const std::string& title, const std::string& subtitle);

}  // namespace loramux
