#include "engine/data/rearrange.h"

#include <doctest/doctest.h>

#include "engine/base/status.h"
#include "engine/data/indexed_dataset.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

using TokenSequences = std::vector<std::vector<std::int32_t>>;
using TokenDocuments = std::vector<TokenSequences>;

void WriteDocuments(const std::string& prefix, const TokenDocuments& documents,
                    TokenType type = TokenType::kU16) {
  const auto writer = IndexedDatasetWriter::Create(prefix, type);
  REQUIRE_MESSAGE(writer.ok(), Message(writer.status()));
  for (const TokenSequences& document : documents) REQUIRE((*writer)->AddDocument(document).ok());
  REQUIRE((*writer)->Finish().ok());
}

TokenDocuments ReadTokenDocuments(const std::string& prefix) {
  const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(prefix);
  REQUIRE_MESSAGE(dataset.ok(), Message(dataset.status()));
  TokenDocuments documents;
  for (std::int64_t d = 0; d < dataset->documents(); ++d) {
    TokenSequences sequences;
    for (std::int64_t i = dataset->first_sequence(d); i < dataset->first_sequence(d + 1); ++i) {
      sequences.emplace_back(static_cast<std::size_t>(dataset->lengths()[static_cast<std::size_t>(i)]));
      REQUIRE(dataset->Read(i, 0, sequences.back()).ok());
    }
    documents.push_back(std::move(sequences));
  }
  return documents;
}

}  // namespace

TEST_CASE("merged data sets have all documents, in order") {
  const TempDir dir(MemoryFolder());
  const TokenDocuments first = {{{1, 2}, {3}}, {}, {{4}}};
  const TokenDocuments second = {{{65000}}, {{}, {7, 8, 9}}};
  WriteDocuments(dir / "a", first);
  WriteDocuments(dir / "b", second);
  WriteDocuments(dir / "empty", {});
  const std::vector<std::string> prefixes = {dir / "b", dir / "empty", dir / "a", dir / "b"};
  const absl::StatusOr<MadeDataset> made = MergeDatasets(prefixes, dir / "all");
  REQUIRE_MESSAGE(made.ok(), Message(made.status()));
  TokenDocuments expected = second;
  expected.insert(expected.end(), first.begin(), first.end());
  expected.insert(expected.end(), second.begin(), second.end());
  CHECK(ReadTokenDocuments(dir / "all") == expected);
  CHECK(made->documents == 7);
  CHECK(made->tokens == 12);

  WriteDocuments(dir / "wide", second, TokenType::kI32);
  const std::size_t entries = dir.entries();
  CHECK(Message(MergeDatasets(std::vector<std::string>{dir / "a", dir / "wide"}, dir / "no").status()) ==
        fmt::format("{} holds tokens of uint16 and {} of int32: data sets of one tokenizer have one type",
                    dir / "a", dir / "wide"));
  CHECK_FALSE(MergeDatasets(std::vector<std::string>{dir / "a", dir / "missing"}, dir / "no").ok());
  CHECK_FALSE(MergeDatasets(std::vector<std::string>{dir / "a", dir / "b"}, dir / "a").ok());
  CHECK(dir.entries() == entries);
  CHECK(ReadTokenDocuments(dir / "a") == first);
}

TEST_CASE("parts of a data set have its documents, and about as many tokens each") {
  const TempDir dir(MemoryFolder());
  TokenDocuments documents;
  for (int i = 0; i < 200; ++i)
    documents.push_back({std::vector<std::int32_t>(static_cast<std::size_t>(i * 13 % 50), i)});
  documents.push_back({std::vector<std::int32_t>(3000, 7)});  // as long as more than a part
  WriteDocuments(dir / "d", documents);
  for (const int parts : {1, 3, 7, 32}) {
    const auto made = SplitDataset(dir / "d", parts, dir / "p");
    REQUIRE_MESSAGE(made.ok(), Message(made.status()));
    REQUIRE(made->size() == static_cast<std::size_t>(parts));
    TokenDocuments all;
    std::int64_t most = 0;
    for (const MadeDataset& part : *made) {
      CHECK(part.documents > 0);
      const TokenDocuments some = ReadTokenDocuments(part.prefix);
      all.insert(all.end(), some.begin(), some.end());
      if (&part != &made->back()) most = std::max(most, part.tokens);
    }
    CHECK(all == documents);
    if (parts == 7) CHECK(most <= (4900 + 3000) / 7 + 50);
  }
  WriteDocuments(dir / "few", {{{1}}, {{2}}, {{3, 3, 3}}});
  REQUIRE(SplitDataset(dir / "few", 3, dir / "f").ok());
  CHECK(ReadTokenDocuments(dir / "f_2") == TokenDocuments{{{3, 3, 3}}});
  CHECK(Message(SplitDataset(dir / "few", 4, dir / "q").status()) ==
        fmt::format("{} has 3 documents, which are no 4 parts", dir / "few"));
}

}  // namespace engine::data
