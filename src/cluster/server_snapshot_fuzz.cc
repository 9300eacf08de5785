// Fuzzes ParseServerSnapshot: what it accepts is within its limits, and is read again as it is written.
#include <string_view>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "cluster/server_snapshot.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  const auto snapshot = loramux::ParseServerSnapshot({reinterpret_cast<const char*>(data), size});
  if (!snapshot.ok()) {
    CHECK_LT(snapshot.error().message.size(), 8192u);
    return 0;
  }
  CHECK(!snapshot->instance.empty() && snapshot->version >= 1 && snapshot->running >= 0);
  for (const loramux::SnapshotAdapter& adapter : snapshot->adapters) CHECK(snapshot->Find(adapter.name) == &adapter);
  for (const std::uint32_t prefix : snapshot->prefixes) CHECK(snapshot->HasPrefix(prefix));
  const auto again = loramux::ParseServerSnapshot(loramux::ServerSnapshotAsJson(*snapshot));
  CHECK(again.ok());
  CHECK(*again == *snapshot);
  return 0;
}
