// A decoder whose keys and values are kept: prefill makes those of a prompt, and each step those of one token a sequence.
#pragma once

#include <memory>

#include "engine/driver/compile_recipe.h"
#include "engine/generate/decoder.h"
#include "engine/state/ranks.h"

namespace engine::generate {

// The programs for so many sequences of so many tokens, on so many ranks that have sequences of their own (driver::SlotRanks): prompts of
// powers of two, from 16 on, up to the context, and batches of powers of two up to the slots of a rank. Slots are rounded up to
// as many on every rank.
driver::GenerationShape ShapeFor(std::int64_t slots, std::int64_t context, std::int64_t ranks = 1);

// `plan` is of driver::CompileGeneration with this shape, all of whose ranks are in this process. It and the ranks outlive
// the decoder.
std::unique_ptr<Decoder> MakeCachedDecoder(const plan::Plan& plan, state::Ranks& ranks,
                                           const driver::GenerationShape& shape);

}  // namespace engine::generate
