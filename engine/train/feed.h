// From samples to the inputs of one rank: tokens, labels, positions and documents of its slice of a microbatch.
#pragma once

#include <cstdint>

#include "engine/data/source.h"
#include "engine/executor/executor.h"
#include "engine/plan/plan.h"

namespace engine::train {

// Samples of a split that follow one another.
struct Samples {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// A feed of a global batch. Sample i of microbatch m is sample of_batch.first + m · microbatch_samples + i, whatever the layout; behind the
// last one of the batch samples are empty (training.pad_batch): tokens 0 and no label. Its tokens are all but the last of
// its sequence_length + 1, its labels all but the first: of the last token of a document too, whose label is the first of
// the next. A label that does not count in the loss is −1 (data::SampleTokens), and of samples some of whose labels may
// not count, the feed knows how many of those of `mean_over` do, over which the loss is a mean. Where documents are masked, positions begin again with each, and
// document_spans say where it lies (model/build.h). Each sample is read once. The plan and the source must outlive the feed,
// which may be called from many threads.
executor::Feed MakeFeed(const plan::Plan& plan, const data::Source& source, data::Split split,
                        const Samples& of_batch, const Samples& mean_over);

// Asks for those of the first microbatches from `first_sample` on that the rank will read for training, where they lie on a server, so
// that they come while a run gets ready. Returns at once.
void AskForSamples(const plan::Plan& plan, const data::Source& source, data::Split split,
                   std::int64_t first_sample, std::int64_t rank);

}  // namespace engine::train
