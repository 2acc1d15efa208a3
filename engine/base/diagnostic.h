// A located message for the author of a recipe: `file:line:column: error: text`, the source line, a caret, a
// hint.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace engine {

struct SourceSpan {
  std::string file;  // as the user named it; "--set" where there is no file
  int line = 0;      // 1-based; 0: the whole file
  int column = 0;    // 1-based, in bytes; 0: the whole line
  int length = 1;    // bytes to underline on that line
};

enum class Severity { kError, kWarning, kNote };

struct Diagnostic {
  Severity severity = Severity::kError;
  SourceSpan span;
  std::string message;      // what is wrong, with the numbers
  std::string hint;         // what would be right; may be empty
  std::string source_line;  // text of the line, for the caret; may be empty
  std::string code = {};    // "W101", "E203": the family it belongs to (recipe/codes.h); a note has none
};

// Text form, ending in a newline. The code is shown of a warning, which `engine explain` says more about.
// Tabs of the source line are kept, so that the caret lines up. With colours, in the escapes of a terminal:
// place bold, error red, warning yellow, note and hint cyan, caret green.
std::string Format(const Diagnostic& diagnostic, bool colors = false);

// All of them in text form, without the last line's end, as an InvalidArgument; OK where there are none.
absl::Status ErrorOf(const std::vector<Diagnostic>& diagnostics);

// Sorts by file, line, column, message, and drops exact repeats.
void SortAndUnique(std::vector<Diagnostic>* diagnostics);

bool HasErrors(const std::vector<Diagnostic>& diagnostics);
bool HasWarnings(const std::vector<Diagnostic>& diagnostics);

// The candidate nearest to `word` by edit distance (Damerau, transpositions count once), if it is near enough
// to be a typing error (distance at most a third of the longer length, at least 1); empty if none is.
std::string NearestWord(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace engine
