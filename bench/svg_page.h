// What the charts that are kept in the repository have in common: SVG files of their own, readable on light and dark
// pages.
#pragma once

#include <array>
#include <string>

namespace loramux {

// Okabe and Ito's colours that differ for the colour-blind too.
inline constexpr std::array<const char*, 8> kChartColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                             "#56b4e9", "#e69f00", "#7f3fbf", "#8a6d3b"};

// A white page of that size with a title and a line below it; the caller adds its shapes and "</svg>". Classes: grid
// (lines), title, key (lines without fill). Texts are escaped here.
std::string BeginSvgPage(double width, double height, const std::string& title, const std::string& subtitle);

}  // namespace loramux
