#include "engine/data/entropy.h"

#include <doctest/doctest.h>

#include <vector>

#include "tests/data/temp_dir.h"

namespace engine::data {

TEST_CASE("entropy in nats") {
  CHECK(EntropyNats<std::int64_t>(std::vector<std::int64_t>{}) == 0.0);
  CHECK(EntropyNats<std::int64_t>(std::vector<std::int64_t>{0, 7, 0}) == 0.0);
  CHECK(EntropyNats<std::int64_t>(std::vector<std::int64_t>{5, 5, 5, 5}) == doctest::Approx(std::log(4.0)));
  const std::vector<double> shares = {0.25, 0.75};
  CHECK(EntropyNats<double>(shares) == doctest::Approx(0.25 * std::log(4.0) + 0.75 * std::log(4.0 / 3.0)));
}

TEST_CASE("entropy of a data set's tokens") {
  const TempDir dir;
  const auto entropy = [&](const std::vector<std::int32_t>& tokens) {
    absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> writer =
        IndexedDatasetWriter::Create(dir / "d", TokenType::kI32);
    REQUIRE((*writer)->AddDocument({&tokens, 1}).ok());
    REQUIRE((*writer)->Finish().ok());
    const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(dir / "d");
    REQUIRE(dataset.ok());
    return *UnigramEntropy(*dataset, *dataset->Scan());
  };
  CHECK(*entropy({7, 3, 7, 3}) == doctest::Approx(std::log(2.0)));
  CHECK(*entropy({}) == 0.0);
  CHECK(entropy({1 << 24}) == std::nullopt);
  CHECK(entropy({-1}) == std::nullopt);
}

}  // namespace engine::data
