// Runs that begin with the weights of a checkpoint: those that fit by name, and a dense model's as those of experts.
#include "engine/train/start.h"

#include <cmath>

#include "tests/train/run_testing.h"
#include "tests/train/text_testing.h"

namespace engine::train::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExpertSteps =
    R"(block.mlp.steps=[{ do = "rms_norm", as = "norm", of = "x", epsilon = 1e-5 }, )"
    R"({ do = "route", as = "router", experts = 4, top_k = 2, to = ["choice", "weight"] }, )"
    R"({ do = "experts", as = "experts", of = ["norm", "choice", "weight"], hidden = "F" }, )"
    R"({ do = "residual", as = "residual", of = ["x", "experts"], to = "x" }])";

// Runs of Llama's steps on one data set: the dense one that leaves the checkpoint, and those that begin with it.
struct StartRuns : TempDir {
  StartRuns() { WriteDataset(*this / "text", 60); }

  recipe::Recipe Recipe(const std::vector<std::string>& more) const {
    std::vector<std::string> sets = {"model.dims={ D = 16, L = 2, H = 4, K = 2, E = 4, F = 12, V = 257 }",
                                     "model.vocab_multiple=16",
                                     "model.init_std=0.1",
                                     "data.paths=[\"" + *this / "text" + "\"]",
                                     "data.split=\"8,2,0\"",
                                     "data.sequence_length=16",
                                     "optimizer.learning_rate=1e-2",
                                     "schedule.kind=constant",
                                     "training.global_batch=8",
                                     "training.micro_batch=2",
                                     "training.iterations=3",
                                     "training.seed=5",
                                     "logging.interval=1000"};
    sets.insert(sets.end(), more.begin(), more.end());
    return Loaded(model::Load(ENGINE_SOURCE_DIR "/configs/blocks/llama.toml", {.sets = sets, .root = ""}));
  }
  // One iteration at a learning rate of 0, so that the weights at its end are those that it began with.
  recipe::Recipe Still(std::vector<std::string> more) const {
    more.insert(more.begin(), {"optimizer.learning_rate=0", "training.iterations=1", "training.seed=6",
                               "training.weights_from=\"" + dense + "\""});
    return Recipe(more);
  }
  recipe::Recipe Upcycled(std::vector<std::string> more) const {
    more.insert(more.begin(), {kExpertSteps, "training.upcycle=true"});
    return Still(more);
  }
  std::string Refused(const recipe::Recipe& recipe) const {
    const std::string out = *this / "refused";
    const std::string message = Message(RunCaught(recipe, out).status);
    CHECK(!fs::exists(out + "/metrics.jsonl"));  // before anything is written
    return message;
  }
  // What `engine check` says.
  static std::string Checked(const recipe::Recipe& recipe) {
    const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {.profile = CpuDevice().profile});
    REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
    const std::optional<Diagnostic> found = CheckStart(recipe, *plan);
    return found ? Format(*found) : "";
  }
  double FirstLoss(const std::string& out) const { return IterationMetrics(out).at(0)["loss"]; }

  std::string dense = *this / "dense";
};

// Of the parameters, by the checkpoint's names; optimizer states left out.
std::map<std::string, std::vector<float>> WeightsAlone(const std::string& out, std::int64_t iteration) {
  std::map<std::string, std::vector<float>> weights = TensorsOf(out, iteration);
  std::erase_if(weights, [](const auto& tensor) { return tensor.first.find('/') != std::string::npos; });
  return weights;
}

std::vector<std::string> KeysOf(const std::string& layout) { return SetsOf(layout); }

}  // namespace

TEST_CASE("start: the weights of a checkpoint, at iteration 0 and with a new optimizer, in any layout") {
  const StartRuns runs;
  MustRun(runs.Recipe({}), runs.dense);
  const auto weights = WeightsAlone(runs.dense, 3);
  REQUIRE(weights.size() == 15);
  double first = 0;
  std::map<std::string, std::vector<float>> tensors;
  for (const char* layout : {"dp=1", "dp=2 zero_stage=1", "tp=2", "pp=2", "dp=2 zero_stage=3"}) {
    CAPTURE(std::string(layout));
    const std::string out = runs / layout;
    const std::string said = MustRun(runs.Still(KeysOf(layout)), out);
    CHECK(Contains(said, "weights of " + checkpoint::IterationPath(CheckpointRoot(runs.dense), 3) +
                             " after iteration 3"));
    CHECK((WeightsAlone(out, 1) == weights));
    if (first == 0) first = runs.FirstLoss(out);
    CHECK(runs.FirstLoss(out) == doctest::Approx(first).epsilon(1e-5));
    const auto reader = checkpoint::Reader::Open(checkpoint::IterationPath(CheckpointRoot(out), 1));
    REQUIRE(reader.ok());
    CHECK(reader->metadata().iteration == 1);
    CHECK(reader->metadata().consumed_samples == 8);
    CHECK(reader->metadata().optimizer_steps == 1);
    // After one step the first moments are a tenth of the gradients, and the second 1e-3 of their squares.
    const auto all = TensorsOf(out, 1);
    const auto& m = all.at("adam.m/layers.1.mlp.fc2.weight");
    const auto& v = all.at("adam.v/layers.1.mlp.fc2.weight");
    for (size_t i = 0; i < m.size(); ++i)
      CHECK(v[i] == doctest::Approx(0.1 * static_cast<double>(m[i]) * m[i]).epsilon(1e-4));
  }
  // Another run of other weights, which are drawn, begins elsewhere.
  MustRun(runs.Still({"training.weights_from=\"\""}), runs / "drawn");
  CHECK(std::abs(runs.FirstLoss(runs / "drawn") - first) > 0.01);
}

TEST_CASE("start: a run that is resumed goes on from its own checkpoint, whatever became of the first") {
  const StartRuns runs;
  MustRun(runs.Recipe({}), runs.dense);
  const std::string one = checkpoint::IterationPath(CheckpointRoot(runs.dense), 3);
  const std::vector<std::string> from = {"training.weights_from=\"" + one + "\""};  // a checkpoint by itself
  const auto longer = [&](const char* iterations) {
    std::vector<std::string> sets = from;
    sets.emplace_back(std::string("training.iterations=") + iterations);
    return runs.Recipe(sets);
  };
  MustRun(longer("4"), runs / "whole");
  MustRun(longer("2"), runs / "pieces");
  fs::remove_all(runs.dense);
  const std::string said = MustRun(longer("4"), runs / "pieces");
  CHECK(Contains(said, "after iteration 2"));
  CHECK((TensorsOf(runs / "pieces", 4) == TensorsOf(runs / "whole", 4)));
}

TEST_CASE(
    "start: adapters are drawn beside weights that have none, and taken or refused where there are some") {
  const StartRuns runs;
  MustRun(runs.Recipe({}), runs.dense);
  const std::string fresh =
      MustRunAndNote(runs.Still({"lora.rank=2", "optimizer.learning_rate=1e-2"}), runs / "adapted").notes;
  CHECK(Contains(fresh, "adapters that checkpoint " +
                            checkpoint::IterationPath(CheckpointRoot(runs.dense), 3) +
                            " has not begin anew: 16 tensors"));
  CHECK(fresh.find("drawn, as") == std::string::npos);
  const auto trained = WeightsAlone(runs / "adapted", 1);

  const std::string from = "training.weights_from=\"" + runs / "adapted" + "\"";
  const std::string taken = MustRunAndNote(runs.Still({from, "lora.rank=2"}), runs / "taken").notes;
  CHECK(taken.find("begin anew: ") == std::string::npos);
  CHECK((WeightsAlone(runs / "taken", 1) == trained));
  // Another factor is another model.
  CHECK(Contains(MustRunAndNote(runs.Still({from, "lora.rank=2", "lora.alpha=64"}), runs / "scaled").notes,
                 "not as in the checkpoint: lora.alpha: 16.0 → 64.0"));
  // What is trained does not get lost on the way.
  const std::string all = runs.Refused(runs.Still({from}));
  CHECK(Contains(all, "layers.0.attention.qkv.lora_a [2, 16] is not here"));
  CHECK(Contains(all, "hint: `engine export hf RUN --merge` writes weights with their adapters added"));
}

TEST_CASE("start: experts that are copies of a dense part give its loss, in any layout") {
  const StartRuns runs;
  MustRun(runs.Recipe({}), runs.dense);
  MustRun(runs.Still({}), runs / "again");
  const double loss = runs.FirstLoss(runs / "again");
  const auto dense = WeightsAlone(runs.dense, 3);
  std::map<std::string, std::vector<float>> first;
  for (const char* layout : {"dp=1", "ep=2", "ep=4", "tp=2", "ep=2 tp=2 sequence_parallel=true expert_tp=1",
                             "ep=2 pp=2", "ep=2 dp=2 zero_stage=1", "ep=2 dp=2 zero_stage=3"}) {
    CAPTURE(std::string(layout));
    const std::string out = runs / (std::string("experts ") + layout);
    const std::string said = MustRun(runs.Upcycled(KeysOf(std::string(layout) + " micro_batch=1")), out);
    CHECK(Contains(said, ", 4 matrices of experts as copies of dense ones, routers drawn"));
    // The two weights of a token add up to 1, but for rounding.
    CHECK(runs.FirstLoss(out) == doctest::Approx(loss).epsilon(2e-6));
    const auto weights = WeightsAlone(out, 1);
    if (first.empty()) first = weights;
    CHECK((weights == first));  // routers among them, which are drawn by name
    for (const auto& [name, values] : weights) {
      CAPTURE(name);
      if (name.find("router") != std::string::npos) {
        CHECK(values.size() == size_t{4} * 16);
        CHECK(values[0] != 0);
        continue;
      }
      const size_t part = name.find(".experts");
      std::string of = name;
      if (part != std::string::npos) of.erase(part, std::string(".experts").size());
      const std::vector<float>& one = dense.at(of);
      std::vector<float> expected;
      for (int copy = 0; copy < (part != std::string::npos ? 4 : 1); ++copy)
        expected.insert(expected.end(), one.begin(), one.end());
      CHECK(values == expected);
    }
  }
}

TEST_CASE("start: what does not fit is refused where the recipe names the checkpoint") {
  const StartRuns runs;
  MustRun(runs.Recipe({}), runs.dense);
  const std::string folder = checkpoint::IterationPath(CheckpointRoot(runs.dense), 3);
  const std::string misfit = "checkpoint " + folder + " does not fit this model: ";
  const auto refuses = [&](const recipe::Recipe& recipe, const std::string& text) {
    const std::string message = runs.Refused(recipe);
    CHECK(Contains(message, text));
    CHECK(message.starts_with("--set:"));  // the place, in columns, of the value
    CHECK(Contains(message, ":23: error: "));
    CHECK(Contains(message, "    training.weights_from=\""));
    CHECK(Contains(StartRuns::Checked(recipe), text));
  };
  refuses(runs.Still({"training.weights_from=\"" + runs / "nowhere" + "\""}),
          "there is no folder " + runs / "nowhere");
  refuses(runs.Still({"training.weights_from=\"" + runs.path() + "\""}), "holds no whole checkpoint");
  refuses(runs.Still({"model.dims={ F = 24 }"}),
          misfit +
              "layers.0.mlp.fc1.weight is [2, 12, 16] there, but [2, 24, 16] here; "
              "layers.0.mlp.fc2.weight is [16, 12] there, but [16, 24] here; ");
  refuses(runs.Still({"model.dims={ L = 3 }"}),
          misfit + "layers.2.attention.norm.weight [16] is not there; ");
  refuses(runs.Still({"model.dims={ L = 1 }"}), "layers.1.attention.norm.weight [16] is not here");
  refuses(runs.Still({"model.dims={ L = 1 }"}), "and 1 more");
  CHECK(StartRuns::Checked(runs.Still({})).empty());
  CHECK(Contains(StartRuns::Checked(runs.Still({"training.weights_from=\"" + runs / "nowhere" + "\""})),
                 ":23: note: there is no folder"));  // it may be on another machine
  const recipe::Recipe experts = runs.Still({kExpertSteps});
  refuses(experts,
          "layers.0.mlp.experts.fc1.weight [4, 2, 12, 16] is not there, but layers.0.mlp.fc1.weight "
          "[2, 12, 16]");
  refuses(experts, "hint: training.upcycle = true makes each expert a copy of the dense part");
  const recipe::Recipe narrow = runs.Upcycled({"model.dims={ F = 6 }"});
  refuses(narrow, misfit +
                      "layers.0.mlp.fc1.weight is [2, 12, 16] there, and an expert of "
                      "layers.0.mlp.experts.fc1.weight [4, 2, 6, 16] is no whole copy of it");
  refuses(narrow, "experts that are parts of it (granular upcycling) are not built");

  // Experts of the checkpoint's own are taken as they are, and not made of anything.
  MustRun(runs.Upcycled({}), runs / "experts");
  const std::string own = "training.weights_from=\"" + runs / "experts" + "\"";
  MustRun(runs.Still({kExpertSteps, own}), runs / "taken");
  CHECK((WeightsAlone(runs / "taken", 1) == WeightsAlone(runs / "experts", 1)));
  CHECK(Contains(runs.Refused(runs.Upcycled({own})),
                 "has experts of its own, so that none is made of a dense part"));
}

TEST_CASE(
    "start: with weights_match some, what either side lacks is drawn or left, and listed, in any layout") {
  const StartRuns runs;
  MustRun(runs.Recipe({}), runs.dense);
  const std::string some = "training.weights_match=some";
  const std::string deep = "model.dims={ L = 4 }", flat = "model.dims={ L = 1 }",
                    large = "model.dims={ V = 300 }";
  CHECK(Contains(runs.Refused(runs.Still({deep})), "hint: weights_match = \"some\" draws what is not there"));
  CHECK(Contains(runs.Refused(runs.Still({flat})), "hint: weights_match = \"some\""));
  CHECK(Contains(runs.Refused(runs.Still({large})), "hint: weights_match = \"some\""));

  const auto before = WeightsAlone(runs.dense, 3);
  const std::string notes = MustRunAndNote(runs.Still({deep, some}), runs / "deep").notes;
  CHECK(Contains(notes, "has them not: layers.2 to layers.3 (12 tensors)"));
  const auto deeper = WeightsAlone(runs / "deep", 1);
  for (const auto& [name, values] : before) CHECK((deeper.at(name) == values));
  MustRun(runs.Recipe({deep, "optimizer.learning_rate=0", "training.iterations=1", "training.seed=6"}),
          runs / "drawn");
  const std::string added = "layers.3.mlp.fc1.weight";
  CHECK((deeper.at(added) == WeightsAlone(runs / "drawn", 1).at(added)));

  CHECK(Contains(MustRunAndNote(runs.Still({flat, some}), runs / "flat").notes,
                 "as the model has no place for them: layers.1 (6 tensors)"));

  CHECK(Contains(MustRunAndNote(runs.Still({large, some}), runs / "large").notes,
                 "embedding.tokens: rows 257 to 299 are the mean of the 257 of"));
  const auto larger = WeightsAlone(runs / "large", 1);
  for (const char* name : {"embedding.tokens", "head.weight"}) {
    const std::vector<float>& old = before.at(name);
    const std::vector<float>& now = larger.at(name);
    REQUIRE(now.size() == 300 * 16);
    for (size_t column = 0; column < 16; ++column) {
      double sum = 0;
      for (size_t row = 0; row < 257; ++row) sum += old[row * 16 + column];
      for (size_t row = 257; row < 300; ++row)
        CHECK(now[row * 16 + column] == doctest::Approx(sum / 257).epsilon(1e-6));
    }
    CHECK((std::vector<float>(now.begin(), now.begin() + 257 * 16) == old));
  }
  for (const char* layout : {"tp=2", "dp=2 zero_stage=3", "pp=2 tp=2"}) {
    INFO(layout);
    std::vector<std::string> sets = KeysOf(layout);
    sets.insert(sets.end(), {large, some});
    MustRun(runs.Still(sets), runs / layout);
    CHECK((WeightsAlone(runs / layout, 1) == larger));
  }
}

TEST_CASE("start: upcycling without a checkpoint, or without experts, is refused by engine check") {
  const StartRuns runs;
  const auto errors = [&](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"data.source=random",
                                     "data.sequence_length=16",
                                     "optimizer.learning_rate=1",
                                     "training.global_batch=1",
                                     "training.micro_batch=1",
                                     "training.iterations=1",
                                     "model.dims={ D = 16, L = 2, H = 4, K = 2, E = 4, F = 12, V = 257 }",
                                     "training.upcycle=true"};
    sets.insert(sets.end(), more.begin(), more.end());
    std::string text;
    const recipe::LoadResult loaded =
        model::Load(ENGINE_SOURCE_DIR "/configs/blocks/llama.toml", {.sets = sets, .root = ""});
    for (const Diagnostic& diagnostic : loaded.diagnostics)
      text += diagnostic.code + " " + Format(diagnostic);
    return text;
  };
  CHECK(Contains(
      errors({kExpertSteps}),
      "E209 --set:8:18: error: training.upcycle makes experts of a dense checkpoint, and none is named"));
  CHECK(Contains(
      errors({"training.weights_from=x"}),
      "E209 --set:8:18: error: training.upcycle makes experts of a dense checkpoint, and this model has "
      "none"));
  CHECK(errors({"training.weights_from=x", kExpertSteps}).empty());
}

}  // namespace engine::train::testing
