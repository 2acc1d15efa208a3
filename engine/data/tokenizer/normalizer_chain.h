// Normalizers made ready: text to normalized text.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/description.h"

namespace engine::tokenizer {

class NormalizerChain {
 public:
  static absl::StatusOr<NormalizerChain> Make(const std::vector<Normalizer>& normalizers);
  NormalizerChain(NormalizerChain&&) noexcept;
  NormalizerChain& operator=(NormalizerChain&&) noexcept;
  ~NormalizerChain();

  // The normalized form of `text`, which is UTF-8: `text` itself where that is seen at once, else in *storage.
  absl::StatusOr<std::string_view> Apply(std::string_view text, std::string* storage) const;

 private:
  struct Step;
  NormalizerChain();
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace engine::tokenizer
