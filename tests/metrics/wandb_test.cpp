#include "engine/metrics/wandb.h"

#include <zlib.h>

#include <algorithm>
#include <filesystem>

#include "engine/metrics/wandb_log.h"
#include "tests/metrics/sinks_testing.h"

namespace engine::metrics::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kSummaryField = 3;
constexpr int kConfigField = 5;
constexpr int kRunField = 17;
constexpr int kExitField = 18;

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

struct ReadRecord {
  std::int64_t end = 0;  // offset behind it
  std::string data;
};

std::vector<ReadRecord> RecordsOf(const std::string& path) {
  std::vector<ReadRecord> records;
  const absl::StatusOr<File> file = OpenForReading(path);
  REQUIRE(file.ok());
  const absl::Status status = VisitWandbRecords(*file, [&](std::string_view record, std::int64_t end) {
    records.push_back({end, std::string(record)});
    return true;
  });
  REQUIRE(status.ok());
  return records;
}

// The steps of the rows of a history, in order.
std::vector<std::int64_t> Steps(const std::string& folder) {
  std::vector<std::int64_t> steps;
  std::uint64_t number = 0;
  for (const ReadRecord& record : RecordsOf(WandbFile(folder))) {
    CHECK(FindProtoField(record.data, 1)->varint == ++number);
    const std::optional<ProtoField> history = FindProtoField(record.data, 2);
    if (!history) continue;
    const std::optional<ProtoField> step = FindProtoField(history->bytes, 2);
    steps.push_back(static_cast<std::int64_t>(FindProtoField(step->bytes, 1)->varint));
  }
  return steps;
}

// The records of a file that have a message as the field of that number.
std::int64_t CountOf(const std::string& folder, int field) {
  const std::vector<ReadRecord> records = RecordsOf(WandbFile(folder));
  return std::count_if(records.begin(), records.end(), [&](const ReadRecord& record) {
    return FindProtoField(record.data, field).has_value();
  });
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
  const TempDir folder;
  const auto written = [&](const std::string& bytes) {
    data::WriteFile(folder / "log", bytes);
    return RecordsOf(folder / "log");
  };
  const std::vector<ReadRecord> read = written(file);
  REQUIRE(read.size() == records.size());
  for (std::size_t r = 0; r < records.size(); ++r) CHECK(read[r].data == records[r]);
  CHECK(read.back().end == static_cast<std::int64_t>(file.size()));
  // Of a file that ends anywhere, or has one wrong byte, the records before are read.
  for (std::size_t cut = 0; cut < file.size(); cut += 997)
    CHECK(written(file.substr(0, cut)).size() < records.size());
  std::string wrong = file;
  wrong[static_cast<std::size_t>(read[1].end) - 1] ^= 1;
  CHECK(written(wrong).size() == 1);
  CHECK(written(":W&C" + file.substr(4)).empty());
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
  CHECK(CountOf(folder.path(), kExitField) == 1);
  {
    Wandb sink(folder.path(), kNames, TestRun(5));
    REQUIRE(sink.Write(LossRecord(6, 2)).ok());
  }
  CHECK((Steps(folder.path()) == std::vector<std::int64_t>{1, 2, 3, 4, 5}));
  CHECK(CountOf(folder.path(), kExitField) == 0);
}

TEST_CASE("a resumed run says its configuration again, once, after what is kept") {
  const TempDir folder;
  {
    Wandb sink(folder.path(), kNames, TestRun());
    REQUIRE(sink.Write(CheckpointRecord(1)).ok());
  }
  RunDescription changed = TestRun(1);
  changed.settings = {{"kind", std::string("adam")}};
  Wandb sink(folder.path(), kNames, changed);
  REQUIRE(sink.Write(LossRecord(2, 1)).ok());
  REQUIRE(sink.Write(LossRecord(3, 1)).ok());
  CHECK(CountOf(folder.path(), kRunField) == 2);
  CHECK(CountOf(folder.path(), kConfigField) == 2);
  const std::vector<ReadRecord> records = RecordsOf(WandbFile(folder.path()));
  CHECK(FindProtoField(records[3].data, kSummaryField).has_value());
  CHECK(FindProtoField(records[4].data, kRunField).has_value());
  CHECK(records[5].data.find("\"adam\"") != std::string::npos);
  CHECK((Steps(folder.path()) == std::vector<std::int64_t>{1, 2}));
}

TEST_CASE("of a checkpoint for whose summary the disk has no room nothing is written, and all of it later") {
  const TempDir folder;
  Wandb sink(folder / "full", kNames, TestRun());
  REQUIRE(sink.Write(LossRecord(1, 1)).ok());
  const std::string path = WandbFile(folder / "full");
  const std::string before = ReadFile(path);
  // How much row and summary take.
  Wandb whole(folder / "whole", kNames, TestRun());
  REQUIRE(whole.Write(LossRecord(1, 1)).ok());
  REQUIRE(whole.Write(CheckpointRecord(1)).ok());
  const std::size_t added = ReadFile(WandbFile(folder / "whole")).size() - before.size();
  absl::Status full;
  {
    const FileSizeLimit limit(before.size() + added - 1);
    full = sink.Write(CheckpointRecord(1));
  }
  CHECK_FALSE(full.ok());
  CHECK(ReadFile(path) == before);
  REQUIRE(sink.Write(CheckpointRecord(1)).ok());
  CHECK((Steps(folder / "full") == std::vector<std::int64_t>{1}));
  CHECK(CountOf(folder / "full", kSummaryField) == 1);
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
