// What a page says about the data that it was made from. The data itself is not kept in the repository.
#pragma once

#include <string>
#include <string_view>

namespace loramux {

// "Raw data: SHA-256 `...`, made at commit `...`.", with the commit that this program was built at. `raw` is the whole
// file of raw data.
std::string RawDataLine(std::string_view raw);

}  // namespace loramux
