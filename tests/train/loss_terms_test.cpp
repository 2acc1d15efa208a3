// Label smoothing and z-loss in every layout: a split vocabulary, whose ranks give their columns' part of the smoothed
// target, gives the one-rank run's numbers.
#include <cmath>
#include <string>

#include "engine/verify/verify.h"
#include "tests/graphs/graphs.h"
#include "tests/train/equality.h"
#include "tests/train/testing.h"

namespace engine::train::testing {
namespace {

Trained RunWithTerms(const std::string& sets, double smoothing, double z_loss) {
  const recipe::Recipe recipe = MakeRecipe(kLlamaLike, SetsOf(sets));
  const state::Device device = CpuDevice();
  const plan::GraphModel model = plan::WithLossTerms(plan::Encoder(2), smoothing, z_loss);
  const absl::StatusOr<plan::Plan> plan = plan::PlanOfGraph(recipe, model, device.profile);
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const absl::Status lawful = verify::Verify(*plan, {});
  REQUIRE_MESSAGE(lawful.ok(), Message(lawful));
  return TrainFor(recipe, plan, 3, device, [&](const plan::Plan& of, std::int64_t first_sample) {
    return NamedFeed(of, first_sample, model.limits);
  });
}

}  // namespace

TEST_CASE("label smoothing and z-loss: one rank's numbers in every layout") {
  constexpr double kSmoothing = 0.2;
  constexpr double kZLoss = 0.05;
  const Trained plain = RunWithTerms("micro_batch=2", 0, 0);
  const Trained one = RunWithTerms("micro_batch=2", kSmoothing, kZLoss);
  // The first loss is that of the same weights: (1 − ε)·loss + ε·(what is above it for all classes) + ζ·lse², which is
  // more, here, as the classes are near equal and lse is about log 5.
  CHECK(one.losses[0] > plain.losses[0] + 0.5 * kZLoss * std::log(5.0) * std::log(5.0));
  CHECK(one.losses[2] != one.losses[0]);
  for (const char* sets : {"micro_batch=8", "tp=2 micro_batch=2", "tp=2 sequence_parallel=true micro_batch=2",
                           "dp=2 zero_stage=1 micro_batch=2", "pp=2 micro_batch=2", "cp=2 micro_batch=2",
                           "tp=2 overlap=on micro_batch=4", "dp=2 tp=2 pp=2 micro_batch=2"}) {
    CAPTURE(std::string(sets));
    CheckEqual(one, RunWithTerms(sets, kSmoothing, kZLoss));
  }
}

}  // namespace engine::train::testing
