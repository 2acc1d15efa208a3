// Parameters that are trained otherwise than the rest (graph::TrainingSettings): frozen ones, and those with a learning rate
// or a weight decay of their own.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"
#include "engine/verify/verify.h"
#include "tests/data/temp_dir.h"
#include "tests/graphs/graphs.h"
#include "tests/train/equality.h"
#include "tests/train/testing.h"

namespace engine::train::testing {
namespace {

using graph::TrainingSettings;
using SettingsOf = std::function<TrainingSettings(const std::string& name)>;

struct Setup {
  Setup(const plan::GraphModel& of, const SettingsOf& settings, const std::string& sets,
        const std::vector<std::int64_t>& blocks = {}, const char* optimizer = kAdamW)
      : model(plan::WithTraining(of, settings)),
        recipe(MakeRecipe(kLlamaLike, testing::SetsOf(sets), optimizer)) {
    absl::StatusOr<plan::Plan> made = plan::PlanOfGraph(recipe, model, device.profile, blocks);
    REQUIRE_MESSAGE(made.ok(), Message(made.status()));
    plan = *std::move(made);
    const absl::Status lawful = verify::Verify(plan, {});
    REQUIRE_MESSAGE(lawful.ok(), Message(lawful));
  }
  executor::FeedFunction Feed(std::int64_t first_sample) const {
    return NamedFeed(plan, first_sample, model.limits);
  }
  Trained Run(int iterations) const {
    return TrainFor(recipe, plan, iterations, device,
                    [&](const plan::Plan&, std::int64_t first_sample) { return Feed(first_sample); });
  }

  plan::GraphModel model;
  recipe::Recipe recipe;
  state::Device device = CpuDevice();
  plan::Plan plan;
};

SettingsOf Frozen(const std::vector<std::string>& prefixes) {
  return [prefixes](const std::string& name) {
    const bool frozen = std::any_of(prefixes.begin(), prefixes.end(),
                                    [&](const std::string& prefix) { return name.starts_with(prefix); });
    return TrainingSettings{.frozen = frozen};
  };
}

struct SettingsCase {
  const char* sets;
  std::vector<std::int64_t> blocks = {};  // of each chunk; empty: balanced
};

// Frozen weights keep their bits and have no gradient; all others move.
void CheckMoves(const Setup& setup, const Trained& trained) {
  for (size_t p = 0; p < trained.names.size(); ++p) {
    INFO(trained.names[p]);
    const bool frozen = setup.plan.parameters[p].training.frozen;
    CHECK((trained.weights[p] == trained.initial[p]) == frozen);
    const std::vector<float>& gradient = trained.gradients[0][p];
    const bool zero = std::all_of(gradient.begin(), gradient.end(), [](float g) { return g == 0; });
    CHECK(zero == frozen);
  }
}

// Each layout gives one rank's numbers; and the gradients of what is trained are, at the same weights, those of a run
// that trains all.
void CheckFrozen(const plan::GraphModel& model, const SettingsOf& settings,
                 const std::vector<SettingsCase>& cases) {
  const Setup setup(model, settings, "micro_batch=2");
  const Trained one = setup.Run(3);
  CheckMoves(setup, one);
  CHECK(one.losses[2] != one.losses[0]);
  const Trained all = Setup(model, Frozen({}), "micro_batch=2").Run(1);
  CHECK(one.losses[0] == all.losses[0]);
  double squares = 0;
  for (size_t p = 0; p < one.names.size(); ++p) {
    if (setup.plan.parameters[p].training.frozen) continue;
    INFO(one.names[p]);
    CHECK(one.gradients[0][p] == all.gradients[0][p]);
    for (float g : one.gradients[0][p]) squares += static_cast<double>(g) * g;
  }
  CHECK(one.grad_norms[0] == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
  for (const SettingsCase& c : cases) {
    CAPTURE(std::string(c.sets));
    const Setup other(model, settings, c.sets, c.blocks);
    const Trained trained = other.Run(3);
    CheckEqual(one, trained);
    CheckMoves(other, trained);
  }
}

}  // namespace

TEST_CASE("frozen: embeddings and the first layers, in every layout") {
  CheckFrozen(plan::Encoder(4), Frozen({"table", "places", "encoder.0.", "encoder.1."}),
              {{"micro_batch=8"},
               {"tp=2 micro_batch=2"},
               {"tp=2 sequence_parallel=true micro_batch=2"},
               {"pp=2 micro_batch=2", {1, 3}},  // all of stage 0 is frozen
               {"pp=2 micro_batch=2", {2, 2}},
               {"pp=2 micro_batch=2", {3, 1}},
               {"pp=2 schedule=zero_bubble micro_batch=2", {3, 1}},
               {"pp=2 schedule=zero_bubble micro_batch=2", {1, 3}},
               {"pp=2 virtual_stages=2 micro_batch=2"},
               {"dp=2 zero_stage=1 micro_batch=2"},
               {"dp=2 zero_stage=2 micro_batch=2"},
               {"dp=2 zero_stage=3 micro_batch=2"},
               {"dp=2 zero_stage=3 overlap=on micro_batch=2"},
               {"tp=2 overlap=on micro_batch=4"},
               {"cp=2 micro_batch=2"},
               {"granularity=full micro_batch=2"},
               {"dp=2 tp=2 pp=2 zero_stage=1 micro_batch=2"}});
}

TEST_CASE("frozen: the last layers and the head, through which gradients pass") {
  CheckFrozen(plan::Encoder(4), Frozen({"encoder.2.", "encoder.3.", "encoder.norm", "class."}),
              {{"tp=2 micro_batch=2"},
               {"pp=2 micro_batch=2", {2, 2}},  // all of stage 1 is frozen
               {"pp=2 schedule=zero_bubble micro_batch=2", {2, 2}},
               {"dp=2 zero_stage=3 micro_batch=2"},
               {"dp=2 pp=2 overlap=on micro_batch=2"}});
}

TEST_CASE("frozen: a table that three stages hold") {
  CheckFrozen(plan::Ladder(4), Frozen({"table"}),
              {{"pp=4 micro_batch=1"},
               {"tp=2 pp=4 micro_batch=2"},
               {"dp=2 pp=4 zero_stage=1 micro_batch=2"},
               {"pp=4 schedule=zero_bubble micro_batch=2"},
               {"dp=2 pp=2 virtual_stages=2 zero_stage=3 overlap=on micro_batch=2"}});
}

TEST_CASE("frozen: single parameters of a norm and of products") {
  CheckFrozen(
      plan::Ladder(4),
      [](const std::string& name) {
        return TrainingSettings{.frozen = name.ends_with("norm.weight") || name.ends_with("fc1.weight")};
      },
      {{"tp=2 micro_batch=2"}, {"dp=2 zero_stage=2 micro_batch=2"}, {"pp=2 micro_batch=2"}});
}

TEST_CASE("frozen: no gradients, no states, and nothing is saved for a backward pass that is not") {
  const plan::GraphModel model = plan::Encoder(4);
  const Setup all(model, Frozen({}), "micro_batch=2");
  const Setup some(model, Frozen({"table", "places", "encoder.0.", "encoder.1."}), "micro_batch=2");
  std::int64_t trained_elements = 0;
  for (const plan::Bucket& bucket : some.plan.stages[0].buckets)
    trained_elements += bucket.frozen() ? 0 : bucket.elements;
  const plan::MemoryBreakdown& before = all.plan.stages[0].memory;
  const plan::MemoryBreakdown& after = some.plan.stages[0].memory;
  CHECK(after.gradients == trained_elements * 4);
  CHECK(after.optimizer == 2 * after.gradients);
  CHECK(after.gradients < 0.6 * static_cast<double>(before.gradients));
  CHECK(after.activations < 0.6 * static_cast<double>(before.activations));
  CHECK(some.plan.stages[0].arena_bytes < 0.7 * static_cast<double>(all.plan.stages[0].arena_bytes));
  CHECK(some.plan.stages[0].flops < 0.75 * all.plan.stages[0].flops);
  CHECK(some.plan.hash != all.plan.hash);
}

namespace {

std::unique_ptr<state::Ranks> Begin(const Setup& setup) {
  auto ranks = state::Ranks::Create(setup.plan, setup.device, 7);
  REQUIRE_MESSAGE(ranks.ok(), Message(ranks.status()));
  const absl::Status made = (*ranks)->Run(
      [&](executor::RankExecutor& rank) { return state::InitializeParameters(setup.plan, 7, rank); });
  REQUIRE_MESSAGE(made.ok(), Message(made));
  return *std::move(ranks);
}

void Train(const Setup& setup, state::Ranks& ranks, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    const executor::FeedFunction feed = setup.Feed(i * setup.plan.global_batch);
    const absl::Status trained =
        ranks.Run([&](executor::RankExecutor& rank) { return rank.Train(i, i + 1, 1e-2, feed).status(); });
    REQUIRE_MESSAGE(trained.ok(), Message(trained));
  }
}

absl::Status Load(const Setup& setup, state::Ranks& ranks, const std::string& folder) {
  const auto reader = checkpoint::Reader::Open(folder);
  RETURN_IF_ERROR(reader.status());
  return ranks.Run([&](executor::RankExecutor& rank) {
    return state::LoadCheckpoint(setup.plan, *reader, /*with_optimizer=*/true, rank);
  });
}

std::vector<std::vector<float>> WeightsOf(const Setup& setup, state::Ranks& ranks) {
  std::vector<std::vector<float>> weights(setup.plan.parameters.size());
  for (size_t p = 0; p < weights.size(); ++p) {
    const absl::Status gathered =
        state::GatherParameter(setup.plan, ranks, static_cast<std::int32_t>(p), &weights[p]);
    REQUIRE_MESSAGE(gathered.ok(), Message(gathered));
  }
  return weights;
}

}  // namespace

TEST_CASE("frozen: a run goes on from a checkpoint, in another layout too") {
  const data::TempDir folder;
  const plan::GraphModel model = plan::Ladder(4);
  const SettingsOf settings = Frozen({"table", "blocks.0."});
  const Setup one(model, settings, "micro_batch=2");
  const std::unique_ptr<state::Ranks> ranks = Begin(one);
  Train(one, *ranks, 0, 2);
  const absl::Status saved = state::SaveCheckpoint(one.plan, folder / "out",
                                                   {.iteration = 2,
                                                    .consumed_samples = 16,
                                                    .seed = 7,
                                                    .optimizer_steps = 2,
                                                    .plan_hash = one.plan.hash,
                                                    .recipe_toml = "",
                                                    .engine_version = "test",
                                                    .mesh = {}},
                                                   *ranks);
  REQUIRE_MESSAGE(saved.ok(), Message(saved));
  const std::string path = checkpoint::IterationPath(folder / "out", 2);
  const std::vector<std::vector<float>> at_two = WeightsOf(one, *ranks);
  Train(one, *ranks, 2, 4);
  const std::vector<std::vector<float>> at_four = WeightsOf(one, *ranks);
  for (const char* sets :
       {"micro_batch=2", "tp=2 pp=4 micro_batch=2", "dp=2 pp=2 zero_stage=3 micro_batch=2"}) {
    CAPTURE(std::string(sets));
    const Setup other(model, settings, sets);
    const std::unique_ptr<state::Ranks> resumed = Begin(other);
    const absl::Status loaded = Load(other, *resumed, path);
    REQUIRE_MESSAGE(loaded.ok(), Message(loaded));
    CHECK(WeightsOf(other, *resumed) == at_two);
    Train(other, *resumed, 2, 4);
    const std::vector<std::vector<float>> weights = WeightsOf(other, *resumed);
    for (size_t p = 0; p < weights.size(); ++p) {
      INFO(other.plan.parameters[p].name);
      double scale = 0;
      // Two updates of 1e-2 amplify a difference of gradients by at most 1e-2 / epsilon = 10 each.
      CHECK(LargestDifference(at_four[p], weights[p], &scale) <= 20 * kBound);
      if (other.plan.parameters[p].training.frozen) CHECK(weights[p] == at_two[p]);
    }
  }
  const auto reader = checkpoint::Reader::Open(path);
  REQUIRE(reader.ok());
  CHECK(reader->Find("table") != nullptr);
  CHECK(reader->Find("adam.m/table") == nullptr);
  CHECK(reader->Find("adam.m/blocks.0.fc1.weight") == nullptr);
  CHECK(reader->Find("adam.m/blocks.1.fc1.weight") != nullptr);

  const Setup thawed(model, Frozen({"table"}), "micro_batch=2");
  const std::unique_ptr<state::Ranks> refused = Begin(thawed);
  const std::string message = Message(Load(thawed, *refused, path));
  for (const char* text :
       {"has no tensor adam.m/blocks.0.", "was frozen in the run that wrote it, and is not in this recipe"}) {
    CHECK_MESSAGE(message.find(text) != std::string::npos, message);
  }
}

namespace {

constexpr double kScale = 0.25;
constexpr double kDecay = 0.3;

// A quarter of the learning rate for one block, a weight decay of its own for another block and for a gain, both for the
// head's norm.
TrainingSettings Groups(const std::string& name) {
  if (name.starts_with("blocks.1.")) return {.learning_rate_scale = kScale};
  if (name.starts_with("blocks.2.")) return {.weight_decay = kDecay};
  if (name.starts_with("blocks.3.")) return {.weight_decay = 0.0};
  if (name.starts_with("final_norm")) return {.learning_rate_scale = 2, .weight_decay = kDecay};
  return {};
}

// The optimizers' formulas (plan/optimizer.cpp) in float64, of the gradients that the run itself has reduced.
struct Formula {
  const recipe::Optimizer& o;
  double rate, decay;

  std::vector<double> Weights(const Trained& trained, size_t p, double* largest) const {
    std::vector<double> weights(trained.initial[p].begin(), trained.initial[p].end());
    std::vector<double> m(weights.size()), v(weights.size());
    for (size_t i = 0; i < trained.gradients.size(); ++i) {
      const double clip = std::min(1.0, o.clip_grad_norm / (trained.grad_norms[i] + 1e-6));
      for (size_t e = 0; e < weights.size(); ++e) {
        const double g = clip * trained.gradients[i][p][e];
        weights[e] -=
            rate * (o.kind == "sgd" ? Sgd(g, weights[e], &m[e])
                                    : AdamW(g, weights[e], static_cast<double>(i + 1), &m[e], &v[e]));
        *largest = std::max({*largest, std::abs(weights[e]), std::abs(m[e])});
      }
    }
    return weights;
  }
  double Sgd(double g, double weight, double* momentum) const {
    return *momentum = o.momentum * *momentum + g + decay * weight;
  }
  double AdamW(double g, double weight, double step, double* m, double* v) const {
    *m = o.beta1 * *m + (1 - o.beta1) * g;
    *v = o.beta2 * *v + (1 - o.beta2) * g * g;
    const double corrected = *m / (1 - std::pow(o.beta1, step));
    return corrected / (std::sqrt(*v / (1 - std::pow(o.beta2, step))) + o.epsilon) + decay * weight;
  }
};

void CheckGroups(const Setup& setup) {
  constexpr int kIterations = 4;
  const Trained trained = setup.Run(kIterations);
  const recipe::Optimizer& o = setup.recipe.optimizer;
  for (size_t p = 0; p < trained.names.size(); ++p) {
    INFO(trained.names[p]);
    const TrainingSettings settings = Groups(trained.names[p]);
    const bool gain = trained.names[p].ends_with("norm.weight");
    const Formula formula{.o = o,
                          .rate = o.learning_rate * settings.learning_rate_scale,
                          .decay = settings.weight_decay.value_or(gain ? 0.0 : o.weight_decay)};
    double largest = 0;
    const std::vector<double> expected = formula.Weights(trained, p, &largest);
    // The same without settings.
    const Formula plain{.o = o, .rate = o.learning_rate, .decay = gain ? 0.0 : o.weight_decay};
    const std::vector<double> without = plain.Weights(trained, p, &largest);
    double worst = 0;
    double apart = 0;
    for (size_t e = 0; e < expected.size(); ++e) {
      worst = std::max(worst, std::abs(expected[e] - trained.weights[p][e]));
      apart = std::max(apart, std::abs(expected[e] - without[e]));
    }
    // Ten roundings a step of numbers up to the largest; and of AdamW, for gradients near 0, the quotient of the moments
    // adds rate · ε₃₂ / epsilon.
    const double quotient = o.kind == "sgd" ? 0.0 : formula.rate / o.epsilon;
    const double bound = kIterations * (10 * largest + quotient) * 0x1p-24;
    CHECK(worst <= bound);
    const bool different = formula.rate != plain.rate || formula.decay != plain.decay;
    if (different) CHECK(apart > 10 * bound);
    if (!different) CHECK(apart == 0);
  }
}

}  // namespace

TEST_CASE("groups: the weights move by the formulas with a learning rate and a weight decay of their own") {
  for (const char* optimizer : {kAdamW, kSgd}) {
    for (const char* sets : {"micro_batch=4", "dp=2 micro_batch=2", "dp=2 zero_stage=1 micro_batch=2",
                             "dp=2 zero_stage=3 micro_batch=1", "tp=2 micro_batch=4", "pp=4 micro_batch=2",
                             "dp=2 tp=2 zero_stage=1 overlap=on micro_batch=2"}) {
      CAPTURE(std::string(sets));
      CheckGroups(Setup(plan::Ladder(4), Groups, sets, {}, optimizer));
    }
  }
}

}  // namespace engine::train::testing
