#include "engine/recipe/document.h"

// Debian's package asks for its shared library, which was compiled with exceptions.
#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
// Its assertions fail on input such as "[=]" just before the code that reports it; and with NDEBUG they
// become promises to the compiler, which are worse.
#undef NDEBUG
#define TOML_ASSERT(condition) static_assert(true)
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <string_view>

#include "engine/recipe/fields.h"
#include "engine/recipe/scan.h"

namespace engine::recipe {
namespace {

constexpr const char* kNotToml = "E101";

// toml++ counts columns in code points; we count bytes. The offsets of the latest line are kept, since the
// values of one line are asked for together, and a line may be megabytes long.
class ByteColumns {
 public:
  explicit ByteColumns(const Source& source) : source_(source) {}

  int ByteColumn(int line, int column) {
    if (line != line_) Load(line);
    const auto index = static_cast<std::size_t>(std::max(column, 1) - 1);
    return static_cast<int>(offsets_[std::min(index, offsets_.size() - 1)]) + 1;
  }

 private:
  void Load(int line) {
    line_ = line;
    offsets_.clear();
    const std::string_view text = source_.WholeLine(line);
    for (std::size_t at = 0; at < text.size(); ++at) {
      if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) offsets_.push_back(at);
    }
    offsets_.push_back(text.size());
  }

  const Source& source_;
  int line_ = -1;
  std::vector<std::size_t> offsets_;  // of each code point of the line, and of its end
};

class Converter {
 public:
  explicit Converter(SourcePtr source) : source_(std::move(source)), columns_(*source_) {}

  Mark MarkOf(const toml::source_region& region) {
    const int line = static_cast<int>(region.begin.line) + source_->first_line() - 1;
    const int begin = columns_.ByteColumn(line, static_cast<int>(region.begin.column));
    int end = static_cast<int>(source_->WholeLine(line).size()) + 1;
    if (region.end.line == region.begin.line) {
      end = columns_.ByteColumn(line, static_cast<int>(region.end.column));
    }
    return {line, begin, std::max(1, end - begin)};
  }

  Node Convert(const toml::node& from) {
    Node node;
    node.mark = MarkOf(from.source());
    node.source = source_;
    if (const toml::table* table = from.as_table()) {
      node.kind = Node::Kind::kTable;
      for (const auto& [key, value] : *table) {
        node.entries.push_back({std::string(key.str()), MarkOf(key.source()), Convert(value)});
      }
      std::sort(node.entries.begin(), node.entries.end(), [](const Entry& a, const Entry& b) {
        return std::pair(a.key_mark.line, a.key_mark.column) < std::pair(b.key_mark.line, b.key_mark.column);
      });
    } else if (const toml::array* array = from.as_array()) {
      node.kind = Node::Kind::kArray;
      for (const toml::node& item : *array) node.items.push_back(Convert(item));
    } else {
      ConvertScalar(from, &node);
    }
    return node;
  }

 private:
  static void ConvertScalar(const toml::node& from, Node* node) {
    if (const auto* string = from.as_string()) {
      node->kind = Node::Kind::kString;
      node->string = string->get();
    } else if (const auto* integer = from.as_integer()) {
      node->kind = Node::Kind::kInteger;
      node->integer = integer->get();
    } else if (const auto* number = from.as_floating_point()) {
      node->kind = Node::Kind::kFloat;
      node->number = number->get();
    } else if (const auto* boolean = from.as_boolean()) {
      node->kind = Node::Kind::kBoolean;
      node->boolean = boolean->get();
    } else {
      node->kind = Node::Kind::kDateTime;
    }
  }

  SourcePtr source_;
  ByteColumns columns_;
};

// The text between the first pair of single quotes; toml++ puts the offending number there.
std::string_view QuotedPart(std::string_view text) {
  const std::size_t begin = text.find('\'');
  if (begin == std::string_view::npos) return {};
  const std::size_t end = text.find('\'', begin + 1);
  return end == std::string_view::npos ? std::string_view{} : text.substr(begin + 1, end - begin - 1);
}

// toml++ reports a number that does not fit where the number ends; we say where it begins.
Diagnostic NumberError(const Source& source, Mark mark, std::string_view number, bool integer) {
  const std::string_view line = source.WholeLine(mark.line);
  std::size_t at = line.rfind(number, static_cast<std::size_t>(mark.column));
  if (at != std::string_view::npos) {
    if (at > 0 && (line[at - 1] == '-' || line[at - 1] == '+')) {  // which toml++ leaves out
      --at;
      number = line.substr(at, number.size() + 1);
    }
    mark.column = static_cast<int>(at) + 1;
    mark.length = static_cast<int>(number.size());
  }
  if (integer) {
    return source.Error(mark, fmt::format("the integer {} does not fit in 64 bits", number),
                        "the largest is 9223372036854775807");
  }
  return source.Error(mark, fmt::format("the number {} does not fit in a 64-bit float", number),
                      "the largest is about 1.8e308");
}

Diagnostic SyntaxError(const SourcePtr& from, const toml::parse_error& error) {
  const Source& source = *from;
  const Mark mark = Converter(from).MarkOf(error.source());
  const std::string_view text = error.description();
  const std::string_view number = QuotedPart(text);
  if (!number.empty() && text.find("is not representable") != std::string_view::npos) {
    return NumberError(source, mark, number, true);
  }
  if (!number.empty() && text.find("could not be interpreted as a value") != std::string_view::npos) {
    return NumberError(source, mark, number, false);
  }
  constexpr std::string_view kPrefix = "Error while parsing ";
  constexpr std::size_t kMaxDescription = 300;
  const std::string_view shown = text.substr(text.rfind(kPrefix, 0) == 0 ? kPrefix.size() : 0);
  return source.Error({mark.line, mark.column, 1},
                      fmt::format("not valid TOML: {}", Shown(shown, kMaxDescription)));
}

}  // namespace

std::optional<Document> ParseToml(SourcePtr source, std::vector<Diagnostic>* diagnostics) {
  if (std::optional<Diagnostic> unsafe = FindUnsafeText(*source)) {
    diagnostics->push_back(*std::move(unsafe));
    diagnostics->back().code = kNotToml;
    return std::nullopt;
  }
  const toml::parse_result result = toml::parse(std::string_view(source->text()));
  if (!result) {
    diagnostics->push_back(SyntaxError(source, result.error()));
    diagnostics->back().code = kNotToml;
    return std::nullopt;
  }
  Node root = Converter(source).Convert(result.table());
  return Document{std::move(source), std::move(root)};
}

const Node* Node::Find(std::string_view key) const {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.key == key; });
  return found == entries.end() ? nullptr : &found->value;
}

Node* Node::Find(std::string_view key) { return const_cast<Node*>(std::as_const(*this).Find(key)); }

Diagnostic ErrorAt(const Node& node, std::string message, std::string hint) {
  return node.source->Error(node.mark, std::move(message), std::move(hint));
}

Diagnostic ErrorAt(const Entry& entry, std::string message, std::string hint) {
  return entry.value.source->Error(entry.key_mark, std::move(message), std::move(hint));
}

std::string Describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kTable:
      return "a table";
    case Node::Kind::kArray:
      return "a list";
    case Node::Kind::kString:
      return fmt::format("the string \"{}\"", Shown(node.string));
    case Node::Kind::kInteger:
      return fmt::format("the integer {}", node.integer);
    case Node::Kind::kFloat:
      return fmt::format("the float {}", ToToml(FieldValue(node.number)));
    case Node::Kind::kBoolean:
      return fmt::format("the boolean {}", node.boolean);
    case Node::Kind::kDateTime:
      return "a date or time";
  }
  return "a value";
}

}  // namespace engine::recipe
