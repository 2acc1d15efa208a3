// What several readers of tokenizers share.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/description.h"

namespace engine::tokenizer {

// Adds merges to a model that has its vocabulary and its continuing prefix, in the order of their ranks.
class MergeBuilder {
 public:
  explicit MergeBuilder(BpeModel* model) : model_(model) {}
  void RefuseRepeated() { refuses_repeated_ = true; }  // a pair that comes twice is an error
  // InvalidArgument where a part or the product is no token. Of a pair that comes twice the later rank counts.
  absl::Status Add(std::string_view left, std::string_view right);

 private:
  BpeModel* model_;
  std::int32_t next_rank_ = 0;
  bool refuses_repeated_ = false;
  std::string product_;
};

// Adds for each token that has a rank all pairs of such tokens that make it, so that the neighbours merge whose joined
// token has the lowest rank. `rank_of` has the ranks by id; negative: of no merge, on either side of it.
void AddAllMerges(const std::vector<std::int32_t>& rank_of, BpeModel* model);

// Whether a text cannot become the id; `never` may be empty.
inline bool IsNever(const std::vector<bool>& never, std::int32_t id) {
  return !never.empty() && never[static_cast<std::size_t>(id)];
}

// The token by which a byte that has no other is shown: "<0x0A>".
std::string ByteToken(unsigned char byte);

}  // namespace engine::tokenizer
