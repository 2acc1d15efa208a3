// Files that other programs have written (tests/oracles/parquet.mjs), whole and damaged.
#include "engine/data/parquet/table.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/base/status.h"
#include "engine/data/parquet/column_reader.h"
#include "tests/data/temp_dir.h"

namespace engine::parquet {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string Folder() { return ENGINE_SOURCE_DIR "/tests/parquet"; }

std::vector<std::string> Files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(Folder()))
    if (entry.path().extension() == ".parquet") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<nlohmann::json> WantedRows() {
  std::vector<nlohmann::json> rows;
  std::ifstream file(Folder() + "/rows.jsonl");
  for (std::string line; std::getline(file, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

// What stands under the name; nullopt: null, or a list with one.
std::optional<std::vector<std::string>> Wanted(const nlohmann::json& row, const std::string& name) {
  nlohmann::json value = row;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    value = nlohmann::json(value.at(name.substr(begin, end - begin)));
    begin = end + 1;
  }
  std::vector<std::string> texts;
  for (const nlohmann::json& item : value.is_array() ? value : nlohmann::json::array({value})) {
    if (item.is_null()) return std::nullopt;
    texts.push_back(item);
  }
  return texts;
}

// All rows of a column, in parts of one page where pages tell their rows.
absl::StatusOr<Rows> ReadColumn(const std::string& path, const std::string& name) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Table> table, Table::Open(path));
  ASSIGN_OR_RETURN(const Column column, table->FindText(name));
  Rows rows;
  std::vector<std::string_view> texts;
  for (std::size_t group = 0; group < table->row_groups().size(); ++group) {
    ASSIGN_OR_RETURN(const ColumnPages pages, table->PagesOf(group, column));
    ColumnReader reader(table, column, pages, static_cast<std::int64_t>(rows.size()));
    for (std::int64_t row = 0; row < table->row_groups()[group].rows; ++row) {
      RETURN_IF_ERROR(reader.NextRow(&texts));
      rows.emplace_back(texts.begin(), texts.end());
    }
    RETURN_IF_ERROR(reader.CheckEnd());
  }
  return rows;
}

}  // namespace

TEST_CASE("columns of files that other programs have written have the same rows") {
  const std::vector<nlohmann::json> wanted = WantedRows();
  REQUIRE(wanted.size() == 120);
  REQUIRE(Files().size() == 18);
  for (const std::string& path : Files()) {
    CAPTURE(path);
    const bool all = path.find("hyparquet") == std::string::npos;
    for (const std::string name : {"text", "few", "list", "meta.title", "meta.body"}) {
      if (!all && name != "text" && name != "few") continue;
      CAPTURE(name);
      const absl::StatusOr<Rows> rows = ReadColumn(path, name);
      REQUIRE_MESSAGE(rows.ok(), Message(rows.status()));
      REQUIRE(rows->size() == wanted.size());
      for (std::size_t i = 0; i < wanted.size(); ++i) CHECK((*rows)[i] == Wanted(wanted[i], name));
    }
  }
}

TEST_CASE("files have several row groups and several pages, and each encoding is in one") {
  std::map<int, int> encodings;
  std::map<int, int> codecs;
  int dictionaries = 0;
  int v2 = 0;
  for (const std::string& path : Files()) {
    const absl::StatusOr<std::shared_ptr<const Table>> table = Table::Open(path);
    REQUIRE(table.ok());
    CHECK((*table)->row_groups().size() == 3);
    const absl::StatusOr<ColumnPages> pages = (*table)->PagesOf(0, *(*table)->FindText("text"));
    REQUIRE(pages.ok());
    CHECK(pages->data.size() > 3);
    ++codecs[static_cast<int>(pages->codec)];
    if (pages->dictionary.has_value()) ++dictionaries;
    for (const Page& page : pages->data) {
      ++encodings[static_cast<int>(page.header.encoding)];
      if (page.header.type == PageType::kDataV2) ++v2;
    }
  }
  CHECK(codecs.size() == 6);
  CHECK(dictionaries > 5);
  CHECK(v2 > 10);
  for (const Encoding encoding : {Encoding::kPlain, Encoding::kRleDictionary, Encoding::kDeltaLengthByteArray,
                                  Encoding::kDeltaByteArray}) {
    CHECK(encodings[static_cast<int>(encoding)] > 0);
  }
}

TEST_CASE("nulls are told at their rows, as are columns that are not there or no texts") {
  const std::string path = Folder() + "/rust_v1_zstd.parquet";
  const auto error = [&](const std::string& name) { return Message(ReadColumn(path, name).status()); };
  CHECK(error("holes") == path + ": error: row 4 (from 0): column \"holes\": is null, and must be a string");
  CHECK(error("listHoles") ==
        path + ": error: row 4 (from 0): column \"listHoles\": is null, and must be a list of strings");
  CHECK(error("txt") == path +
                            ": error: has no column \"txt\"; columns of texts are: \"text\", \"few\", "
                            "\"holes\"");
  CHECK(error("number").find("has neither texts nor lists of texts") != std::string::npos);
  CHECK(error("meta").find("has neither texts nor lists of texts") != std::string::npos);
  CHECK(error("meta.none").find("has no column \"meta.none\"") != std::string::npos);
  CHECK_FALSE(error("").empty());
}

TEST_CASE("an element of a list that is null is told at its row") {
  const absl::StatusOr<std::shared_ptr<const Table>> table = Table::Open(Folder() + "/rust_v2_zstd.parquet");
  REQUIRE(table.ok());
  const Column column = *(*table)->FindText("listHoles");
  ColumnReader reader(*table, column, *(*table)->PagesOf(0, column), 0);
  std::vector<std::string_view> texts;
  for (int row = 0; row < 4; ++row) REQUIRE(reader.NextRow(&texts).ok());
  CHECK(Message(reader.NextRow(&texts)).ends_with("is null, and must be a list of strings"));
}

TEST_CASE("the first bytes tell a Parquet file") {
  CHECK(IsParquet(std::string_view("PAR1\x15\x04\x15\x10", 8)));
  CHECK(IsParquet(std::string_view("PARE\x15\x04\x15\x10", 8)));
  CHECK_FALSE(IsParquet("PAR1S is a town"));
  CHECK_FALSE(IsParquet("PAR1\nand then"));
  CHECK_FALSE(IsParquet("PAR1"));
}

TEST_CASE("files that are cut off or changed anywhere are refused or read, and end") {
  const data::TempDir dir;
  std::mt19937 random(1);
  const int rounds =
      std::getenv("ENGINE_TEST_MUTATIONS") != nullptr ? std::atoi(std::getenv("ENGINE_TEST_MUTATIONS")) : 60;
  int refused = 0;
  int all = 0;
  for (const std::string& path : Files()) {
    CAPTURE(path);
    const std::string whole = data::ReadFile(path);
    for (int i = 0; i < rounds; ++i) {
      std::string changed = whole;
      for (int times = 1 + i % 3; times > 0; --times) {
        // Half of the changes are in the footer.
        const std::size_t at =
            random() % 2 == 0 ? random() % changed.size() : changed.size() - 1 - random() % 2000;
        switch (random() % 5) {
          case 0:
            changed.resize(at);
            break;
          case 1:
            changed[at] = static_cast<char>(random());
            break;
          case 2:
            changed[at] ^= static_cast<char>(1U << random() % 8);
            break;
          case 3:
            changed.insert(at, std::string(1 + random() % 4, static_cast<char>(random())));
            break;
          default:
            changed.replace(at, 1 + random() % 8, std::string(random() % 9, '\xFF'));
        }
        if (changed.size() < 4000) break;
      }
      data::WriteFile(dir / "f", changed);
      for (const std::string name : {"text", "few", "list", "meta.body"}) {
        ++all;
        const absl::StatusOr<Rows> rows = ReadColumn(dir / "f", name);
        if (rows.ok()) continue;
        ++refused;
        CHECK(Message(rows.status()).starts_with((dir / "f") + ": error: "));
      }
    }
  }
  CHECK(refused > all / 3);
}

}  // namespace engine::parquet
