// A task with its examples as rows of tokens, for one tokenizer and one width of the model's window.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"
#include "engine/evaluate/task.h"
#include "engine/evaluate/windows.h"

namespace engine::evaluate {

struct Example {
  std::int64_t line = 0;  // of the task's file, from 1
  std::size_t first_row = 0, rows = 0;
  // Of a text of perplexity, as it is in the file, before it is detokenised.
  std::int64_t bytes = 0;
  std::int64_t words =
      0;  // CountWords in white_space.h; of strided windows len(text.strip().split(" ")) in Python's words
  // Of multiple choice, by choice, which are its rows: of the choice alone, without the delimiter.
  std::vector<std::int64_t> choice_bytes = {}, choice_characters = {};
  std::int64_t answer = 0;  // the right choice, from 0
};

struct Task {
  TaskSettings settings;
  std::string contents = {};  // a hash of the task's file and of what of it is asked
  std::vector<Example> examples = {};
  std::vector<Row> rows = {};
  std::int64_t truncated = 0;  // rows whose context lost its beginning, as it did not fit in the window
};

// The tokens of context and continuation, as lm-evaluation-harness has them (api/model.py, _encode_pair): white space at the
// context's end belongs to the continuation, whose tokens are those of the whole text behind as many as the context has by
// itself. An empty context is the prefix token. Of more than window + 1 tokens the last are kept; *truncated then counts one
// more. InvalidArgument: the continuation has no tokens, or more than the window.
absl::StatusOr<Row> RowOfPair(std::string_view context, std::string_view continuation,
                              const data::Tokenizer& tokenizer, std::int64_t window, std::int64_t* truncated);

// The token that stands before what has no context: the tokenizer's beginning of a document, or the end of one.
std::int32_t PrefixToken(const data::Tokenizer& tokenizer);

// Reads the first `limit` examples of the task's file (0: all). `vocab`: ids of the model are below it. `sequence`: tokens of
// the model's samples. Errors are located: "FILE:LINE: error: what".
absl::StatusOr<Task> MakeTask(const TaskSettings& settings, const data::Tokenizer& tokenizer,
                              std::int64_t vocab, std::int64_t sequence, std::int64_t limit);

// Makes the tasks that `given` names (ReadTasks). They share the recipe's tokenizer. Errors begin with `said_by`: the key or option
// that names the tasks.
absl::StatusOr<std::vector<Task>> MakeTasks(const std::vector<std::string>& given, const std::string& said_by,
                                            const recipe::Recipe& recipe, std::int64_t limit);

}  // namespace engine::evaluate
