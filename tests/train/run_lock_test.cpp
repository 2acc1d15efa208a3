#include "engine/train/run_lock.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/data/temp_dir.h"

namespace engine::train {

using std::chrono::milliseconds;

TEST_CASE("run lock: one holds a folder, and who that is is said to the next one") {
  const data::TempDir out;
  std::optional<RunLock> held;
  {
    absl::StatusOr<RunLock> taken = RunLock::Take(out / "run");
    REQUIRE(taken.ok());
    held.emplace(*std::move(taken));
  }
  const std::string self = fmt::format("pid {}", getpid());
  const absl::Status refused = RunLock::Take(out / "run").status();
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK_MESSAGE(Message(refused).starts_with(fmt::format("{} is in use by another run (", out / "run")),
                Message(refused));
  CHECK_MESSAGE(Message(refused).find(self) != std::string::npos, Message(refused));

  std::vector<std::string> told;
  const auto waits = [&](const std::string& holder) { told.push_back(holder); };
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(300));
    held.reset();
  });
  CHECK(RunLock::Take(out / "run", std::chrono::minutes(1), waits).ok());
  later.join();
  REQUIRE(told.size() == 1);  // however often it looks
  CHECK_MESSAGE(told[0].find(self) != std::string::npos, told[0]);
  // A folder that nobody holds is not waited for.
  CHECK(RunLock::Take(out / "run", std::chrono::minutes(1), waits).ok());
  CHECK(told.size() == 1);
}

TEST_CASE("run lock: a folder that does not say who holds it is waited for all the same") {
  const data::TempDir out;
  const absl::StatusOr<RunLock> held = RunLock::Take(out.path());
  REQUIRE(held.ok());
  for (const char* text : {"", "{}", "no JSON", "[1]", "{\"process\": 7, \"since\": \"now\"}"}) {
    data::WriteFile(out / "holder.json", text);
    std::vector<std::string> told;
    const absl::Status refused = RunLock::Take(out.path(), milliseconds(60), [&](const std::string& holder) {
                                   told.push_back(holder);
                                 }).status();
    CHECK(Message(refused) ==
          fmt::format("{} is in use by another run; wait for its end, or give another --out", out.path()));
    CHECK(told == std::vector<std::string>{""});
  }
}

}  // namespace engine::train
