// Files made by hand, of what other programs' files do not show.
#include "engine/data/parquet/column_reader.h"

#include <doctest/doctest.h>

#include "engine/base/status.h"
#include "tests/data/temp_dir.h"
#include "tests/parquet/file_by_hand.h"

namespace engine::parquet {
namespace {

using Rows = std::vector<std::vector<std::string>>;

absl::StatusOr<Rows> Read(const std::string& file, const std::string& name) {
  const data::TempDir dir(data::MemoryFolder());
  data::WriteFile(dir / "f", file);
  ASSIGN_OR_RETURN(const std::shared_ptr<const Table> table, Table::Open(dir / "f"));
  ASSIGN_OR_RETURN(const Column column, table->FindText(name));
  ASSIGN_OR_RETURN(const ColumnPages pages, table->PagesOf(0, column));
  ColumnReader reader(table, column, pages, 0);
  Rows rows;
  std::vector<std::string_view> texts;
  for (std::int64_t row = 0; row < table->rows(); ++row) {
    RETURN_IF_ERROR(reader.NextRow(&texts));
    rows.emplace_back(texts.begin(), texts.end());
  }
  RETURN_IF_ERROR(reader.CheckEnd());
  return rows;
}
bool Fails(const std::string& file, const std::string& name, const std::string& with) {
  const std::string message = Message(Read(file, name).status());
  INFO(message);
  CHECK(message.find(": error: ") != std::string::npos);
  return message.find(with) != std::string::npos;
}

const std::vector<Fields> kBytes = {
    Fields().Int(1, 6).Int(3, 0).Text(4, "t")};  // required, not marked as text
// optional group l (LIST) { repeated group list { optional binary element (UTF8) } }
const std::vector<Fields> kList = {Fields().Int(3, 1).Text(4, "l").Int(5, 1).Int(6, 3),
                                   Fields().Int(3, 2).Text(4, "list").Int(5, 1),
                                   Fields().Int(1, 6).Int(3, 1).Text(4, "element").Int(6, 0)};

}  // namespace

TEST_CASE("bytes without a mark are texts, and pages' checksums are compared") {
  const TestPage first = {2, Plain({"ab", ""})};
  const TestPage second = {1, Plain({"c"})};
  const absl::StatusOr<Rows> rows = Read(FileOf(kBytes, {first, second}, 3, 3), "t");
  REQUIRE_MESSAGE(rows.ok(), Message(rows.status()));
  CHECK(*rows == Rows{{"ab"}, {""}, {"c"}});
  CHECK(Fails(FileOf(kBytes, {first, {1, Plain({"c"}), 1}}, 3, 3), "t", "its checksum differs"));
  const std::vector<Fields> decimal = {Fields().Int(1, 6).Int(3, 0).Text(4, "t").Int(6, 5)};
  CHECK(Fails(FileOf(decimal, {first, second}, 3, 3), "t", "has neither texts nor lists of texts"));
}

TEST_CASE("a page's header may be long") {
  for (const std::size_t size : {100, 5000, 300000}) {
    const TestPage page = {1, Plain({"ab"}), 0, std::string(size, 's')};
    const absl::StatusOr<Rows> rows = Read(FileOf(kBytes, {page, page}, 2, 2), "t");
    REQUIRE_MESSAGE(rows.ok(), Message(rows.status()));
    CHECK(*rows == Rows{{"ab"}, {"ab"}});
  }
}

TEST_CASE("a list may go on in the next page, be empty, or null") {
  // [a, b | c], [], [d]
  const TestPage first = {2, Levels({0, 1}) + Levels({3, 3}) + Plain({"a", "b"})};
  const TestPage second = {3, Levels({1, 0, 0}) + Levels({3, 1, 3}) + Plain({"c", "d"})};
  const absl::StatusOr<Rows> rows = Read(FileOf(kList, {first, second}, 5, 3), "l");
  REQUIRE_MESSAGE(rows.ok(), Message(rows.status()));
  CHECK(*rows == Rows{{"a", "b", "c"}, {}, {"d"}});
  CHECK(*Read(FileOf(kList, {first, second}, 5, 3), "l.list.element") == *rows);
  CHECK(Fails(FileOf(kList, {first, second}, 5, 2), "l", "the column goes on behind the last row"));
  CHECK(Fails(FileOf(kList, {first, second}, 5, 4), "l",
              "row 3 (from 0): column \"l\": the column ends before this row"));
  CHECK(Fails(FileOf(kList, {first, second}, 6, 3), "l", "ends after 5 of 6 values"));
  CHECK(Fails(FileOf(kList, {first, second}, 4, 3), "l", "and 2 values are left"));
  CHECK(Fails(FileOf(kList, {second}, 3, 3), "l",
              "row 0 (from 0): column \"l\": the row begins in the middle of a list"));
  const auto one = [](int definition) {
    return FileOf(kList, {{1, Levels({0}) + Levels({definition}) + Plain({})}}, 1, 1);
  };
  CHECK(Fails(one(0), "l", "is null, and must be a list of strings"));
  CHECK(Fails(one(2), "l", "the list holds null, and must hold strings"));
  CHECK(Fails(one(3), "l", "the value is not whole"));
  CHECK(*Read(one(1), "l") == Rows{{}});
}

TEST_CASE("runs of small numbers: of one number, packed, cut off") {
  // Parquet's Encodings.md: 0 to 7 in three bits each are 88 C6 FA.
  HybridReader packed("\x03\x88\xC6\xFA\x0C\x05", 3);  // and five six times
  for (std::uint32_t i = 0; i < 8; ++i) CHECK(packed.Next() == i);
  for (int i = 0; i < 6; ++i) CHECK(packed.Next() == 5U);
  CHECK_FALSE(packed.Next().has_value());
  HybridReader cut("\x03\x88\xC6", 3);
  for (std::uint32_t i = 0; i < 5; ++i) CHECK(cut.Next() == i);
  CHECK_FALSE(cut.Next().has_value());
  CHECK_FALSE(HybridReader("\x0C\x09", 3).Next().has_value());  // nine has four bits
  HybridReader nothing("\x0C", 0);
  for (int i = 0; i < 6; ++i) CHECK(nothing.Next() == 0U);
}

TEST_CASE("deltas: the example of the format's description, and damaged ones") {
  // 7, 5, 3, 1, 2, 3, 4, 5 (Encodings.md): a block of 128 in 4 parts, 8 numbers, the first 7; the least difference −2, of two bits
  // each: 0 0 0 3 3 3 3.
  const std::string whole =
      std::string("\x80\x01\x04\x08\x0E\x03\x02\x00\x00\x00\xC0\x3F", 12) + std::string(6, '\0');
  std::string_view bytes = whole;
  const auto numbers = TakeDeltas(&bytes, 8);
  REQUIRE(numbers.has_value());
  CHECK(*numbers == std::vector<std::int64_t>{7, 5, 3, 1, 2, 3, 4, 5});
  CHECK(bytes.empty());
  for (std::size_t left = 0; left < whole.size(); ++left) {
    bytes = std::string_view(whole).substr(0, left);
    CHECK_FALSE(TakeDeltas(&bytes, 8).has_value());
  }
  bytes = whole;
  CHECK_FALSE(TakeDeltas(&bytes, 7).has_value());
}

}  // namespace engine::parquet
