#include "engine/data/tokenizer/read_model.h"

#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::tokenizer {

std::int32_t FindToken(const Description& description, std::string_view content) {
  for (const AddedToken& token : description.added_tokens) {
    if (token.content == content) return token.id;
  }
  return VocabularyOf(description.model).Find(content);
}

absl::Status MergeBuilder::Add(std::string_view left, std::string_view right) {
  const Vocabulary& vocabulary = model_->vocabulary;
  const std::string_view prefix = model_->continuing_prefix;
  product_ = left;
  product_ += !prefix.empty() && right.starts_with(prefix) ? right.substr(prefix.size()) : right;
  const Merge merge = {vocabulary.Find(left), vocabulary.Find(right), vocabulary.Find(product_),
                       next_rank_++};
  if (merge.left == kNoToken || merge.right == kNoToken || merge.product == kNoToken) {
    const bool is_part = merge.left == kNoToken || merge.right == kNoToken;
    const std::string_view missing = merge.left == kNoToken    ? left
                                     : merge.right == kNoToken ? right
                                                               : std::string_view(product_);
    return InvalidArgument("\"{}\" ({} the merge) is not in the vocabulary; are the two of one tokenizer?",
                           Shown(missing), is_part ? "of" : "the result of");
  }
  if (!model_->merges.Put(merge) && refuses_repeated_) {
    return InvalidArgument("the merge \"{} {}\" appears a second time", Shown(left), Shown(right));
  }
  return absl::OkStatus();
}

void AddAllMerges(const std::vector<std::int32_t>& rank_of, BpeModel* model) {
  const Vocabulary& vocabulary = model->vocabulary;
  const auto rank = [&rank_of](std::int32_t id) { return rank_of[static_cast<std::size_t>(id)]; };
  const auto find = [&](std::string_view token) {
    const std::int32_t id = vocabulary.Find(token);
    return id != kNoToken && rank(id) >= 0 ? id : kNoToken;
  };
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    if (rank(id) < 0) continue;
    const std::string_view token = vocabulary.Token(id);
    for (std::size_t at = 1; at < token.size(); ++at) {
      if ((static_cast<unsigned char>(token[at]) & 0xC0) == 0x80) continue;  // inside a character
      const std::int32_t left = find(token.substr(0, at));
      const std::int32_t right = left == kNoToken ? kNoToken : find(token.substr(at));
      if (right != kNoToken) model->merges.Put({left, right, id, rank(id)});
    }
  }
}

std::string ByteToken(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

}  // namespace engine::tokenizer
