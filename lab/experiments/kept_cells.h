// Results that a run has already: a cell is one experiment with one seed. Each is kept in a file, so that a run that
// was killed goes on where it was. A cell counts only for the program, the data and the settings that made it.
#pragma once

#include <optional>
#include <string>

#include "lab/experiments/experiment.h"

namespace loramux {

// The cells of one folder. Processes may write different cells at the same time.
class KeptCells {
 public:
  // `folder` is made by the first Keep. `digest`: of what makes the results beside experiment and seed (DigestOfRun).
  KeptCells(std::string folder, std::string digest) : folder_(std::move(folder)), digest_(std::move(digest)) {}

  // The result of the cell, if it was made by this digest. A file that cannot be read counts as none.
  std::optional<ExperimentResult> Find(const Experiment& experiment, std::uint64_t seed) const;
  // The seconds that the cell took when it was made last, by whatever program; none: it never was.
  std::optional<double> SecondsOf(const Experiment& experiment, std::uint64_t seed) const;
  // Keeps a cell in place of an older one. After a kill the file is the old one or the new one. Error: the file cannot
  // be written.
  Status Keep(const Experiment& experiment, std::uint64_t seed, const ExperimentResult& result, double seconds) const;

 private:
  std::string PathOf(const Experiment& experiment, std::uint64_t seed) const;
  const std::string folder_, digest_;
};

// The digest of this program's file, of the files below `data_dir`/traces, and of the scale. Error: a file cannot be
// read.
Result<std::string> DigestOfRun(const ExperimentContext& context);

// A result as JSON, and back: what KeptCells writes. Error: not such a text.
std::string ResultAsJson(const ExperimentResult& result);
Result<ExperimentResult> ParseResult(const std::string& text);

}  // namespace loramux
