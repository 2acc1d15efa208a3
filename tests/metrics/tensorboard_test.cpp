#include "engine/metrics/tensorboard.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <memory>

#include "engine/metrics/event_file.h"
#include "engine/metrics/protobuf.h"
#include "tests/metrics/sinks_testing.h"

namespace engine::metrics::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> EventFiles(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The messages of a file, whose framing has to be whole.
std::vector<std::string> EventsOf(const std::string& path) {
  const std::string bytes = ReadFile(path);
  std::vector<std::string> events;
  for (std::size_t at = 0; at < bytes.size();) {
    std::size_t length = 0;
    for (std::size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes.at(at + i));
    events.push_back(bytes.substr(at + 12, length));
    REQUIRE(TfRecord(events.back()) == bytes.substr(at, length + 16));
    at += length + 16;
  }
  return events;
}

// One curve, step to value, as a reader shows it that goes through a folder's files by name. TensorBoard has two rules of
// what a later file replaces: all from the step of a second session's start on, or, tag by tag, all from a record's step on.
enum class PurgeBy { kSessionStart, kStep };
std::map<std::int64_t, float> Curve(const std::string& folder, const std::string& tag, PurgeBy rule) {
  std::map<std::int64_t, float> curve;
  int starts = 0;
  for (const std::string& file : EventFiles(folder)) {
    for (const std::string& event : EventsOf(file)) {
      const std::optional<ProtoField> step_field = FindProtoField(event, 2);
      const auto step = static_cast<std::int64_t>(step_field ? step_field->varint : 0);
      if (FindProtoField(event, 7) && starts++ > 0 && rule == PurgeBy::kSessionStart)
        curve.erase(curve.lower_bound(step), curve.end());
      const std::optional<ProtoField> summary = FindProtoField(event, 5);
      const std::optional<ProtoField> value = summary ? FindProtoField(summary->bytes, 1) : std::nullopt;
      if (!value || FindProtoField(value->bytes, 1)->bytes != tag) continue;
      const std::string_view bytes = FindProtoField(value->bytes, 2)->bytes;
      std::uint32_t bits = 0;
      for (std::size_t i = 4; i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(bytes[i]);
      if (rule == PurgeBy::kStep) curve.erase(curve.lower_bound(step), curve.end());
      const bool is_new = curve.emplace(step, std::bit_cast<float>(bits)).second;
      CHECK(is_new);
    }
  }
  return curve;
}

// Iterations `first` to `last`, whose loss is `base` more than the iteration.
void TrainTensorBoard(const std::string& folder, int first, int last, float base) {
  TensorBoard sink(folder, TestRun(first - 1));
  for (int i = first; i <= last; ++i) REQUIRE(sink.Write(LossRecord(i, base + static_cast<float>(i))).ok());
}

}  // namespace

TEST_CASE(
    "a run that was killed and resumed shows one line in TensorBoard, over iterations and over samples") {
  const TempDir folder;
  TrainTensorBoard(folder.path(), 1, 7, 0);    // killed
  TrainTensorBoard(folder.path(), 5, 6, 100);  // from a checkpoint of iteration 4; killed again
  TrainTensorBoard(folder.path(), 5, 8, 200);
  REQUIRE(EventFiles(folder.path()).size() == 3);
  const std::map<std::int64_t, float> by_iteration = {{1, 1},   {2, 2},   {3, 3},   {4, 4},
                                                      {5, 205}, {6, 206}, {7, 207}, {8, 208}};
  std::map<std::int64_t, float> by_samples;
  for (const auto& [iteration, loss] : by_iteration) by_samples[8 * iteration] = loss;
  for (const PurgeBy rule : {PurgeBy::kSessionStart, PurgeBy::kStep}) {
    CHECK((Curve(folder.path(), "lm loss", rule) == by_iteration));
    CHECK((Curve(folder / "samples", "lm loss vs samples", rule) == by_samples));
  }
}

TEST_CASE("an event file begins with version, start, texts and settings, and ends with how the run ended") {
  const TempDir folder;
  TensorBoard sink(folder / "not/yet", TestRun(50));
  REQUIRE(sink.Write(LossRecord(51, 0.5)).ok());
  REQUIRE(sink.Close(true).ok());
  const std::vector<std::string> files = EventFiles(folder / "not/yet");
  REQUIRE(files.size() == 1);
  CHECK(fs::path(files[0]).filename().string() ==
        fmt::format("events.out.tfevents.0000001000.h.{}.0", getpid()));
  const RunDescription run = TestRun(50);
  const std::string tags[] = {"lm loss", "lm loss validation"};
  const std::vector<std::pair<std::string, double>> loss = {{"lm loss", 0.5}};
  const std::string expected = VersionEvent(1000) + SessionStartEvent(1000, 51) +
                               TextEvent(1000, 50, "recipe", "text") +
                               ExperimentEvent(1000, run.settings, tags) +
                               HyperParametersEvent(1000, run.settings) + ScalarsEvent(1051, 51, loss);
  const std::string text = ReadFile(files[0]);
  CHECK(text.starts_with(expected));
  const std::vector<std::string> events = EventsOf(files[0]);
  const std::string end = SessionEndEvent(std::bit_cast<double>(std::uint64_t{0}), true);
  CHECK(events.back().size() == end.size() - 16);
  CHECK(events.back().find("_hparams_/session_end_info") != std::string::npos);
}

TEST_CASE("tags carry names and units of Megatron-LM, and no number that is not finite") {
  const TempDir folder;
  TensorBoard sink(folder.path(), TestRun());
  REQUIRE(sink.Write(IterationRecord(1, {{&kElapsed, 1500},
                                         {&kMfu, std::numeric_limits<double>::quiet_NaN()},
                                         {&kMetric, 0.25, "balance"},
                                         {&kRankBusy, 7, "0"},
                                         {&kIterations, 10}}))
              .ok());
  const std::vector<std::pair<std::string, double>> values = {{"iteration-time", 1.5},
                                                              {"engine/metrics/balance", 0.25}};
  CHECK(ReadFile(EventFiles(folder.path())[0]).ends_with(ScalarsEvent(1001, 1, values)));
  CHECK_FALSE(fs::exists(folder / "samples"));
}

TEST_CASE(
    "of a record whose second file fails the first keeps nothing, so that it is there once in the end") {
  const TempDir folder;
  TensorBoard sink(folder.path(), TestRun());
  REQUIRE(sink.Write(LossRecord(1, 1)).ok());
  const std::string path = EventFiles(folder.path()).at(0);
  const std::string samples = EventFiles(folder / "samples").at(0);
  const std::string before = ReadFile(samples);
  fs::remove(path);
  fs::create_directory(path);
  CHECK_FALSE(sink.Write(LossRecord(2, 2)).ok());
  CHECK(ReadFile(samples) == before);
  fs::remove(path);
  REQUIRE(sink.Write(LossRecord(2, 2)).ok());
  CHECK((Curve(folder / "samples", "lm loss vs samples", PurgeBy::kSessionStart) ==
         std::map<std::int64_t, float>{{8, 1}, {16, 2}}));
  CHECK((Curve(folder.path(), "lm loss", PurgeBy::kStep) == std::map<std::int64_t, float>{{2, 2}}));
}

TEST_CASE("an event file that was removed is begun anew; without its folder the folder is, too") {
  const TempDir folder;
  TensorBoard sink(folder / "tensorboard", TestRun());
  REQUIRE(sink.Write(LossRecord(1, 1)).ok());
  fs::remove_all(folder / "tensorboard");
  REQUIRE(sink.Write(LossRecord(2, 2)).ok());
  CHECK((Curve(folder / "tensorboard", "lm loss", PurgeBy::kStep) == std::map<std::int64_t, float>{{2, 2}}));
}

}  // namespace engine::metrics::testing
