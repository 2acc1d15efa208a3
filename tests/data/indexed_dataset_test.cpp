#include "engine/data/indexed_dataset.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "engine/base/status.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

using Sequences = std::vector<std::vector<std::int32_t>>;

// Documents {7 8 9}, {}, {1} {2 3}: 4 document entries, 3 sequences, 6 tokens.
void WriteSmall(const std::string& prefix, TokenType type) {
  absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> writer = IndexedDatasetWriter::Create(prefix, type);
  REQUIRE(writer.ok());
  REQUIRE((*writer)->AddDocument(Sequences{{7, 8, 9}}).ok());
  REQUIRE((*writer)->AddDocument(Sequences{}).ok());
  REQUIRE((*writer)->AddDocument(Sequences{{1}, {2, 3}}).ok());
  REQUIRE((*writer)->Finish().ok());
}

std::string OpenError(const std::string& prefix) {
  const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(prefix);
  REQUIRE_FALSE(dataset.ok());
  return Message(dataset.status());
}

template <typename T>
std::string Bytes(std::initializer_list<T> values) {
  std::string bytes;
  for (T value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

}  // namespace

TEST_CASE("the files have the documented bytes") {
  const TempDir dir;
  WriteSmall(dir / "d", TokenType::kU16);
  CHECK(ReadFile(dir / "d.bin") == Bytes<std::uint16_t>({7, 8, 9, 1, 2, 3}));
  CHECK(ReadFile(dir / "d.idx") == std::string("MMIDIDX\0\0", 9) + Bytes<std::uint64_t>({1}) + '\x08' +
                                       Bytes<std::uint64_t>({3, 4}) + Bytes<std::int32_t>({3, 1, 2}) +
                                       Bytes<std::int64_t>({0, 6, 8}) + Bytes<std::int64_t>({0, 1, 1, 3}));
  CHECK(dir.entries() == 2);
}

TEST_CASE("every token type is read back") {
  for (TokenType type :
       {TokenType::kU8, TokenType::kI8, TokenType::kI16, TokenType::kI32, TokenType::kI64, TokenType::kU16}) {
    CAPTURE(Name(type));
    const TempDir dir;
    WriteSmall(dir / "d", type);
    const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(dir / "d");
    REQUIRE_MESSAGE(dataset.ok(), Message(dataset.status()));
    CHECK(dataset->type() == type);
    CHECK(dataset->sequences() == 3);
    CHECK(dataset->documents() == 3);
    CHECK(dataset->tokens() == 6);
    CHECK(dataset->bin_bytes() == 6 * SizeOf(type));
    CHECK(dataset->first_sequence(2) == 1);
    std::vector<std::int32_t> tokens(2);
    CHECK(dataset->Read(0, 1, tokens).ok());
    CHECK(tokens == std::vector<std::int32_t>{8, 9});
    CHECK(dataset->Read(2, 0, tokens).ok());
    CHECK(tokens == std::vector<std::int32_t>{2, 3});
    const TokenScan scan = *dataset->Scan();
    CHECK(scan.min == 1);
    CHECK(scan.max == 9);
    CHECK(scan.first_min == 3);
    CHECK(scan.first_max == 2);
    CHECK(dataset->SequenceOfToken(2) == 0);
    CHECK(dataset->SequenceOfToken(3) == 1);
    std::vector<std::int64_t> counts(10, 0);
    CHECK(dataset->CountTokens(1, 3, counts).ok());
    CHECK(counts == std::vector<std::int64_t>{0, 1, 1, 1, 0, 0, 0, 0, 0, 0});
  }
}

TEST_CASE("uint16 is chosen below 65500 tokens") {
  CHECK(ChooseTokenType(65499) == TokenType::kU16);
  CHECK(ChooseTokenType(65500) == TokenType::kI32);
}

TEST_CASE("a token that does not fit is refused, and nothing is left behind") {
  const TempDir dir;
  {
    absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> writer =
        IndexedDatasetWriter::Create(dir / "d", TokenType::kU16);
    REQUIRE(writer.ok());
    CHECK((*writer)->AddDocument(Sequences{{65535}}).ok());
    CHECK(Message((*writer)->AddDocument(Sequences{{65536}})) ==
          "token 65536 does not fit uint16: it holds 0 to 65535");
    CHECK_FALSE((*writer)->AddDocument(Sequences{{-1}}).ok());
    CHECK(dir.entries() == 3);
  }
  CHECK(dir.entries() == 0);
}

TEST_CASE("an older data set stays until Finish, and is replaced by it") {
  const TempDir dir;
  WriteSmall(dir / "d", TokenType::kU16);
  absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> writer =
      IndexedDatasetWriter::Create(dir / "d", TokenType::kU16);
  REQUIRE(writer.ok());
  REQUIRE((*writer)->AddDocument(Sequences{{4}}).ok());
  CHECK(IndexedDataset::Open(dir / "d")->tokens() == 6);
  REQUIRE((*writer)->Finish().ok());
  CHECK(IndexedDataset::Open(dir / "d")->tokens() == 1);
}

TEST_CASE("a data set of no tokens is legal") {
  const TempDir dir;
  {
    absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> writer =
        IndexedDatasetWriter::Create(dir / "d", TokenType::kU16);
    REQUIRE((*writer)->AddDocument(Sequences{}).ok());
    REQUIRE((*writer)->Finish().ok());
  }
  const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(dir / "d");
  REQUIRE(dataset.ok());
  CHECK(dataset->tokens() == 0);
  CHECK(dataset->documents() == 1);
  CHECK(dataset->Scan()->max == 0);
}

TEST_CASE("files cut short at any byte are refused") {
  const TempDir dir;
  WriteSmall(dir / "d", TokenType::kU16);
  for (const char* name : {"d.idx", "d.bin"}) {
    const std::string whole = ReadFile(dir / name);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      CAPTURE(size);
      WriteFile(dir / name, whole.substr(0, size));
      CHECK_FALSE(IndexedDataset::Open(dir / "d").ok());
    }
    WriteFile(dir / name, whole + "x");
    CHECK_FALSE(IndexedDataset::Open(dir / "d").ok());
    WriteFile(dir / name, whole);
  }
  CHECK(IndexedDataset::Open(dir / "d").ok());
}

TEST_CASE("any changed bit of the header, the lengths or the pointers is refused") {
  const TempDir dir;
  WriteSmall(dir / "d", TokenType::kU16);
  const std::string whole = ReadFile(dir / "d.idx");
  const std::size_t documents_at = 34 + 12 * 3;
  for (std::size_t at = 0; at < documents_at; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      CAPTURE(at);
      CAPTURE(bit);
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      WriteFile(dir / "d.idx", damaged);
      CHECK_FALSE(IndexedDataset::Open(dir / "d").ok());
    }
  }
  // Of the document entries, the first and the last are known and the others ascend: bytes of ff break each.
  for (std::size_t entry = 0; entry < 4; ++entry) {
    std::string damaged = whole;
    damaged.replace(documents_at + 8 * entry, 8, 8, '\xff');
    WriteFile(dir / "d.idx", damaged);
    CHECK_FALSE(IndexedDataset::Open(dir / "d").ok());
  }
}

TEST_CASE("what is wrong is said with both numbers") {
  const TempDir dir;
  const std::string prefix = dir / "d";
  CHECK(OpenError(prefix) ==
        "cannot open " + prefix +
            ".idx: No such file or directory; a data set is named by its prefix, without "
            ".bin or .idx");
  WriteSmall(prefix, TokenType::kU16);
  WriteFile(prefix + ".bin", "123");
  CHECK(OpenError(prefix) == prefix + ".bin has 3 bytes, but the 6 uint16 tokens of " + prefix +
                                 ".idx take 12; the two files are not of one data set");
  WriteFile(prefix + ".bin", std::string(12, '\0'));
  const std::string whole = ReadFile(prefix + ".idx");
  const auto with = [&](std::size_t at, const std::string& bytes) {
    std::string changed = whole;
    changed.replace(at, bytes.size(), bytes);
    WriteFile(prefix + ".idx", changed);
    const std::string message = OpenError(prefix);
    CHECK(message.starts_with(prefix + ".idx: "));
    return message.substr(prefix.size() + 6);
  };
  CHECK(with(0, "X") == "is not an index, it does not start with MMIDIDX");
  CHECK(with(9, "\x02") == "version 2, only 1 is known");
  CHECK(with(17, "\x07") == "token type 7 is floating point");
  CHECK(with(17, "\x09") == "token type 9 is unknown");
  CHECK(with(18, std::string(8, '\xff')) ==
        "102 bytes are too few for the 18446744073709551615 sequences and 4 document entries of its header");
  CHECK(with(34, Bytes<std::int32_t>({-3})) == "sequence 0 has length -3");
  CHECK(with(34, Bytes<std::int32_t>({4})) ==
        "sequence 1 is said to start at byte 6, but the lengths before it sum to 8 bytes");
  CHECK(with(70, Bytes<std::int64_t>({1})) == "document entry 0 is 1, not 0");
  CHECK(with(86, Bytes<std::int64_t>({0})) == "document entry 2 is 0, below the 1 before it");
  CHECK(with(94, Bytes<std::int64_t>({2})) ==
        "the last document ends at sequence 2, but there are 3 sequences");
  WriteFile(prefix + ".idx", whole + "abc");
  CHECK(OpenError(prefix).find("sequence modes (a multimodal data set)") != std::string::npos);
}

}  // namespace engine::data
