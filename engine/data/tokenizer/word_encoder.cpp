#include "engine/data/tokenizer/word_encoder.h"

#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::tokenizer {

absl::StatusOr<std::unique_ptr<WordEncoder>> MakeWordEncoder(const Model& model, bool of_bytes) {
  if (const auto* bpe = std::get_if<BpeModel>(&model)) return MakeBpeEncoder(*bpe, of_bytes);
  if (const auto* unigram = std::get_if<UnigramModel>(&model)) return MakeUnigramEncoder(*unigram);
  if (const auto* pieces = std::get_if<WordPieceModel>(&model)) return MakeWordPieceEncoder(*pieces);
  return MakeWordLevelEncoder(std::get<WordLevelModel>(model));
}

absl::Status NoTokenFor(std::string_view text) {
  return InvalidArgument("the tokenizer has no token for \"{}\", and none for what is unknown",
                         Shown(text, 40));
}

}  // namespace engine::tokenizer
