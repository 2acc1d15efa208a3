#include "engine/data/text_inputs.h"

#include <simdjson.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/storage/storage.h"

namespace engine::data {
namespace {

namespace fs = std::filesystem;

bool IsTable(const fs::path& path) { return path.extension() == ".dat" || path.extension() == ".u8"; }

// Whether the entry is text; else it is counted, unless it is a directory.
bool IsWanted(const fs::directory_entry& entry, PassedOver* passed_over) {
  std::error_code ignored;
  std::int64_t* count = nullptr;
  if (entry.is_symlink(ignored)) {
    count = &passed_over->links;
  } else if (entry.is_directory(ignored)) {
    return false;
  } else if (entry.path().filename().string().starts_with('.')) {
    count = &passed_over->hidden;
  } else if (!entry.is_regular_file(ignored)) {
    count = &passed_over->others;
  } else if (IsTable(entry.path())) {
    count = &passed_over->tables;
  } else {
    return true;
  }
  ++*count;
  return false;
}

absl::Status ListDirectory(const std::string& directory, std::vector<std::string>* files,
                           PassedOver* passed_over) {
  std::error_code error;
  std::vector<std::string> found;
  fs::recursive_directory_iterator it(directory, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    const bool hidden = it->path().filename().string().starts_with('.');
    if (hidden && it->is_directory(error) && !it->is_symlink(error)) {
      it.disable_recursion_pending();
      ++passed_over->hidden;
    } else if (IsWanted(*it, passed_over)) {
      found.push_back(it->path().string());
    }
  }
  if (error) return Unavailable("cannot list {}: {}", directory, error.message());
  if (found.empty()) return NotFound("no text files in {}", directory);
  std::sort(found.begin(), found.end());
  files->insert(files->end(), found.begin(), found.end());
  return absl::OkStatus();
}

// A bucket has no directories: some tools put an empty object with a / at its end in the place of one.
absl::Status ListUrl(const std::string& input, std::vector<std::string>* files, PassedOver* passed_over) {
  RETURN_IF_ERROR(storage::CheckUsable(input));
  if (!input.ends_with('/')) {
    files->push_back(input);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<storage::Entry> entries, storage::List(input));
  const std::size_t before = files->size();
  for (const storage::Entry& entry : entries) {
    const fs::path path(entry.name.substr(input.size()));
    const bool hidden = std::any_of(path.begin(), path.end(),
                                    [](const fs::path& part) { return part.string().starts_with('.'); });
    if (entry.name.ends_with('/')) continue;
    if (hidden) {
      ++passed_over->hidden;
    } else if (IsTable(path)) {
      ++passed_over->tables;
    } else {
      files->push_back(entry.name);
    }
  }
  if (files->size() == before) return NotFound("no text files in {}", input);
  return absl::OkStatus();
}

// Whether `text` is one number by the grammar of JSON (RFC 8259, section 6).
bool IsNumber(std::string_view text) {
  const auto skip_digits = [&text] {
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(digits);
    return digits > 0;
  };
  const auto skip_any = [&text](std::string_view characters) {
    const bool found = !text.empty() && characters.find(text.front()) != std::string_view::npos;
    if (found) text.remove_prefix(1);
    return found;
  };
  skip_any("-");
  if (!skip_any("0") && !skip_digits()) return false;
  if (skip_any(".") && !skip_digits()) return false;
  if (skip_any("eE")) {
    skip_any("+-");
    if (!skip_digits()) return false;
  }
  return text.empty();
}

// The line with each of its numbers as a 0 and blanks, so that columns stay what they are. JSON sets numbers
// no bounds, and Python's json.dumps writes integers of any length; the parser takes those of a double only.
std::string WithoutNumbers(std::string_view line) {
  std::string changed(line);
  bool in_string = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '-' || (c >= '0' && c <= '9'))) {
      const std::size_t end = std::min(line.find_first_not_of("0123456789+-.eE", i), line.size());
      if (IsNumber(line.substr(i, end - i))) {
        std::fill(changed.begin() + static_cast<std::ptrdiff_t>(i),
                  changed.begin() + static_cast<std::ptrdiff_t>(end), ' ');
        changed[i] = '0';
      }
      i = end - 1;
    }
  }
  return changed;
}

absl::StatusOr<nlohmann::json> ParseLine(std::string_view line, const std::string& path,
                                         std::int64_t line_number) {
  absl::StatusOr<nlohmann::json> object = ParseJson(line, path, line_number);
  if (absl::IsOutOfRange(object.status())) object = ParseJson(WithoutNumbers(line), path, line_number);
  return object;
}

using Texts = std::vector<std::string_view>;

// The value of a key, which may go from object to object by its dots; null: there is none.
const nlohmann::json* Find(const nlohmann::json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  if (const auto found = object.find(key); found != object.end()) return &*found;
  const std::size_t dot = key.find('.');
  if (dot == std::string_view::npos) return nullptr;
  const auto inner = object.find(key.substr(0, dot));
  return inner == object.end() ? nullptr : Find(*inner, key.substr(dot + 1));
}

absl::Status TextsOf(const nlohmann::json& object, const std::string& key, Texts* texts) {
  if (!object.is_object()) return InvalidArgument("is {}, and must be an object", TypeOf(object));
  const nlohmann::json* found = Find(object, key);
  if (found == nullptr) return InvalidArgument("has no key \"{}\"", key);
  if (found->is_string()) {
    texts->push_back(found->get_ref<const std::string&>());
    return absl::OkStatus();
  }
  if (!found->is_array()) {
    return InvalidArgument("\"{}\" is {}, and must be a string or a list of strings", key, TypeOf(*found));
  }
  for (const nlohmann::json& item : *found) {
    if (!item.is_string()) {
      return InvalidArgument("the list \"{}\" holds {}, and must hold strings", key, TypeOf(item));
    }
    texts->push_back(item.get_ref<const std::string&>());
  }
  return absl::OkStatus();
}

// simdjson, for lines that are as they should be: it says too little of others, which are read once more by ParseLine.
class FastLines {
 public:
  // The texts of each key; false: the line is not read, for whatever reason. They are valid until the next call. `behind`: bytes
  // behind the line that may be read; where there are few, the line is copied first.
  bool Read(std::string_view line, std::size_t behind, std::span<const std::string> keys,
            std::vector<Texts>* texts) {
    simdjson::dom::object object;
    if (line.size() > capacity_) {
      if (parser_.allocate(line.size(), kMostJsonDepth) != simdjson::SUCCESS) return false;
      capacity_ = line.size();
    }
    const bool copies = behind < simdjson::SIMDJSON_PADDING;
    if (parser_.parse(line.data(), line.size(), copies).get(object) != simdjson::SUCCESS) return false;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      simdjson::dom::element found;
      if (!Find(object, keys[i], &found) || !AddTexts(found, &(*texts)[i])) return false;
    }
    return true;
  }

 private:
  // Of keys that stand twice the last one counts, as in Python.
  static bool FindIn(const simdjson::dom::object& object, std::string_view key,
                     simdjson::dom::element* found) {
    bool any = false;
    for (const simdjson::dom::key_value_pair field : object) {
      if (field.key != key) continue;
      *found = field.value;
      any = true;
    }
    return any;
  }
  static bool Find(const simdjson::dom::object& object, std::string_view key, simdjson::dom::element* found) {
    if (FindIn(object, key, found)) return true;
    const std::size_t dot = key.find('.');
    simdjson::dom::element inner;
    simdjson::dom::object in;
    return dot != std::string_view::npos && FindIn(object, key.substr(0, dot), &inner) &&
           inner.get(in) == simdjson::SUCCESS && Find(in, key.substr(dot + 1), found);
  }
  static bool AddTexts(const simdjson::dom::element& found, Texts* texts) {
    std::string_view text;
    if (found.get(text) == simdjson::SUCCESS) {
      texts->push_back(text);
      return true;
    }
    simdjson::dom::array list;
    if (found.get(list) != simdjson::SUCCESS) return false;
    for (const simdjson::dom::element item : list) {
      if (item.get(text) != simdjson::SUCCESS) return false;
      texts->push_back(text);
    }
    return true;
  }

  simdjson::dom::parser parser_;
  std::size_t capacity_ = 0;
};

// A line that does not even begin as JSON is most likely plain text.
absl::Status WithFormatNamed(const absl::Status& status, std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t\r");
  if (first == std::string_view::npos || line[first] == '{' || line[first] == '[') return status;
  return absl::Status(status.code(), Message(status) +
                                         "\n    hint: a line is an object of JSON here; --format text reads "
                                         "plain text");
}

// Removes and returns the first line of *text, without its newline.
std::string_view TakeLine(std::string_view* text) {
  const std::string_view line = text->substr(0, text->find('\n'));
  text->remove_prefix(std::min(line.size() + 1, text->size()));
  return line;
}

}  // namespace

std::string_view WithoutByteOrderMark(std::string_view file) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // U+FEFF
  if (file.starts_with(kByteOrderMark)) file.remove_prefix(kByteOrderMark.size());
  return file;
}

absl::StatusOr<std::vector<std::string>> ListInputs(const std::vector<std::string>& inputs,
                                                    PassedOver* passed_over) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    if (storage::IsUrl(input)) {
      RETURN_IF_ERROR(ListUrl(input, &files, passed_over));
      continue;
    }
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (!fs::exists(status)) return NotFound("input {} does not exist", input);
    if (fs::is_directory(status)) {
      RETURN_IF_ERROR(ListDirectory(input, &files, passed_over));
    } else {
      files.push_back(input);
    }
  }
  return files;
}

absl::Status VisitJsonLines(const TextPlace& place, std::string_view contents,
                            std::span<const std::string> keys, const KeyVisitor& visit) {
  FastLines fast;
  std::vector<Texts> texts(keys.size());
  for (std::int64_t line_number = place.first_line; !contents.empty(); ++line_number) {
    const std::string_view line = TakeLine(&contents);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto located = [&](const absl::Status& status) {
      return absl::Status(status.code(),
                          fmt::format("{}:{}: error: {}", place.path, line_number, Message(status)));
    };
    for (Texts& of_key : texts) of_key.clear();
    nlohmann::json object;
    const auto behind =
        static_cast<std::size_t>(contents.data() + contents.size() - (line.data() + line.size()));
    if (!fast.Read(line, behind, keys, &texts)) {
      absl::StatusOr<nlohmann::json> parsed = ParseLine(line, place.path, line_number);
      if (!parsed.ok()) return WithFormatNamed(parsed.status(), line);
      object = *std::move(parsed);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        texts[i].clear();
        if (absl::Status status = TextsOf(object, keys[i], &texts[i]); !status.ok())
          return WithFormatNamed(located(status), line);
      }
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (absl::Status status = visit(i, texts[i]); !status.ok()) return located(status);
    }
  }
  return absl::OkStatus();
}

absl::Status VisitPlainText(std::string_view contents, std::optional<std::string_view> separator,
                            const DocumentVisitor& visit) {
  const char* document = contents.data();
  const auto finish = [&](const char* end) {
    const std::string_view text(document, static_cast<std::size_t>(end - document));
    return text.empty() ? absl::OkStatus() : visit({&text, 1});
  };
  if (!separator.has_value()) return finish(contents.data() + contents.size());
  while (!contents.empty()) {
    std::string_view line = TakeLine(&contents);
    const char* line_begin = line.data();
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line != separator) continue;
    RETURN_IF_ERROR(finish(line_begin));
    document = contents.data();
  }
  return finish(contents.data());
}

}  // namespace engine::data
