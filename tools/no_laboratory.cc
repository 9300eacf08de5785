// The laboratory of a build that has none.
#include "tools/laboratory.h"

namespace loramux {

void AddLaboratory(Program& program, std::string) {
  for (const char* name : {"profile", "bench", "simulate", "experiment"}) {
    program.absent.emplace_back(name,
                                "this program was built to serve only. Build one with all commands by `make build` "
                                "(build/release/tools/loramux), or configure with -DLORAMUX_BUILD_LABORATORY=ON");
  }
}

}  // namespace loramux
