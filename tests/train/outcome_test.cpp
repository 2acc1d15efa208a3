#include "engine/train/outcome.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/train/run_lock.h"
#include "tests/data/temp_dir.h"

namespace engine::train {
namespace {

nlohmann::json OutcomeOf(const std::string& out) {
  return nlohmann::json::parse(data::ReadFile(out + "/outcome.json"));
}

}  // namespace

TEST_CASE(
    "outcome: after a failed run its exit codes have the last word on whether another try may go well") {
  const data::TempDir out;
  data::WriteFile(out / "metrics.jsonl", "");
  const Outcome failed = {.kind = Outcome::Kind::kFailed,
                          .iteration = 3,
                          .iterations = 9,
                          .reason = "rank 1 was lost",
                          .retryable = true};
  REQUIRE(WriteOutcome(out.path(), failed).ok());
  FinishOutcome(out.path(), 9, "rank 1 ended with exit code 1", false);
  CHECK(OutcomeOf(out.path())["retryable"] == false);
  CHECK(OutcomeOf(out.path())["reason"] == "rank 1 was lost");
  CHECK(OutcomeOf(out.path())["iteration"] == 3);

  CHECK(RemoveOutcome(out.path()).value());
  CHECK_FALSE(RemoveOutcome(out.path()).value());
  FinishOutcome(out.path(), 9, "rank 0 ended with exit code 4", true);
  CHECK(OutcomeOf(out.path())["outcome"] == "failed");
  CHECK(OutcomeOf(out.path())["reason"] == "rank 0 ended with exit code 4");
  CHECK(OutcomeOf(out.path())["retryable"] == true);
  CHECK(OutcomeOf(out.path())["iteration"].is_null());
  CHECK(OutcomeOf(out.path())["iterations"] == 9);
}

TEST_CASE("outcome: of two threads that know how a run ended the first is believed") {
  const data::TempDir out;
  OutcomeWriter writer;
  writer.WriteStoppedAtOnce();
  CHECK(out.entries() == 0);  // the folder was not this run's yet
  writer.Begin(out.path(), 9);
  writer.Reached(4);
  writer.WriteStoppedAtOnce();
  CHECK(writer.Write({.kind = Outcome::Kind::kStopped}).ok());
  const nlohmann::json outcome = OutcomeOf(out.path());
  CHECK(outcome["outcome"] == "failed");
  CHECK(outcome["reason"] == "stopped at once: what was done since the last checkpoint is not saved");
  CHECK(outcome["iteration"] == 4);
  CHECK(outcome["iterations"] == 9);
  CHECK(outcome["retryable"] == false);
}

TEST_CASE("outcome: what did not fail, another run's folder, and a folder without a run stay as they are") {
  const data::TempDir out;
  FinishOutcome(out.path(), 9, "killed", true);
  CHECK(out.entries() == 0);
  data::WriteFile(out / "metrics.jsonl", "");
  REQUIRE(WriteOutcome(out.path(), {.kind = Outcome::Kind::kStopped, .iteration = 3, .iterations = 9}).ok());
  const std::string stopped = data::ReadFile(out / "outcome.json");
  FinishOutcome(out.path(), 9, "killed", true);
  CHECK(data::ReadFile(out / "outcome.json") == stopped);
  CHECK(RemoveOutcome(out.path()).value());
  const absl::StatusOr<RunLock> other = RunLock::Take(out.path());
  REQUIRE(other.ok());
  FinishOutcome(out.path(), 9, "killed", true);
  CHECK(out.entries() == 2);  // with holder.json, of the lock
}

TEST_CASE("outcome: a run has finished where it says so, and the checkpoint of its end is there") {
  const data::TempDir out;
  const auto says = [&](Outcome::Kind kind) {
    REQUIRE(WriteOutcome(out.path(), {.kind = kind, .iteration = 9, .iterations = 9}).ok());
  };
  CHECK_FALSE(HasFinished(out.path(), 9));
  says(Outcome::Kind::kFinished);
  CHECK_FALSE(HasFinished(out.path(), 9));  // its checkpoints were removed, so that it begins anew
  std::filesystem::create_directories(out / "checkpoints/iteration_0000009");
  CHECK(HasFinished(out.path(), 9));
  CHECK_FALSE(HasFinished(out.path(), 10));
  says(Outcome::Kind::kStopped);
  CHECK_FALSE(HasFinished(out.path(), 9));
  data::WriteFile(out / "outcome.json", "{\"outcome\": 7}");
  CHECK_FALSE(HasFinished(out.path(), 9));
  data::WriteFile(out / "outcome.json", "no JSON");
  CHECK_FALSE(HasFinished(out.path(), 9));
}

}  // namespace engine::train
