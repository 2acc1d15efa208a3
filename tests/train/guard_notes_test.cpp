#include "engine/train/guard_notes.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <set>
#include <string>

#include "tests/data/temp_dir.h"

namespace engine::train {
namespace {

std::set<std::string> NamesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

}  // namespace

TEST_CASE("guard notes: those of the newest iterations are kept, and what is written is read") {
  const data::TempDir out;
  const GuardNotes notes(out.path());
  CHECK(absl::IsNotFound(notes.Read(3).status()));
  for (std::int64_t iteration = 1; iteration <= 6; ++iteration)
    REQUIRE(notes
                .Write(iteration,
                       {.losses = {0.5 + static_cast<double>(iteration)}, .grad_norms = {1}, .left_out = {}})
                .ok());
  CHECK(NamesIn(out / "guard") == std::set<std::string>{"iteration_0000003.json", "iteration_0000004.json",
                                                        "iteration_0000005.json", "iteration_0000006.json"});
  const absl::StatusOr<std::string> read = notes.Read(5);
  REQUIRE(read.ok());
  CHECK(read->find("5.5") != std::string::npos);
  data::WriteFile(out / "guard/iteration_0000005.json", "{\"losses\": 7");
  CHECK(absl::IsDataLoss(notes.Read(5).status()));
  // A run that goes on from an earlier iteration comes to the later ones again.
  REQUIRE(notes.Write(4, {}).ok());
  CHECK(NamesIn(out / "guard") == std::set<std::string>{"iteration_0000003.json", "iteration_0000004.json"});
}

TEST_CASE("guard notes: a return forgets what was written before it") {
  const data::TempDir out;
  const GuardNotes notes(out.path());
  CHECK(notes.Returns() == 0);
  REQUIRE(notes.Write(8, {}).ok());
  REQUIRE(notes.WentBack(2).ok());
  CHECK(GuardNotes(out.path()).Returns() == 2);
  CHECK(NamesIn(out / "guard") == std::set<std::string>{"returns.json"});
  for (const char* text : {"", "[]", "{\"returns\": -1}", "{\"returns\": \"2\"}"}) {
    data::WriteFile(out / "guard/returns.json", text);
    CHECK(notes.Returns() == 0);
  }
}

}  // namespace engine::train
