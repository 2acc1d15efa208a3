// What a run leaves behind, and that a run in pieces is the run in one.
#include "engine/train/run.h"

#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <regex>

#include "engine/driver/compile_recipe.h"
#include "engine/predict/predict.h"
#include "engine/recipe/print.h"
#include "tests/executor/wrapped_backend.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

namespace fs = std::filesystem;
using executor::testing::Probe;
using executor::testing::ProbedDevice;

constexpr const char* kLayout = "parallelism.dp=2";

// 6 iterations with checkpoints and evaluations.
std::vector<std::string> Sets(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"training.iterations=6", "training.micro_batch=4", "checkpoint.interval=2",
                             "evaluation.interval=3", "evaluation.iterations=1", "schedule.kind=cosine",
                             "schedule.warmup_iterations=2", kLayout});
  return more;
}

struct Folder : TempDir {
  Folder() { WriteDataset(*this / "text", 60); }
};

// What an undisturbed run of Sets() gives.
struct Undisturbed {
  explicit Undisturbed(const Folder& folder) {
    MustRun(RunRecipe(folder, Sets()), folder / "whole");
    metrics = TimelessMetrics(folder / "whole");
    tensors = TensorsOf(folder / "whole", 6);
  }
  std::string metrics;
  std::map<std::string, std::vector<float>> tensors;
};

// Runs until SIGTERM, which the first rank raises in the middle of iteration `iteration` (from 1).
void RunAndStop(const recipe::Recipe& recipe, const std::string& out, std::uint64_t iteration) {
  std::vector<Probe> probes(static_cast<size_t>(recipe.world_size()));
  probes[0].before_launch = [iteration](std::int64_t, const backend::KernelContext& context) {
    if (context.iteration + 1 == iteration) std::raise(SIGTERM);
    return absl::OkStatus();
  };
  const RunResult stopped = RunCaught(recipe, out, false, ProbedDevice(&probes));
  REQUIRE_MESSAGE(stopped.status.ok(), Message(stopped.status));
  CHECK(Contains(stopped.output, "stopped by a signal after iteration " + std::to_string(iteration)));
  CHECK(Checkpoints(out).back() == static_cast<std::int64_t>(iteration));
}

void Corrupt(const std::string& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(fs::file_size(path) / 2));
  const int old = file.peek();
  file.put(static_cast<char>(old ^ 0xFF));
  REQUIRE(file.good());
}

}  // namespace

TEST_CASE("a run writes metrics, the recipe, the plan and the checkpoints that are kept") {
  const Folder folder;
  const recipe::Recipe recipe = RunRecipe(folder, Sets({"checkpoint.keep=2"}));
  const std::string out = folder / "out";
  MustRun(recipe, out);

  const nlohmann::json plan = nlohmann::json::parse(data::ReadFile(out + "/plan.json"), nullptr, false);
  REQUIRE(plan.is_object());
  const std::vector<nlohmann::json> lines = Metrics(out);
  REQUIRE(lines.size() == 11);
  const predict::Prediction predicted =
      predict::Predict(*driver::CompileRecipe(recipe, {.profile = CpuDevice().profile}), {});
  int iteration = 0;
  int saved = 0;
  for (const nlohmann::json& line : lines) {
    INFO(line.dump());
    CHECK(std::regex_match(line["timestamp"].get<std::string>(),
                           std::regex(R"(20\d\d-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d\.\d\d\dZ)")));
    if (line.contains("save_seconds")) {
      ++saved;
      CHECK(line["saved_iteration"] == 2 * saved);
      CHECK(line["iteration"] == iteration);
      CHECK(line["iteration"] >= 2 * saved);
      CHECK(line["save_seconds"].get<double>() > 0);
      CHECK(line["stall_seconds"].get<double>() > 0);
      CHECK(line.size() == 5);
      continue;
    }
    if (line.contains("validation_loss")) {
      CHECK(iteration % 3 == 0);
      CHECK(line["iteration"] == iteration);
      CHECK(line["validation_loss"].get<double>() > 0);
      CHECK(line["elapsed_ms"].get<double>() > 0);
      CHECK(line.size() == 4);
      continue;
    }
    ++iteration;
    CHECK(line["iteration"] == iteration);
    CHECK(line["global_batch"] == 8);
    CHECK(line["consumed_samples"] == 8 * iteration);
    CHECK(line["loss"].get<double>() > 0);
    CHECK(line["grad_norm"].get<double>() > 0);
    CHECK(line["elapsed_ms"].get<double>() > 0);
    const double seconds = line["elapsed_ms"].get<double>() / 1e3;
    CHECK(line["tokens_per_second"].get<double>() == doctest::Approx(8 * 16 / seconds));
    CHECK(line["tflops_per_device"].get<double>() ==
          doctest::Approx(predicted.model_flops / 2 / seconds / 1e12));
    CHECK(line["mfu"].is_null());  // the CPU's peak is not known
    CHECK(line["memory_bytes"].is_null());
    CHECK(line["arena_bytes"] == plan["stages"][0]["memory"]["total"]);
    CHECK(line["loss_scale"] == 1.0);
    CHECK(line["skipped_iterations"] == 0);
    CHECK(line["nan_iterations"] == 0);
    const bool logged = iteration == 1 || iteration == 6;
    CHECK(line.contains("rank_busy_ms") == logged);
    if (logged) CHECK(line["rank_busy_ms"].size() == 2);
    CHECK(line["consumed_tokens"] == 8 * 16 * iteration);
    CHECK(line.size() == (logged ? 20 : 19));
  }
  CHECK(iteration == 6);
  CHECK(saved == 3);
  // The rate of the update that a line reports: 0 for the first, under a warm-up of two iterations from 0.
  const std::vector<nlohmann::json> iterations = IterationMetrics(out);
  CHECK(iterations[0]["learning_rate"] == 0.0);
  CHECK(iterations[1]["learning_rate"].get<double>() == doctest::Approx(0.5e-2));
  CHECK(iterations[2]["learning_rate"].get<double>() == doctest::Approx(1e-2));

  const recipe::LoadResult resolved = recipe::Load(out + "/resolved.toml");
  REQUIRE(resolved.ok());
  CHECK(recipe::Diff(recipe, resolved.recipe).empty());
  CHECK(plan["mesh"]["dp"] == 2);
  CHECK(plan["hash"].get<std::string>().size() == 32);
  CHECK((Checkpoints(out) == std::vector<std::int64_t>{4, 6}));
  const auto reader = checkpoint::Reader::Open(checkpoint::IterationPath(CheckpointRoot(out), 6));
  REQUIRE(reader.ok());
  CHECK(reader->metadata().consumed_samples == 48);
  CHECK(reader->metadata().optimizer_steps == 6);
  CHECK(reader->metadata().plan_hash == plan["hash"].get<std::string>());
}

TEST_CASE("a run that has ended is not run again, and can be made longer") {
  const Folder folder;
  const std::string out = folder / "out";
  // The rate's decay is as long as the training unless it is given.
  const recipe::Recipe half =
      RunRecipe(folder, Sets({"training.iterations=3", "schedule.decay_iterations=6"}));
  MustRun(half, out);
  CHECK((Checkpoints(out) == std::vector<std::int64_t>{2, 3}));
  const std::string before = data::ReadFile(out + "/metrics.jsonl");
  MustRun(half, out);
  CHECK((data::ReadFile(out + "/metrics.jsonl") == before));
  // As where it was killed between its last save and the removal of what that leaves over.
  MustRun(
      RunRecipe(folder, Sets({"training.iterations=3", "schedule.decay_iterations=6", "checkpoint.keep=1"})),
      out);
  CHECK((Checkpoints(out) == std::vector<std::int64_t>{3}));

  const RunResult longer = MustRunAndNote(RunRecipe(folder, Sets()), out);
  CHECK(Contains(longer.notes, "note: changed since the checkpoint: training.iterations: 3 → 6\n"));
  CHECK(longer.output.find("note: ") == std::string::npos);  // the log alone
  CHECK(longer.notes.find("iteration ") == std::string::npos);
  CHECK(Contains(longer.output,
                 "resumed from " + checkpoint::IterationPath(CheckpointRoot(out), 3) + " after iteration 3"));
  CHECK(Metrics(out).back()["iteration"] == 6);
  CHECK(data::ReadFile(out + "/metrics.jsonl").starts_with(before));
}

TEST_CASE("SIGTERM finishes the iteration and saves; the resumed run is the undisturbed one, bit by bit") {
  const Folder folder;
  const Undisturbed whole(folder);
  for (std::uint64_t iteration = 1; iteration <= 5; ++iteration) {
    INFO("in iteration " << iteration);
    const std::string out = folder / ("out" + std::to_string(iteration));
    RunAndStop(RunRecipe(folder, Sets()), out, iteration);
    MustRun(RunRecipe(folder, Sets()), out);
    CHECK(TimelessMetrics(out) == whole.metrics);
    CHECK((TensorsOf(out, 6) == whole.tensors));
  }
}

TEST_CASE("a damaged newest checkpoint is reported, and the one before it is used") {
  const Folder folder;
  const Undisturbed whole(folder);
  const std::string out = folder / "whole";
  Corrupt(checkpoint::IterationPath(CheckpointRoot(out), 6) + "/rank_00000.h5");
  const RunResult resumed = MustRunAndNote(RunRecipe(folder, Sets()), out);
  CHECK(Contains(resumed.notes, "note: "));
  CHECK(Contains(resumed.notes, "iteration_0000006"));
  CHECK(Contains(resumed.output, "after iteration 4"));
  CHECK(TimelessMetrics(out) == whole.metrics);
  CHECK((TensorsOf(out, 6) == whole.tensors));

  fs::remove(checkpoint::IterationPath(CheckpointRoot(out), 6) + "/manifest.json");  // incomplete
  CHECK(Contains(MustRun(RunRecipe(folder, Sets()), out), "after iteration 4"));
  CHECK((TensorsOf(out, 6) == whole.tensors));

  for (std::int64_t iteration : Checkpoints(out)) {
    Corrupt(checkpoint::IterationPath(CheckpointRoot(out), iteration) + "/rank_00000.h5");
  }
  const RunResult none = RunCaught(RunRecipe(folder, Sets()), out);
  CHECK(none.status.code() == absl::StatusCode::kDataLoss);
  CHECK(Contains(Message(none.status), "holds no whole checkpoint"));
}

TEST_CASE(
    "a changed recipe: another model is refused with its keys, other keys are listed, --fresh refuses") {
  const Folder folder;
  const std::string out = folder / "out";
  const std::vector<std::string> short_run = Sets({"training.iterations=2", "schedule.decay_iterations=6"});
  MustRun(RunRecipe(folder, short_run), out);
  const std::string before = data::ReadFile(out + "/metrics.jsonl");
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> sets = short_run;
    sets.insert(sets.end(), more.begin(), more.end());
    return RunRecipe(folder, sets);
  };

  const RunResult other = RunCaught(with({"model.mlp.hidden=48", "model.norm.epsilon=1e-6"}), out);
  CHECK(other.status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Contains(Message(other.status), "model.mlp.hidden: 32 → 48"));
  CHECK(Contains(Message(other.status), "model.norm.epsilon: 1e-05 → 1e-06"));
  CHECK(!Message(other.status).ends_with('\n'));

  const RunResult fresh = RunCaught(with({}), out, /*fresh=*/true);
  CHECK(fresh.status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Contains(Message(fresh.status), "--fresh: " + out + " already holds a run"));
  CHECK(data::ReadFile(out + "/metrics.jsonl") == before);
  CHECK((Checkpoints(out) == std::vector<std::int64_t>{2}));

  const RunResult rate = RunCaught(with({"optimizer.learning_rate=2e-2", "training.iterations=3"}), out);
  CHECK(rate.status.ok());
  CHECK(Contains(rate.notes, "changed since the checkpoint: optimizer.learning_rate: 0.01 → 0.02"));
  CHECK(Contains(rate.notes, "changed since the checkpoint: training.iterations: 2 → 3"));
  CHECK(RunCaught(with({}), folder / "new", /*fresh=*/true).status.ok());
}

TEST_CASE("a run resumes in another layout") {
  const Folder folder;
  const Undisturbed whole(folder);
  const std::string out = folder / "out";
  RunAndStop(RunRecipe(folder, Sets({"parallelism.zero_stage=1"})), out, 2);
  RunAndStop(
      RunRecipe(folder, Sets({"parallelism.dp=1", "parallelism.tp=2", "parallelism.sequence_parallel=true"})),
      out, 4);
  MustRun(RunRecipe(folder, Sets({"parallelism.dp=1", "parallelism.pp=2", "parallelism.virtual_stages=2"})),
          out);
  const std::vector<nlohmann::json> lines = LossMetrics(out);
  const std::vector<nlohmann::json> expected = LossMetrics(folder / "whole");
  REQUIRE(lines.size() == expected.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    INFO(lines[i].dump());
    const char* key = lines[i].contains("loss") ? "loss" : "validation_loss";
    // As in layout_test.cpp: √(300 · 40) roundings, times 4.
    constexpr double kBound = 4 * 110 * 1.2e-7;
    CHECK(lines[i][key].get<double>() == doctest::Approx(expected[i][key].get<double>()).epsilon(kBound));
  }
}

TEST_CASE("random tokens: no files, the same in every layout, the same when resumed, at ln vocab") {
  const TempDir folder;
  const auto recipe = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"data.source=random", "model.init_std=0.01"});
    return RunRecipe(folder, Sets(more));
  };
  const std::string output = MustRun(recipe({}), folder / "whole");
  CHECK(Contains(output, "random tokens of [0, 300): no data set; the loss stays at ln 300 = 5.7038"));
  const std::string whole = TimelessMetrics(folder / "whole");
  const std::vector<nlohmann::json> lines = LossMetrics(folder / "whole");
  // With small weights every token has nearly the same probability.
  for (const nlohmann::json& line : lines) {
    const char* key = line.contains("loss") ? "loss" : "validation_loss";
    CHECK(line[key].get<double>() == doctest::Approx(std::log(300.0)).epsilon(0.01));
  }
  RunAndStop(recipe({}), folder / "pieces", 3);
  MustRun(recipe({}), folder / "pieces");
  CHECK(TimelessMetrics(folder / "pieces") == whole);
  MustRun(recipe({"parallelism.dp=1", "parallelism.tp=2", "training.micro_batch=2"}), folder / "other");
  const std::vector<nlohmann::json> other = LossMetrics(folder / "other");
  REQUIRE(other.size() == lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].contains("loss")) continue;
    constexpr double kBound = 4 * 110 * 1.2e-7;  // as in layout_test.cpp: √(300 · 40) roundings, times 4
    CHECK(other[i]["loss"].get<double>() == doctest::Approx(lines[i]["loss"].get<double>()).epsilon(kBound));
  }
}

TEST_CASE("data that do not fit are refused before anything is written") {
  const Folder folder;
  const std::string out = folder / "out";
  const auto refused = [&](const std::vector<std::string>& sets, const std::string& part) {
    const RunResult result = RunCaught(RunRecipe(folder, Sets(sets)), out);
    CHECK(!result.status.ok());
    CHECK(Contains(Message(result.status), part));
    CHECK(Contains(Message(result.status), "--set:"));  // where the recipe names the data
    CHECK(!fs::exists(out));
  };
  WriteDataset(folder / "small", 2);  // its validation split is a document or none
  refused({"data.paths=[\"" + folder / "small" + "\"]", "data.split=\"1,1,0\"", "data.sequence_length=16",
           "model.max_positions=200", "data.sequence_length=200"},
          "small");
  WriteDataset(folder / "foreign", 60, 300);
  refused({"data.paths=[\"" + folder / "foreign" + "\"]"}, "token 300");
  WriteDataset(folder / "cut", 60);
  fs::resize_file(folder / "cut.bin", fs::file_size(folder / "cut.bin") - 2);
  refused({"data.paths=[\"" + folder / "cut" + "\"]"}, "cut.bin");
  refused({"data.paths=[\"" + folder / "absent" + "\"]"}, "absent");
}

TEST_CASE("a precision that the executor lacks is refused where the recipe says it") {
  const Folder folder;
  const auto refused = [&](const std::vector<std::string>& sets) {
    const RunResult result = RunCaught(RunRecipe(folder, Sets(sets)), folder / "out");
    CHECK(!fs::exists(folder / "out"));
    return Message(result.status);
  };
  CHECK(refused({"precision.compute=bf16"}) ==
        "--set:15:19: error: the cpu executor runs precision.compute fp32, not bf16\n"
        "    precision.compute=bf16\n"
        "                      ^~~~\n"
        "    hint: --set precision.compute=fp32 runs it here");
  CHECK(Contains(refused({"optimizer.moment_dtype=bf16"}),
                 "--set:15:24: error: the cpu executor runs optimizer.moment_dtype fp32, not bf16\n"));
  const std::string all =
      refused({"precision.compute=bf16", "precision.gradient_dtype=bf16", "precision.master_dtype=bf16"});
  CHECK(Contains(all, "--set:15:19: error: the cpu executor runs precision.compute fp32, not bf16\n"));
  CHECK(Contains(all, "--set:16:26: error: the cpu executor runs precision.gradient_dtype fp32, not bf16\n"));
  CHECK(Contains(all, "--set:17:24: error: the cpu executor runs precision.master_dtype fp32, not bf16\n"));
}

TEST_CASE("a loss that is not finite ends the run; the checkpoints before it stay") {
  const Folder folder;
  const std::string out = folder / "out";
  MustRun(RunRecipe(folder, Sets({"training.iterations=2", "schedule.decay_iterations=6"})), out);
  const auto before = TensorsOf(out, 2);
  recipe::Recipe recipe = RunRecipe(folder, Sets({"checkpoint.interval=0"}));
  recipe.optimizer.learning_rate = 1e30;  // beyond what a recipe may say
  const RunResult result = RunCaught(recipe, out);
  CHECK(result.status.code() == absl::StatusCode::kDataLoss);
  CHECK(Contains(Message(result.status), "so the weights are spoilt and not saved"));
  CHECK((Checkpoints(out) == std::vector<std::int64_t>{2}));
  CHECK((TensorsOf(out, 2) == before));
  // The iteration is in the metrics, so that a program that watches them learns why there are no more.
  const std::vector<nlohmann::json> lines = IterationMetrics(out);
  for (const nlohmann::json& line : lines) {
    const bool last = &line == &lines.back();
    CHECK(line["nan_iterations"] == (last ? 1 : 0));
    CHECK((line["loss"].is_null() || line["grad_norm"].is_null()) == last);
  }
  CHECK(Contains(result.output, "| number of nan iterations:   1 |"));
  CHECK(lines.back()["iteration"].get<int>() > 2);
}

TEST_CASE("a rank that fails ends the run with its error and leaves a folder that resumes") {
  const Folder folder;
  const Undisturbed whole(folder);
  const std::string out = folder / "out";
  std::vector<Probe> probes(2);
  probes[1].before_launch = [](std::int64_t, const backend::KernelContext& context) {
    return context.iteration == 4 ? Internal("injected") : absl::OkStatus();
  };
  const RunResult result = RunCaught(RunRecipe(folder, Sets()), out, false, ProbedDevice(&probes));
  CHECK(result.status.code() == absl::StatusCode::kInternal);
  CHECK(Contains(Message(result.status), "rank 1, "));
  MustRun(RunRecipe(folder, Sets()), out);
  CHECK(TimelessMetrics(out) == whole.metrics);
  CHECK((TensorsOf(out, 6) == whole.tensors));
}

TEST_CASE("a folder that cannot be written is an error with its path") {
  const Folder folder;
  data::WriteFile(folder / "file", "not a folder");
  const RunResult result = RunCaught(RunRecipe(folder, Sets()), folder / "file");
  CHECK(!result.status.ok());
  CHECK(Contains(Message(result.status), folder / "file"));
}

}  // namespace engine::train::testing
