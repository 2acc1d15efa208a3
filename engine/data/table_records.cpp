#include "engine/data/table_records.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace engine::data {
namespace {

using jinja::Value;
using parquet::PhysicalType;
using parquet::Repetition;
using parquet::SchemaElement;

template <typename T>
T NumberOf(std::string_view bytes) {
  T number{};
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

// A value by the bytes of plain pages.
Value ValueOf(PhysicalType type, std::string_view bytes) {
  switch (type) {
    case PhysicalType::kBoolean:
      return Value(bytes[0] != 0);
    case PhysicalType::kInt32:
      return Value(std::int64_t{NumberOf<std::int32_t>(bytes)});
    case PhysicalType::kInt64:
      return Value(NumberOf<std::int64_t>(bytes));
    case PhysicalType::kFloat:
      return Value(double{NumberOf<float>(bytes)});
    case PhysicalType::kDouble:
      return Value(NumberOf<double>(bytes));
    case PhysicalType::kByteArray:
      break;
  }
  return Value(std::string(bytes));
}

bool IsRead(const SchemaElement& leaf) {
  switch (static_cast<PhysicalType>(leaf.type)) {
    case PhysicalType::kByteArray:
      return leaf.is_text;
    case PhysicalType::kInt32:
    case PhysicalType::kInt64:
      return leaf.is_number;
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
            "column \"{}\": \"{}\" has a type that is not read; texts, integers with a sign, floats and "
            "booleans are",
            column_, element.name);
      }
      columns_.push_back({.name = column_,
                          .leaf = leaf_++,
                          .type = static_cast<PhysicalType>(element.type),
                          .definition = definition,
                          .repetition = repetition});
    } else {
      if (element.is_map || element.children == 0)
        return table_.Error("column \"{}\": \"{}\" is {}, which is not read", column_, element.name,
                            element.is_map ? "a map" : "a struct without members");
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
    jinja::List list;
    if (definition < node.list_element) {
      RETURN_IF_ERROR(TakeAll(node, definition, repetition));
      return Value(std::move(list));
    }
    for (bool more = true; more;) {
      ASSIGN_OR_RETURN(Value element, Read(node.children.front(), repetition));
      list.Add(std::move(element));
      repetition = node.repetition;
      ASSIGN_OR_RETURN(const std::optional<Levels> next, readers_[node.begin].Peek());
      more = next.has_value() && next->repetition >= repetition;
    }
    return Value(std::move(list));
  }

  absl::StatusOr<Value> Leaf(std::size_t column) {
    parquet::ColumnReader& reader = readers_[column];
    ASSIGN_OR_RETURN(const std::string_view bytes, reader.Take());
    const PhysicalType type = reader.column().type;
    if (type == PhysicalType::kByteArray && !simdjson::validate_utf8(bytes.data(), bytes.size()))
      return reader.Damaged("the text is not UTF-8");
    return ValueOf(type, bytes);
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
