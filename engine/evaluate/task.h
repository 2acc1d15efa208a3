// Tasks that a model is asked: what [evaluation] tasks and `engine evaluate --task` name, and their files
// (docs/evaluation.md).
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace engine::evaluate {

enum class TaskKind : std::uint8_t {
  kPerplexity,      // how well every token of texts is predicted
  kLastWord,        // LAMBADA (Paperno et al., arXiv:1606.06031): the end of each text
  kMultipleChoice,  // which of several continuations is the likeliest
};

// What a task is; every field but name, kind and file has the value that stands here where nothing else is said.
struct TaskSettings {
  std::string name;
  TaskKind kind = TaskKind::kPerplexity;
  std::string file;  // examples: JSON Lines; of perplexity any other file is one text

  // Of perplexity.
  std::string windows = "rolling";  // rolling | strided (windows.h)
  std::string detokenize = "none";  // none | wikitext
  std::int64_t window = 0;          // tokens that a row reads; 0: as many as the model's samples have
  std::int64_t stride = 0;          // of strided windows; 0: the window, so that none overlap

  std::string target = "word";  // of the last word: word | strict | token
  std::string delimiter = " ";  // of multiple choice: stands between context and choice
};

// Of "FORM=FILE", where FORM is one of TaskForms(), or of the name of a file that ends in .toml. A relative `file` in a
// TOML file is found from that file's folder. InvalidArgument, located where a file is in error.
absl::StatusOr<TaskSettings> ReadTask(const std::string& given);

// All of them, of different names.
absl::StatusOr<std::vector<TaskSettings>> ReadTasks(const std::vector<std::string>& given);

// What FORM may be: the kinds, and settings of them that have names of their own.
std::vector<std::string> TaskForms();

}  // namespace engine::evaluate
