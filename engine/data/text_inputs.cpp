#include "engine/data/text_inputs.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/status.h"

namespace engine::data {
namespace {

namespace fs = std::filesystem;

bool IsWanted(const fs::directory_entry& entry) {
  std::error_code ignored;
  const std::string extension = entry.path().extension();
  return !entry.is_symlink(ignored) && entry.is_regular_file(ignored) && extension != ".dat" &&
         extension != ".u8" && !entry.path().filename().string().starts_with('.');
}

absl::Status ListDirectory(const std::string& directory, std::vector<std::string>* files) {
  std::error_code error;
  std::vector<std::string> found;
  fs::recursive_directory_iterator it(directory, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (IsWanted(*it)) found.push_back(it->path().string());
  }
  if (error) return Unavailable("cannot list {}: {}", directory, error.message());
  if (found.empty()) return NotFound("no text files in {}", directory);
  std::sort(found.begin(), found.end());
  files->insert(files->end(), found.begin(), found.end());
  return absl::OkStatus();
}

// Deepest nesting of lists and objects: the parser's memory grows with it, so it is bounded before parsing.
int NestingDepth(std::string_view json) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

absl::StatusOr<nlohmann::json> ParseLine(std::string_view line) {
  constexpr int kMaxDepth = 64;
  if (NestingDepth(line) > kMaxDepth) return InvalidArgument("nested deeper than {} levels", kMaxDepth);
  try {
    nlohmann::json object = nlohmann::json::parse(line.begin(), line.end());
    if (!object.is_object())
      return InvalidArgument("is a JSON {}, and must be an object", object.type_name());
    return object;
  } catch (const nlohmann::json::parse_error& error) {
    std::string_view what = error.what();
    what.remove_prefix(std::min(what.find(": ") + 2, what.size()));  // "[json.exception...] ... column 5: "
    return InvalidArgument("column {}: {}", error.byte, what.substr(0, 200));
  }
}

absl::Status TextsOf(const nlohmann::json& object, const std::string& key,
                     std::vector<std::string_view>* texts) {
  const auto found = object.find(key);
  if (found == object.end()) return InvalidArgument("has no key \"{}\"", key);
  if (found->is_string()) {
    texts->push_back(found->get_ref<const std::string&>());
    return absl::OkStatus();
  }
  if (!found->is_array()) {
    return InvalidArgument("\"{}\" is a {}, and must be a string or a list of strings", key,
                           found->type_name());
  }
  for (const nlohmann::json& item : *found) {
    if (!item.is_string()) {
      return InvalidArgument("the list \"{}\" holds a {}, and must hold strings", key, item.type_name());
    }
    texts->push_back(item.get_ref<const std::string&>());
  }
  return absl::OkStatus();
}

// Removes and returns the first line of *text, without its newline.
std::string_view TakeLine(std::string_view* text) {
  const std::string_view line = text->substr(0, text->find('\n'));
  text->remove_prefix(std::min(line.size() + 1, text->size()));
  return line;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListInputs(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (!fs::exists(status)) return NotFound("input {} does not exist", input);
    if (fs::is_directory(status)) {
      RETURN_IF_ERROR(ListDirectory(input, &files));
    } else {
      files.push_back(input);
    }
  }
  return files;
}

absl::Status VisitJsonLines(const std::string& path, std::string_view contents, const std::string& key,
                            const DocumentVisitor& visit) {
  std::vector<std::string_view> texts;
  for (std::int64_t line_number = 1; !contents.empty(); ++line_number) {
    const std::string_view line = TakeLine(&contents);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto located = [&](const absl::Status& status) {
      return absl::Status(status.code(), fmt::format("{}:{}: error: {}", path, line_number, Message(status)));
    };
    const absl::StatusOr<nlohmann::json> object = ParseLine(line);
    if (!object.ok()) return located(object.status());
    texts.clear();
    if (absl::Status status = TextsOf(*object, key, &texts); !status.ok()) return located(status);
    if (absl::Status status = visit(texts); !status.ok()) return located(status);
  }
  return absl::OkStatus();
}

absl::Status VisitPlainText(std::string_view contents, std::string_view separator,
                            const DocumentVisitor& visit) {
  const char* document = contents.data();
  const auto finish = [&](const char* end) {
    const std::string_view text(document, static_cast<std::size_t>(end - document));
    return text.empty() ? absl::OkStatus() : visit({&text, 1});
  };
  if (separator.empty()) return finish(contents.data() + contents.size());
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
