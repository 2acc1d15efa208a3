#include "engine/metrics/sinks.h"

#include <filesystem>
#include <memory>

#include "engine/metrics/append_file.h"
#include "engine/metrics/jsonl.h"
#include "tests/metrics/sinks_testing.h"

namespace engine::metrics::testing {
namespace {

// What a sink that fails on demand was given.
struct Given {
  bool fails = false;
  int tries = 0;
  std::vector<std::int64_t> taken = {};
  std::vector<std::int64_t> iterations = {};
  std::vector<bool> closed = {};
};

class FailingSink : public Sink {
 public:
  explicit FailingSink(Given* given, bool puts_out_each = true)
      : given_(given), puts_out_each_(puts_out_each) {}
  std::string Name() const override { return "failing"; }
  bool PutsOutEach() const override { return puts_out_each_; }
  void Take(const Record& record) override { given_->taken.push_back(record.iteration); }
  absl::Status Write(const Record& record) override {
    ++given_->tries;
    if (given_->fails) return Unavailable("no room");
    given_->iterations.push_back(record.iteration);
    return absl::OkStatus();
  }
  absl::Status Close(bool succeeded) override {
    given_->closed.push_back(succeeded);
    return absl::OkStatus();
  }

 private:
  Given* given_;
  bool puts_out_each_;
};

}  // namespace

TEST_CASE("a sink that fails is one warning, its records wait, and the others get theirs") {
  std::vector<std::string> warnings;
  Sinks sinks([&](const std::string& text) { warnings.push_back(text); }, std::chrono::seconds(0));
  Given bad{.fails = true};
  Given good;
  sinks.Add(std::make_unique<FailingSink>(&bad));
  sinks.Add(std::make_unique<FailingSink>(&good));
  for (int i = 1; i <= 3; ++i) sinks.Write(LossRecord(i, 1));
  CHECK((warnings ==
         std::vector<std::string>{"no room; the run goes on, keeps its last 10000 records and tries again"}));
  CHECK(bad.iterations.empty());
  CHECK((good.iterations == std::vector<std::int64_t>{1, 2, 3}));
  bad.fails = false;
  sinks.Write(LossRecord(4, 1));
  CHECK((bad.iterations == std::vector<std::int64_t>{1, 2, 3, 4}));
  bad.fails = true;
  sinks.Write(LossRecord(5, 1));
  CHECK(warnings.size() == 2);
  bad.fails = false;
  sinks.Close(true);
  CHECK((bad.iterations == std::vector<std::int64_t>{1, 2, 3, 4, 5}));
  CHECK((bad.taken == bad.iterations));  // once each, however often they were tried
  CHECK((bad.closed == std::vector<bool>{true}));
  CHECK(warnings.size() == 2);
}

TEST_CASE("a sink that fails is not asked again before its time, and what it never took is counted") {
  std::vector<std::string> warnings;
  Sinks sinks([&](const std::string& text) { warnings.push_back(text); }, std::chrono::hours(1));
  Given bad{.fails = true};
  sinks.Add(std::make_unique<FailingSink>(&bad));
  const auto most = static_cast<std::int64_t>(Sinks::kMostWaiting);
  for (std::int64_t i = 1; i <= most + 5; ++i) sinks.Write(LossRecord(i, 1));
  CHECK(bad.tries == 1);
  SUBCASE("it works again in the end") {
    bad.fails = false;
    sinks.Close(false);
    CHECK(bad.iterations.size() == Sinks::kMostWaiting);
    CHECK(bad.iterations.front() == 6);
    CHECK((bad.closed == std::vector<bool>{false}));
    CHECK(warnings.back() == "failing: 5 records are lost");
  }
  SUBCASE("it does not") {
    sinks.Close(true);
    CHECK(bad.closed.empty());
    CHECK(warnings.back() == fmt::format("failing: {} records are lost: no room", most + 5));
  }
  CHECK(warnings.size() == 2);
}

TEST_CASE("a sink whose records stand for those before them loses none") {
  std::vector<std::string> warnings;
  Sinks sinks([&](const std::string& text) { warnings.push_back(text); }, std::chrono::hours(1));
  Given bad{.fails = true};
  sinks.Add(std::make_unique<FailingSink>(&bad, /*puts_out_each=*/false));
  for (std::int64_t i = 1; i <= 3; ++i) sinks.Write(LossRecord(i, 1));
  SUBCASE("it works again in the end") {
    bad.fails = false;
    sinks.Close(true);
    CHECK((warnings == std::vector<std::string>{"no room; the run goes on and tries again"}));
  }
  SUBCASE("it does not") {
    sinks.Close(true);
    CHECK((warnings == std::vector<std::string>{"no room; the run goes on and tries again", "no room"}));
  }
}

TEST_CASE("a sink gets each interval-th iteration, and every evaluation and checkpoint") {
  Sinks sinks([](const std::string&) {});
  Given given;
  sinks.Add(std::make_unique<FailingSink>(&given), 3);
  for (std::int64_t i = 1; i <= 7; ++i) sinks.Write(LossRecord(i, 1));
  sinks.Write({.event = Record::Event::kEvaluation, .iteration = 7});
  sinks.Write({.event = Record::Event::kCheckpoint, .iteration = 7});
  CHECK((given.iterations == std::vector<std::int64_t>{3, 6, 7, 7}));
}

TEST_CASE("a full disk leaves whole records, and the file goes on when there is room") {
  const TempDir folder;
  AppendFile file(folder / "log");
  REQUIRE(file.Open().ok());
  REQUIRE(file.Append("whole").ok());
  absl::Status full;
  {
    const FileSizeLimit limit(8);
    full = file.Append("too long");
  }
  CHECK(Message(full) == "cannot write " + folder / "log" + ": File too large");
  CHECK(ReadFile(folder / "log") == "whole");
  REQUIRE(file.Append(" and on").ok());
  CHECK(ReadFile(folder / "log") == "whole and on");
}

TEST_CASE("metrics.jsonl whose folder has gone fails until it is there again") {
  const TempDir folder;
  std::filesystem::create_directory(folder / "run");
  absl::StatusOr<std::unique_ptr<Jsonl>> sink = Jsonl::Open(folder / "run/metrics.jsonl", 0);
  REQUIRE(sink.ok());
  REQUIRE((*sink)->Write(LossRecord(1, 1)).ok());
  std::filesystem::remove_all(folder / "run");
  CHECK(Message((*sink)->Write(LossRecord(2, 1))) ==
        "cannot open " + folder / "run/metrics.jsonl" + ": No such file or directory");
  std::filesystem::create_directory(folder / "run");
  REQUIRE((*sink)->Write(LossRecord(2, 1)).ok());
  CHECK(ReadFile(folder / "run/metrics.jsonl") ==
        "{\"iteration\":2,\"timestamp\":\"1970-01-01T00:16:42.000Z\",\"loss\":1.0}\n");
}

}  // namespace engine::metrics::testing
