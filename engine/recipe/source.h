// A recipe's text with its name, and reading one from disk without trusting the path.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/base/shown.h"

namespace engine::recipe {

constexpr std::size_t kMaxRecipeBytes = std::size_t{4} << 20;

// A place in a source: 1-based line and byte column, and the bytes to underline. Line 0: the whole source.
struct Mark {
  int line = 0;
  int column = 0;
  int length = 1;
};

class Source {
 public:
  Source(std::string name, std::string text, int first_line = 1);

  const std::string& name() const { return name_; }
  const std::string& text() const { return text_; }
  int first_line() const { return first_line_; }
  // The text of a line without its end, at most kMaxShownBytes of it; empty outside the source.
  std::string Line(int line) const;
  // The whole line, unclipped.
  std::string_view WholeLine(int line) const;
  Mark MarkOfOffset(std::size_t offset) const;
  SourceSpan Span(const Mark& mark) const { return {name_, mark.line, mark.column, mark.length}; }
  Diagnostic Error(const Mark& mark, std::string message, std::string hint = "") const;

 private:
  static constexpr std::size_t kMaxShownBytes = 1024;
  std::string name_;
  std::string text_;
  int first_line_;  // number of the first line: the ordinal of a --set argument, else 1
  std::vector<std::size_t> line_starts_;
};

using engine::Shown;
using engine::ShownPath;

using SourcePtr = std::shared_ptr<const Source>;

// A place that outlives what was read from the source.
struct Place {
  SourcePtr source;
  Mark mark;
};

// The canonical path of `path`: symbolic links and `..` resolved, the name of a shipped file found. With
// `root`, an error unless it lies inside or is such a name.
absl::StatusOr<std::string> ResolvePath(const std::string& path, const std::string& root);

// Text of a regular file of at most kMaxRecipeBytes; never waits on a pipe or reads a device. Errors call it
// `shown`.
absl::StatusOr<std::string> ReadRecipeFile(const std::string& path, const std::string& shown_path);

}  // namespace engine::recipe
