#include "engine/data/index_cache.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <thread>

#include "engine/base/host_name.h"
#include "engine/base/status.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

namespace fs = std::filesystem;

std::vector<std::int32_t> Lengths() {
  std::vector<std::int32_t> lengths(30000);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<std::int32_t>(20 + i * i % 97);
  return lengths;
}

std::vector<std::vector<PackedPiece>> Samples(const SampleIndex& index,
                                              std::span<const std::int32_t> lengths) {
  std::vector<std::vector<PackedPiece>> samples(static_cast<std::size_t>(index.samples()));
  for (std::size_t i = 0; i < samples.size(); ++i)
    index.AppendPieces(static_cast<std::int64_t>(i), lengths, &samples[i]);
  return samples;
}

std::vector<fs::path> FilesOf(const std::string& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".index") files.push_back(entry.path());
  }
  return files;
}

std::set<std::string> NamesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

std::uint64_t InodeOf(const fs::path& path) {
  struct stat facts {};
  REQUIRE(stat(path.c_str(), &facts) == 0);
  return facts.st_ino;
}

constexpr SampleIndexOptions kOptions = {
    .range = {0, 30000}, .sequence_length = 15, .num_samples = 120000, .seed = 4};

}  // namespace

TEST_CASE("an index from a file is the one that is built, and is built once") {
  for (const bool packs : {false, true}) {
    CAPTURE(packs);
    const TempDir dir;
    const std::vector<std::int32_t> lengths = Lengths();
    SampleIndexOptions options = {
        .range = {5, 29000}, .sequence_length = 15, .packs = packs, .num_samples = 120000, .seed = 4};
    const absl::StatusOr<SampleIndex> built = BuildSampleIndex(lengths, options);
    REQUIRE_MESSAGE(built.ok(), Message(built.status()));
    const auto expected = Samples(*built, lengths);
    std::string note;
    std::vector<std::thread> processes;  // that start at once; a file's lock is of who opens it
    std::vector<std::string> wrong(3);
    for (std::string& told : wrong) {
      processes.emplace_back([&] {
        std::string unused;
        const absl::StatusOr<SampleIndex> index =
            OpenSampleIndex(dir / "cache/of/run", lengths, options, &unused);
        if (!index.ok() || !unused.empty() || Samples(*index, lengths) != expected) told = "another index";
      });
    }
    for (std::thread& process : processes) process.join();
    for (const std::string& told : wrong) CHECK(told.empty());
    std::vector<fs::path> files = FilesOf(dir / "cache/of/run");
    REQUIRE(files.size() == 1);
    const auto written = fs::last_write_time(files[0]);
    const absl::StatusOr<SampleIndex> again = OpenSampleIndex(dir / "cache/of/run", lengths, options, &note);
    REQUIRE(again.ok());
    CHECK(Samples(*again, lengths) == expected);
    CHECK(again->epochs == built->epochs);
    CHECK(again->tokens_per_epoch == built->tokens_per_epoch);
    CHECK(again->facts == built->facts);
    CHECK(fs::last_write_time(files[0]) == written);
    // Damage is found, whichever byte it is, and mended.
    const auto size = static_cast<std::streamoff>(fs::file_size(files[0]));
    for (const std::streamoff at : {std::streamoff{3}, std::streamoff{20}, std::streamoff{50},
                                    std::streamoff{90}, size / 2, size - 1}) {
      CAPTURE(at);
      {
        std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(at);
        const int byte = file.get();
        file.seekp(at);
        file.put(static_cast<char>(byte ^ 1));
      }
      const absl::StatusOr<SampleIndex> mended =
          OpenSampleIndex(dir / "cache/of/run", lengths, options, &note);
      REQUIRE(mended.ok());
      CHECK(Samples(*mended, lengths) == expected);
    }
    fs::resize_file(files[0], 70);
    CHECK(Samples(*OpenSampleIndex(dir / "cache/of/run", lengths, options, &note), lengths) == expected);
    CHECK(note.empty());
    // Whatever the index depends on gives another file.
    options.seed = 5;
    CHECK(Samples(*OpenSampleIndex(dir / "cache/of/run", lengths, options, &note), lengths) != expected);
    CHECK(FilesOf(dir / "cache/of/run").size() == 2);
    std::vector<std::int32_t> other = lengths;
    std::swap(other[100], other[101]);
    CHECK(OpenSampleIndex(dir / "cache/of/run", other, options, &note).ok());
    CHECK(FilesOf(dir / "cache/of/run").size() == 3);
  }
}

TEST_CASE("small indices have no files, and a folder that is none is told") {
  const TempDir dir;
  std::string note;
  const std::vector<std::int32_t> few(100, 50);
  CHECK(OpenSampleIndex(dir / "cache", few, {.range = {0, 100}, .sequence_length = 15}, &note).ok());
  CHECK_FALSE(fs::exists(dir / "cache"));
  CHECK(note.empty());
  std::ofstream(dir / "file") << "no folder";
  const std::vector<std::int32_t> lengths = Lengths();
  CHECK(
      OpenSampleIndex(dir / "file/cache", lengths, {.range = {0, 30000}, .sequence_length = 15}, &note).ok());
  CHECK(note.starts_with("orders of samples are not kept: cannot create " + (dir / "file/cache")));
  CHECK(note.ends_with("each process builds its own"));
}

// The other process is one of this host, which has the lock, and writes the same file.
TEST_CASE("an index that another process writes is waited for and used, and not written again") {
  const TempDir dir;
  const std::vector<std::int32_t> lengths = Lengths();
  std::string note;
  const auto expected = Samples(*OpenSampleIndex(dir / "made", lengths, kOptions, &note), lengths);
  const fs::path made = FilesOf(dir / "made").at(0);
  const std::string name = made.filename().string();
  CHECK(NamesIn(dir / "made") == std::set<std::string>{name, name + ".lock"});
  const fs::path folder = dir / "cache";
  fs::create_directory(folder);
  const int lock = open((folder / (name + ".lock")).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  REQUIRE(lock >= 0);
  REQUIRE(flock(lock, LOCK_EX) == 0);
  bool is_right = false;
  std::thread waits([&] {
    const absl::StatusOr<SampleIndex> index = OpenSampleIndex(folder.string(), lengths, kOptions, &note);
    is_right = index.ok() && Samples(*index, lengths) == expected;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(NamesIn(folder.string()) == std::set<std::string>{name + ".lock"});
  fs::copy_file(made, folder / "coming");
  fs::rename(folder / "coming", folder / name);
  const std::uint64_t inode = InodeOf(folder / name);
  close(lock);
  waits.join();
  CHECK(is_right);
  CHECK(note.empty());
  CHECK(InodeOf(folder / name) == inode);
  CHECK(NamesIn(folder.string()) == std::set<std::string>{name, name + ".lock"});
}

TEST_CASE("what a dead process of this host was writing is removed, and what others write is not") {
  const TempDir dir;
  const std::vector<std::int32_t> lengths = Lengths();
  std::string note;
  const auto expected = Samples(*OpenSampleIndex(dir / "cache", lengths, kOptions, &note), lengths);
  const fs::path made = FilesOf(dir / "cache").at(0);
  const std::string name = made.filename().string();
  const std::string host = HostName();
  const std::string dead = fmt::format("{}.{}.2147483647", name, host);
  const std::string of_other_host = fmt::format("{}.{}.org.17", name, host);
  const std::string of_other_index = fmt::format("other.index.{}.2147483647", host);
  for (const std::string& file : {dead, of_other_host, of_other_index})
    std::ofstream(dir / "cache/" + file) << "half";
  fs::resize_file(made, 70);
  CHECK(Samples(*OpenSampleIndex(dir / "cache", lengths, kOptions, &note), lengths) == expected);
  CHECK(note.empty());
  CHECK(NamesIn(dir / "cache") == std::set<std::string>{name, name + ".lock", of_other_host, of_other_index});
}

// A limit on the size of files fails as a full disk does, in the middle of writing.
TEST_CASE("an index that the disk has no room for stays in memory with a note, and leaves nothing there") {
  const TempDir dir;
  const std::vector<std::int32_t> lengths = Lengths();
  const absl::StatusOr<SampleIndex> built = BuildSampleIndex(lengths, kOptions);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{.rlim_cur = 100 << 10, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string note;
  const absl::StatusOr<SampleIndex> index = OpenSampleIndex(dir / "cache", lengths, kOptions, &note);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  REQUIRE(index.ok());
  CHECK(Samples(*index, lengths) == Samples(*built, lengths));
  CHECK(note.starts_with("orders of samples are not kept: cannot write " + (dir / "cache/")));
  CHECK(note.find("File too large") != std::string::npos);
  const std::set<std::string> names = NamesIn(dir / "cache");
  REQUIRE(names.size() == 1);
  CHECK(names.begin()->ends_with(".index.lock"));
}

}  // namespace engine::data
