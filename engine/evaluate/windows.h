// A task as what a model is fed: rows of tokens, and which of them are to be predicted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace engine::evaluate {

// A row of at most `window` + 1 tokens: the model reads all but the last, and tokens from `first` on, at least 1, are what
// it is asked to predict.
struct Row {
  std::vector<std::int32_t> tokens;
  std::size_t first = 1;
  std::int64_t predicted() const { return static_cast<std::int64_t>(tokens.size() - first); }
};

// Every token of `tokens` is predicted once, and the first one from `prefix`. The first row predicts `window` tokens, each
// further one as many with the one before as all its context; the last one has the context that is left in its window
// (lm-evaluation-harness, get_rolling_token_windows with context_len = 1).
std::vector<Row> RollingWindows(std::span<const std::int32_t> tokens, std::int32_t prefix,
                                std::int64_t window);

// Every token but the first is predicted once. Rows of `window` tokens begin every `stride` tokens, from 1 to `window`; all but
// the first one predict their last `stride` tokens alone (Megatron-LM, tasks/zeroshot_gpt, --overlapping-eval).
std::vector<Row> StridedWindows(std::span<const std::int32_t> tokens, std::int64_t window,
                                std::int64_t stride);

}  // namespace engine::evaluate
