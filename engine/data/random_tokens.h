// Samples that need no files: tokens drawn uniformly from the vocabulary. Nothing about a token follows from
// those before it, so the loss of a model that is trained on them stays at ln(vocab).
#pragma once

#include <cstdint>
#include <span>

#include "engine/data/split.h"

namespace engine::data {

// Fills `out` with the tokens of sample `index`, each of [0, vocab): a pure function of the arguments,
// whatever the layout, the length of the run or the machine. Each split has draws of its own. Safe to call
// from many threads.
void RandomSample(std::uint64_t seed, Split split, std::int64_t index, std::int64_t vocab,
                  std::span<std::int32_t> out);

}  // namespace engine::data
