// A bit that turns in one rank's weights is found within guard.hash_interval iterations, and the rank is named.
#include "engine/state/copies.h"

#include <cmath>

#include "engine/train/outcome.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

// Which rank's weights change behind the program's back, and when.
struct Flip {
  std::int64_t rank = 0;
  std::uint64_t iteration = 0;  // from 0
  int training = 1;             // of that iteration: the first, or a later one
};

// Turns the lowest bit of the last weight that the rank's last update makes.
class FlippingUpdate final : public backend::LaunchAround {
 public:
  FlippingUpdate(std::unique_ptr<backend::Launch> inner, const backend::TensorView& weights, const Flip& flip)
      : LaunchAround(std::move(inner)), weights_(weights), flip_(flip) {}
  absl::Status Run(const backend::KernelContext& context) override {
    RETURN_IF_ERROR(LaunchAround::Run(context));
    float& weight = weights_.as<float>()[weights_.shape.elements() - 1];
    if (context.iteration == flip_.iteration && ++trainings_ == flip_.training)
      weight = std::nextafter(weight, 10.0F);
    return absl::OkStatus();
  }

 private:
  backend::TensorView weights_;
  Flip flip_;
  int trainings_ = 0;
};

class FlippingBackend final : public backend::cpu::CpuBackend {
 public:
  explicit FlippingBackend(const Flip& flip) : CpuBackend(1), flip_(flip) {}
  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::LaunchArgs args) override {
    const bool updates = args.instruction->kernel() == "adamw";
    const backend::TensorView weights = updates ? args.outputs[0] : backend::TensorView();
    ASSIGN_OR_RETURN(std::unique_ptr<backend::Launch> launch, CpuBackend::Prepare(std::move(args)));
    if (!updates) return launch;
    return std::make_unique<FlippingUpdate>(std::move(launch), weights, flip_);
  }

 private:
  Flip flip_;
};

state::Device FlippingDevice(const Flip& flip) {
  state::Device device = CpuDevice();
  const auto make = device.make_backend;
  device.make_backend = [flip, make](std::int64_t rank,
                                     std::int64_t world) -> std::unique_ptr<backend::Backend> {
    if (rank != flip.rank) return make(rank, world);
    return std::make_unique<FlippingBackend>(flip);
  };
  return device;
}

recipe::Recipe CopiesRecipe(const TempDir& folder, std::vector<std::string> sets) {
  sets.insert(sets.end(), {"training.iterations=8", "training.micro_batch=1", "checkpoint.interval=4",
                           "guard.hash_interval=3"});
  return RunRecipe(folder, sets);
}

state::RankHashes Hashes(std::int64_t rank, std::vector<state::PieceHash> pieces) {
  return {.rank = rank, .host = fmt::format("host{}", rank), .pieces = std::move(pieces)};
}

}  // namespace

TEST_CASE("copies: a bit that turned is found at the next comparison, and the rank is named") {
  TempDir folder;
  WriteDataset(folder / "text", 60);
  const recipe::Recipe recipe = CopiesRecipe(folder, {"parallelism.dp=4"});
  struct Case {
    std::int64_t iteration, found;
  };
  // At the interval, and before the checkpoint of iteration 4, which is then not written.
  for (const Case& row : {Case{2, 3}, Case{4, 4}, Case{5, 6}, Case{7, 8}}) {
    for (const std::int64_t rank : {0, 2}) {
      CAPTURE(row.iteration);
      CAPTURE(rank);
      const std::string out = folder / fmt::format("{}-{}", row.iteration, rank);
      const state::Device device = FlippingDevice({rank, static_cast<std::uint64_t>(row.iteration - 1)});
      const RunResult result = RunCaught(recipe, out, false, device);
      CHECK(absl::IsInternal(result.status));
      CHECK(VerdictOf(result.status) == Verdict::kMachine);
      const std::string text(Message(result.status));
      CHECK(Contains(text, fmt::format("after iteration {}: copies of weights differ", row.found)));
      CHECK(Contains(text, fmt::format(": rank {} (", rank)));
      CHECK(Contains(text, "than 3 other ranks that have it, which agree"));
      CHECK(Checkpoints(out).size() == (row.found > 4 ? 1 : 0));
    }
  }
}

TEST_CASE("copies: of two nobody knows which is right") {
  TempDir folder;
  WriteDataset(folder / "text", 60);
  const RunResult result =
      RunCaught(CopiesRecipe(folder, {"parallelism.dp=2"}), folder / "run", false, FlippingDevice({1, 1}));
  const std::string text(Message(result.status));
  CHECK(Contains(text, ": ranks 0 ("));
  CHECK(Contains(text, "hold different bits of "));
  CHECK(Contains(text, "and no majority says which are right"));
}

TEST_CASE(
    "copies: with guard.rerun, a rank whose weights are wrong is named when numbers are bad, or other ones") {
  TempDir folder;
  WriteDataset(folder / "text", 60);
  // Norms are never so small, so the first iteration with a whole window is bad, and trained once more.
  const recipe::Recipe recipe =
      CopiesRecipe(folder, {"parallelism.dp=4", "guard.rerun=true", "guard.on_spike=skip",
                            "guard.spike_window=3", "guard.spike_loss=0", "guard.spike_grad_norm=1e-6"});
  for (const int training : {1, 2}) {
    CAPTURE(training);
    recipe::Recipe without = recipe;
    without.guard.hash_interval = 0;
    const RunResult result = RunCaught(without, folder / fmt::format("{}", training), false,
                                       FlippingDevice({.rank = 2, .iteration = 1, .training = training}));
    const std::string text(Message(result.status));
    CHECK(VerdictOf(result.status) == Verdict::kMachine);
    CHECK_MESSAGE(Contains(text, ": rank 2 ("), text);
    CHECK((text.find("and when it was trained once more") != std::string::npos) == (training == 2));
    CHECK((result.output.find("to train the same once more") != std::string::npos) == (training == 2));
  }
}

TEST_CASE("copies: they agree in every layout, and comparing changes nothing") {
  TempDir folder;
  WriteDataset(folder / "text", 60);
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"parallelism.dp=2", "parallelism.tp=2"},
           {"parallelism.pp=2", "parallelism.dp=2", "parallelism.zero_stage=1"},
           {"parallelism.cp=2", "parallelism.dp=2"},
           {"parallelism.dp=2", "parallelism.zero_stage=3"},
           {"parallelism.tp=2", "parallelism.sequence_parallel=true"}}) {
    CAPTURE(layout[0] + layout[1]);
    const std::string out = folder / (layout[0] + layout[1] + layout.back());
    MustRun(CopiesRecipe(folder, layout), out);
    MustRun(CopiesRecipe(folder,
                         [&] {
                           std::vector<std::string> sets = layout;
                           sets.emplace_back("guard.hash_interval=0");
                           return sets;
                         }()),
            out + " without");
    CHECK(TimelessMetrics(out) == TimelessMetrics(out + " without"));
  }
}

TEST_CASE("copies: who differs from the most is named, of all pieces the one that says most") {
  const auto compare = [](const std::vector<state::RankHashes>& ranks) {
    return std::string(Message(state::CompareCopies(ranks)));
  };
  CHECK(state::CompareCopies({}).ok());
  CHECK(state::CompareCopies(
            {Hashes(0, {{"a", "1"}, {"b", "7"}}), Hashes(1, {{"a", "1"}}), Hashes(2, {{"b", "7"}})})
            .ok());
  CHECK(Contains(compare({Hashes(0, {{"a", "1"}}), Hashes(1, {{"a", "2"}}), Hashes(2, {{"a", "1"}})}),
                 ": rank 1 (host1) holds other bits of a than 2 other ranks that have it, which agree\n"));
  CHECK(Contains(
      compare({Hashes(0, {{"a", "1"}}), Hashes(1, {{"a", "2"}}), Hashes(2, {{"a", "3"}}),
               Hashes(3, {{"a", "1"}})}),
      ": ranks 0 (host0), 1 (host1), 2 (host2), 3 (host3) hold different bits of a, and no majority"));
  CHECK(Contains(
      compare({Hashes(0, {{"a", "1"}, {"b", "1"}}), Hashes(1, {{"a", "2"}, {"b", "1"}}),
               Hashes(2, {{"b", "2"}})}),
      ": rank 2 (host2) holds other bits of b than 2 other ranks that have it, which agree; of 2 pieces"));
}

}  // namespace engine::train::testing
