#include "lab/experiments/claims.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "base/text_file.h"
#include "lab/charts/effect_chart.h"
#include "lab/experiments/report.h"

namespace loramux {
namespace {

constexpr std::array kChameleon = std::to_array<Claim>({
    {"ch-11", "ch-11b", "sustained load against S-LoRA: both", "cache and scheduler sustain 1.5 times S-LoRA's load"},
    {"ch-11", "ch-11b", "sustained load: scheduler alone", "each part alone gains, both together gain most"},
    {"ch-11", "ch-11", "P99 TTFT against S-LoRA at 9 RPS", "P99 TTFT at 9 RPS is a fifth of S-LoRA's"},
    {"ch-one", "ch-one", "sustained load, and P99 TTFT at 105 % of S-LoRA's load: an objective of 2 s",
     "the load, and P99 TTFT at 105 % of S-LoRA's load, if the objective is 2 s"},
    {"ch-one", "ch-one",
     "sustained load, and P99 TTFT at 105 % of S-LoRA's load: an objective of 5 s, and loads take 32 times as long",
     "the same, if it is the document's 5 s, and loads take 32 times as long"},
    {"ch-17", "ch-17", "P99 TTFT: LRU, FairShare, Chameleon", "its eviction score beats FairShare, and that LRU"},
    {"ch-24", "ch-24", "growth of the factor with the memory, 7B, from 24 to 80 GB", "more memory, larger gain"},
    {"ch-25", "ch-25", "the gain grows with the number of devices, high load", "more devices, larger gain"},
});
constexpr std::array kVllmLora = std::to_array<Claim>({
    {"vl-f", "vl-f1", "allocation failures, paged", "paged adapters never fail to fit"},
    {"vl-f", "vl-f2", "external fragmentation, contiguous", "contiguous ones fragment the pool by 18 %"},
    {"vl-k", "vl-k1", "each adapter and target, against all at once: by launches",
     "one kernel for all adapters is 15 times as fast as a product for each"},
    {"vl-s", "vl-s2", "device-resident first: mean TTFT", "serving resident adapters first cuts mean TTFT by 31 %"},
    {"vl-s", "vl-s3", "+ prefetch, lookahead 10: cold starts", "prefetching the next ten cuts cold starts by 74 %"},
    {"vl-s", "vl-s4", "+ at most 32 adapters per batch: P99", "at most 32 adapters a batch cut the tail"},
});
constexpr std::array kFastLibra = std::to_array<Claim>({
    {"fl-11", "fl-11", "mean TTFT against vLLM", "TTFT is 60 % below vLLM's"},
    {"fl-11", "fl-11", "peak throughput against vLLM", "1.7 times vLLM's throughput"},
    {"fl-one", "fl-one", "mean TTFT and peak against vLLM, 7B with 100 adapters: a quarter of the memory",
     "of the cell of 7B with 100 adapters alone: TTFT and throughput with a quarter of the memory"},
    {"fl-11", "fl-11s", "mean TTFT against S-LoRA", "TTFT is half of S-LoRA's"},
    {"fl-15", "fl-15m", "without dependency maintenance: TTFT", "without dependencies TTFT is 1.27 times as long"},
    {"fl-15", "fl-15s", "LRU instead of the cost model: TTFT", "with LRU instead of the cost model, 1.24 times"},
    {"fl-15", "fl-15l", "without the reward for enough adapters: TTFT", "without its reward for adapters, 1.13 times"},
});
constexpr std::array kCaraServe = std::to_array<Claim>({
    {"ca-10", "ca-10", "9 /s, rank 64: mean TTFT", "TTFT close to having every adapter loaded"},
    {"ca-15", "ca-15", "13B on 2 A10: cold-start overhead", "the cost of cold starts is more than halved"},
    {"ca-15", "ca-15", "13B on 2 A10: mean latency", "a request of 13B takes 20 % less time"},
    {"ca-20", "ca-20", "BGMV, ", "routing by rank is best with BGMV"},
});
constexpr std::array kClaims = std::to_array<DocumentClaims>({
    {"Chameleon", "An adapter cache in idle memory, and lanes by request size; Llama-7B on an A40 beside S-LoRA.",
     kChameleon, "Chameleon: "},
    {"vLLM v1 Multi-LoRA", "A paged adapter pool, and an order that knows what is on the device; Llama-70B.", kVllmLora,
     "vLLM-LoRA: "},
    {"FastLibra", "Adapters and history in one cache, with their dependencies and a cost model.", kFastLibra,
     "FastLibra: "},
    {"CaraServe", "The CPU computes prompts while adapters load; routing that knows ranks.", kCaraServe, "CaraServe: "},
});

const char* HoldsText(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAgrees:
      return "holds";
    case Verdict::kWeaker:
      return "holds, weaker";
    case Verdict::kStronger:
      return "holds, stronger";
    case Verdict::kOpposite:
      return "does not hold";
    case Verdict::kUndecided:
      return "depends on the seed";
    case Verdict::kNoEffect:
    case Verdict::kNotExercised:
    case Verdict::kInformation:
      break;
  }
  return VerdictName(verdict);
}

// The results in the directory: rows by experiment.
using Results = std::map<std::string, std::vector<ComparisonRow>, std::less<>>;

Result<Results> ReadResults(const std::string& directory, std::span<const Experiment> experiments) {
  Results results;
  for (const Experiment& experiment : experiments) {
    const std::string path = directory + "/" + std::string(experiment.id) + ".json";
    std::error_code ignored;  // a file that cannot be accessed counts as absent
    if (!std::filesystem::exists(path, ignored)) continue;
    ASSIGN_OR_RETURN(results[std::string(experiment.id)], ReadComparison(path));
  }
  return results;
}

std::string ClaimLine(const Claim& claim, const std::vector<ComparisonRow>& rows) {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const ComparisonRow& candidate) {
    return candidate.id == claim.id && candidate.what.starts_with(claim.row);
  });
  if (row == rows.end())
    return fmt::format("| {} | - | the experiment has no such row | - | [{}]({}.md) |\n", claim.claim, claim.id,
                       claim.experiment);
  return fmt::format("| {} | {} | {} | **{}** | [{}]({}.md) |\n", claim.claim, row->reported, row->ours,
                     HoldsText(row->verdict), claim.id, claim.experiment);
}

// What `--preset loramux` does on the document's workloads: the rows of this project's own experiment about them that
// no tighter objective narrows. Of each id the first of a workload.
std::string OursLines(std::string_view workloads, const Results& results) {
  const auto found = results.find("lm-1");
  if (found == results.end()) return {};
  std::string text;
  for (const ComparisonRow& row : found->second) {
    const bool headline = row.what.find("sustained load,") != std::string::npos || row.id == "lm-2";
    if (!row.what.starts_with(workloads) || !headline) continue;
    text += fmt::format("| `--preset loramux`: {} | {} | {} | **{}** | our own target; [{}](lm-1.md) |\n",
                        row.what.substr(workloads.size()), row.reported, row.ours, HoldsText(row.verdict), row.id);
  }
  return text;
}

// Every row of the document that is a factor, in the colour of its verdict.
EffectChart ChartOf(const std::string& document, const std::vector<const ComparisonRow*>& rows) {
  EffectChart chart{.title = document,
                    .subtitle = "each row that is a factor: median and spread",
                    .series = {},
                    .points = {},
                    .dead_band = kDeadBand};
  // Every verdict, so that it has the same colour in all plots.
  for (std::size_t i = 0; i < kVerdicts; ++i) chart.series.emplace_back(VerdictName(static_cast<Verdict>(i)));
  constexpr double kLeast = 0.005;  // a factor of 0 has no logarithm
  for (const ComparisonRow* row : rows) {
    const auto [low, high] = std::minmax_element(row->numbers.begin(), row->numbers.end());
    chart.points.push_back({.name = row->id,
                            .reported = std::max(kLeast, row->reported_number),
                            .ours = std::max(kLeast, MedianOf(row->numbers)),
                            .low = std::max(kLeast, *low),
                            .high = std::max(kLeast, *high),
                            .series = static_cast<std::size_t>(row->verdict)});
  }
  return chart;
}

// What was counted of a document: "12 of 40 rows agree, 3 not exercised".
std::string CountText(const std::array<int, kVerdicts>& counts) {
  std::string text;
  for (std::size_t i = 0; i < kVerdicts; ++i) {
    if (counts[i] > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", counts[i], VerdictName(static_cast<Verdict>(i)));
  }
  return text;
}

// One document's part of the page. Its plot is written to the directory.
Result<std::string> DocumentPart(const DocumentClaims& document, std::size_t nth, const std::string& directory,
                                 const Results& results, std::span<const Experiment> experiments, std::string& images) {
  std::array<int, kVerdicts> counts = {};
  std::vector<const ComparisonRow*> factors;
  for (const Experiment& experiment : experiments) {
    const auto found = results.find(experiment.id);
    if (DocumentOf(experiment) != document.document || found == results.end()) continue;
    for (const ComparisonRow& row : found->second) {
      ++counts[static_cast<std::size_t>(row.verdict)];
      if (row.quantity == Quantity::kChange || row.quantity == Quantity::kFactor) factors.push_back(&row);
    }
  }
  const std::string all = CountText(counts);
  if (all.empty()) return std::string();
  std::string lines;
  for (const Claim& claim : document.claims) {
    const auto found = results.find(claim.experiment);
    if (found != results.end()) lines += ClaimLine(claim, found->second);
  }
  lines += OursLines(document.workloads, results);
  std::string text = fmt::format("\n## {}\n{} All rows: {}.\n", document.document, document.what, all);
  if (!lines.empty()) text += "\n| claim | reported | ours | | details |\n|---|---|---|---|---|\n" + lines;
  if (factors.empty()) return text;
  const std::string name = fmt::format("claims_{}.svg", nth + 1);
  RETURN_IF_ERROR(WriteTextFile(directory + "/" + name, RenderSvg(ChartOf(std::string(document.document), factors))));
  images += fmt::format("<img src=\"{}\" width=\"49%\" alt=\"{}: reported against ours\">\n", name, document.document);
  return text;
}

}  // namespace

std::span<const DocumentClaims> AllClaims() { return kClaims; }

Status WriteClaims(const std::string& directory, std::span<const Experiment> experiments) {
  ASSIGN_OR_RETURN(const Results results, ReadResults(directory, experiments));
  std::string parts, images;
  for (std::size_t i = 0; i < kClaims.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string part, DocumentPart(kClaims[i], i, directory, results, experiments, images));
    parts += part;
  }
  const std::string head =
      "# What the documents claim, and what holds\nOne table and one plot for each document: its claims, then what "
      "`--preset loramux` does on its workloads. Written by `loramux-lab` from the results beside it: medians "
      "of the seeds, in brackets the smallest and the largest. [How the verdicts are made](about-experiments.md); [all "
      "rows](experiments.md). Ours is a simulator fed with the documents' devices and loads: where it differs, either "
      "may be wrong, and the details say what was tried.\n\n";
  return WriteTextFile(directory + "/claims.md", head + images + parts);
}

}  // namespace loramux
