// Whose fault it was, by what ranks exchanged when an iteration was trained once, and once more (guard.trace).
#include "engine/train/exchange_records.h"

#include <filesystem>
#include <string>
#include <vector>

#include "engine/train/fault.h"
#include "engine/train/outcome.h"
#include "tests/train/run_testing.h"
#include "tests/train/text_testing.h"

namespace engine::train::testing {
namespace {

std::vector<executor::TracedBytes> Traces(const std::string& contents) {
  std::vector<executor::TracedBytes> traced;
  for (const char c : contents)
    traced.push_back({.hash = static_cast<std::uint64_t>(c),
                      .exchange = static_cast<std::int32_t>(traced.size() / 2),
                      .got = traced.size() % 2 == 1});
  return traced;
}

ExchangeVerdict Verdict(std::int64_t rank, std::int64_t iteration, std::int64_t place, bool got) {
  return {.rank = rank,
          .host = "h",
          .differs = iteration > 0,
          .iteration = iteration,
          .place = place,
          .exchange = "sum",
          .got = got};
}

struct Layout {
  std::vector<std::string> sets;
  std::int64_t ranks = 2;
  std::int64_t stages = 1;
  bool experts = false;  // Mixtral's steps, else a dense model

  // A parameter that the rank has, and of which every element counts.
  std::string TensorOf(std::int64_t rank) const {
    return rank / (ranks / stages) == 0 ? "layers.0.mlp.norm.weight" : "layers.3.mlp.norm.weight";
  }
};

const std::vector<Layout>& Layouts() {
  static const std::vector<Layout> layouts = {
      {.sets = {"parallelism.dp=2"}},
      {.sets = {"parallelism.dp=2", "parallelism.zero_stage=1"}},
      {.sets = {"parallelism.dp=2", "parallelism.zero_stage=3"}},
      {.sets = {"parallelism.tp=2"}},
      {.sets = {"parallelism.cp=2"}},
      {.sets = {"parallelism.pp=2"}, .stages = 2},
      {.sets = {"parallelism.dp=2", "parallelism.pp=2"}, .ranks = 4, .stages = 2},
      {.sets = {"parallelism.dp=2", "parallelism.tp=2"}, .ranks = 4},
      {.sets = {"parallelism.ep=2"}, .experts = true},
      {.sets = {"parallelism.ep=2", "parallelism.expert_rows=256"}, .experts = true},
      {.sets = {"parallelism.ep=2", "parallelism.dp=2", "parallelism.zero_stage=1"},
       .ranks = 4,
       .experts = true},
      {.sets = {"parallelism.ep=2", "parallelism.tp=2"}, .ranks = 4, .experts = true},
      {.sets = {"parallelism.ep=2", "parallelism.tp=2", "parallelism.sequence_parallel=true",
                "parallelism.expert_tp=1"},
       .ranks = 4,
       .experts = true},
      {.sets = {"parallelism.ep=2", "parallelism.pp=2"}, .ranks = 4, .stages = 2, .experts = true},
  };
  return layouts;
}

class TracedFolder : public TempDir {
 public:
  TracedFolder() { WriteDataset(*this / "text", 60); }

  // A run of a layout that a fault in iteration 7, three behind the last checkpoint, ends: of the first seed that draws an element that something reads.
  RunResult RunSpoilt(const Layout& layout, const std::string& fault) const {
    RunResult result;
    for (int seed = 0; seed < 8 && result.status.ok(); ++seed)
      result = Run(layout, fmt::format("{},seed={}", fault, seed));
    return result;
  }

 private:
  RunResult Run(const Layout& layout, const std::string& fault) const {
    std::vector<std::string> sets = {"training.iterations=8", "training.micro_batch=1",
                                     "checkpoint.interval=4", "guard.rerun=true",
                                     "guard.trace=true",      "debug.faults=true"};
    sets.insert(sets.end(), layout.sets.begin(), layout.sets.end());
    const recipe::Recipe recipe = layout.experts ? ExpertRecipe(sets) : RunRecipe(*this, sets);
    std::filesystem::remove_all(*this / "run");
    RunOptions options{.out = *this / "run"};
    const absl::StatusOr<Fault> parsed = ParseFault(fault);
    REQUIRE_MESSAGE(parsed.ok(), Message(parsed.status()));
    options.faults = {*parsed};
    return RunCaught(recipe, options);
  }

  recipe::Recipe ExpertRecipe(const std::vector<std::string>& sets) const {
    std::vector<std::string> all = {
        "model.dims={ D = 32, L = 4, H = 4, K = 2, E = 8, F = 12, X = 8, T = 2, V = 300 }",
        "model.vocab_multiple=16",
        "model.init_std=0.1",
        "data.paths=[\"" + *this / "text" + "\"]",
        "data.split=\"8,2,0\"",
        "data.sequence_length=16",
        "optimizer.learning_rate=1e-2",
        "schedule.kind=constant",
        "training.global_batch=8",
        "logging.interval=1000"};
    all.insert(all.end(), sets.begin(), sets.end());
    return Loaded(model::Load(ENGINE_SOURCE_DIR "/configs/blocks/mixtral.toml", {.sets = all, .root = ""}));
  }
};

std::int64_t LinesWith(const std::string& text, const std::string& what) {
  std::int64_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("exchange: a rank's first difference is that of the first iteration that was trained twice") {
  ExchangeRecords records(3);
  records.Take(1, Traces("abcd"));
  records.Take(2, Traces("efgh"));
  records.Take(1, Traces("abcd"));
  CHECK(!records.first());
  records.Take(2, Traces("efXY"));
  records.Take(2, Traces("Zfgh"));
  REQUIRE(records.first());
  CHECK(records.first()->iteration == 2);
  CHECK(records.first()->place == 2);
  CHECK(records.first()->exchange == 1);
  CHECK(!records.first()->got);
  ExchangeRecords few(2);  // forgets the first of three
  for (const std::int64_t iteration : {1, 2, 3}) few.Take(iteration, Traces("ab"));
  few.Take(1, Traces("Xb"));
  CHECK(!few.first());
}

TEST_CASE("exchange: who gave other bits is named, else who got them first") {
  CHECK(Blame({Verdict(0, 0, 0, false), Verdict(1, 0, 0, false)}, true) ==
        "all that ranks gave and got was the same, so it went wrong behind that, on each rank alike");
  CHECK(Blame({Verdict(0, 7, 3, true), Verdict(1, 7, 2, false), Verdict(2, 8, 0, false)}, true) ==
        "rank 1 (h) gave other bits in iteration 7, in sum, though all that it had got was the same: it "
        "computes or stores something wrong");
  const std::vector<ExchangeVerdict> on_their_way = {Verdict(0, 7, 5, true), Verdict(1, 7, 3, true),
                                                     Verdict(2, 8, 1, false)};
  CHECK(Blame(on_their_way, true) ==
        "rank 1 (h) got other bits in iteration 7, in sum, though no rank had given any: they changed on "
        "their way, or in its memory");
  CHECK(LinesWith(Blame(on_their_way, false), "got other bits in iteration 7") == 2);
  std::vector<ExchangeVerdict> many;
  for (std::int64_t rank = 0; rank < 11; ++rank) many.push_back(Verdict(rank, 2, 0, false));
  CHECK(Contains(Blame(many, true), "\nand so did 3 more, though "));
}

TEST_CASE("exchange: a rank that computed something wrong once is named, in every layout") {
  const TracedFolder folder;
  for (const Layout& layout : Layouts()) {
    for (std::int64_t rank = 0; rank < layout.ranks; ++rank) {
      const std::string fault =
          fmt::format("rank={},iteration=7,at=forward,kind=nan:{}", rank, layout.TensorOf(rank));
      INFO(layout.sets.back() << " " << fault);
      const RunResult result = folder.RunSpoilt(layout, fault);
      const std::string message(Message(result.status));
      CHECK_MESSAGE(VerdictOf(result.status) == Verdict::kMachine, message);
      CHECK_MESSAGE(LinesWith(message, "gave other bits") == 1, message);
      CHECK_MESSAGE(Contains(message, fmt::format("\nrank {} (", rank)), message);
      CHECK_MESSAGE(Contains(message, ") gave other bits in iteration 7, in "), message);
    }
  }
}

TEST_CASE("exchange: what changed on its way is told from what was computed wrong, in every layout") {
  const TracedFolder folder;
  for (const Layout& layout : Layouts()) {
    for (std::int64_t rank = 0; rank < layout.ranks; ++rank) {
      const std::string fault = fmt::format("rank={},iteration=7,at=exchange,kind=nan:received", rank);
      INFO(layout.sets.back() << " " << fault);
      const RunResult result = folder.RunSpoilt(layout, fault);
      const std::string message(Message(result.status));
      CHECK_MESSAGE(VerdictOf(result.status) == Verdict::kMachine, message);
      CHECK_MESSAGE(!Contains(message, "gave other bits"), message);
      CHECK_MESSAGE(Contains(message, fmt::format("rank {} (", rank)), message);
      CHECK_MESSAGE(Contains(message, ") got other bits in iteration 7, in "), message);
    }
  }
}

}  // namespace engine::train::testing
