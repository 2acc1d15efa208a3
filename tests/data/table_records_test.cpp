#include "engine/data/table_records.h"

#include <doctest/doctest.h>

#include <random>

#include "engine/base/status.h"
#include "engine/data/input_parts.h"
#include "engine/data/jinja/json.h"
#include "tests/data/temp_dir.h"
#include "tests/parquet/file_by_hand.h"

namespace engine::data {
namespace {

using parquet::Fields;
using parquet::FileOf;
using parquet::FileOfColumns;
using parquet::Levels;
using parquet::Plain;

const std::string kChats = ENGINE_SOURCE_DIR "/tests/data/chat/";

// The records of a file as lines of JSON.
absl::StatusOr<std::string> ReadRecords(const std::string& path, const std::vector<std::string>& keys,
                                        std::size_t part_bytes = 1000) {
  InputOptions options;
  options.format = InputFormat::kRecords;
  options.keys = keys;
  options.null_members = {"messages.content", "l.x"};
  options.part_bytes = part_bytes;
  ASSIGN_OR_RETURN(const std::unique_ptr<InputParts> parts, InputParts::Open(path, options));
  std::string all;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<InputPart> part, parts->Next());
    if (!part.has_value()) return all;
    RETURN_IF_ERROR(part->visit_records([&](const jinja::Value& record) {
      std::string why;
      REQUIRE(jinja::AppendJson(record, {}, std::size_t{1} << 20, &all, &why));
      all += '\n';
      return absl::OkStatus();
    }));
  }
}

// A file of one column by hand: its records, or what is wrong.
std::string RecordsOf(const std::string& file) {
  const TempDir dir(MemoryFolder());
  WriteFile(dir / "f", file);
  const absl::StatusOr<std::string> records = ReadRecords(dir / "f", {"l"});
  if (records.ok()) return *records;
  const std::string message = Message(records.status());
  const std::string located = dir / "f: error: ";
  REQUIRE(message.starts_with(located));
  return message.substr(located.size());
}

const std::vector<std::string> kTyped = {"id", "small", "number", "large", "day",
                                         "ms", "us",    "counts", "notes"};
const std::vector<std::string> kAll = {"messages", "tools", "chat_template_kwargs", "id"};

}  // namespace

TEST_CASE("records of tables that another program has written are those of the lines of JSON") {
  const std::string wanted = *ReadRecords(kChats + "records.jsonl", kAll);
  CHECK(std::count(wanted.begin(), wanted.end(), '\n') == 90);
  for (const std::string name : {"records_v1", "records_v1_plain", "records_v2"}) {
    CAPTURE(name);
    for (const std::size_t part_bytes : {1, 500, 1000000}) {
      const absl::StatusOr<std::string> records = ReadRecords(kChats + name + ".parquet", kAll, part_bytes);
      REQUIRE_MESSAGE(records.ok(), Message(records.status()));
      CHECK(*records == wanted);
    }
  }
  CHECK(*ReadRecords(kChats + "questions_hyparquet.parquet", {"question", "context", "answer"}) ==
        *ReadRecords(kChats + "questions.jsonl", {}));
}

TEST_CASE("numbers without a sign, dates, timestamps and maps that another program has written") {
  const std::string wanted = *ReadRecords(kChats + "typed.jsonl", kTyped);
  CHECK(std::count(wanted.begin(), wanted.end(), '\n') == 60);
  for (const std::string name : {"typed_v1", "typed_v2"}) {
    CAPTURE(name);
    for (const std::size_t part_bytes : {1, 500, 1000000}) {
      const absl::StatusOr<std::string> records = ReadRecords(kChats + name + ".parquet", kTyped, part_bytes);
      REQUIRE_MESSAGE(records.ok(), Message(records.status()));
      CHECK(*records == wanted);
    }
  }
}

TEST_CASE("numbers and times at their bounds, and what lies beyond") {
  const auto of = [](const Fields& leaf, std::int64_t number, std::size_t bytes) {
    const std::string data(reinterpret_cast<const char*>(&number), bytes);
    return RecordsOf(FileOf({leaf}, {{1, data}}, 1, 1));
  };
  const auto marked = [](int type, int mark) {
    return Fields().Int(1, type).Int(3, 0).Text(4, "l").Int(6, mark);
  };
  const auto timestamp = [](int unit, bool is_utc) {
    Fields fields = Fields().Int(1, 2).Int(3, 0).Text(4, "l");
    const Fields units = Fields().Struct(unit, Fields());
    return fields.Struct(10, Fields().Struct(8, Fields().Bool(1, is_utc).Struct(2, units)));
  };
  const auto line = [](const std::string& value) { return "{\"l\": " + value + "}\n"; };
  const std::string row = "row 0 (from 0): column \"l\": ";
  CHECK(of(marked(1, 13), -1, 4) == line("4294967295"));
  CHECK(of(marked(2, 14), INT64_MAX, 8) == line("9223372036854775807"));
  CHECK(of(marked(2, 14), -1, 8) == row + "the number 18446744073709551615 is above 2^63 - 1");
  CHECK(of(marked(1, 17), -1, 4) == line("-1"));
  CHECK(of(marked(1, 6), -719162, 4) == line("\"0001-01-01\""));
  CHECK(of(marked(1, 6), 2932896, 4) == line("\"9999-12-31\""));
  CHECK(of(marked(1, 6), -719163, 4) == row + "the date is not one of the years 1 to 9999");
  CHECK(of(marked(1, 6), 2932897, 4) == row + "the date is not one of the years 1 to 9999");
  CHECK(of(marked(2, 9), -1, 8) == line("\"1969-12-31T23:59:59.999000+00:00\""));
  CHECK(of(marked(2, 10), 951827696000001, 8) == line("\"2000-02-29T12:34:56.000001+00:00\""));
  CHECK(of(timestamp(1, false), 253402300799999, 8) == line("\"9999-12-31T23:59:59.999000\""));
  CHECK(of(timestamp(1, false), 253402300800000, 8) == row + "the date is not one of the years 1 to 9999");
  CHECK(of(timestamp(2, true), INT64_MIN, 8) == row + "the date is not one of the years 1 to 9999");
  CHECK(of(timestamp(3, true), INT64_MIN, 8) == line("\"1677-09-21T00:12:43.145224192+00:00\""));
  CHECK(of(timestamp(3, false), 1000, 8) == line("\"1970-01-01T00:00:00.000001\""));
}

TEST_CASE("of equal keys of a map the last one counts, and a key is not null") {
  const std::vector<Fields> schema = {Fields().Int(3, 0).Text(4, "l").Int(5, 1).Int(6, 2),
                                      Fields().Int(3, 2).Text(4, "map").Int(5, 2),
                                      Fields().Int(1, 6).Int(3, 1).Text(4, "key").Int(6, 0),
                                      Fields().Int(1, 6).Int(3, 1).Text(4, "value").Int(6, 0)};
  const auto column = [](const std::vector<int>& definitions, const std::vector<std::string>& texts) {
    return parquet::TestPage{3, Levels({0, 1, 1}) + Levels(definitions) + Plain(texts)};
  };
  const auto keys = column({2, 2, 2}, {"a", "b", "a"});
  const auto values = column({2, 1, 2}, {"x", "y"});
  CHECK(RecordsOf(FileOfColumns(schema, {keys, values}, 3, 1)) == "{\"l\": {\"a\": \"y\", \"b\": null}}\n");
  CHECK(RecordsOf(FileOfColumns(schema, {values, keys}, 3, 1)) ==
        "row 0 (from 0): column \"l\": a key of a map is null");
}

TEST_CASE("columns that no one asks for are left alone, and there has to be one") {
  CHECK(
      ReadRecords(kChats + "records_v1.parquet", {"id", "other"})->starts_with("{\"id\": 0}\n{\"id\": 1}\n"));
  CHECK(Message(ReadRecords(kChats + "records_v1.parquet", {"turns", "chat"}).status()) ==
        kChats +
            "records_v1.parquet: error: has none of the columns \"turns\", \"chat\"; it has \"messages\", "
            "\"tools\", \"chat_template_kwargs\", \"id\"");
}

TEST_CASE("lists as older programs write them, one or two levels deep") {
  const std::string two = Levels({0, 1, 0}) + Levels({2, 2, 1}) + Plain({"a", "b"});
  const std::string wanted = "{\"l\": [\"a\", \"b\"]}\n{\"l\": []}\n";
  const auto element = [](int repetition, const char* name) {
    return Fields().Int(1, 6).Int(3, repetition).Text(4, name).Int(6, 0);
  };
  const Fields list = Fields().Int(3, 1).Text(4, "l").Int(5, 1).Int(6, 3);
  const auto group = [](const char* name) { return Fields().Int(3, 2).Text(4, name).Int(5, 1); };
  CHECK(RecordsOf(FileOf({list, element(2, "element")}, {{3, two}}, 3, 2)) == wanted);
  CHECK(RecordsOf(FileOf({list, group("bag"), element(0, "x")}, {{3, two}}, 3, 2)) == wanted);
  const std::string structs = "{\"l\": [{\"x\": \"a\"}, {\"x\": \"b\"}]}\n{\"l\": []}\n";
  CHECK(RecordsOf(FileOf({list, group("array"), element(0, "x")}, {{3, two}}, 3, 2)) == structs);
  CHECK(RecordsOf(FileOf({list, group("l_tuple"), element(0, "x")}, {{3, two}}, 3, 2)) == structs);
  const std::string bare = Levels({0, 1, 0}) + Levels({1, 1, 0}) + Plain({"a", "b"});
  CHECK(RecordsOf(FileOf({element(2, "l")}, {{3, bare}}, 3, 2)) == wanted);
  const std::string nulls = Levels({0, 0, 1}) + Levels({0, 3, 2}) + Plain({"a"});
  CHECK(RecordsOf(FileOf({list, group("list"), element(1, "element")}, {{3, nulls}}, 3, 2)) ==
        "{}\n{\"l\": [\"a\", null]}\n");
  // A null member is left out, but for x of an element of l itself.
  const std::string null = Levels({0}) + Levels({2});
  CHECK(RecordsOf(FileOf({list, group("array"), element(1, "x")}, {{1, null}}, 1, 1)) ==
        "{\"l\": [{\"x\": null}]}\n");
  CHECK(RecordsOf(FileOf({list, group("array"), element(1, "y")}, {{1, null}}, 1, 1)) == "{\"l\": [{}]}\n");
  const Fields required = Fields().Int(3, 0).Text(4, "l").Int(5, 1).Int(6, 3);
  const Fields inner = Fields().Int(3, 1).Text(4, "s").Int(5, 1);
  CHECK(RecordsOf(FileOf({required, group("array"), inner, element(1, "x")}, {{1, null}}, 1, 1)) ==
        "{\"l\": [{\"s\": {}}]}\n");
}

TEST_CASE("columns that cannot be records, and damaged levels and texts") {
  const auto leaf = [](int type, int mark) {
    return std::vector<Fields>{Fields().Int(1, type).Int(3, 0).Text(4, "l").Int(6, mark)};
  };
  const std::string not_read =
      "column \"l\": \"l\" has a type that is not read; texts, integers, floats, booleans, dates and "
      "timestamps "
      "are";
  CHECK(RecordsOf(FileOf(leaf(6, 5), {}, 0, 0)) == not_read);  // a decimal
  CHECK(RecordsOf(FileOf(leaf(2, 6), {}, 0, 0)) == not_read);  // a date of 64 bits
  CHECK(RecordsOf(FileOf(leaf(1, 9), {}, 0, 0)) == not_read);  // a timestamp of 32
  CHECK(RecordsOf(FileOf(leaf(1, 7), {}, 0, 0)) == not_read);  // a time of a day
  CHECK(RecordsOf(FileOf(leaf(3, 0), {}, 0, 0)) == not_read);  // INT96
  const Fields item = Fields().Int(1, 6).Int(3, 0).Text(4, "key").Int(6, 0);
  const Fields map = Fields().Int(3, 1).Text(4, "l").Int(5, 1).Int(6, 1);
  CHECK(RecordsOf(FileOf({map, Fields().Int(3, 2).Text(4, "key_value").Int(5, 1), item}, {}, 0, 0)) ==
        "column \"l\": \"l\" is a map without keys and values, which is not read");
  CHECK(RecordsOf(FileOfColumns({map, Fields().Int(3, 2).Text(4, "key_value").Int(5, 2),
                                 Fields().Int(1, 1).Int(3, 0).Text(4, "key"), item},
                                {{0, ""}, {0, ""}}, 0, 0)) ==
        "column \"l\": \"l\" is a map whose keys are no texts, which is not read");
  std::vector<Fields> deep;
  for (int i = 0; i < 70; ++i) deep.push_back(Fields().Int(3, 0).Text(4, "l").Int(5, 1));
  deep.push_back(item);
  CHECK(RecordsOf(FileOf(deep, {}, 0, 0)) == "column \"l\" is nested deeper than 64 levels");
  const std::vector<Fields> text = {Fields().Int(1, 6).Int(3, 0).Text(4, "l").Int(6, 0)};
  CHECK(RecordsOf(FileOf(text, {{1, Plain({"\xFF"})}}, 1, 1)) ==
        "row 0 (from 0): column \"l\": the text is not UTF-8");
  const std::vector<Fields> list = {Fields().Int(1, 6).Int(3, 2).Text(4, "l").Int(6, 0)};
  const auto levels = [&](const std::vector<int>& repetitions, const std::vector<int>& definitions) {
    const auto values = static_cast<std::int64_t>(definitions.size());
    return RecordsOf(
        FileOf(list, {{values, Levels(repetitions) + Levels(definitions) + Plain({"a", "b"})}}, values, 1));
  };
  CHECK(levels({0, 1}, {1, 1}) == "{\"l\": [\"a\", \"b\"]}\n");
  CHECK(levels({1, 1}, {1, 1}) == "row 0 (from 0): column \"l\": its parts have lists of different lengths");
  CHECK(levels({0, 0}, {1, 1}) == "row 1 (from 0): column \"l\": the column goes on behind the last row");
}

TEST_CASE("tables of records that are cut off or changed anywhere are refused or read, and end") {
  const TempDir dir(MemoryFolder());
  std::mt19937 random(4);
  int refused = 0;
  int all = 0;
  for (const std::string name : {"records_v1", "records_v1_plain", "records_v2", "typed_v1", "typed_v2"}) {
    const std::string whole = ReadFile(kChats + name + ".parquet");
    for (int i = 0; i < 150; ++i) {
      std::string changed = whole;
      for (int times = 1 + i % 3; times > 0; --times) {
        const std::size_t at =
            random() % 2 == 0 ? random() % changed.size() : changed.size() - 1 - random() % 4000;
        if (random() % 4 == 0) {
          changed.insert(at, std::string(1 + random() % 4, static_cast<char>(random())));
        } else {
          changed[at] = static_cast<char>(random());
        }
      }
      WriteFile(dir / "f", changed);
      ++all;
      const absl::StatusOr<std::string> records =
          ReadRecords(dir / "f", name.starts_with("typed") ? kTyped : kAll);
      if (records.ok()) continue;
      ++refused;
      CHECK(Message(records.status()).find(": error: ") != std::string::npos);
    }
  }
  CHECK(refused > all / 3);
}

}  // namespace engine::data
