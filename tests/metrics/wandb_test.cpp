#include "engine/metrics/wandb.h"

#include <zlib.h>

#include <algorithm>
#include <filesystem>

#include "engine/metrics/wandb_log.h"
#include "tests/metrics/sinks_testing.h"

namespace engine::metrics::testing {
namespace {

namespace fs = std::filesystem;

const WandbNames kNames = {.project = "proj", .entity = "us", .name = "name"};

Record CheckpointRecord(std::int64_t iteration) {
  return {.event = Record::Event::kCheckpoint,
          .iteration = iteration,
          .unix_seconds = 1000 + static_cast<double>(iteration),
          .values = {{&kSaveTime, 1.5}}};
}

// The one .wandb file below a folder.
std::string WandbFile(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  REQUIRE(files.size() == 1);
  return files[0];
}

// The steps of the rows of a history, in order.
std::vector<std::int64_t> Steps(const std::string& folder) {
  std::vector<std::int64_t> steps;
  const auto records = ReadWandbRecords(ReadFile(WandbFile(folder)));
  REQUIRE(records.has_value());
  std::uint64_t number = 0;
  for (const WandbRecord& record : *records) {
    CHECK(FindProtoField(record.data, 1)->varint == ++number);
    const std::optional<ProtoField> history = FindProtoField(record.data, 2);
    if (!history) continue;
    const std::optional<ProtoField> step = FindProtoField(history->bytes, 2);
    steps.push_back(static_cast<std::int64_t>(FindProtoField(step->bytes, 1)->varint));
  }
  return steps;
}

bool HasEnded(const std::string& folder) {
  const auto records = ReadWandbRecords(ReadFile(WandbFile(folder)));
  return std::any_of(records->begin(), records->end(),
                     [](const WandbRecord& record) { return FindProtoField(record.data, 18).has_value(); });
}

}  // namespace

TEST_CASE(
    "a .wandb file is byte by byte what protoc and LevelDB's framing make of it "
    "(tests/oracles/sink_formats.py)") {
  const TempDir folder;
  fs::create_directory(folder / "offline-run-20261126_000000-IDIDIDID");
  Wandb sink(folder.path(), kNames, TestRun());
  REQUIRE(sink.Write(LossRecord(1, 0.5)).ok());
  REQUIRE(sink.Write(LossRecord(2, 0.25)).ok());
  REQUIRE(sink.Write(CheckpointRecord(2)).ok());
  REQUIRE(sink.Close(true).ok());
  const std::string path = WandbFile(folder.path());
  CHECK(path == folder / "offline-run-20261126_000000-IDIDIDID/run-IDIDIDID.wandb");
  CHECK(ToHex(ReadFile(path)) == ToHex(HexLines("run.wandb.hex").at(0)));
}

TEST_CASE("records longer than a block, and blocks that end in zeros (tests/oracles/sink_formats.py)") {
  std::string file = WandbFileHeader();
  std::vector<std::string> records;
  for (const std::size_t size : {32768 - 7 - 7 - 3, 5, 32768 - 7 - 12 - 7, 100000, 0}) {
    std::string record(size, '\0');
    for (std::size_t i = 0; i < size; ++i) record[i] = static_cast<char>(i % 251);
    file += WandbFragments(record, static_cast<std::int64_t>(file.size()));
    records.push_back(record);
  }
  const auto crc = crc32(0, reinterpret_cast<const Bytef*>(file.data()), static_cast<uInt>(file.size()));
  CHECK(fmt::format("{:08x}\n", crc) ==
        ReadFile(std::string(ENGINE_SOURCE_DIR) + "/tests/metrics/golden/long.wandb.crc"));
  const auto read = ReadWandbRecords(file);
  REQUIRE(read.has_value());
  REQUIRE(read->size() == records.size());
  for (std::size_t r = 0; r < records.size(); ++r) CHECK(read->at(r).data == records[r]);
  CHECK(read->back().end == static_cast<std::int64_t>(file.size()));
  // Of a file that ends anywhere, or has one wrong byte, the records before are read.
  for (std::size_t cut = 7; cut < file.size(); cut += 997)
    CHECK(ReadWandbRecords(file.substr(0, cut))->size() < records.size());
  std::string wrong = file;
  wrong[static_cast<std::size_t>(read->at(1).end) - 1] ^= 1;
  CHECK(ReadWandbRecords(wrong)->size() == 1);
  CHECK_FALSE(ReadWandbRecords(":W&C" + file.substr(4)).has_value());
}

TEST_CASE("a resumed run goes on in its .wandb file, without what runs again") {
  const TempDir folder;
  {
    Wandb sink(folder.path(), kNames, TestRun());
    for (int i = 1; i <= 7; ++i) {
      REQUIRE(sink.Write(LossRecord(i, 1)).ok());
      if (i % 2 == 0) REQUIRE(sink.Write(CheckpointRecord(i)).ok());
    }
    // Killed: iteration 7's row has not been written.
  }
  CHECK((Steps(folder.path()) == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
  const std::string path = WandbFile(folder.path());
  std::ofstream(path, std::ios::app | std::ios::binary) << "half a rec";
  {
    Wandb sink(folder.path(), kNames, TestRun(4));
    REQUIRE(sink.Write(LossRecord(5, 2)).ok());
    REQUIRE(sink.Close(true).ok());
  }
  CHECK(WandbFile(folder.path()) == path);
  CHECK((Steps(folder.path()) == std::vector<std::int64_t>{1, 2, 3, 4, 5}));
  CHECK(HasEnded(folder.path()));
  {
    Wandb sink(folder.path(), kNames, TestRun(5));
    REQUIRE(sink.Write(LossRecord(6, 2)).ok());
  }
  CHECK((Steps(folder.path()) == std::vector<std::int64_t>{1, 2, 3, 4, 5}));
  CHECK_FALSE(HasEnded(folder.path()));
}

TEST_CASE("a .wandb file that was removed, or is none, is begun anew") {
  const TempDir folder;
  Wandb sink(folder.path(), kNames, TestRun());
  REQUIRE(sink.Write(CheckpointRecord(1)).ok());
  const std::string path = WandbFile(folder.path());
  fs::remove_all(fs::path(path).parent_path());
  REQUIRE(sink.Write(CheckpointRecord(2)).ok());
  CHECK(WandbFile(folder.path()) == path);
  CHECK((Steps(folder.path()) == std::vector<std::int64_t>{2}));
  data::WriteFile(path, "another file");
  Wandb resumed(folder.path(), kNames, TestRun(2));
  REQUIRE(resumed.Write(CheckpointRecord(3)).ok());
  CHECK((Steps(folder.path()) == std::vector<std::int64_t>{3}));
}

}  // namespace engine::metrics::testing
