#include "engine/checkpoint/read.h"

#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint/flat_range.h"
#include "tests/checkpoint/testing.h"

namespace engine::checkpoint {
namespace {

TEST_CASE("any box of any cut") {
  const Scratch scratch;
  Random random(6);
  for (int round = 1; round <= 6; ++round) {
    REQUIRE(WriteSmall(scratch.path(), round, round, random).ok());
    const absl::StatusOr<Reader> reader = Reader::Open(IterationPath(scratch.path(), round));
    REQUIRE_MESSAGE(reader.ok(), Message(reader.status()));
    CHECK(reader->Verify().ok());
    CHECK(reader->metadata().recipe_toml == SmallMetadata(round).recipe_toml);
    CHECK(reader->metadata().consumed_samples == round * 16);
    CHECK(reader->tensors().size() == SmallModel().size());
    CheckWholeContent(*reader);
    for (int draw = 0; draw < 200; ++draw) {
      const TensorInfo& tensor = reader->tensors()[static_cast<std::size_t>(Draw(random, 0, 6))];
      const Box box = RandomBox(tensor.shape, random);
      std::vector<char> actual(static_cast<std::size_t>(box.count.elements() * SizeOf(tensor.dtype)));
      REQUIRE(reader->Read(tensor.name, box, actual.data()).ok());
      CHECK(actual == Content(tensor, box, round));
    }
  }
}

TEST_CASE("a sharded optimizer's flat ranges are read back in another layout's") {
  const Scratch scratch;
  const TensorInfo tensor = {"adam.m/w", {20, 14}, DType::kF32};
  absl::StatusOr<Writer> writer = Writer::Begin(scratch.path(), SmallMetadata(1), {tensor});
  REQUIRE(writer.ok());
  std::vector<Shard> shards(6);
  for (int tp = 0; tp < 2; ++tp) {  // columns over tp, flat ranges over dp
    const Box local = {{0, tp * 7}, {20, 7}};
    for (int dp = 0; dp < 3; ++dp) {
      Shard& shard = shards[static_cast<std::size_t>(tp * 3 + dp)];
      for (const Box& box : BoxesOfFlatRange(local, 140 * dp / 3, 140 * (dp + 1) / 3)) {
        shard.Add({tensor}, 0, box, 1);
      }
      REQUIRE(writer->WriteShard(tp * 3 + dp, shard.pieces).ok());
    }
  }
  REQUIRE(writer->Commit().ok());
  const absl::StatusOr<Reader> reader = Reader::Open(IterationPath(scratch.path(), 1));
  REQUIRE(reader.ok());
  for (int rank = 0; rank < 4; ++rank) {  // rows over tp
    for (const Box& box : BoxesOfFlatRange({{rank * 5, 0}, {5, 14}}, 3, 67)) {
      std::vector<char> actual(static_cast<std::size_t>(box.count.elements() * 4));
      REQUIRE(reader->Read("adam.m/w", box, actual.data()).ok());
      CHECK(actual == Content(tensor, box, 1));
    }
  }
}

TEST_CASE("long and short runs, near and far apart") {
  const Scratch scratch;
  const TensorInfo tensor = {"w", {40, 3, 30000}, DType::kU8};
  const std::vector<char> whole = Content(tensor, WholeBox(tensor.shape), 1);
  absl::StatusOr<Writer> writer = Writer::Begin(scratch.path(), SmallMetadata(1), {tensor});
  REQUIRE(writer.ok());
  REQUIRE(writer->WriteShard(0, {{0, WholeBox(tensor.shape), whole.data()}}).ok());
  REQUIRE(writer->Commit().ok());
  const absl::StatusOr<Reader> reader = Reader::Open(IterationPath(scratch.path(), 1));
  REQUIRE(reader.ok());
  for (const Box& box :
       {Box{{3, 0, 0}, {20, 3, 20000}}, Box{{0, 1, 29990}, {40, 1, 10}}, Box{{1, 0, 7}, {30, 2, 5000}},
        Box{{0, 2, 0}, {40, 1, 30000}}, Box{{39, 2, 29999}, {1, 1, 1}}}) {
    std::vector<char> actual(static_cast<std::size_t>(box.count.elements()));
    REQUIRE(reader->Read("w", box, actual.data()).ok());
    CHECK(actual == Content(tensor, box, 1));
  }
}

TEST_CASE("wrong questions") {
  const Scratch scratch;
  Random random(7);
  REQUIRE(WriteSmall(scratch.path(), 1, 2, random).ok());
  const absl::StatusOr<Reader> reader = Reader::Open(IterationPath(scratch.path(), 1));
  REQUIRE(reader.ok());
  char byte = 0;
  CHECK(Contains(reader->Read("nothing", {}, &byte), "has no tensor nothing"));
  CHECK(
      Contains(reader->Read("steps", {{0}, {2}}, &byte), "tensor steps: [0:2] is not inside its shape [1]"));
  CHECK(reader->Find("nothing") == nullptr);
  CHECK(reader->Find("steps")->dtype == DType::kI64);
  const absl::Status missing = Reader::Open(scratch.path() + "/none").status();
  CHECK(missing.code() == absl::StatusCode::kNotFound);
}

TEST_CASE("a folder's name and its manifest must agree on the iteration") {
  const Scratch scratch;
  Random random(8);
  REQUIRE(WriteSmall(scratch.path(), 6, 1, random).ok());
  const std::string good = IterationPath(scratch.path(), 6);
  for (const std::string& name : {std::string("iteration_0000099"), std::string("iteration_0000003")}) {
    const std::string folder = scratch.path() + "/" + name;
    std::filesystem::copy(good, folder, std::filesystem::copy_options::recursive);
    for (const std::string& path : {folder, folder + "/", folder + "/.", good + "/../" + name}) {
      CAPTURE(path);
      const absl::Status status = Reader::Open(path).status();
      CHECK(status.code() == absl::StatusCode::kDataLoss);
      CHECK(Contains(status, "is named for iteration " + std::to_string(std::stoi(name.substr(10))) +
                                 ", but its manifest is of iteration 6"));
    }
    CHECK(*ReadIteration(folder) == 6);
  }
  // A name that is none of ours says nothing.
  std::filesystem::copy(good, scratch.path() + "/best", std::filesystem::copy_options::recursive);
  CHECK(Reader::Open(scratch.path() + "/best").ok());
  CHECK(Reader::Open(good + "/").ok());
}

TEST_CASE("each damage to each file is found by Open or Verify, with the file's name") {
  const Scratch scratch;
  Random random(8);
  REQUIRE(WriteSmall(scratch.path(), 1, 3, random).ok());
  const std::string folder = IterationPath(scratch.path(), 1);
  const auto verdict = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const Reader reader, Reader::Open(folder));
    return reader.Verify();
  };
  for (const char* name : {"rank_00000.h5", "rank_00001.h5", "rank_00002.h5", "index.h5", "manifest.json"}) {
    const std::string path = folder + "/" + name;
    const std::string good = ReadText(path);
    REQUIRE(verdict().ok());
    for (int draw = 0; draw < 20; ++draw) {
      std::string flipped = good;
      flipped[static_cast<std::size_t>(Draw(random, 0, static_cast<std::int64_t>(good.size()) - 1))] ^= 0x10;
      WriteText(path, flipped);
      CHECK(Contains(verdict(), name));
    }
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, good.size() / 2, good.size() - 1}) {
      WriteText(path, good.substr(0, size));
      CHECK(Contains(verdict(), name));
    }
    WriteText(path, good + "x");
    CHECK(Contains(verdict(), name));
    std::filesystem::remove(path);
    CHECK(Contains(verdict(), name));
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    CHECK(Contains(verdict(), "is a named pipe, not a regular file"));
    std::filesystem::remove(path);
    WriteText(scratch.path() + "/elsewhere", good);
    REQUIRE(symlink("../elsewhere", path.c_str()) == 0);
    CHECK(Contains(verdict(), name));
    std::filesystem::remove(path);
    WriteText(path, good);
  }
}

}  // namespace
}  // namespace engine::checkpoint
