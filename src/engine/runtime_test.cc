// The runtime on a golden model (tests/golden): what it accepts, and what it refuses.
#include "engine/runtime.h"

#include <fstream>

#include "base/prng.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

const fs::path kCase = fs::path(LORAMUX_SOURCE_DIR) / "tests/golden/models/tied_embed_only";

RuntimeOptions Small() {
  RuntimeOptions options;
  options.device_memory = 4 << 20;
  options.host_memory = 1 << 20;
  options.threads = 1;
  options.base_names = {"base"};
  return options;
}

// A copy of an adapter directory that a test may damage; removed at the end.
class ScratchAdapter {
 public:
  explicit ScratchAdapter(const fs::path& original)
      : path_(fs::temp_directory_path() / ("loramux-runtime-test-" + std::to_string(SplitMix64(
                                               reinterpret_cast<std::uintptr_t>(this))))) {
    fs::copy(original, path_, fs::copy_options::recursive);
  }
  ~ScratchAdapter() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(Runtime, RefusesAnAdapterSavedBesideAnotherOutputMatrix) {
  auto runtime = Runtime::Load(kCase / "model", Small(), {});
  ASSERT_TRUE(runtime.ok()) << runtime.error().message;
  AdapterRegistry& registry = (*runtime)->registry();
  const fs::path original = kCase / "adapters/lm_head_peft_auto";
  const auto good = registry.Register("good", original, 0);
  ASSERT_TRUE(good.ok()) << good.error().message;
  ASSERT_NE((*good)->file.lm_head_base_copy, nullptr);

  const ScratchAdapter damaged(original);
  const fs::path weights = damaged.path() / "adapter_model.safetensors";
  const auto opened = OpenAdapter(damaged.path(), (*runtime)->model().config());
  ASSERT_TRUE(opened.ok());
  const auto offset = static_cast<std::streamoff>(opened->lm_head_base_copy->offset);
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset + 4 * 7 + 3);   // the exponent of an element
  file.put('\x3f');
  file.close();
  const auto bad = registry.Register("bad", damaged.path(), 0);
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("differs from the base model's output matrix"), std::string::npos)
      << bad.error().message;
}

TEST(Runtime, NamesAndLimitsOfAdapters) {
  auto runtime = Runtime::Load(kCase / "model", [] {
    RuntimeOptions options = Small();
    options.max_lora_rank = 2;
    return options;
  }(), {});
  ASSERT_TRUE(runtime.ok());
  AdapterRegistry& registry = (*runtime)->registry();
  const fs::path adapter = kCase / "adapters/lm_head";
  EXPECT_NE(registry.Register("x", adapter, 0).error().message.find("--max-lora-rank"), std::string::npos);
  for (const char* name : {"", "a,b", "a\nb", "base"}) EXPECT_FALSE(registry.Register(name, adapter, 0).ok()) << name;
  EXPECT_EQ(registry.Resolve("nobody").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(*registry.Resolve("base"), nullptr);
}

TEST(Runtime, MemoryThatHoldsNoPageIsRefused) {
  RuntimeOptions options = Small();
  options.device_memory = 100;
  const auto runtime = Runtime::Load(kCase / "model", options, {});
  ASSERT_FALSE(runtime.ok());
  EXPECT_EQ(runtime.error().code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace loramux
