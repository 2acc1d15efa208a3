// Samples of data sets on a server: what is asked for at once.
#include <doctest/doctest.h>

#include <cstdlib>

#include "engine/base/status.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/indexed_format.h"
#include "engine/data/source.h"
#include "tests/data/temp_dir.h"
#include "tests/storage/object_server.h"

namespace engine::data {
namespace {

constexpr std::int64_t kLongSequence = 20'000;  // tokens, each sequence in blocks of its own

void PutDataset(storage::ObjectServer& server, const TempDir& dir, const std::string& name, TokenType type,
                bool is_mask) {
  const auto writer = IndexedDatasetWriter::Create(dir / name, type);
  REQUIRE(writer.ok());
  for (std::int32_t n = 0; n < 40; ++n) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(kLongSequence));
    for (std::size_t t = 0; t < tokens.size(); ++t) tokens[t] = is_mask ? t % 3 != 0 : n;
    REQUIRE((*writer)->AddDocument(std::vector<std::vector<std::int32_t>>{tokens}).ok());
  }
  REQUIRE((*writer)->Finish().ok());
  for (const std::string ending : {".bin", ".idx"})
    server.Put("sets/" + name + ending, ReadFile(dir / (name + ending)));
}

}  // namespace

TEST_CASE("labels of samples on a server are counted from many requests at once") {
  storage::ObjectServer& server = storage::TheServer();
  const TempDir dir(MemoryFolder());
  setenv("ENGINE_CACHE", dir.path().c_str(), 1);
  PutDataset(server, dir, "masked", TokenType::kU16, false);
  PutDataset(server, dir, LossMaskPrefix("masked"), TokenType::kU8, true);
  recipe::Recipe recipe;
  recipe.model.vocab = 1000;
  recipe.data.sequence_length = kLongSequence;
  recipe.data.split = "1";
  recipe.training.global_batch = 30;
  recipe.training.iterations = 1;
  recipe.data.paths = {dir / "masked"};
  const absl::StatusOr<Source> local = Source::Open(recipe);
  REQUIRE_MESSAGE(local.ok(), Message(local.status()));
  recipe.data.paths = {"s3://sets/masked"};
  const absl::StatusOr<Source> remote = Source::Open(recipe);
  REQUIRE_MESSAGE(remote.ok(), Message(remote.status()));
  server.Command({{"most_busy", true}});
  server.Inject(
      {{"method", "GET"}, {"path", "masked"}, {"times", 1 << 30}, {"do", "together"}, {"count", 10}});
  const absl::StatusOr<std::int64_t> counted = remote->CountedLabels(Split::kTrain, 0, 30);
  REQUIRE_MESSAGE(counted.ok(), Message(counted.status()));
  CHECK(server.Command({{"most_busy", true}}) >= 10);
  CHECK(*counted == *local->CountedLabels(Split::kTrain, 0, 30));
  CHECK(*counted < 30 * kLongSequence);
  CHECK(absl::IsOutOfRange(remote->CountedLabels(Split::kTrain, 20, 11).status()));
  unsetenv("ENGINE_CACHE");
}

}  // namespace engine::data
