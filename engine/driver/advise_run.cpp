// Warnings of evaluation and checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/base/dtype.h"
#include "engine/base/units.h"
#include "engine/driver/advise_subject.h"
#include "engine/plan/optimizer.h"
#include "engine/recipe/saving.h"
#include "engine/recipe/split.h"

namespace engine::driver {
namespace {

void CheckpointsAreOften(const AdviceSubject& s) {
  constexpr double kMostSeconds = 3600;
  if (!s.has_times()) return;
  const std::int64_t interval = s.recipe.checkpoint.interval;
  const std::int64_t between =
      interval == 0 ? s.recipe.iterations() : std::min(interval, s.recipe.iterations());
  const double seconds = static_cast<double>(between) * s.time.iteration_s;
  if (seconds <= kMostSeconds) return;
  s.report.Warn(
      "W401", {"checkpoint.interval", LengthKey(s.recipe)},
      fmt::format("{} iterations of {:.1f} s, {:.1f} hours, between checkpoints", between, s.time.iteration_s,
                  seconds / 3600),
      fmt::format("an interval of at most {:.0f}", std::max(1.0, std::floor(3600 / s.time.iteration_s))));
}

void EvaluationRuns(const AdviceSubject& s) {
  const std::int64_t interval = s.recipe.evaluation.interval;
  if (interval > s.recipe.iterations()) {
    s.report.Warn("W402", {"evaluation.interval", LengthKey(s.recipe)},
                  fmt::format("evaluation.interval {} is never reached in {} iterations", interval,
                              s.recipe.iterations()),
                  fmt::format("an interval of at most {}", s.recipe.iterations()));
  } else if (interval == 0 && s.is_long() && !s.recipe.data.is_random() && !s.recipe.data.per_split() &&
             (*recipe::ParseSplit(s.recipe.data.split))[1] > 0) {
    s.report.Warn("W402", {"evaluation.interval", LengthKey(s.recipe)},
                  fmt::format("split \"{}\" sets validation data aside, and evaluation.interval is 0",
                              s.recipe.data.split),
                  "evaluation.interval = 1000; or a split without a second share");
  }
}

// A checkpoint has the weight of each parameter and the optimizer's states of it in f32, whatever the run keeps
// (docs/checkpoint-format.md).
double CheckpointBytes(const AdviceSubject& s) {
  const plan::OptimizerDef& optimizer = *plan::FindOptimizer(s.recipe.optimizer.kind);
  return static_cast<double>(1 + optimizer.states.size()) * SizeOf(DType::kF32) * s.parameters();
}

void CheckpointsAreFew(const AdviceSubject& s) {
  constexpr std::int64_t kMost = 50;
  const recipe::Checkpoint& c = s.recipe.checkpoint;
  if (c.interval == 0 || c.keep > 0 || s.recipe.iterations() / c.interval <= kMost) return;
  const std::int64_t count = s.recipe.iterations() / c.interval;
  s.report.Warn(
      "W403", {"checkpoint.keep", "checkpoint.interval"},
      fmt::format("{} checkpoints are kept, {} together", count,
                  FormatBytes(static_cast<std::int64_t>(static_cast<double>(count) * CheckpointBytes(s)))),
      "keep = 3");
}

// Seconds of training between two evaluations or checkpoints, which come after every `interval` iterations.
double Between(const AdviceSubject& s, std::int64_t interval) {
  return static_cast<double>(interval) * s.time.iteration_s;
}

// Whether something is done after every `interval` iterations, and not at the end alone, and takes a known
// time.
bool Recurs(const AdviceSubject& s, std::int64_t interval) {
  return interval > 0 && interval < s.recipe.iterations() && s.has_times();
}

std::string Seconds(double s) { return s < 100 ? fmt::format("{:.2g} s", s) : fmt::format("{:.0f} s", s); }

constexpr double kMostShare = 0.2;  // of the time, for what is not training

// The interval at which something that takes `seconds` is a tenth of the time.
double IntervalOf(const AdviceSubject& s, double seconds) {
  return std::ceil(9 * seconds / s.time.iteration_s);
}

void EvaluationIsCheap(const AdviceSubject& s) {
  const recipe::Evaluation& e = s.recipe.evaluation;
  if (!Recurs(s, e.interval)) return;
  const double seconds =
      static_cast<double>(e.iterations) * predict::PredictEvaluation(s.plan, s.recipe.cluster);
  const double share = seconds / (seconds + Between(s, e.interval));
  if (share <= kMostShare) return;
  s.report.Warn("W404", {"evaluation.interval", "evaluation.iterations"},
                fmt::format("evaluation is predicted to take {:.0f} % of the time: {} after every {} "
                            "of training",
                            100 * share, Seconds(seconds), Seconds(Between(s, e.interval))),
                fmt::format("an interval of {:.0f}; or fewer evaluation.iterations", IntervalOf(s, seconds)));
}

void CheckpointsAreCheap(const AdviceSubject& s) {
  constexpr double kBytesPerSecond = 2e9;  // that a node writes: one NVMe disk, or its share of a file system
  const std::int64_t interval = s.recipe.checkpoint.interval;
  if (!Recurs(s, interval)) return;
  const std::int64_t each = s.recipe.cluster.devices_per_node;
  const std::int64_t nodes = each > 0 ? CeilDiv(s.recipe.world_size(), each) : 1;
  const double bytes = CheckpointBytes(s);
  const double seconds = bytes / (kBytesPerSecond * static_cast<double>(nodes));
  const double between = Between(s, interval);
  const bool beside = recipe::SavesBeside(s.recipe);
  if (beside ? seconds <= between : seconds / (seconds + between) <= kMostShare) return;
  const std::string what = fmt::format("checkpoints of {} after every {} of training: at 2 GB/s a node, ",
                                       FormatBytes(static_cast<std::int64_t>(bytes)), Seconds(between));
  if (beside) {
    s.report.Warn("W405", {"checkpoint.interval"},
                  what + fmt::format("each takes {} to be written, and training waits for it before the next",
                                     Seconds(seconds)),
                  fmt::format("an interval of {:.0f}", std::ceil(seconds / s.time.iteration_s)));
  } else {
    s.report.Warn(
        "W405", {"checkpoint.interval"},
        what + fmt::format("writing them takes {:.0f} % of the time", 100 * seconds / (seconds + between)),
        fmt::format("checkpoint.background = true; or an interval of {:.0f}", IntervalOf(s, seconds)));
  }
}

constexpr Advice kRunAdvice[] = {CheckpointsAreOften, CheckpointsAreCheap, EvaluationRuns, EvaluationIsCheap,
                                 CheckpointsAreFew};

}  // namespace

std::span<const Advice> RunAdvice() { return kRunAdvice; }

}  // namespace engine::driver
