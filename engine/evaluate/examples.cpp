#include "engine/evaluate/examples.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/data/text_inputs.h"
#include "engine/data/text_parts.h"
#include "engine/evaluate/white_space.h"
#include "engine/evaluate/wikitext.h"

namespace engine::evaluate {
namespace {

using Ids = std::vector<std::int32_t>;
using nlohmann::json;

constexpr std::int64_t kMostBytes = std::int64_t{4} << 30;  // of a task's file, which is read as a whole

// A file's text, unpacked where it is compressed.
absl::StatusOr<std::string> ReadText(const std::string& file) {
  constexpr std::size_t kPartBytes = 1 << 20;
  ASSIGN_OR_RETURN(data::TextParts parts, data::TextParts::Open(file));
  std::string text;
  while (true) {
    ASSIGN_OR_RETURN(const data::TextPart part,
                     parts.Next(kPartBytes, [](std::string_view some) { return some.size(); }));
    if (part.text.empty()) return std::string(data::WithoutByteOrderMark(text));
    text += part.text;
    if (std::ssize(text) > kMostBytes)
      return InvalidArgument("{}: more than {} bytes, which a task's file may have", file, kMostBytes);
  }
}

// Whether each line is an example: of a name that ends so, or so before what says that it is compressed.
bool IsJsonl(std::string_view file) {
  for (const std::string_view ending : {".gz", ".zst"}) {
    if (file.ends_with(ending)) file.remove_suffix(ending.size());
  }
  return file.ends_with(".jsonl");
}

absl::StatusOr<Ids> Encode(std::string_view text, const data::Tokenizer& tokenizer) {
  Ids ids;
  RETURN_IF_ERROR(tokenizer.EncodeTo(text, &ids));
  return ids;
}

// The last tokens of context and continuation that fit.
absl::StatusOr<Row> RowOf(Ids context, const Ids& continuation, std::int64_t window,
                          std::int64_t* truncated) {
  if (continuation.empty()) return InvalidArgument("the continuation adds no token to its context");
  const auto most = static_cast<std::size_t>(window) + 1;
  if (continuation.size() + 1 > most) {
    return InvalidArgument(
        "the continuation has {} tokens, but a model with a window of {} predicts no more at once",
        continuation.size(), window);
  }
  Row row{.tokens = std::move(context)};
  row.tokens.insert(row.tokens.end(), continuation.begin(), continuation.end());
  if (row.tokens.size() > most) {
    row.tokens.erase(row.tokens.begin(), row.tokens.end() - static_cast<std::ptrdiff_t>(most));
    ++*truncated;
  }
  row.first = row.tokens.size() - continuation.size();
  return row;
}

// The text of a key, which has to be there.
absl::StatusOr<std::string> TextOf(const json& record, const char* key) {
  const auto found = record.find(key);
  if (found == record.end()) return InvalidArgument("the key \"{}\" is missing", key);
  if (!found->is_string()) return InvalidArgument("\"{}\" is {}, but must be a text", key, TypeOf(*found));
  return found->get<std::string>();
}

// Makes examples of one task.
class ExampleMaker {
 public:
  ExampleMaker(const data::Tokenizer& tokenizer, std::int64_t window, Task* task)
      : tokenizer_(tokenizer), window_(window), task_(*task) {}

  absl::Status Add(const json& record, std::int64_t line) {
    if (!record.is_object()) return InvalidArgument("the line is {}, but must be an object", TypeOf(record));
    if (task_.settings.kind == TaskKind::kMultipleChoice) return AddChoices(record, line);
    ASSIGN_OR_RETURN(const std::string text, TextOf(record, "text"));
    return task_.settings.kind == TaskKind::kLastWord ? AddLastWord(text, line) : AddText(text, line);
  }

  absl::Status AddText(std::string_view text, std::int64_t line) {
    const TaskSettings& settings = task_.settings;
    const bool strided = settings.windows == "strided";
    Example example = Next(line);
    example.bytes = static_cast<std::int64_t>(text.size());
    const std::string_view inner = Strip(text);
    example.words = strided ? 1 + std::count(inner.begin(), inner.end(), ' ') : CountWords(text);
    ASSIGN_OR_RETURN(
        const Ids tokens,
        Encode(settings.detokenize == "wikitext" ? DetokenizeWikitext(text) : std::string(text), tokenizer_));
    std::vector<Row> rows =
        strided ? StridedWindows(tokens, window_, settings.stride > 0 ? settings.stride : window_)
                : RollingWindows(tokens, PrefixToken(tokenizer_), window_);
    if (rows.empty()) return absl::OkStatus();  // a text without a token to predict
    for (Row& row : rows) task_.rows.push_back(std::move(row));
    return Finish(std::move(example));
  }

 private:
  Example Next(std::int64_t line) const { return {.line = line, .first_row = task_.rows.size()}; }

  absl::Status Finish(Example example) {
    example.rows = task_.rows.size() - example.first_row;
    task_.examples.push_back(std::move(example));
    return absl::OkStatus();
  }

  absl::Status AddPair(std::string_view context, std::string_view continuation) {
    ASSIGN_OR_RETURN(Row row, RowOfPair(context, continuation, tokenizer_, window_, &task_.truncated));
    task_.rows.push_back(std::move(row));
    return absl::OkStatus();
  }

  absl::Status AddLastWord(std::string_view text, std::int64_t line) {
    Example example = Next(line);
    if (task_.settings.target == "word") {
      const std::size_t blank = text.rfind(' ');
      if (text.empty() || blank + 1 == text.size())
        return InvalidArgument("the text {}, so that there is no last word to predict",
                               text.empty() ? "is empty" : "ends with a blank");
      const bool one_word = blank == std::string_view::npos;
      RETURN_IF_ERROR(AddPair(one_word ? "" : text.substr(0, blank),
                              " " + std::string(one_word ? text : text.substr(blank + 1))));
      return Finish(std::move(example));
    }
    ASSIGN_OR_RETURN(auto parts, task_.settings.target == "token" ? LastToken(text) : LastWordApart(text));
    auto& [context, target] = parts;
    if (context.empty()) context = {PrefixToken(tokenizer_)};
    ASSIGN_OR_RETURN(Row row, RowOf(std::move(context), target, window_, &task_.truncated));
    task_.rows.push_back(std::move(row));
    return Finish(std::move(example));
  }

  using Parts = std::pair<Ids, Ids>;  // context and target

  absl::StatusOr<Parts> LastToken(std::string_view text) const {
    ASSIGN_OR_RETURN(Ids tokens, Encode(text, tokenizer_));
    if (tokens.empty()) return InvalidArgument("the text has no token");
    Ids target = {tokens.back()};
    tokens.pop_back();
    return Parts{std::move(tokens), std::move(target)};
  }

  // Megatron-LM's --strict-lambada: the word and what is before its last occurrence become tokens apart.
  absl::StatusOr<Parts> LastWordApart(std::string_view text) const {
    const std::size_t begin = LastWord(text);
    if (begin == std::string_view::npos) return InvalidArgument("the text has no word");
    const std::string_view word = StripRight(text.substr(begin));
    ASSIGN_OR_RETURN(Ids context, Encode(Strip(text.substr(0, text.rfind(word))), tokenizer_));
    ASSIGN_OR_RETURN(Ids target, Encode(" " + std::string(word), tokenizer_));
    return Parts{std::move(context), std::move(target)};
  }

  absl::Status AddChoices(const json& record, std::int64_t line) {
    ASSIGN_OR_RETURN(const std::string context, TextOf(record, "context"));
    const auto choices = record.find("choices");
    if (choices == record.end()) return InvalidArgument("the key \"choices\" is missing");
    if (!choices->is_array() || choices->size() < 2)
      return InvalidArgument("\"choices\" must be a list of two texts or more");
    Example example = Next(line);
    for (const json& choice : *choices) {
      if (!choice.is_string()) return InvalidArgument("a choice is {}, but must be a text", TypeOf(choice));
      const auto& text = choice.get_ref<const std::string&>();
      if (text.empty()) return InvalidArgument("a choice is empty, so it has no length to divide by");
      RETURN_IF_ERROR(AddPair(context, task_.settings.delimiter + text));
      example.choice_bytes.push_back(static_cast<std::int64_t>(text.size()));
      example.choice_characters.push_back(CountCharacters(text));
    }
    const auto answer = record.find("answer");
    if (answer == record.end()) return InvalidArgument("the key \"answer\" is missing");
    const auto count = static_cast<std::int64_t>(choices->size());
    const bool lawful = answer->is_number_integer() && *answer >= 0 && *answer < count;
    if (!lawful)
      return InvalidArgument("\"answer\" must be the number of the right choice, from 0 to {}", count - 1);
    example.answer = answer->get<std::int64_t>();
    return Finish(std::move(example));
  }

  const data::Tokenizer& tokenizer_;
  const std::int64_t window_;
  Task& task_;
};

// "FILE:LINE: error: what"; a status that has its place already stays as it is.
absl::Status At(const std::string& file, std::int64_t line, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}:{}: error: {}", file, line, Message(status)));
}

absl::Status AddLines(const std::string& text, std::int64_t limit, ExampleMaker* maker, Task* task) {
  const std::string& file = task->settings.file;
  std::int64_t line = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view content = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++line;
    if (Strip(content).empty()) continue;
    if (limit > 0 && static_cast<std::int64_t>(task->examples.size()) == limit) break;
    const absl::StatusOr<json> record = ParseStrictJson(content, file, line);
    if (!record.ok()) {
      return absl::Status(record.status().code(),
                          Message(record.status()) + "; each line of this task is a JSON object");
    }
    if (const absl::Status status = maker->Add(*record, line); !status.ok()) return At(file, line, status);
  }
  return absl::OkStatus();
}

absl::Status CheckIds(const Task& task, std::int64_t vocab) {
  for (const Row& row : task.rows) {
    for (const std::int32_t id : row.tokens) {
      if (id < vocab) continue;
      return InvalidArgument(
          "{}: the tokenizer gives id {}, but the model's vocabulary is 0 to {}: it is another one's",
          task.settings.file, id, vocab - 1);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> WindowOf(const TaskSettings& settings, std::int64_t sequence) {
  const std::int64_t window = settings.window > 0 ? settings.window : sequence;
  if (window > sequence) {
    return InvalidArgument(
        "task {}: a window of {} tokens, but the model's samples have {} (data.sequence_length)",
        settings.name, window, sequence);
  }
  if (settings.stride > window) {
    return InvalidArgument("task {}: with a stride of {} tokens, windows of {} leave tokens out",
                           settings.name, settings.stride, window);
  }
  return window;
}

}  // namespace

std::int32_t PrefixToken(const data::Tokenizer& tokenizer) {
  return tokenizer.beginning_of_document().value_or(tokenizer.end_of_document());
}

absl::StatusOr<Row> RowOfPair(std::string_view context, std::string_view continuation,
                              const data::Tokenizer& tokenizer, std::int64_t window,
                              std::int64_t* truncated) {
  const std::string whole = std::string(context) + std::string(continuation);
  ASSIGN_OR_RETURN(Ids before, Encode(StripRight(context), tokenizer));
  ASSIGN_OR_RETURN(const Ids all, Encode(whole, tokenizer));
  const Ids behind(all.begin() + static_cast<std::ptrdiff_t>(std::min(before.size(), all.size())), all.end());
  if (before.empty()) before = {PrefixToken(tokenizer)};
  return RowOf(std::move(before), behind, window, truncated);
}

absl::StatusOr<Task> MakeTask(const TaskSettings& settings, const data::Tokenizer& tokenizer,
                              std::int64_t vocab, std::int64_t sequence, std::int64_t limit) {
  ASSIGN_OR_RETURN(const std::int64_t window, WindowOf(settings, sequence));
  ASSIGN_OR_RETURN(const std::string text, ReadText(settings.file));
  Task task{.settings = settings,
            .contents = HashHex(fmt::format("{} {} {}", static_cast<int>(settings.kind), limit, text))};
  ExampleMaker maker(tokenizer, window, &task);
  const bool lines = settings.kind != TaskKind::kPerplexity || IsJsonl(settings.file);
  RETURN_IF_ERROR(lines ? AddLines(text, limit, &maker, &task) : maker.AddText(text, 1));
  if (task.examples.empty()) return InvalidArgument("{}: there is no example", settings.file);
  RETURN_IF_ERROR(CheckIds(task, vocab));
  return task;
}

namespace {

absl::StatusOr<std::vector<Task>> ReadAndMake(const std::vector<std::string>& given,
                                              const recipe::Recipe& recipe, std::int64_t limit) {
  ASSIGN_OR_RETURN(const std::vector<TaskSettings> settings, ReadTasks(given));
  absl::StatusOr<std::unique_ptr<data::Tokenizer>> tokenizer = data::MakeTokenizer(recipe.data.tokenizer);
  if (!tokenizer.ok()) return WithContext(tokenizer.status(), "tasks are texts");
  std::vector<Task> tasks;
  for (const TaskSettings& one : settings) {
    ASSIGN_OR_RETURN(Task task,
                     MakeTask(one, **tokenizer, recipe.model.vocab, recipe.data.sequence_length, limit));
    tasks.push_back(std::move(task));
  }
  return tasks;
}

}  // namespace

absl::StatusOr<std::vector<Task>> MakeTasks(const std::vector<std::string>& given, const std::string& said_by,
                                            const recipe::Recipe& recipe, std::int64_t limit) {
  absl::StatusOr<std::vector<Task>> tasks = ReadAndMake(given, recipe, limit);
  if (!tasks.ok()) return WithContext(tasks.status(), said_by);
  return tasks;
}

}  // namespace engine::evaluate
