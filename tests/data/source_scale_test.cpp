// Many and large data sets: files with holes stand for their tokens.
#include <doctest/doctest.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "engine/base/status.h"
#include "engine/data/indexed_format.h"
#include "engine/data/source.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

namespace fs = std::filesystem;

// `documents` of `tokens` tokens of 16 bits, all 0, none of which lies on the disk.
void WriteHoles(const std::string& prefix, std::int64_t documents, std::int32_t tokens) {
  std::ofstream bin(BinPath(prefix));
  bin.close();
  fs::resize_file(BinPath(prefix), static_cast<std::uintmax_t>(documents * tokens * 2));
  std::ofstream idx(IdxPath(prefix), std::ios::binary);
  const auto put = [&](auto value) { idx.write(reinterpret_cast<const char*>(&value), sizeof value); };
  idx.write(kMagic.data(), static_cast<std::streamsize>(kMagic.size()));
  put(std::uint64_t{1});
  put(static_cast<std::uint8_t>(TokenType::kU16));
  put(static_cast<std::uint64_t>(documents));
  put(static_cast<std::uint64_t>(documents) + 1);
  for (std::int64_t d = 0; d < documents; ++d) put(tokens);
  for (std::int64_t d = 0; d < documents; ++d) put(d * tokens * 2);
  for (std::int64_t d = 0; d <= documents; ++d) put(d);
}

struct Start {
  double seconds = 0;  // of the processor, all threads together: other programs do not count
  std::string summary;
};

// Opens, as a run does when it starts, and reads the samples of an iteration.
Start Open(const recipe::Recipe& recipe, const std::string& indices) {
  const std::clock_t begin = std::clock();
  const absl::StatusOr<Source> source = Source::Open(recipe, indices);
  REQUIRE_MESSAGE(source.ok(), Message(source.status()));
  CHECK(!source->Fingerprint().empty());
  for (std::int64_t i = 0; i < recipe.training.global_batch; ++i)
    REQUIRE(source->Read(Split::kTrain, i).ok());
  return {static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, source->Summary()};
}

// A run over `sets` data sets of 10^9 tokens each.
void StartRun(int sets, std::int64_t iterations, std::int64_t batch, double most_seconds) {
  const TempDir dir;
  recipe::Recipe recipe;
  recipe.model.vocab = 1000;
  recipe.data.sequence_length = 8192;
  recipe.data.split = "1";
  recipe.training.global_batch = batch;
  recipe.training.iterations = iterations;
  for (int s = 0; s < sets; ++s) {
    recipe.data.paths.push_back(dir / ("set_" + std::to_string(s)));
    recipe.data.weights.push_back(1.0 + s % 7);
    WriteHoles(recipe.data.paths.back(), 1000, 1000000 + s);  // each has an order of its own
  }
  const Start first = Open(recipe, dir / "indices");
  const Start second = Open(recipe, dir / "indices");
  MESSAGE(sets << " data sets of 10^9 tokens, " << iterations * batch << " samples: first start "
               << first.seconds << " s, second " << second.seconds << " s");
  CHECK(first.seconds < most_seconds);
  CHECK(second.seconds < most_seconds);
  CHECK(first.summary == second.summary);
}

}  // namespace

TEST_CASE("a run over large data sets starts without reading them") { StartRun(40, 1000, 64, 10); }

// Run by hand: --no-skip -tc="*a thousand*". It writes some GB of indices. The run goes through as many samples as 10^12 tokens have.
TEST_CASE("a run over a thousand data sets and 10^12 tokens starts in 10 s" * doctest::skip()) {
  StartRun(1000, 119'209, 1024, 10);
}

// A token that no vocabulary has is found when it is read.
TEST_CASE("large data sets are checked as they are read") {
  const TempDir dir;
  WriteHoles(dir / "d", 1000, 1000000);
  std::fstream bin(BinPath(dir / "d"), std::ios::in | std::ios::out | std::ios::binary);
  for (std::int64_t document = 0; document < 1000; ++document) {  // in each of them a token 5000
    bin.seekp((document * 1000000 + 777) * 2);
    const std::uint16_t token = 5000;
    bin.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
  bin.close();
  recipe::Recipe recipe;
  recipe.model.vocab = 1000;
  recipe.data.paths = {dir / "d"};
  recipe.data.sequence_length = 500000;
  recipe.data.split = "1";
  recipe.training.global_batch = 1;
  recipe.training.iterations = 6;
  const absl::StatusOr<Source> source = Source::Open(recipe);
  REQUIRE_MESSAGE(source.ok(), Message(source.status()));
  std::string told;
  for (std::int64_t i = 0; i < 6 && told.empty(); ++i)
    told = Message(source->Read(Split::kTrain, i).status());
  CHECK(told.starts_with(dir / "d.bin: token 5000 (sequence "));
  CHECK(told.find(", place 777 in it) is outside the model's vocabulary, 0 to 999") != std::string::npos);
}

}  // namespace engine::data
