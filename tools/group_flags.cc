#include "tools/group_flags.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "auth/access.h"
#include "base/bytes.h"
#include "collective/mpi_plugin.h"
#include "formats/file.h"
#include "report/progress_bar.h"
#include "runtime/group_follower.h"
#include "runtime/group_leader.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

std::string HexOf(const std::string& text) {
  const Sha256 digest = Sha256Of(text);
  return fmt::format("{:02x}", fmt::join(std::span(digest).first(8), ""));
}

// A digest of some blocks of a file, with its size: enough to tell two models apart without reading them.
Result<std::string> DigestOfSamples(const fs::path& path) {
  constexpr std::uint64_t kBlock = 4096, kBlocks = 64;
  ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  const std::uint64_t size = file.size();
  std::string sampled = std::to_string(size);
  for (std::uint64_t block = 0; block < kBlocks; ++block) {
    const std::uint64_t first = size <= kBlock ? 0 : (size - kBlock) * block / (kBlocks - 1);
    std::string bytes(static_cast<std::size_t>(std::min(kBlock, size - first)), '\0');
    RETURN_IF_ERROR(file.ReadAt(first, std::as_writable_bytes(std::span(bytes)), path));
    sampled += bytes;
    if (size <= kBlock) break;
  }
  return HexOf(sampled);
}

// A digest of the model's files.
Result<std::string> DigestOfModel(const fs::path& model) {
  std::vector<fs::path> files;
  std::error_code error;
  if (fs::is_directory(model, error)) {
    for (const auto& entry : fs::directory_iterator(model, error)) {
      const std::string kind = entry.path().extension().string();
      if (kind == ".safetensors" || kind == ".json") files.push_back(entry.path());
    }
  } else {
    files.push_back(model);
  }
  std::ranges::sort(files);
  std::string all;
  for (const fs::path& file : files) {
    ASSIGN_OR_RETURN(const std::string digest, DigestOfSamples(file));
    all += file.filename().string() + " " + digest + "\n";
  }
  return HexOf(all);
}

Result<GroupFacts> FactsOf(const GroupFlags& flags, const RuntimeFlags& runtime) {
  ASSIGN_OR_RETURN(std::string model, DigestOfModel(runtime.model_dir));
  ASSIGN_OR_RETURN(const std::string program, DigestOfSamples("/proc/self/exe"));
  return GroupFacts{{"the program (version, and a digest of samples of its file)", LORAMUX_VERSION + (" " + program)},
                    {"the model (a digest of samples of its files)", std::move(model)},
                    {"--tensor-parallel-size", std::to_string(flags.ranks)},
                    {"--group-timeout", fmt::format("{} ms", flags.timeout.count())},
                    {"--weights", runtime.weights},
                    {"--embedding-weights", runtime.embedding_weights},
                    {"--adapter-tokens", std::to_string(runtime.adapter_tokens)}};
}

}  // namespace

void AddGroupFlags(CommandLine& line, GroupFlags& flags) {
  const std::string group = "Several processes (mpirun)";
  line.Add({.names = "--tensor-parallel-size",
            .target = &flags.ranks,
            .unit = "N",
            .group = group,
            .help =
                "Compute one model with N processes, each of which holds a part of every layer and of every adapter, "
                "on CPUs: mpirun -n N loramux serve MODEL --tensor-parallel-size N ... Answers are bitwise those of "
                "one process",
            .range = {{1, 64}}});
  line.Add({.names = "--group-timeout",
            .target = &flags.timeout,
            .unit = "SECONDS",
            .group = group,
            .help = "Time after which a process of the group that says nothing counts as lost; then all requests end "
                    "with an error that names it, and the server ends with status 75",
            .range = {{0.5, 3600.0}}});
}

Status JoinGroup(const GroupFlags& flags, RuntimeFlags& runtime) {
  if (flags.ranks == 1) return Ok{};
  ASSIGN_OR_RETURN(std::shared_ptr<Collectives> group, OpenMpiGroup(flags.timeout.count() * kNsPerMs));
  if (group->ranks() != flags.ranks) {
    const std::string ranks = std::to_string(flags.ranks), found = std::to_string(group->ranks());
    Error error = InvalidArgument("--tensor-parallel-size: expected to be started with mpirun -n " + ranks +
                                      " loramux serve ..., found " + found + (found == "1" ? " process" : " processes"),
                                  "--tensor-parallel-size");
    group->End();
    return error;
  }
  runtime.options.weights.part = {group->rank(), group->ranks()};
  runtime.options.group = std::move(group);
  if (runtime.device == "auto") runtime.device = "cpu";
  if (runtime.device == "cpu") return Ok{};
  return Unsupported(
      "--device: expected cpu with --tensor-parallel-size, whose processes compute on CPUs, found " + runtime.device,
      "--device");
}

Status AgreeInGroup(const GroupFlags& flags, const RuntimeFlags& runtime) {
  if (runtime.options.group == nullptr) return Ok{};
  ASSIGN_OR_RETURN(const GroupFacts facts, FactsOf(flags, runtime));
  return AgreeOnFacts(*runtime.options.group, facts);
}

Status FollowInGroup(const GroupFlags& flags, RuntimeFlags& runtime) {
  const ModelPart part = runtime.options.weights.part;
  RETURN_IF_ERROR(FetchNamed(runtime));
  RETURN_IF_ERROR(AgreeInGroup(flags, runtime));
  ASSIGN_OR_RETURN(WeightOptions weights, WeightOptionsOf(runtime));
  weights.part = part;
  weights.added_tokens = runtime.adapter_tokens;
  ASSIGN_OR_RETURN(const std::unique_ptr<PlacedModel> model,
                   PlacedModel::Load(runtime.model_dir, nullptr, weights, Progress()));
  spdlog::info("rank {} of {}: {} of weights; follows rank 0", part.rank, part.ranks,
               FormatBytes(model->weight_bytes()));
  return FollowGroup(*runtime.options.group, *model, runtime.options.threads);
}

}  // namespace loramux
