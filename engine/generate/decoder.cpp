#include "engine/generate/decoder.h"

#include "engine/base/status.h"

namespace engine::generate {

absl::Status Decoder::PrefillAndRead(std::int64_t slot, std::span<const std::int32_t> tokens,
                                     std::int64_t rows, std::vector<float>* logits) {
  const Prompt prompt = {.slot = slot, .tokens = tokens, .rows = rows};
  RETURN_IF_ERROR(Prefill({&prompt, 1}));
  return ReadLogits(0, rows, logits);
}

absl::Status Decoder::StepAndRead(std::span<const Next> next, std::vector<float>* logits) {
  RETURN_IF_ERROR(Step(next));
  return ReadLogits(0, static_cast<std::int64_t>(next.size()), logits);
}

}  // namespace engine::generate
