// From samples to the inputs of one rank: tokens, labels, positions and documents of its slice of a microbatch.
#pragma once

#include <cstdint>

#include "engine/data/source.h"
#include "engine/executor/executor.h"
#include "engine/plan/plan.h"

namespace engine::train {

// A function that feeds the global batch whose first sample is `first_sample`. Sample i of microbatch m is
// sample first_sample + m · microbatch_samples + i, whatever the layout; its tokens are all but the last of
// its sequence_length + 1, its labels all but the first: of the last token of a document too, whose label is the first of
// the next. Where documents are masked, positions begin again with each, and document_spans say where it lies
// (model/build.h). The plan and the source must outlive the function,
// which may be called from many threads.
executor::FeedFunction MakeFeed(const plan::Plan& plan, const data::Source& source, data::Split split,
                                std::int64_t first_sample);

}  // namespace engine::train
