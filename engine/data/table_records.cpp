#include "engine/data/table_records.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace engine::data {
namespace {

using jinja::Value;
using parquet::Meaning;
using parquet::PhysicalType;
using parquet::Repetition;
using parquet::SchemaElement;

template <typename T>
T NumberOf(std::string_view bytes) {
  T number{};
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

// "2024-07-26", or nullopt where that is none of the years 1 to 9999. `days`: since 1970-01-01.
std::optional<std::string> DateText(std::int64_t days) {
  constexpr std::int64_t kFirst = -719162;  // 0001-01-01
  constexpr std::int64_t kLast = 2932896;   // 9999-12-31
  if (days < kFirst || days > kLast) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::sys_days{std::chrono::days{days}}};
  return fmt::format("{:04}-{:02}-{:02}", int{date.year()}, unsigned{date.month()}, unsigned{date.day()});
}

// A point in time as Python's isoformat() writes it: "2024-07-26T12:34:56.250000+00:00", with a fraction where there is one, of
// nine digits where six are too few, and the distance from UTC where it is UTC's.
std::optional<std::string> TimeText(std::int64_t count, std::int64_t per_second, bool is_utc) {
  constexpr std::int64_t kSecondsPerDay = 86400;
  const auto floor_divided = [](std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); };
  const std::int64_t seconds = floor_divided(count, per_second);
  const std::int64_t days = floor_divided(seconds, kSecondsPerDay);
  std::optional<std::string> text = DateText(days);
  if (!text.has_value()) return std::nullopt;
  const std::int64_t second = seconds - days * kSecondsPerDay;
  const std::int64_t rest = count % per_second;  // of a time before 1970 below 0
  const std::int64_t nanoseconds = (rest < 0 ? rest + per_second : rest) * (1'000'000'000 / per_second);
  *text += fmt::format("T{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
  if (nanoseconds % 1000 != 0) {
    *text += fmt::format(".{:09}", nanoseconds);
  } else if (nanoseconds != 0) {
    *text += fmt::format(".{:06}", nanoseconds / 1000);
  }
  if (is_utc) *text += "+00:00";
  return text;
}

absl::StatusOr<Value> NumberValue(std::int64_t number, std::int64_t unsigned_number,
                                  const parquet::Column& leaf) {
  std::optional<std::string> text;
  switch (leaf.meaning) {
    case Meaning::kUnsigned:
      if (unsigned_number < 0)
        return InvalidArgument("the number {} is above 2^63 - 1",
                               static_cast<std::uint64_t>(unsigned_number));
      return Value(unsigned_number);
    case Meaning::kDate:
      text = DateText(number);
      break;
    case Meaning::kMilliseconds:
      text = TimeText(number, 1'000, leaf.is_utc);
      break;
    case Meaning::kMicroseconds:
      text = TimeText(number, 1'000'000, leaf.is_utc);
      break;
    case Meaning::kNanoseconds:
      text = TimeText(number, 1'000'000'000, leaf.is_utc);
      break;
    default:
      return Value(number);
  }
  if (!text.has_value()) return InvalidArgument("the date is not one of the years 1 to 9999");
  return Value(*std::move(text));
}

// A value by the bytes of plain pages.
absl::StatusOr<Value> ValueOf(const parquet::Column& leaf, std::string_view bytes) {
  switch (leaf.type) {
    case PhysicalType::kBoolean:
      return Value(bytes[0] != 0);
    case PhysicalType::kInt32:
      return NumberValue(NumberOf<std::int32_t>(bytes), NumberOf<std::uint32_t>(bytes), leaf);
    case PhysicalType::kInt64:
      return NumberValue(NumberOf<std::int64_t>(bytes), NumberOf<std::int64_t>(bytes), leaf);
    case PhysicalType::kFloat:
      return Value(double{NumberOf<float>(bytes)});
    case PhysicalType::kDouble:
      return Value(NumberOf<double>(bytes));
    case PhysicalType::kByteArray:
      break;
  }
  if (!simdjson::validate_utf8(bytes.data(), bytes.size())) return InvalidArgument("the text is not UTF-8");
  return Value(std::string(bytes));
}

bool IsRead(const SchemaElement& leaf) {
  const Meaning meaning = leaf.meaning;
  const bool is_integer =
      meaning == Meaning::kUnmarked || meaning == Meaning::kSigned || meaning == Meaning::kUnsigned;
  switch (static_cast<PhysicalType>(leaf.type)) {
    case PhysicalType::kByteArray:
      return leaf.is_text();
    case PhysicalType::kInt32:
      return is_integer || meaning == Meaning::kDate;
    case PhysicalType::kInt64:
      return is_integer || meaning == Meaning::kMilliseconds || meaning == Meaning::kMicroseconds ||
             meaning == Meaning::kNanoseconds;
    case PhysicalType::kBoolean:
    case PhysicalType::kFloat:
    case PhysicalType::kDouble:
      return true;
  }
  return false;
}

}  // namespace

class TableRecords::Builder {
 public:
  Builder(const parquet::Table& table, std::vector<parquet::Column>* columns)
      : table_(table), schema_(table.schema()), columns_(*columns) {}

  // The column of that node of the schema. The leaves before it are `leaves`.
  absl::StatusOr<Node> Column(std::size_t at, std::size_t leaves) {
    column_ = schema_[at].name;
    leaf_ = leaves;
    return Field(at, 0, 0, 1);
  }

 private:
  // A node of the schema below one with these levels.
  absl::StatusOr<Node> Field(std::size_t at, unsigned definition, unsigned repetition, int depth) {
    if (depth > kMostJsonDepth)
      return table_.Error("column \"{}\" is nested deeper than {} levels", column_, kMostJsonDepth);
    const SchemaElement& element = schema_[at];
    if (element.repetition == Repetition::kRepeated)  // without a list around it
      return List(at, at, definition, repetition, depth);
    if (element.repetition == Repetition::kOptional) ++definition;
    if (element.is_list && element.children == 1 && schema_[at + 1].repetition == Repetition::kRepeated)
      return List(at, at + 1, definition, repetition, depth);
    if (element.is_map) return Map(at, definition, repetition, depth);
    return Present(at, definition, repetition, depth);
  }

  // A list whose elements are those of the repeated node.
  absl::StatusOr<Node> List(std::size_t at, std::size_t repeated, unsigned definition, unsigned repetition,
                            int depth) {
    Node node{.name = schema_[at].name,
              .kind = Node::Kind::kList,
              .definition = definition,
              .list_element = definition + 1,
              .repetition = repetition + 1,
              .begin = columns_.size(),
              .end = 0,
              .children = {}};
    // Where the repeated group is no element itself but stands around one (LogicalTypes.md, "Lists").
    const SchemaElement& group = schema_[repeated];
    const bool is_around = repeated != at && group.type < 0 && group.children == 1 && group.name != "array" &&
                           group.name != schema_[at].name + "_tuple" &&
                           schema_[repeated + 1].repetition != Repetition::kRepeated;
    ASSIGN_OR_RETURN(Node element, is_around ? Field(repeated + 1, definition + 1, repetition + 1, depth + 1)
                                             : Present(repeated, definition + 1, repetition + 1, depth + 1));
    node.end = columns_.size();
    node.children.push_back(std::move(element));
    return node;
  }

  // A map: a repeated group of a key and a value (LogicalTypes.md, "Maps").
  absl::StatusOr<Node> Map(std::size_t at, unsigned definition, unsigned repetition, int depth) {
    const bool has_pairs = schema_[at].children == 1 && schema_[at + 1].repetition == Repetition::kRepeated &&
                           schema_[at + 1].children == 2;
    if (!has_pairs || !schema_[at + 2].is_text()) {
      return table_.Error("column \"{}\": \"{}\" is a map {}, which is not read", column_, schema_[at].name,
                          has_pairs ? "whose keys are no texts" : "without keys and values");
    }
    Node node{.name = schema_[at].name,
              .kind = Node::Kind::kMap,
              .definition = definition,
              .list_element = definition + 1,
              .repetition = repetition + 1,
              .begin = columns_.size(),
              .end = 0,
              .children = {}};
    for (const std::size_t part : {at + 2, at + 3}) {
      ASSIGN_OR_RETURN(node.children.emplace_back(), Field(part, definition + 1, repetition + 1, depth + 1));
    }
    node.end = columns_.size();
    return node;
  }

  // What stands at a node of the schema where it is not null.
  absl::StatusOr<Node> Present(std::size_t at, unsigned definition, unsigned repetition, int depth) {
    const SchemaElement& element = schema_[at];
    Node node{.name = element.name,
              .definition = definition,
              .list_element = 0,
              .repetition = 0,
              .begin = columns_.size(),
              .end = 0,
              .children = {}};
    if (element.type >= 0) {
      if (!IsRead(element)) {
        return table_.Error(
            "column \"{}\": \"{}\" has a type that is not read; texts, integers, floats, booleans, dates and "
            "timestamps are",
            column_, element.name);
      }
      columns_.push_back({.name = column_,
                          .leaf = leaf_++,
                          .type = static_cast<PhysicalType>(element.type),
                          .definition = definition,
                          .repetition = repetition,
                          .meaning = element.meaning,
                          .is_utc = element.is_utc});
    } else {
      if (element.children == 0)
        return table_.Error("column \"{}\": \"{}\" is a struct without members, which is not read", column_,
                            element.name);
      node.kind = Node::Kind::kStruct;
      for (std::size_t child = at + 1; child < table_.Behind(at); child = table_.Behind(child)) {
        ASSIGN_OR_RETURN(node.children.emplace_back(), Field(child, definition, repetition, depth + 1));
      }
    }
    node.end = columns_.size();
    return node;
  }

  const parquet::Table& table_;
  const std::vector<SchemaElement>& schema_;
  std::vector<parquet::Column>& columns_;
  std::string column_;
  std::size_t leaf_ = 0;
};

// One row.
class TableRecords::RowReader {
 public:
  explicit RowReader(std::span<parquet::ColumnReader> readers) : readers_(readers) {}

  absl::StatusOr<Value> Members(const std::vector<Node>& nodes, unsigned repetition) {
    jinja::Dict dict;
    for (const Node& node : nodes) {
      ASSIGN_OR_RETURN(Value value, Read(node, repetition));
      if (value.is_none() && !node.keeps_null) continue;
      dict.Set(node.name, std::move(value));
    }
    return Value(std::move(dict));
  }

 private:
  // The value of a node, whose first entries have to have this repetition level; none where it is null.
  absl::StatusOr<Value> Read(const Node& node, unsigned repetition) {
    ASSIGN_OR_RETURN(const unsigned definition, PeekDefinition(node.begin, repetition));
    if (definition < node.definition) {
      RETURN_IF_ERROR(TakeAll(node, definition, repetition));
      return Value(jinja::None());
    }
    if (node.kind == Node::Kind::kStruct) return Members(node.children, repetition);
    if (node.kind == Node::Kind::kLeaf) return Leaf(node.begin);
    const bool is_empty = definition < node.list_element;
    if (is_empty) RETURN_IF_ERROR(TakeAll(node, definition, repetition));
    if (node.kind == Node::Kind::kMap) return Entries(node, is_empty, repetition);
    jinja::List list;
    for (bool more = !is_empty; more;) {
      ASSIGN_OR_RETURN(Value element, Read(node.children.front(), repetition));
      list.Add(std::move(element));
      ASSIGN_OR_RETURN(more, HasMore(node, &repetition));
    }
    return Value(std::move(list));
  }

  // A map as an object. Of equal keys the last one counts, as the format has it.
  absl::StatusOr<Value> Entries(const Node& node, bool is_empty, unsigned repetition) {
    jinja::Dict dict;
    for (bool more = !is_empty; more;) {
      ASSIGN_OR_RETURN(const Value key, Read(node.children[0], repetition));
      if (key.text() == nullptr) return readers_[node.begin].Damaged("a key of a map is null");
      ASSIGN_OR_RETURN(Value value, Read(node.children[1], repetition));
      dict.Set(*key.text(), std::move(value));
      ASSIGN_OR_RETURN(more, HasMore(node, &repetition));
    }
    return Value(std::move(dict));
  }

  // Whether the list or map goes on; *repetition is then that of its next element.
  absl::StatusOr<bool> HasMore(const Node& node, unsigned* repetition) {
    *repetition = node.repetition;
    ASSIGN_OR_RETURN(const std::optional<Levels> next, readers_[node.begin].Peek());
    return next.has_value() && next->repetition >= node.repetition;
  }

  absl::StatusOr<Value> Leaf(std::size_t column) {
    parquet::ColumnReader& reader = readers_[column];
    ASSIGN_OR_RETURN(const std::string_view bytes, reader.Take());
    absl::StatusOr<Value> value = ValueOf(reader.column(), bytes);
    return value.ok() ? std::move(value) : reader.Damaged(Message(value.status()));
  }

  absl::StatusOr<unsigned> PeekDefinition(std::size_t column, unsigned repetition) {
    parquet::ColumnReader& reader = readers_[column];
    ASSIGN_OR_RETURN(const std::optional<Levels> levels, reader.Peek());
    if (!levels.has_value()) return reader.Damaged("the column ends before this row does");
    if (levels->repetition != repetition) return reader.Damaged("its parts have lists of different lengths");
    return levels->definition;
  }

  // The entries that say of all leaves of a node that nothing is there.
  absl::Status TakeAll(const Node& node, unsigned definition, unsigned repetition) {
    for (std::size_t i = node.begin; i < node.end; ++i) {
      ASSIGN_OR_RETURN(const unsigned own, PeekDefinition(i, repetition));
      if (own != definition) return readers_[i].Damaged("a struct is null in one of its parts alone");
      RETURN_IF_ERROR(readers_[i].Take().status());
    }
    return absl::OkStatus();
  }

  using Levels = parquet::ColumnReader::Levels;
  const std::span<parquet::ColumnReader> readers_;
};

absl::StatusOr<TableRecords> TableRecords::Find(const parquet::Table& table,
                                                std::span<const std::string> names,
                                                std::span<const std::string> null_members) {
  TableRecords records;
  Builder builder(table, &records.columns_);
  std::vector<std::string> others;
  std::size_t leaves = 0;
  const std::vector<SchemaElement>& schema = table.schema();
  for (std::size_t at = 1; at < schema.size(); at = table.Behind(at)) {
    if (std::find(names.begin(), names.end(), schema[at].name) != names.end()) {
      ASSIGN_OR_RETURN(Node column, builder.Column(at, leaves));
      if (column.kind == Node::Kind::kList) {
        for (Node& member : column.children.front().children) {
          const std::string path = column.name + "." + member.name;
          member.keeps_null = std::find(null_members.begin(), null_members.end(), path) != null_members.end();
        }
      }
      records.nodes_.push_back(std::move(column));
    } else {
      others.push_back(schema[at].name);
    }
    leaves += static_cast<std::size_t>(
        std::count_if(schema.begin() + static_cast<std::ptrdiff_t>(at),
                      schema.begin() + static_cast<std::ptrdiff_t>(table.Behind(at)),
                      [](const SchemaElement& element) { return element.type >= 0; }));
  }
  if (!records.nodes_.empty()) return records;
  return table.Error("has none of the columns \"{}\"; it has \"{}\"", fmt::join(names, "\", \""),
                     fmt::join(others, "\", \""));
}

absl::StatusOr<Value> TableRecords::NextRow(std::span<parquet::ColumnReader> readers) const {
  absl::StatusOr<Value> row = RowReader(readers).Members(nodes_, 0);
  for (parquet::ColumnReader& reader : readers) reader.EndRow();
  return row;
}

}  // namespace engine::data
