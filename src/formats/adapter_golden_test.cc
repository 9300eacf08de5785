// OpenAdapter on the stored fixtures (tests/golden/README.md). Every adapter made by PEFT is accepted with PEFT's ranks
// and scales; every one under refused/ is refused with the words that it specifies.
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "formats/adapter_config.h"
#include "formats/adapter_writer.h"
#include "formats/model_family.h"
#include "formats/test_files.h"

namespace loramux::adapter_golden_test {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(LORAMUX_SOURCE_DIR) / "tests" / "golden";

nlohmann::json ReadJson(const fs::path& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

std::vector<fs::path> SortedFolders(const fs::path& parent) {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(parent)) {
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

std::string ModuleName(const LoraModule& module) {
  const std::string target = LoraTargetName(module.target);
  if (module.target == LoraTarget::kLmHead) return target;
  if (module.target == LoraTarget::kEmbedding) return "model." + target;
  if (module.target >= LoraTarget::kLayerContext) return "model." + target;
  const bool in_mlp = module.target >= LoraTarget::kGate;
  const char* const block = IsBesideBlocks(module.target) ? "."
                            : IsOfStates(module.target)   ? ".linear_attn."
                            : in_mlp                      ? ".mlp."
                                                          : ".self_attn.";
  const std::string expert = module.expert < 0 ? "" : "experts." + std::to_string(module.expert) + ".";
  return "model.layers." + std::to_string(module.layer) + block + expert + target;
}

// What a module of a mixture of experts may be called: a part of all experts, under Mixtral's names, or of the shared
// one.
void AddNamesOfExperts(const LoraModule& module, std::vector<std::string>& names) {
  const std::string layer = "model.layers." + std::to_string(module.layer) + ".";
  const bool of_down = module.target == LoraTarget::kDown;
  if (module.target <= LoraTarget::kO) names.push_back(layer + "attn." + LoraTargetName(module.target));
  for (const std::string block : {"mlp.", "block_sparse_moe.", ""}) {
    if (module.target == LoraTarget::kRouter) {
      for (const char* router : {"gate", "router", "router.layer", "router.proj"})
        names.push_back(layer + block + router);
    } else if (module.expert >= 0) {
      const char* const old = of_down ? "w2" : module.target == LoraTarget::kUp ? "w3" : "w1";
      names.push_back(layer + block + "experts." + std::to_string(module.expert) + "." + old);
      names.push_back(layer + block + "experts." + old);
      names.push_back(layer + block + "experts." + (of_down ? "down_proj" : "gate_up_proj"));
      names.push_back(layer + block + "experts." + LoraTargetName(module.target));
    } else if (module.target >= LoraTarget::kGate && module.target <= LoraTarget::kDown) {
      names.push_back(layer + "mlp.shared_expert." + LoraTargetName(module.target));
    }
  }
}

// What Mamba-2 and Qwen3-Next call the matrices of recurrent layers.
void AddNamesOfStates(const LoraModule& module, std::vector<std::string>& names) {
  const std::string layer = "model.layers." + std::to_string(module.layer) + ".";
  if (module.target == LoraTarget::kInAll) names.push_back(layer + "mamba.in_proj");
  if (module.target == LoraTarget::kOut) names.push_back(layer + "mamba.out_proj");
  const bool gates = module.target == LoraTarget::kInB || module.target == LoraTarget::kInA;
  const bool inputs = module.target == LoraTarget::kInQkv || module.target == LoraTarget::kInZ;
  if (gates || inputs) names.push_back(layer + "linear_attn.in_proj_" + (gates ? "ba" : "qkvz"));
}

// What the module may be called in a model of the family: fused with others, by a name of the family's own, or in a
// model of text and images.
std::vector<std::string> NamesIn(ModelFamily family, const LoraModule& module) {
  std::vector<std::string> names = {ModuleName(module)};
  if (InfoOf(family).experts.count != nullptr) AddNamesOfExperts(module, names);
  if (IsOfStates(module.target)) AddNamesOfStates(module, names);
  const std::size_t end = names[0].rfind('.');
  if (module.target <= LoraTarget::kV) names.push_back(names[0].substr(0, end) + ".qkv_proj");
  if (module.target == LoraTarget::kGate || module.target == LoraTarget::kUp) {
    names.push_back(names[0].substr(0, end) + ".gate_up_proj");
  }
  const std::vector<std::string> plain = names;
  for (const std::string& name : plain) {
    if (name.starts_with("model.")) names.push_back("model.language_model." + name.substr(6));
    if (const FamilyNames* const own = NamesOf(family))
      std::ranges::copy(TheirNames(*own, name), std::back_inserter(names));
  }
  return names;
}

// As many as a server with --adapter-tokens.
constexpr std::int64_t kAddedTokens = 8;

TEST(AdapterGoldenTest, AcceptsWhatPeftMadeWithItsRanksAndScales) {
  int checked = 0;
  for (const fs::path& folder : SortedFolders(kGolden / "models")) {
    SCOPED_TRACE(folder.filename().string());
    auto model = LoadModelConfig(folder / "model");
    ASSERT_TRUE(model.ok()) << model.error().message;
    model->AddTokens(kAddedTokens);
    std::map<std::string, std::string> digests;
    const nlohmann::json adapters = ReadJson(folder / "case.json")["adapters"];
    for (const nlohmann::json& expected : adapters) {
      const std::string name = expected["name"];
      SCOPED_TRACE(name);
      const auto adapter = OpenAdapter(folder / std::string(expected["dir"]), *model);
      ASSERT_TRUE(adapter.ok()) << adapter.error().message;
      std::int32_t max_rank = 0;
      std::set<std::string> found;
      for (const LoraModule& module : adapter->modules) {
        const std::vector<std::string> names = NamesIn(model->family, module);
        const auto its =
            std::ranges::find_if(names, [&](const std::string& one) { return expected["modules"].contains(one); });
        ASSERT_NE(its, names.end()) << ModuleName(module);
        found.insert(*its);
        const nlohmann::json& want = expected["modules"].at(*its);
        EXPECT_EQ(module.rank, want["r"].get<int>()) << ModuleName(module);
        EXPECT_FLOAT_EQ(module.scale, want["scale"].get<float>()) << ModuleName(module);
        max_rank = std::max(max_rank, module.rank);
      }
      EXPECT_EQ(found.size(), expected["modules"].size());
      EXPECT_EQ(adapter->max_rank, max_rank);
      EXPECT_EQ(adapter->digest.size(), 64u);
      digests[name] = adapter->digest;
      ++checked;
    }
    // Only a renamed copy has the same content.
    std::map<std::string, int> times;
    for (const nlohmann::json& expected : adapters) {
      if (expected["same_as"].is_string()) {
        EXPECT_EQ(digests[expected["name"]], digests[expected["same_as"]]) << expected["name"];
      } else {
        EXPECT_EQ(++times[digests[expected["name"]]], 1) << expected["name"];
      }
    }
  }
  EXPECT_GE(checked, 35) << "the fixtures are incomplete: see " << kGolden / "README.md";
}

// WriteAdapter compares the digest of what it wrote.
TEST(AdapterGoldenTest, EveryAdapterIsWrittenInPeftsForm) {
  const TempFolder folder;
  int written = 0;
  for (const fs::path& golden : SortedFolders(kGolden / "models")) {
    auto model = LoadModelConfig(golden / "model");
    ASSERT_TRUE(model.ok()) << model.error().message;
    model->AddTokens(kAddedTokens);
    std::vector<fs::path> sources;
    const nlohmann::json adapters = ReadJson(golden / "case.json")["adapters"];
    for (const nlohmann::json& adapter : adapters) {
      sources.push_back(golden / std::string(adapter["dir"]));
    }
    if (fs::exists(golden / "heads")) std::ranges::copy(SortedFolders(golden / "heads"), std::back_inserter(sources));
    for (const fs::path& source : sources) {
      SCOPED_TRACE(source);
      const auto adapter = OpenAdapter(source, *model);
      ASSERT_TRUE(adapter.ok()) << adapter.error().message;
      const fs::path to = folder.path() / std::to_string(written++);
      const Status status = WriteAdapter(*adapter, &*model, to);
      if (std::ranges::any_of(adapter->modules, [&](const LoraModule& module) {
            const bool feeds = module.target >= LoraTarget::kGate && module.target <= LoraTarget::kDown;
            return (feeds || IsOfRouting(module.target)) && model->HasExperts(module.layer);
          })) {
        EXPECT_THAT(status.error().message, testing::HasSubstr("changes experts or routers"));
        continue;
      }
      if (NamesOf(model->family) != nullptr || model->family == ModelFamily::kQwen3Next) {
        EXPECT_THAT(status.error().message, testing::HasSubstr("have names of their own"));
        continue;
      }
      ASSERT_TRUE(status.ok()) << status.error().message;
      const auto again = OpenAdapter(to, *model);
      ASSERT_TRUE(again.ok()) << again.error().message;
      EXPECT_EQ(again->config.form, AdapterForm::kPeft);
      EXPECT_EQ(again->digest, adapter->digest);
      EXPECT_EQ(again->config.base_model_name, adapter->config.base_model_name);
      EXPECT_EQ(again->config.invocation_tokens, adapter->config.invocation_tokens);
      ASSERT_EQ(again->head.has_value(), adapter->head.has_value());
      if (adapter->head) EXPECT_EQ(again->config.task_type, "SEQ_CLS");
      if (adapter->head) EXPECT_EQ(again->head->labels, adapter->head->labels);
    }
  }
  EXPECT_GE(written, 64);
}

// Layers of attention and recurrent ones have no linear layers in common.
TEST(AdapterGoldenTest, AModuleMustBeOfTheLayersKind) {
  const fs::path golden = kGolden / "models" / "qwen3_5";
  const auto model = LoadModelConfig(golden / "model");
  ASSERT_TRUE(model.ok() && model->IsRecurrent(0) && !model->IsRecurrent(2));
  for (const auto& [layer, kind] :
       {std::pair{0, "layer 0 has full attention, self_attn"}, {2, "layer 2 has linear attention, linear_attn"}}) {
    ModelConfig other = *model;
    other.recurrent->layers[static_cast<std::size_t>(layer)].flip();
    EXPECT_THAT(OpenAdapter(golden / "adapters/all_r4", other).error().message, testing::HasSubstr(kind));
  }
  ModelConfig wider = *model;
  wider.recurrent->value_dim = 16;
  EXPECT_THAT(OpenAdapter(golden / "adapters/delta_r2", wider).error().message,
              testing::HasSubstr("expected [96, rank]"));
}

TEST(AdapterGoldenTest, AModuleMustHaveTheFamilysNames) {
  const fs::path golden = kGolden / "models" / "granite_hybrid";
  const auto model = LoadModelConfig(golden / "model");
  ASSERT_TRUE(model.ok() && model->IsRecurrent(0) && !model->IsRecurrent(2));
  ModelConfig attention = *model;
  attention.recurrent->layers[0] = false;
  EXPECT_THAT(OpenAdapter(golden / "adapters/mamba_r2", attention).error().message,
              testing::HasSubstr("its layer 0 has full attention, self_attn"));
  ModelConfig delta = *model;
  delta.recurrent->mamba = false;
  EXPECT_THAT(OpenAdapter(golden / "adapters/mamba_r2", delta).error().message,
              testing::HasSubstr("has linear attention, linear_attn"));
  EXPECT_THAT(OpenAdapter(kGolden / "models/qwen3_5/adapters/delta_r2", *model).error().message,
              testing::HasSubstr("its layer 0 has Mamba-2, mamba"));
  ModelConfig llama = *model;
  llama.family = ModelFamily::kLlama;
  EXPECT_THAT(OpenAdapter(golden / "adapters/mlp_r4", llama).error().message,
              testing::HasSubstr("shared_mlp.input_linear.lora_A.weight' has an unknown name"));
  ModelConfig wider = *model;
  wider.recurrent->key_dim = 16;
  EXPECT_THAT(OpenAdapter(golden / "adapters/mamba_r2", wider).error().message,
              testing::HasSubstr("expected [196, rank]"));
}

// Qwen3-Next has in two matrices what Qwen 3.5 has in four.
TEST(AdapterGoldenTest, DeltaNetsMatricesAreFusedOrNot) {
  const auto next = LoadModelConfig(kGolden / "models/qwen3_next/model");
  ASSERT_TRUE(next.ok());
  ModelConfig other = *next;
  other.family = ModelFamily::kQwen35Moe;
  EXPECT_THAT(OpenAdapter(kGolden / "models/qwen3_next/adapters/fused_r2", other).error().message,
              testing::HasSubstr("in_proj_qkvz': its layer 0 has linear attention, linear_attn"));
  EXPECT_THAT(OpenAdapter(kGolden / "models/qwen3_5/adapters/delta_r2", *next).error().message,
              testing::HasSubstr("with in_proj_qkvz, in_proj_ba and out_proj"));
  EXPECT_THAT(OpenAdapterWithoutBase(kGolden / "models/qwen3_next/adapters/fused_r2").error().message,
              testing::HasSubstr("is of in_proj_qkv, in_proj_z in one, and the base model says where each begins"));
}

// A layer of Nemotron-H has one part.
TEST(AdapterGoldenTest, AModuleMustBeOfTheLayersPart) {
  const fs::path golden = kGolden / "models" / "nemotron_h";
  const auto model = LoadModelConfig(golden / "model");
  ASSERT_TRUE(model.ok() && model->IsRecurrent(0) && model->HasAttention(2) && !model->Has(LayerPart::kMixer, 1));
  ModelConfig other = *model;
  other.layer_parts[0] = LayerPart::kFeedForward;
  other.recurrent->layers[0] = false;
  EXPECT_THAT(OpenAdapter(golden / "adapters/mamba_r2", other).error().message,
              testing::HasSubstr("mixer.in_proj': its layer 0 has neither attention nor a state"));
  other = *model;
  other.layer_parts[1] = LayerPart::kMixer;
  EXPECT_THAT(OpenAdapter(golden / "adapters/mlp_r4", other).error().message,
              testing::HasSubstr("mixer.up_proj': its layer 1 has no feed-forward block"));
}

TEST(AdapterGoldenTest, NamesOfHybridFamiliesAreSeenWithoutTheBaseModel) {
  const TempFolder folder;
  for (const auto& [adapter, family] : {std::pair{"granite_hybrid/adapters/mamba_r2", "granitemoehybrid"},
                                        {"granite_hybrid/adapters/mlp_r4", "granitemoehybrid"},
                                        {"nemotron_h/adapters/mamba_r2", "nemotron_h"},
                                        {"falcon_h1/adapters/some_r3", "falcon_h1"}}) {
    const auto opened = OpenAdapterWithoutBase(kGolden / "models" / adapter);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_THAT(WriteAdapter(*opened, nullptr, folder.path() / family).error().message,
                testing::HasSubstr(std::string(family) + " have names of their own"));
  }
}

TEST(AdapterGoldenTest, NothingIsWrittenOverOrHalf) {
  const TempFolder folder;
  const fs::path source = kGolden / "models" / "llama_sharded" / "adapters" / "all_r4-gguf";
  const auto without = OpenAdapterWithoutBase(source);
  ASSERT_TRUE(without.ok()) << without.error().message;
  EXPECT_THAT(WriteAdapter(*without, nullptr, folder.path() / "new").error().message,
              testing::HasSubstr("name that by --base"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
  const auto model = LoadModelConfig(kGolden / "models" / "llama_sharded" / "model");
  const auto adapter = OpenAdapter(source, *model);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  folder.Write("mine.txt", "x");
  EXPECT_THAT(WriteAdapter(*adapter, &*model, folder.path()).error().message,
              testing::HasSubstr("expected a new or an empty folder"));
  fs::create_directory(folder.path() / "empty");
  EXPECT_TRUE(WriteAdapter(*adapter, &*model, folder.path() / "empty/").ok());
  EXPECT_FALSE(fs::exists(folder.path() / "empty.partial"));
}

TEST(AdapterGoldenTest, OpensTheTensorsOfEveryModel) {
  int checked = 0;
  for (const fs::path& folder : SortedFolders(kGolden / "models")) {
    SCOPED_TRACE(folder.filename().string());
    const auto tensors = TensorFile::OpenModelDirectory(folder / "model");
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    EXPECT_FALSE(tensors->tensors().empty());
    EXPECT_GT(tensors->TotalBytes(), 0);
    ++checked;
  }
  EXPECT_GE(checked, 20);
}

TEST(AdapterGoldenTest, RefusesByName) {
  int checked = 0;
  for (const fs::path& folder : SortedFolders(kGolden / "refused")) {
    SCOPED_TRACE(folder.filename().string());
    const nlohmann::json expect = ReadJson(folder / "expect.json");
    const auto model = LoadModelConfig(kGolden / "models" / std::string(expect["model"]) / "model");
    ASSERT_TRUE(model.ok()) << model.error().message;
    const auto adapter = OpenAdapter(folder, *model);
    ++checked;
    if (adapter.ok()) {
      ADD_FAILURE() << "accepted, although: " << expect["why"];
      continue;
    }
    const Error& error = adapter.error();
    EXPECT_TRUE(error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kUnsupported)
        << ErrorCodeName(error.code);
    for (const std::string part : expect["must_mention"]) EXPECT_THAT(error.message, testing::HasSubstr(part));
    EXPECT_LT(error.message.size(), 1500u);
  }
  EXPECT_GE(checked, 125) << "the fixtures are incomplete: see " << kGolden / "README.md";
}

// The second column of docs/reference/adapter-fields.md, by field.
std::map<std::string, std::string> TableOfFields() {
  std::ifstream in(fs::path(LORAMUX_SOURCE_DIR) / "docs/reference/adapter-fields.md");
  std::map<std::string, std::string> table;
  for (std::string line; std::getline(in, line);) {
    const std::size_t name = line.find("| `"), end = line.find("` | ");
    if (name != 0 || end == std::string::npos) continue;
    const std::size_t kind = end + 4;
    const auto [at, is_new] = table.emplace(line.substr(3, end - 3), line.substr(kind, line.find(" |", kind) - kind));
    EXPECT_TRUE(is_new) << at->first << " appears twice";
  }
  return table;
}

TEST(AdapterGoldenTest, TheTableOfFieldsIsThatOfPeftAndOfTheProgram) {
  const nlohmann::json fields = ReadJson(kGolden / "lora_config.json").at("fields");
  const std::map<std::string, std::string> table = TableOfFields();
  EXPECT_EQ(table.size(), fields.size());
  for (const auto& [name, sample] : fields.items()) {
    SCOPED_TRACE(name);
    const auto row = table.find(name);
    ASSERT_NE(row, table.end()) << "docs/reference/adapter-fields.md lacks it";
    nlohmann::json config = {{"peft_type", "LORA"}, {"r", 8}, {"lora_alpha", 8}, {"target_modules", {"q_proj"}}};
    config[name] = sample;
    const auto parsed = ParseAdapterConfig(config.dump(), "FILE");
    if (row->second == "refused") {
      ASSERT_FALSE(parsed.ok()) << "the table says that it is refused";
      EXPECT_THAT(parsed.error().message, testing::HasSubstr(name + " is "));
      continue;
    }
    EXPECT_TRUE(row->second == "used" || row->second == "harmless") << row->second;
    EXPECT_TRUE(parsed.ok()) << parsed.error().message;
  }
}

}  // namespace
}  // namespace loramux::adapter_golden_test
