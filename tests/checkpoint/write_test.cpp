#include "engine/checkpoint/write.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "engine/checkpoint/index_file.h"
#include "engine/checkpoint/store.h"
#include "tests/checkpoint/testing.h"

namespace engine::checkpoint {
namespace {

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("ranks from many threads; the names on disk; nothing else is left") {
  const Scratch scratch;
  const std::string root = scratch.path() + "/a/b";
  const std::vector<TensorInfo> tensors = SmallModel();
  Random random(3);
  const std::vector<Shard> shards = DealShards(tensors, 6, 42, random);
  absl::StatusOr<Writer> writer = Writer::Begin(root, SmallMetadata(42), tensors);
  REQUIRE(writer.ok());
  std::vector<absl::Status> statuses(6);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 6; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = writer->WriteShard(rank, shards[rank].pieces); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) CHECK(status.ok());
  CHECK(ListIterations(root)->empty());
  CHECK(writer->Commit().ok());
  CHECK(Contains(writer->Commit(), "is committed already"));
  CHECK(NamesIn(root) == std::vector<std::string>{"iteration_0000042"});
  CHECK(NamesIn(root + "/iteration_0000042") ==
        std::vector<std::string>{"index.h5", "manifest.json", "rank_00000.h5", "rank_00001.h5",
                                 "rank_00002.h5", "rank_00003.h5", "rank_00004.h5", "rank_00005.h5"});
  const absl::StatusOr<Reader> reader = Reader::Open(root + "/iteration_0000042");
  REQUIRE(reader.ok());
  CHECK(reader->Verify().ok());
  CheckWholeContent(*reader);
}

TEST_CASE("the room that a checkpoint takes is more than its files have") {
  const Scratch scratch;
  Random random(5);
  for (const int ranks : {1, 4}) {
    REQUIRE(WriteSmall(scratch.path(), ranks, ranks, random).ok());
    const std::string folder = IterationPath(scratch.path(), ranks);
    const absl::StatusOr<Reader> reader = Reader::Open(folder);
    REQUIRE(reader.ok());
    std::int64_t pieces = 0;
    for (const std::vector<Piece>& of_tensor : reader->manifest().pieces)
      pieces += static_cast<std::int64_t>(of_tensor.size());
    const auto manifest =
        static_cast<std::int64_t>(std::filesystem::file_size(JoinPath(folder, kManifestName)));
    const std::int64_t room = CheckpointRoom(reader->tensors(), pieces, ranks);
    CHECK(room >= reader->bytes() + manifest);
  }
}

TEST_CASE("equal content gives equal bytes") {
  const Scratch scratch;
  for (const char* name : {"/a", "/b"}) {
    Random random(4);
    REQUIRE(WriteSmall(scratch.path() + name, 1, 2, random).ok());
  }
  for (const char* file : {"rank_00000.h5", "rank_00001.h5", "index.h5", "manifest.json"}) {
    const std::string a = ReadText(scratch.path() + "/a/iteration_0000001/" + file);
    CHECK(!a.empty());
    CHECK(a == ReadText(scratch.path() + "/b/iteration_0000001/" + file));
  }
}

TEST_CASE("a second write of an iteration replaces the first") {
  const Scratch scratch;
  Random random(5);
  REQUIRE(WriteSmall(scratch.path(), 7, 1, random).ok());
  REQUIRE(WriteSmall(scratch.path(), 7, 3, random).ok());
  CHECK(NamesIn(scratch.path()) == std::vector<std::string>{"iteration_0000007"});
  const absl::StatusOr<Reader> reader = Reader::Open(scratch.path() + "/iteration_0000007");
  REQUIRE(reader.ok());
  CHECK(reader->manifest().files.size() == 4);
  CHECK(reader->Verify().ok());
}

TEST_CASE("pieces must cover every tensor exactly once; a refused checkpoint leaves nothing") {
  const Scratch scratch;
  const std::vector<TensorInfo> tensors = {{"w", {4, 6}, DType::kF32}, {"b", {6}, DType::kF32}};
  const std::vector<float> data(24);
  const auto commit = [&](const std::vector<PieceToWrite>& pieces) -> absl::Status {
    ASSIGN_OR_RETURN(Writer writer, Writer::Begin(scratch.path(), SmallMetadata(1), tensors));
    RETURN_IF_ERROR(writer.WriteShard(0, pieces));
    return writer.Commit();
  };
  const PieceToWrite b = {1, {{0}, {6}}, data.data()};
  const PieceToWrite left = {0, {{0, 0}, {4, 3}}, data.data()};
  CHECK(Contains(commit({left, b}),
                 "tensor w: its 1 pieces cover 12 of the 24 elements of [4, 6]; [0:4, 3:6] is"));
  CHECK(Contains(commit({{0, {{0, 0}, {4, 6}}, data.data()}}), "tensor b: its 0 pieces cover 0 of the 6"));
  CHECK(Contains(commit({left, {0, {{0, 2}, {4, 4}}, data.data()}, b}),
                 "tensor w: pieces [0:4, 0:3] and [0:4, 2:6] overlap"));
  CHECK(Contains(commit({left, left, b}), "rank 0: tensor w: two pieces start where [0:4, 0:3] does"));
  CHECK(Contains(commit({{0, {{0, 3}, {4, 4}}, data.data()}}),
                 "rank 0: tensor w: piece [0:4, 3:7] is not inside its shape [4, 6]"));
  CHECK(Contains(commit({{2, {{0}, {6}}, data.data()}}), "rank 0 writes tensor 2 of 2"));
  CHECK(NamesIn(scratch.path()).empty());
  CHECK(commit({left, {0, {{0, 3}, {4, 3}}, data.data()}, b}).ok());
}

TEST_CASE("misuse is refused") {
  const Scratch scratch;
  absl::StatusOr<Writer> writer = Writer::Begin(scratch.path(), SmallMetadata(1), {{"w", {1}, DType::kF32}});
  REQUIRE(writer.ok());
  CHECK(Contains(Writer::Begin(scratch.path(), SmallMetadata(1), {}).status(),
                 "is being written by another writer"));
  CHECK(writer->WriteShard(0, {}).ok());
  CHECK(Contains(writer->WriteShard(0, {}), "rank_00000.h5 is written twice"));
  CHECK(Contains(writer->WriteShard(-1, {}), "no shard for rank -1"));
  Metadata bad = SmallMetadata(2);
  bad.recipe_toml = "\xff";
  absl::StatusOr<Writer> not_text = Writer::Begin(scratch.path(), bad, {});
  REQUIRE(not_text.ok());
  CHECK(Contains(not_text->Commit(), "not valid UTF-8"));
  CHECK(RemoveLeftovers(scratch.path()).ok());
  CHECK(NamesIn(scratch.path()).size() == 2);  // both writers are alive
}

// Runs `body` in a child process and returns the message of its status.
std::string InChild(const std::function<absl::Status()>& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = Message(body());
    const bool sent = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t bytes = read(ends[0], text.data(), text.size());
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  return text.substr(0, static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
}

TEST_CASE("a full disk is an error that names the file, wherever it strikes, and leaves nothing") {
  const Scratch scratch;
  const std::vector<float> data(1 << 16);
  for (const rlim_t limit :
       {rlim_t{0}, rlim_t{1000}, rlim_t{5000}, rlim_t{30000}, rlim_t{262144}, rlim_t{272000}}) {
    const std::string message = InChild([&]() -> absl::Status {
      ASSIGN_OR_RETURN(Writer writer,
                       Writer::Begin(scratch.path(), SmallMetadata(1), {{"w", {1 << 16}, DType::kF32}}));
      signal(SIGXFSZ, SIG_IGN);
      const rlimit sizes = {limit, limit};
      setrlimit(RLIMIT_FSIZE, &sizes);
      RETURN_IF_ERROR(writer.WriteShard(0, {{0, WholeBox({1 << 16}), data.data()}}));
      return writer.Commit();
    });
    INFO("limit " << limit << ": " << message);
    CHECK(message.find("cannot make room for 284672 bytes in " + scratch.path()) == 0);
    CHECK(message.find("rank_00000.h5: File too large") != std::string::npos);
    CHECK(NamesIn(scratch.path()).empty());
  }
  const std::string manifest_message = InChild([&]() -> absl::Status {
    ASSIGN_OR_RETURN(Writer writer,
                     Writer::Begin(scratch.path(), SmallMetadata(1), {{"w", {1}, DType::kF32}}));
    RETURN_IF_ERROR(writer.WriteShard(0, {{0, WholeBox({1}), data.data()}}));
    signal(SIGXFSZ, SIG_IGN);
    const rlimit sizes = {500, 500};
    setrlimit(RLIMIT_FSIZE, &sizes);
    return writer.Commit();
  });
  CHECK(!manifest_message.empty());
  CHECK(NamesIn(scratch.path()).empty());
}

TEST_CASE("missing permission and a file in a folder's place are errors with the path") {
  const Scratch scratch;
  REQUIRE(chmod(scratch.path().c_str(), 0555) == 0);
  const std::string root = scratch.path() + "/checkpoints";
  const std::string message = InChild([&]() -> absl::Status {
    if (geteuid() == 0 && setuid(65534) != 0) return Internal("cannot become an ordinary user");
    return Writer::Begin(root, SmallMetadata(1), {}).status();
  });
  CHECK(message == "cannot create folder " + root + ": Permission denied");
  REQUIRE(chmod(scratch.path().c_str(), 0755) == 0);
  WriteText(root, "a file");
  CHECK(Contains(Writer::Begin(root, SmallMetadata(1), {}).status(), root));
}

}  // namespace
}  // namespace engine::checkpoint
