// The page "What the documents claim, and what holds": each document's main claims beside our results, and a plot.
#pragma once

#include <span>
#include <string>

#include "lab/experiments/experiment.h"

namespace loramux {

// A claim of a document, and the row of comparison that tests it.
struct Claim {
  std::string_view experiment;  // whose <id>.json holds the row
  std::string_view id, row;     // id of the row, and the beginning of its text
  std::string_view claim;       // the claim in a few words
};
struct DocumentClaims {
  std::string_view document;  // as DocumentOf names it
  std::string_view what;      // one sentence: what it proposes, and on what
  std::span<const Claim> claims;
  std::string_view workloads;  // the beginning of the text of lm-1's and lm-2's rows about its workloads
};
// The claims of all documents.
std::span<const DocumentClaims> AllClaims();

// Writes claims.md and claims_<n>.svg, one plot a document, from every <id>.json in the directory. A claim whose
// experiment is not there is left out; one whose experiment lacks the row says so. Errors: a file cannot be read or
// written.
Status WriteClaims(const std::string& directory, std::span<const Experiment> experiments);

}  // namespace loramux
