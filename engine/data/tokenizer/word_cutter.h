// Pre-tokenizers made ready: text to words.
#pragma once

#include <absl/status/statusor.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/description.h"
#include "engine/data/tokenizer/scanners.h"

namespace engine::tokenizer {

// Memory of one thread's cutting.
struct CutterWorkspace {
  std::vector<std::uint32_t> ends;
  std::vector<std::string_view> from;
  std::deque<std::string> texts;  // of words that are no piece of the input
};

class WordCutter {
 public:
  // `of_bytes`: the last pre-tokenizer shows bytes as characters, and what it shows is left bytes here.
  static absl::StatusOr<WordCutter> Make(const std::vector<PreTokenizer>& pre_tokenizers, bool of_bytes);
  WordCutter(WordCutter&&) noexcept;
  WordCutter& operator=(WordCutter&&) noexcept;
  ~WordCutter();

  // The words of `text`, which is UTF-8 and not empty, in place of what *words held. They point into `text` or the
  // workspace and are not empty. `is_first`: the text stands at the beginning of all.
  absl::Status Cut(std::string_view text, bool is_first, CutterWorkspace* work,
                   std::vector<std::string_view>* words) const;

  // Whether Cut does no more than this scanner.
  std::optional<Scanner> scanner() const;

 private:
  struct Step;
  WordCutter();
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace engine::tokenizer
