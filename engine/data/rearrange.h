// Data sets made of others: joined, or cut in parts.
#pragma once

#include <absl/status/statusor.h>

#include <span>
#include <string>
#include <vector>

#include "engine/data/preprocess.h"

namespace engine::data {

// The documents of all data sets, one data set behind the other. They have to hold tokens of one type, as data sets of one
// tokenizer do. Writes nothing unless everything succeeds.
absl::StatusOr<MadeDataset> MergeDatasets(std::span<const std::string> prefixes, const std::string& output);

inline constexpr int kMostSplitParts = 32;  // each has four temporary files, of which few may live

// The documents of a data set in `parts` data sets OUTPUT_0, OUTPUT_1, …, of as many tokens each as borders of documents allow,
// in their order. A part may have no documents only where there are fewer documents than parts, which is an error.
absl::StatusOr<std::vector<MadeDataset>> SplitDataset(const std::string& prefix, int parts,
                                                      const std::string& output);

}  // namespace engine::data
