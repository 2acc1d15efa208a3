// Jinja templates, the part of the language that chat templates of language models are written in (Jinja 3.1, as Hugging Face's
// library sets it up: trim_blocks, lstrip_blocks, break and continue, and the block `generation`, which marks what the model
// says). docs/fine-tuning.md has what there is; anything else is a mistake that names it. A template sees the values that it is
// given and nothing else, and steps, depth and sizes have bounds.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/data/jinja/value.h"

namespace engine::jinja {

struct Syntax;

struct RenderOptions {
  std::size_t most_steps = 20'000'000;  // statements, expressions, and each 64 bytes of a text that is made
  std::size_t most_bytes = std::size_t{64} << 20;  // of what is rendered, and of any text or list on the way
  std::tm now = {};                                // the time of strftime_now
};

struct Rendered {
  std::string text;
  std::vector<std::pair<std::size_t, std::size_t>>
      generated;  // [begin, end) in bytes of `text`, of generation blocks, in order
};

class Template {
 public:
  // Parses `source`, which is UTF-8 of at most 1 MiB. InvalidArgument: "NAME:LINE:COLUMN: error: …", columns in bytes.
  static absl::StatusOr<Template> Parse(std::string_view source, std::string name);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // The text for these variables, whose entries are the variables' names and values. Safe to call from many threads. InvalidArgument, as
  // of Parse: where the template cannot go on, asks for what is not supported, or raises an exception of its own;
  // ResourceExhausted: it goes beyond a bound.
  absl::StatusOr<Rendered> Render(const Dict& variables, const RenderOptions& options = {}) const;

  // Whether it has a generation block.
  bool marks_generation() const;

 private:
  explicit Template(std::unique_ptr<const Syntax> syntax);
  std::unique_ptr<const Syntax> syntax_;
};

}  // namespace engine::jinja
