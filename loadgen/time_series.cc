#include "loadgen/time_series.h"

#include <algorithm>
#include <cmath>

#include "workload/statistics.h"

namespace loramux::load {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxBins = 60;

struct Bin {
  std::int64_t started = 0, finished = 0, failed = 0;
  double tokens = 0, busy_s = 0;  // busy_s: seconds of requests in flight, summed
  std::vector<double> ttft_ms;
};

class Bins {
 public:
  Bins(double bin_s, double seconds)
      : bin_s_(bin_s), bins_(static_cast<std::size_t>(std::max(1.0, std::ceil(seconds / bin_s - 1e-9)))) {}
  Bin& At(double seconds) {
    return bins_[std::min(static_cast<std::size_t>(std::max(seconds, 0.0) / bin_s_), bins_.size() - 1)];
  }
  void AddBusy(double from, double to) {
    for (auto i = static_cast<std::size_t>(std::max(from, 0.0) / bin_s_); i < bins_.size(); ++i) {
      const double begin = static_cast<double>(i) * bin_s_;
      if (begin >= to) return;
      bins_[i].busy_s += std::max(0.0, std::min(to, begin + bin_s_) - std::max(from, begin));
    }
  }
  const std::vector<Bin>& all() const { return bins_; }

 private:
  double bin_s_;
  std::vector<Bin> bins_;
};

// Each piece of text counts for an equal part of the answer's tokens.
void AddTokens(const RequestRecord& record, Bins& bins) {
  const auto pieces = static_cast<double>(record.gaps_ms.size() + 1);
  const double tokens = static_cast<double>(record.output_tokens) / pieces;
  double at = static_cast<double>(record.first_token >= 0 ? record.first_token : record.end) / 1e9;
  bins.At(at).tokens += tokens;
  for (const float gap : record.gaps_ms) bins.At(at += static_cast<double>(gap) / 1e3).tokens += tokens;
}

void Add(const RequestRecord& record, Bins& bins) {
  const double sent = static_cast<double>(record.sent) / 1e9, end = static_cast<double>(record.end) / 1e9;
  ++bins.At(sent).started;
  ++(record.ok() ? bins.At(end).finished : bins.At(end).failed);
  bins.AddBusy(sent, end);
  AddTokens(record, bins);
  if (record.ok() && record.has_ttft()) bins.At(sent).ttft_ms.push_back(record.ttft_ms());
}

double Rounded(double value) { return std::round(value * 1e3) / 1e3; }

}  // namespace

double BinSeconds(double seconds) {
  for (double power = 0.01;; power *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (seconds / (step * power) <= kMaxBins) return step * power;
    }
  }
}

Json TimeSeriesJson(const std::vector<RequestRecord>& records, double seconds) {
  const double bin_s = BinSeconds(seconds);
  Bins bins(bin_s, seconds);
  for (const RequestRecord& record : records) Add(record, bins);
  Json list = Json::array();
  for (const Bin& bin : bins.all()) {
    const double begin = static_cast<double>(list.size()) * bin_s;
    const double width = std::max(std::min(bin_s, seconds - begin), 1e-9);  // the last bin may be shorter
    const Summary ttft = Summarise(bin.ttft_ms);
    const auto if_any = [&](double value) { return ttft.count > 0 ? Json(Rounded(value)) : Json(nullptr); };
    list.push_back({{"t_s", Rounded(begin)},
                    {"started", bin.started},
                    {"finished", bin.finished},
                    {"failed", bin.failed},
                    {"output_tokens_per_s", Rounded(bin.tokens / width)},
                    {"in_flight", Rounded(bin.busy_s / width)},
                    {"ttft_p50_ms", if_any(ttft.p50)},
                    {"ttft_p99_ms", if_any(ttft.p99)}});
  }
  return {{"bin_s", bin_s}, {"bins", std::move(list)}};
}

}  // namespace loramux::load
