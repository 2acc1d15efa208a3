// Models that no recipe's decoder is (tests/graphs/graphs.h) give the one-rank run's numbers in every layout: relays of
// values over several chunks, tables with three holders, attention without a mask, cross attention between sequences of
// two lengths, losses per sample and per token.
#include <string>
#include <vector>

#include "engine/verify/verify.h"
#include "tests/graphs/graphs.h"
#include "tests/train/equality.h"
#include "tests/train/testing.h"

namespace engine::train::testing {
namespace {

Trained Run(const plan::GraphModel& model, const std::string& sets,
            const std::vector<std::int64_t>& blocks = {}) {
  const recipe::Recipe recipe = MakeRecipe(kLlamaLike, SetsOf(sets));
  const state::Device device = CpuDevice();
  const absl::StatusOr<plan::Plan> plan = plan::PlanOfGraph(recipe, model, device.profile, blocks);
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const absl::Status lawful = verify::Verify(*plan, {});
  REQUIRE_MESSAGE(lawful.ok(), Message(lawful));
  return TrainFor(recipe, plan, 4, device, [&](const plan::Plan& of, std::int64_t first_sample) {
    return NamedFeed(of, first_sample, model.limits);
  });
}

struct Case {
  const char* sets;
  std::vector<std::int64_t> blocks = {};  // of each chunk; empty: balanced
};

void CheckLayouts(const plan::GraphModel& model, const Trained& one, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    CAPTURE(std::string(c.sets));
    const Trained other = Run(model, c.sets, c.blocks);
    CheckEqual(one, other);
    for (size_t i = 0; i < one.metrics.size(); ++i) {
      for (size_t m = 0; m < one.metrics[i].size(); ++m)
        CHECK(other.metrics[i][m] == doctest::Approx(one.metrics[i][m]).epsilon(kBound));
    }
  }
}

}  // namespace

TEST_CASE("graphs: a shortcut over several chunks and a table with three holders") {
  const plan::GraphModel ladder = plan::Ladder(4);
  const Trained one = Run(ladder, "micro_batch=2");
  CHECK(one.losses[3] != one.losses[0]);
  CheckLayouts(ladder, one,
               {{"pp=4 micro_batch=1"},
                {"pp=3 micro_batch=2", {1, 1, 2}},
                {"pp=2 micro_batch=2", {1, 3}},
                {"pp=2 virtual_stages=2 micro_batch=2"},
                {"pp=4 schedule=zero_bubble micro_batch=2"},
                {"tp=2 pp=4 micro_batch=2"},
                {"dp=2 pp=4 zero_stage=1 micro_batch=2"},
                {"cp=2 pp=4 micro_batch=4"},
                {"tp=2 pp=4 overlap=on micro_batch=4"},
                {"dp=2 pp=2 virtual_stages=2 zero_stage=3 overlap=on micro_batch=2"}});
}

TEST_CASE("graphs: an encoder without a mask, with a class head on one token") {
  const plan::GraphModel encoder = plan::Encoder(4);
  const Trained one = Run(encoder, "micro_batch=2");
  CHECK(one.losses[3] != one.losses[0]);
  CheckLayouts(encoder, one,
               {{"micro_batch=8"},
                {"pp=2 micro_batch=2", {1, 3}},
                {"pp=3 micro_batch=2", {1, 2, 1}},
                {"pp=2 schedule=zero_bubble micro_batch=2", {3, 1}},
                {"pp=2 virtual_stages=2 micro_batch=2"},
                {"tp=2 micro_batch=2"},
                {"tp=2 sequence_parallel=true micro_batch=2"},
                {"dp=2 micro_batch=2"},
                {"dp=2 zero_stage=3 overlap=on micro_batch=2"},
                {"cp=2 micro_batch=2"},
                {"cp=4 micro_batch=2"},
                {"tp=2 overlap=on micro_batch=4"},
                {"dp=2 cp=2 tp=2 pp=2 micro_batch=2", {3, 1}},
                {"granularity=full micro_batch=2"}});
}

// Queries and keys of a rank of tp are those of its heads: a norm of each head is made of them alone, and its gain's
// gradient is partial; a norm over all heads is not, so they are exchanged.
TEST_CASE("graphs: norms of queries and keys, gates, scales and caps") {
  for (const int normed_dims : {1, 2}) {
    CAPTURE(normed_dims);
    const plan::GraphModel model = plan::NormedDecoder(4, normed_dims);
    const Trained one = Run(model, "micro_batch=2");
    CHECK(one.losses[3] != one.losses[0]);
    CheckLayouts(model, one,
                 {{"micro_batch=8"},
                  {"pp=2 micro_batch=2", {1, 3}},
                  {"tp=2 micro_batch=2"},
                  {"tp=2 sequence_parallel=true micro_batch=2"},
                  {"dp=2 zero_stage=3 overlap=on micro_batch=2"},
                  {"cp=2 micro_batch=2"},
                  {"dp=2 cp=2 tp=2 pp=2 micro_batch=2", {3, 1}},
                  {"granularity=full micro_batch=2"}});
  }
}

TEST_CASE(
    "graphs: an encoder and a decoder joined by cross attention, one table with three holders, two losses") {
  const plan::GraphModel model = plan::EncoderDecoder(3, 3);
  const Trained one = Run(model, "micro_batch=2");
  CHECK(one.losses[3] != one.losses[0]);
  REQUIRE(one.metrics[0].size() == 2);
  for (size_t i = 0; i < one.losses.size(); ++i) {
    CHECK(one.losses[i] ==
          doctest::Approx(plan::kClassWeight * one.metrics[i][0] + one.metrics[i][1]).epsilon(1e-12));
  }
  CheckLayouts(model, one,
               {{"micro_batch=8"},
                {"pp=2 micro_batch=2", {2, 4}},
                {"pp=2 micro_batch=2", {4, 2}},
                {"pp=3 micro_batch=2", {3, 2, 1}},
                {"pp=3 micro_batch=1", {1, 3, 2}},
                {"pp=4 micro_batch=2", {3, 1, 1, 1}},
                {"pp=2 virtual_stages=2 micro_batch=2", {3, 1, 1, 1}},
                {"pp=3 schedule=zero_bubble micro_batch=1", {1, 3, 2}},
                {"pp=4 schedule=zero_bubble micro_batch=1", {3, 1, 1, 1}},
                {"tp=2 micro_batch=2"},
                {"tp=2 sequence_parallel=true micro_batch=2"},
                {"dp=2 micro_batch=2"},
                {"dp=2 zero_stage=3 overlap=on micro_batch=2"},
                {"cp=2 micro_batch=2"},
                {"tp=2 overlap=on micro_batch=4"},
                {"tp=2 pp=3 micro_batch=2", {1, 3, 2}},
                {"tp=2 pp=2 overlap=on micro_batch=4", {4, 2}},
                {"cp=2 pp=2 micro_batch=2", {4, 2}},
                {"dp=2 cp=2 tp=2 pp=2 micro_batch=2", {2, 4}},
                {"granularity=full pp=2 micro_batch=2", {3, 3}}});
}

// Heads split by tp, and by cp, which splits no weight: each rank there reads its part of all sinks; sequences in two pieces
// (cp = 4, more than there are kv heads in the last block); half-batches; dropout of attention.
TEST_CASE("graphs: a decoder with soft caps, linear biases, sinks and the forms of rotation") {
  const plan::GraphModel model = plan::AttentionForms();
  const Trained one = Run(model, "micro_batch=2");
  CHECK(one.losses[3] != one.losses[0]);
  CheckLayouts(model, one,
               {{"micro_batch=8"},
                {"tp=2 micro_batch=2"},
                {"tp=2 sequence_parallel=true micro_batch=2"},
                {"tp=2 cp=2 micro_batch=2"},
                {"cp=2 micro_batch=2"},
                {"cp=4 micro_batch=2"},
                {"dp=2 zero_stage=3 overlap=on micro_batch=2"},
                {"tp=2 overlap=on micro_batch=4"},
                {"pp=2 schedule=zero_bubble micro_batch=2"},
                {"dp=2 cp=2 tp=2 pp=2 micro_batch=2"},
                {"granularity=full micro_batch=2"}});
}

// Biases are parameters here, whose gradient attention adds up itself.
TEST_CASE("graphs: a decoder with trained biases by distance") {
  const plan::GraphModel model = plan::DistanceBiases();
  const Trained one = Run(model, "micro_batch=2");
  CHECK(one.losses[3] != one.losses[0]);
  CheckLayouts(model, one,
               {{"micro_batch=8"},
                {"tp=2 micro_batch=2"},
                {"tp=2 sequence_parallel=true micro_batch=2"},
                {"tp=2 cp=2 micro_batch=2"},
                {"cp=2 micro_batch=2"},
                {"cp=4 micro_batch=2"},
                {"dp=2 zero_stage=3 overlap=on micro_batch=2"},
                {"tp=2 overlap=on micro_batch=4"},
                {"pp=2 schedule=zero_bubble micro_batch=2"},
                {"dp=2 cp=2 tp=2 pp=2 micro_batch=2"},
                {"granularity=full micro_batch=2"}});
}

}  // namespace engine::train::testing
