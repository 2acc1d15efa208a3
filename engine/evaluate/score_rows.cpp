#include "engine/evaluate/score_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/base/status.h"
#include "engine/model/build.h"

namespace engine::evaluate {
namespace {

// What the input of that name is at place s of a row. Behind the row's end tokens are 0, which causal attention keeps out of
// the places before.
std::int32_t TokenAt(const Row& row, std::int64_t s, int offset, bool label) {
  const std::int64_t at = s + offset;
  const auto count = static_cast<std::int64_t>(row.tokens.size());
  if (label)
    return at < count && at >= static_cast<std::int64_t>(row.first) ? row.tokens[static_cast<size_t>(at)]
                                                                    : -1;
  if (at < count) return row.tokens[static_cast<size_t>(at)];
  return offset == 0 ? 0 : -1;
}

// Writes the numbers of one place, two of document spans; returns what is behind them.
std::int32_t* WriteInput(const std::string& name, const Row& row, std::int64_t s, std::int64_t sequence,
                         std::int32_t* out) {
  if (const std::optional<int> offset = model::TokenOffset(name)) {
    *out++ = TokenAt(row, s, *offset, model::IsLabels(name));
  } else if (name == model::kDocumentSpans) {
    *out++ = 0;
    *out++ = static_cast<std::int32_t>(sequence);
  } else {
    *out++ = static_cast<std::int32_t>(s);  // positions, of a document that begins with the row
  }
  return out;
}

// The rows of one evaluation, the first of which is row `first`; beyond the last there are empty ones.
executor::FeedFunction FeedOf(const plan::Plan& plan, std::span<const Row> rows, std::int64_t first) {
  return [&plan, rows, first](const std::string& name, std::int64_t microbatch,
                              const backend::TensorView& host) -> absl::Status {
    static const Row kNone;
    std::int32_t* out = host.as<std::int32_t>();
    for (std::int64_t b = 0; b < host.shape[0]; ++b) {
      const std::int64_t at =
          first + microbatch * plan.microbatch_samples + LogicalIndex(host.extent.dims[0], b);
      const Row& row = at < static_cast<std::int64_t>(rows.size()) ? rows[static_cast<size_t>(at)] : kNone;
      for (const Interval& interval : host.extent.dims[1]) {
        for (std::int64_t s = interval.start; s < interval.start + interval.length; ++s)
          out = WriteInput(name, row, s, plan.sequence, out);
      }
    }
    return absl::OkStatus();
  };
}

// Adds what a rank knows of the rows of one evaluation.
absl::Status AddScores(const plan::Plan& plan, const executor::TokenScores& scores, std::span<const Row> rows,
                       std::int64_t first, std::vector<RowScore>* sums) {
  const std::int64_t samples = Length(scores.extent.dims[0]);
  const std::int64_t places = Length(scores.extent.dims[1]);
  const auto microbatches = static_cast<std::int64_t>(scores.ranks.size()) / (samples * places);
  for (std::int64_t i = 0; i < microbatches * samples; ++i) {
    const std::int64_t at =
        first + i / samples * plan.microbatch_samples + LogicalIndex(scores.extent.dims[0], i % samples);
    if (at >= static_cast<std::int64_t>(rows.size())) continue;
    const Row& row = rows[static_cast<size_t>(at)];
    RowScore& sum = (*sums)[static_cast<size_t>(at)];
    for (std::int64_t p = 0; p < places; ++p) {
      if (TokenAt(row, LogicalIndex(scores.extent.dims[1], p), 1, /*label=*/true) < 0) continue;
      const auto k = static_cast<size_t>(i * places + p);
      if (!std::isfinite(scores.log_probabilities[k])) {
        return DataLoss("the model gives a token the log-probability {}", scores.log_probabilities[k]);
      }
      sum.log_probability += static_cast<double>(scores.log_probabilities[k]);
      ++sum.predicted;
      sum.missed += scores.ranks[k] > 0 ? 1 : 0;
    }
  }
  return absl::OkStatus();
}

// Whether the rank's scores count: those of ranks along tp are the same.
bool Counts(const executor::RankExecutor& rank) {
  return rank.coordinates().axis[static_cast<size_t>(graph::Axis::kTp)] == 0;
}

void AddTo(std::vector<RowScore>* sums, std::span<const RowScore> more) {
  for (size_t i = 0; i < sums->size(); ++i) {
    (*sums)[i].log_probability += more[i].log_probability;
    (*sums)[i].predicted += more[i].predicted;
    (*sums)[i].missed += more[i].missed;
  }
}

// What other processes know, to rank 0, by the run's store of short texts.
class Exchange {
 public:
  Exchange(launch::Client& processes, const std::string& key) : processes_(processes), key_(key) {}

  absl::Status Send(std::int64_t rank, std::span<const RowScore> scores) const {
    static_assert(std::is_trivially_copyable_v<RowScore>);
    for (size_t part = 0; part * kRows < scores.size(); ++part) {
      const std::span<const RowScore> of_part =
          scores.subspan(part * kRows, std::min(kRows, scores.size() - part * kRows));
      const auto* bytes = reinterpret_cast<const char*>(of_part.data());
      RETURN_IF_ERROR(processes_.Set(KeyOf(rank, part), std::string(bytes, of_part.size_bytes())));
    }
    return absl::OkStatus();
  }

  absl::Status Receive(std::int64_t rank, std::vector<RowScore>* sums) const {
    std::vector<RowScore> scores(sums->size());
    for (size_t part = 0; part * kRows < scores.size(); ++part) {
      const size_t bytes = std::min(kRows, scores.size() - part * kRows) * sizeof(RowScore);
      ASSIGN_OR_RETURN(const std::string text, processes_.Take(KeyOf(rank, part)));
      if (text.size() != bytes)
        return Internal("scores of rank {}: {} bytes, not {}", rank, text.size(), bytes);
      std::memcpy(scores.data() + part * kRows, text.data(), bytes);
    }
    AddTo(sums, scores);
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kRows = 32768;  // of one text: 768 KiB, below the store's 1 MiB

  std::string KeyOf(std::int64_t rank, size_t part) const {
    return fmt::format("scores {} {} {}", key_, rank, part);
  }

  launch::Client& processes_;
  const std::string& key_;
};

absl::Status GatherScores(const Scorer& scorer, const std::string& key, std::vector<RowScore>* sums) {
  if (scorer.processes == nullptr) return absl::OkStatus();
  const Exchange exchange(*scorer.processes, key);
  if (scorer.rank != 0) return exchange.Send(scorer.rank, *sums);
  for (std::int64_t rank = 1; rank < scorer.plan.mesh.world(); ++rank)
    RETURN_IF_ERROR(exchange.Receive(rank, sums));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckScores(const plan::Plan& plan) {
  if (plan.scores.rank >= 0) return absl::OkStatus();
  return FailedPrecondition(
      "tasks ask how well tokens are predicted, but the model has no cross entropy over `labels` of every "
      "token");
}

absl::StatusOr<std::vector<RowScore>> ScoreRows(const Scorer& scorer, std::span<const Row> rows,
                                                const std::string& key) {
  RETURN_IF_ERROR(CheckScores(scorer.plan));
  const auto& executors = scorer.ranks.executors();
  std::vector<std::vector<RowScore>> by_rank(executors.size(), std::vector<RowScore>(rows.size()));
  const std::int32_t program = scorer.plan.ProgramOf(plan::kEvaluateForm);
  const std::int64_t at_once =  // with those samples that are empty in training
      scorer.plan.ProgramAt(program).microbatches * scorer.plan.microbatch_samples;
  const std::int64_t first_rank = executors[0]->rank();
  for (std::int64_t first = 0; first < static_cast<std::int64_t>(rows.size()); first += at_once) {
    const executor::FeedFunction feed = FeedOf(scorer.plan, rows, first);
    RETURN_IF_ERROR(scorer.ranks.Run([&](executor::RankExecutor& rank) -> absl::Status {
      if (const absl::Status status = rank.Evaluate(feed).status(); !status.ok())
        return scorer.explain ? scorer.explain(status, rank) : status;
      if (!Counts(rank)) return absl::OkStatus();
      ASSIGN_OR_RETURN(const std::optional<executor::TokenScores> scores, rank.Scores());
      if (!scores) return absl::OkStatus();
      return AddScores(scorer.plan, *scores, rows, first,
                       &by_rank[static_cast<size_t>(rank.rank() - first_rank)]);
    }));
  }
  std::vector<RowScore> sums(rows.size());
  for (const std::vector<RowScore>& of_rank : by_rank) AddTo(&sums, of_rank);
  RETURN_IF_ERROR(GatherScores(scorer, key, &sums));
  return sums;
}

}  // namespace engine::evaluate
