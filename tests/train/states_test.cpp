// States of a model's own: a counter, an average of what each microbatch gives, and one that lives as long as its process.
// They have kernels here alone.
#include <array>
#include <atomic>
#include <cmath>

#include "engine/compile/compile.h"
#include "engine/verify/verify.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

using graph::Placement;
using graph::TensorType;
using graph::TypeSpan;
using graph::ValueId;
using graph::ValueIds;

constexpr double kRate = 0.75;

template <int which>
absl::StatusOr<std::vector<TensorType>> TypeOf(TypeSpan inputs, const graph::Attributes&) {
  return std::vector<TensorType>{inputs[which]};
}
graph::Work NoWork(TypeSpan, TypeSpan, const graph::Attributes&) { return {}; }

absl::StatusOr<std::vector<TensorType>> OneNumber(TypeSpan, const graph::Attributes&) {
  return std::vector<TensorType>{{.shape = {1}, .dtype = DType::kF32}};
}
// Of what lies split, each rank has a part of the sum.
std::vector<graph::Signature> SumPlacements(TypeSpan inputs, const graph::Attributes&,
                                            const graph::AxisRule&) {
  std::vector<graph::Signature> all;
  for (int dim = 0; dim < inputs[0].shape.rank(); ++dim)
    all.push_back({.inputs = {Placement::S(dim), Placement::S(dim)}, .outputs = {Placement::P()}});
  all.push_back({.inputs = {Placement::R(), Placement::R()}, .outputs = {Placement::R()}, .fallback = true});
  return all;
}
template <int count>
std::vector<graph::Signature> Whole(TypeSpan, const graph::Attributes&, const graph::AxisRule&) {
  return {{.inputs = std::vector<Placement>(count, Placement::R()),
           .outputs = {Placement::R()},
           .fallback = true}};
}

// lse, target → Σ (lse − target)
const graph::OpDef kNats = {
    .name = "test_nats", .infer = OneNumber, .work = NoWork, .signatures = SumPlacements};
// x, state → kRate · state + (1 − kRate) · x
const graph::OpDef kAverage = {
    .name = "test_average", .infer = TypeOf<1>, .work = NoWork, .signatures = Whole<2>, .in_place_input = 1};
// state → state + 1
const graph::OpDef kCount = {
    .name = "test_count", .infer = TypeOf<0>, .work = NoWork, .signatures = Whole<1>, .in_place_input = 0};
// state → state, seen by the test
const graph::OpDef kLook = {.name = "test_look", .infer = TypeOf<0>, .work = NoWork, .signatures = Whole<1>};

std::atomic<double> looked{0};

class OwnLaunch final : public backend::Launch {
 public:
  explicit OwnLaunch(backend::LaunchArgs args) : args_(std::move(args)) {}
  absl::Status Run(const backend::KernelContext&) override {
    const graph::OpDef* op = args_.instruction->op();
    const backend::TensorView& out = args_.outputs[0];
    if (op == &kNats) {
      double sum = 0;
      for (std::int64_t i = 0; i < args_.inputs[0].shape.elements(); ++i)
        sum += args_.inputs[0].as<float>()[i] - args_.inputs[1].as<float>()[i];
      *out.as<float>() = static_cast<float>(sum);
    } else if (op == &kAverage) {
      *out.as<float>() = static_cast<float>(kRate * *args_.inputs[1].as<float>() +
                                            (1 - kRate) * *args_.inputs[0].as<float>());
    } else if (op == &kCount) {
      for (std::int64_t i = 0; i < out.shape.elements(); ++i)
        out.as<double>()[i] = args_.inputs[0].as<double>()[i] + 1;
    } else {
      looked = *args_.inputs[0].as<double>();
      *out.as<double>() = looked;
    }
    return absl::OkStatus();
  }

 private:
  backend::LaunchArgs args_;
};

class OwnBackend final : public backend::cpu::CpuBackend {
 public:
  OwnBackend() : CpuBackend(1) {}
  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::LaunchArgs args) override {
    for (const graph::OpDef* own : {&kNats, &kAverage, &kCount, &kLook}) {
      if (args.instruction->op() == own) return std::make_unique<OwnLaunch>(std::move(args));
    }
    return CpuBackend::Prepare(std::move(args));
  }
};

ValueId Find(const graph::Graph& graph, std::string_view name) {
  for (size_t v = 0; v < graph.values().size(); ++v) {
    if (graph.values()[v].name == name) return static_cast<ValueId>(v);
  }
  FAIL("no value " << name);
  return graph::kNoValue;
}

constexpr std::int64_t kCounters = 4;

ValueId AddCounter(graph::Graph* graph) {
  return graph->AddState("microbatches", {.shape = {kCounters}, .dtype = DType::kF64}, {.fill = {100, 200}});
}

// The average starts at 2; the counters at 100, 200, 100 and 200, and those of the session at 0.
void AddStates(graph::Graph* graph) {
  const ValueId counter = AddCounter(graph);
  const ValueId session = graph->AddState("of_session", {.shape = {1}, .dtype = DType::kF64},
                                          {.life = graph::Lifetime::kSession});
  const ValueId average = graph->AddState("average", {.shape = {1}, .dtype = DType::kF32}, {.fill = {2}});
  graph->Emit(kCount, "count", {counter}, {}, std::array<ValueId, 1>{counter});
  graph->Emit(kCount, "count_session", {session}, {}, std::array<ValueId, 1>{session});
  const ValueIds statistics =
      graph->Emit(ops::kCrossEntropy, "again.cross_entropy", {Find(*graph, "head"), Find(*graph, "labels")},
                  {{"classes", std::int64_t{300}}});
  for (ValueId statistic : statistics) graph->value(statistic).pin = graph::Pin::kReplicated;
  const ValueId nats = graph->Emit1(kNats, "nats", {statistics[0], statistics[1]});
  graph->Emit(kAverage, "average", {nats, average}, {}, std::array<ValueId, 1>{average});
}

struct Ranks {
  explicit Ranks(const std::string& sets)
      : recipe(MakeRecipe(kLlamaLike, SetsOf(sets))), device(CpuDevice()) {
    device.make_backend = [](std::int64_t, std::int64_t) { return std::make_unique<OwnBackend>(); };
    const compile::CompileOptions options{.profile = device.profile};
    const absl::StatusOr<compile::Policy> policy = compile::ResolvePolicy(recipe, options);
    Must(policy.status());
    const auto build = [&] {
      return model::BuildModel(recipe, {.batch = policy->microbatch_samples,
                                        .sequence = policy->sequence,
                                        .vocab_multiple = policy->vocab_rows,
                                        .dtype = DType::kF32,
                                        .dropout = false,
                                        .global_samples = static_cast<double>(policy->global_batch),
                                        .init_std = recipe.model.init_std});
    };
    graph::Graph train = build();
    AddStates(&train);
    graph::Graph evaluate = build();
    evaluate.Emit1(kLook, "look", {AddCounter(&evaluate)});
    absl::StatusOr<compile::Compiled> compiled =
        compile::Compile(*policy, std::move(train), std::move(evaluate), options);
    Must(compiled.status());
    plan = std::move(compiled->plan);
    Must(verify::Verify(plan, {}));
    absl::StatusOr<std::unique_ptr<state::Ranks>> created = state::Ranks::Create(plan, device, 7);
    Must(created.status());
    ranks = *std::move(created);
    Must(
        ranks->Run([&](executor::RankExecutor& rank) { return state::InitializeParameters(plan, 7, rank); }));
  }
  static void Must(const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), Message(status)); }

  // Nats of each of the iterations [begin, end).
  std::vector<double> Train(int begin, int end) const {
    std::vector<double> nats;
    for (int i = begin; i < end; ++i) {
      std::vector<double> sums(static_cast<size_t>(plan.mesh.world()));
      Must(ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
        ASSIGN_OR_RETURN(const executor::IterationResult result,
                         rank.Train(i, i + 1, 1e-2, CounterFeed(plan, i * plan.global_batch)));
        sums[static_cast<size_t>(rank.rank())] = result.sums[0];
        return absl::OkStatus();
      }));
      nats.push_back(sums[0]);
    }
    return nats;
  }
  void Evaluate() const {
    Must(ranks->Run(
        [&](executor::RankExecutor& rank) { return rank.Evaluate(CounterFeed(plan, 500)).status(); }));
  }
  // All numbers of a state, equal on every rank that holds it.
  std::vector<double> StateOf(const std::string& name) const {
    std::vector<double> numbers;
    for (const auto& rank : ranks->executors()) {
      for (size_t i = 0; i < rank->stage().states.size(); ++i) {
        if (plan.StateName(rank->stage().states[i]) != name) continue;
        const backend::TensorView view = rank->State(i);
        std::vector<double> mine;
        for (std::int64_t n = 0; n < view.shape.elements(); ++n)
          mine.push_back(view.dtype == DType::kF64 ? view.as<double>()[n]
                                                   : static_cast<double>(view.as<float>()[n]));
        if (!numbers.empty()) CHECK(numbers == mine);
        numbers = mine;
      }
    }
    REQUIRE(!numbers.empty());
    return numbers;
  }
  std::string Save(const std::string& root) const {
    Must(state::SaveCheckpoint(plan, root,
                               {.iteration = 3,
                                .consumed_samples = 24,
                                .seed = 7,
                                .optimizer_steps = 3,
                                .plan_hash = plan.hash,
                                .recipe_toml = "",
                                .engine_version = "test",
                                .mesh = {}},
                               *ranks));
    return checkpoint::IterationPath(root, 3);
  }
  void Load(const std::string& folder) const {
    const auto reader = checkpoint::Reader::Open(folder);
    Must(reader.status());
    Must(ranks->Run(
        [&](executor::RankExecutor& rank) { return state::LoadCheckpoint(plan, *reader, true, rank); }));
  }

  recipe::Recipe recipe;
  state::Device device;
  plan::Plan plan;
  std::unique_ptr<state::Ranks> ranks;
};

}  // namespace

TEST_CASE(
    "states: a model's own begin as it says, and its nodes move them, once a microbatch, in training alone") {
  const Ranks one("micro_batch=8");
  CHECK((one.StateOf("state/microbatches") == std::vector<double>{100, 200, 100, 200}));
  CHECK((one.StateOf("state/of_session") == std::vector<double>{0}));
  CHECK((one.StateOf("state/average") == std::vector<double>{2}));
  double average = 2;
  for (const double nats : one.Train(0, 3)) average = kRate * average + (1 - kRate) * nats;
  CHECK(one.StateOf("state/average")[0] == doctest::Approx(average).epsilon(1e-6));
  CHECK((one.StateOf("state/microbatches") == std::vector<double>{103, 203, 103, 203}));
  one.Evaluate();
  CHECK(looked == 103);
  CHECK((one.StateOf("state/microbatches") == std::vector<double>{103, 203, 103, 203}));
  CHECK((one.StateOf("state/of_session") == std::vector<double>{3}));
}

TEST_CASE("states: the same in every layout, and through checkpoints of another") {
  const TempDir folder;
  const Ranks one("micro_batch=2");
  one.Train(0, 3);
  const std::string saved = one.Save(folder / "one");
  one.Train(3, 5);
  const double average = one.StateOf("state/average")[0];
  const std::vector<double> counters = {120, 220, 120, 220};
  CHECK((one.StateOf("state/microbatches") == counters));
  for (const char* sets :
       {"dp=2 micro_batch=1", "tp=2 micro_batch=2", "cp=2 micro_batch=2", "pp=2 micro_batch=2",
        "pp=2 virtual_stages=2 micro_batch=2", "dp=2 pp=2 zero_stage=2 micro_batch=1",
        "pp=2 schedule=zero_bubble micro_batch=2 granularity=full"}) {
    CAPTURE(sets);
    const Ranks whole(sets);
    whole.Train(0, 5);
    CHECK(whole.StateOf("state/average")[0] == doctest::Approx(average).epsilon(1e-5));
    CHECK((whole.StateOf("state/microbatches") == counters));
    CHECK((whole.StateOf("state/of_session") == std::vector<double>{20}));
    const Ranks resumed(sets);
    resumed.Load(saved);
    CHECK((resumed.StateOf("state/microbatches") == std::vector<double>{112, 212, 112, 212}));
    resumed.Train(3, 5);
    CHECK(resumed.StateOf("state/average")[0] == doctest::Approx(average).epsilon(1e-5));
    CHECK((resumed.StateOf("state/microbatches") == counters));
    CHECK((resumed.StateOf("state/of_session") == std::vector<double>{8}));  // as long as the process
    resumed.Evaluate();
    CHECK(looked == 120);
  }
}

TEST_CASE("states: what is broken in a plan's states is reported") {
  const Ranks good("pp=2 micro_batch=2");
  CHECK(verify::VerifyStates(good.plan).ok());
  const auto refused = [&](const std::string& text, const std::function<void(plan::Plan&)>& mutate) {
    plan::Plan plan = good.plan;
    mutate(plan);
    CAPTURE(text);
    CHECK(Contains(Message(verify::VerifyStates(plan)), text));
    CHECK_FALSE(verify::Verify(plan, {}).ok());
  };
  const auto segment = [](plan::Plan& plan, bool evaluates) -> std::vector<plan::Instruction>& {
    const plan::Chunk& chunk = plan.stages[1].chunks[0];
    return plan.stages[1]
        .segments[static_cast<size_t>(evaluates ? chunk.evaluate().forward : chunk.train().forward)]
        .instructions;
  };
  const auto counts = [&](plan::Plan& plan) {
    for (const plan::Instruction& instruction : segment(plan, false)) {
      if (instruction.op() == &kCount) return instruction;
    }
    FAIL("nothing counts");
    return plan::Instruction();
  };
  refused("stage 1 train: 2 instructions write state/microbatches, not 1",
          [&](plan::Plan& plan) { segment(plan, false).push_back(counts(plan)); });
  refused("stage 1 evaluate: 1 instructions write state/microbatches, not 0",
          [&](plan::Plan& plan) { segment(plan, true).push_back(counts(plan)); });
  refused("stages 0 and 1 both hold state/microbatches",
          [](plan::Plan& plan) { plan.stages[0].states.push_back(plan.stages[1].states[0]); });
  refused("has a buffer of 3 numbers, not 4",
          [](plan::Plan& plan) { plan.stages[1].states[0].buffer.elements = 3; });
  refused("of 4 numbers starts as 5", [](plan::Plan& plan) { plan.stages[1].states[0].spec.fill.resize(5); });
  refused("stage 1: scales of 0 bytes for states of 32", [](plan::Plan& plan) {
    plan.stages[1].states[0].spec.update = graph::StateUpdate::kScales;
    plan.stages[1].states[0].buffer.offset = 0;
    plan.stages[1].scales = {.dtype = DType::kF64};
  });
  // Two states in one place, and one that a segment looks for elsewhere.
  plan::Plan plan = good.plan;
  plan.stages[1].states[1].buffer.offset = plan.stages[1].states[0].buffer.offset;
  CHECK(Contains(Message(verify::VerifySegments(plan)), "overlaps"));
  plan = good.plan;
  plan.stages[1].states[0].buffer.offset += 64;
  CHECK_FALSE(verify::VerifySegments(plan).ok());
}

}  // namespace engine::train::testing
