// Attention of random shapes and options: what no kernel takes is refused by what checks a recipe, and all else is within
// tolerance of the CPU's kernels in float64.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/backend/cuda/attention/sm90a.h"
#include "engine/base/core_limit.h"
#include "engine/base/parallel.h"
#include "tests/gpu/attention_problem.h"

namespace engine::gpu_test {
namespace {

using backend::cuda::AttentionKernels;

// The same numbers with every standard library.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : generator_(seed) {}
  std::int64_t Below(std::int64_t n) {
    return static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(n));
  }
  std::int64_t From(std::int64_t first, std::int64_t last) { return first + Below(last - first + 1); }
  bool Percent(int percent) { return Below(100) < percent; }
  double Uniform() { return static_cast<double>(Below(1 << 30)) * 0x1p-30; }
  template <typename T, std::size_t kCount>
  T Of(const std::array<T, kCount>& all) {
    return all[static_cast<std::size_t>(Below(kCount))];
  }

 private:
  std::mt19937_64 generator_;
};

std::int64_t HeadOf(Dice* dice) {
  if (dice->Percent(40)) return dice->Of(std::array<std::int64_t, 2>{64, 128});
  if (dice->Percent(30)) return dice->Of(std::array<std::int64_t, 6>{72, 80, 88, 96, 192, 256});
  if (dice->Percent(60)) return 8 * dice->From(1, 32);
  return dice->From(1, 320);
}

std::int64_t LengthOf(Dice* dice) {
  constexpr std::array<std::int64_t, 12> kNearTiles = {1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 255, 257};
  return dice->Percent(40) ? dice->Of(kNearTiles) : dice->From(1, 320);
}

// Queries as a rank of context parallelism has them: two chunks of the sequence, or one piece where they touch.
void CutQueries(Dice* dice, AttentionOptions* o) {
  const std::int64_t ranks = dice->From(2, 4);
  const std::int64_t rank = dice->Below(ranks);
  const std::int64_t chunk = dice->Percent(60) ? 16 * dice->From(1, 4) : dice->From(1, 50);
  o->keys = 2 * ranks * chunk;
  o->queries = 2 * chunk;
  o->positions = {{rank * chunk, chunk}, {(2 * ranks - 1 - rank) * chunk, chunk}};
}

void DrawForm(Dice* dice, AttentionOptions* o) {
  o->scale = (dice->Percent(70) ? 1.0 : 2 * dice->Uniform()) / std::sqrt(static_cast<double>(o->head));
  if (dice->Percent(2)) o->scale = 0;
  if (dice->Percent(25)) o->dropout = dice->Of(std::array<double, 4>{0.05, 0.1, 0.3, 0.5});
  if (dice->Percent(20)) o->softcap = dice->Of(std::array<double, 4>{0.5, 2, 10, 50});
  o->sinks = dice->Percent(20);
  // Beside a cap or linear biases our own kernels refuse them: that is drawn, too, but not often.
  if (dice->Percent(o->softcap > 0 ? 5 : 20)) o->distance = dice->From(1, 150);
  if (o->distance == 0 && dice->Percent(o->softcap > 0 ? 3 : 15))
    o->pairs = std::max(o->queries, o->keys) + dice->From(0, 3);
  if (o->pairs > 0 && dice->Percent(50)) o->pairs = (o->pairs + 7) / 8 * 8;  // by boxes
  if (!o->causal) return;
  if (dice->Percent(35)) o->window = dice->From(1, o->keys + 20);
  o->alibi = dice->Percent(o->has_trained_biases() ? 5 : 20);
}

// Of one token and more.
void DrawDocuments(Dice* dice, AttentionOptions* o) {
  for (std::int64_t left = o->keys; left > 0; left -= o->documents.back())
    o->documents.push_back(std::min(left, dice->From(1, dice->Percent(30) ? 8 : 150)));
}

// Small enough that the CPU computes hundreds of them in seconds.
bool IsSmall(const AttentionOptions& o) {
  const std::int64_t widest = std::max(o.head, o.value_head);
  return o.batch * std::max(o.queries, o.keys) * o.heads * widest <= 40000;
}

AttentionOptions DrawShape(Dice* dice) {
  AttentionOptions o;
  o.dtype = dice->Percent(55) ? DType::kBF16 : dice->Percent(80) ? DType::kF16 : DType::kF32;
  o.batch = dice->From(1, 3);
  o.kv_heads = dice->From(1, 3);
  o.heads = o.kv_heads * dice->Of(std::array<std::int64_t, 5>{1, 1, 2, 3, 4});
  o.head = HeadOf(dice);
  o.value_head = dice->Percent(85) ? o.head : HeadOf(dice);
  if (dice->Percent(4)) {
    o.head = 192;
    o.value_head = 128;
  }
  o.causal = dice->Percent(88);
  o.keys = o.queries = LengthOf(dice);
  if (!o.causal) {
    if (dice->Percent(50)) o.queries = LengthOf(dice);
  } else if (dice->Percent(25)) {
    CutQueries(dice, &o);
  }
  return o;
}

AttentionOptions DrawOptions(Dice* dice) {
  AttentionOptions o = DrawShape(dice);
  while (!IsSmall(o)) o = DrawShape(dice);
  DrawForm(dice, &o);
  if ((o.queries == o.keys || !o.positions.empty()) && dice->Percent(20)) DrawDocuments(dice, &o);
  const bool alike = o.heads == o.kv_heads && o.head == o.value_head && o.queries == o.keys;
  o.packed = alike && o.causal && !o.sinks && !o.has_trained_biases() && dice->Percent(40);
  if (!o.packed && dice->Percent(20)) {
    o.logical_heads = o.heads * dice->From(2, 3);
    o.first_head = o.logical_heads - o.heads;
  }
  if (dice->Percent(20)) o.kernel = dice->Percent(70) ? "own" : "reference";
  return o;
}

struct Trial {
  AttentionOptions options;
  Tensors inputs;
  std::array<Problem, 2> problems = {};  // forward, backward
  bool refused = false;
  std::array<AttentionKernels, 2> kernels = {};
  std::array<ExpectedAttention, 2> expected = {};
};

AttentionKernels ChosenFor(const Problem& problem, bool packed, bool backward,
                           const backend::cuda::CudaChip& chip) {
  const std::vector<graph::TensorType> types = InputTypes(problem);
  backend::cuda::AttentionShape shape =
      packed ? backend::cuda::ShapeOfPacked(types, problem.attributes, backward)
             : backend::cuda::ShapeOfSeparate(types, problem.attributes, backward);
  shape.chip = chip;
  return backend::cuda::KernelsOf(shape, backward);
}

// Forward and backward pass, with what is expected of them where a check of a recipe does not refuse them.
Trial MakeTrial(const AttentionOptions& options, const plan::DeviceProfile& profile,
                const backend::cuda::CudaChip& chip) {
  Trial trial{.options = options, .inputs = AttentionInputs(options)};
  for (const bool backward : {false, true}) {
    Problem problem = AttentionProblemOf(options, trial.inputs, backward);
    const plan::SlowPath slow = profile.slow(problem.kernel, InputTypes(problem), problem.attributes);
    const bool lacks = !profile.lacks(*problem.op, InputTypes(problem), problem.attributes).empty();
    trial.refused = trial.refused || lacks || !slow.obstacles.empty();
    if (!lacks) trial.kernels[backward ? 1 : 0] = ChosenFor(problem, options.packed, backward, chip);
    trial.problems[backward ? 1 : 0] = std::move(problem);
  }
  for (const bool backward : {false, true}) {
    if (trial.refused) continue;
    const std::size_t i = backward ? 1 : 0;
    trial.expected[i] = ExpectedOf(options, trial.inputs, backward, trial.kernels[i]);
  }
  return trial;
}

const char* NameOf(AttentionKernels kernels) {
  if (kernels == AttentionKernels::kOwn) return "our own";
  return kernels == AttentionKernels::kCudnn ? "cuDNN" : "reference";
}

}  // namespace

TEST_CASE("gpu attention: 500 random shapes and options are right, or refused by the check of a recipe") {
  constexpr std::size_t kTrials = 500;
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const plan::DeviceProfile profile = Gpu().Profile();
  const int major = Gpu().device().properties().major;
  const backend::cuda::CudaChip chip = {major, major == 9 && backend::cuda::HasAttentionSm90a()};
  const std::size_t least_run = chip.hopper ? 400 : 75;  // 429 with heads of up to 256 elements
  Dice dice(24);
  std::vector<AttentionOptions> drawn;
  for (std::size_t i = 0; i < kTrials; ++i) drawn.push_back(DrawOptions(&dice));
  std::vector<Trial> trials(kTrials);
  ParallelPieces(CoresOfProcess(), kTrials, 1,
                 [&](std::size_t i, std::size_t) { trials[i] = MakeTrial(drawn[i], profile, chip); });
  const double on_cpu_s = seconds();
  std::map<std::string, int> counts;
  std::size_t run = 0;
  for (const Trial& trial : trials) {
    if (trial.refused) {
      ++counts["refused"];
      continue;
    }
    ++run;
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      ++counts[fmt::format("{} by {}", i == 0 ? "forward" : "backward", NameOf(trial.kernels[i]))];
      const Problem& problem = trial.problems[i];
      const absl::StatusOr<Outcome> outcome = Launch(problem);
      if (!outcome.ok()) {
        FAIL_CHECK(fmt::format("{}: {}", problem.where, Message(outcome.status())));
        continue;
      }
      for (std::size_t o = 0; o < outcome->outputs.size(); ++o) {
        const std::string where =
            fmt::format("{}, by {}, output {}", problem.where, NameOf(trial.kernels[i]), o);
        const ExpectedAttention& expected = trial.expected[i];
        Compare(where, expected.outputs[o], outcome->outputs[o], expected.tolerances[o]);
        CompareSpread(where, expected.outputs[o], outcome->outputs[o], expected.spreads[o]);
      }
    }
  }
  std::string text =
      fmt::format("{} trials, {:.0f} s on the CPU, {:.0f} s in all:", kTrials, on_cpu_s, seconds());
  for (const auto& [what, count] : counts) text += fmt::format(" {} {};", count, what);
  MESSAGE(text);
  CHECK(run >= least_run);
}

}  // namespace engine::gpu_test
