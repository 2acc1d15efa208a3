// Which kernels carry an attention out: those of the rule (KernelsOf), or others that were timed on this device and are faster.
#pragma once

#include <cstdint>
#include <string>

#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/profile/scratch_attention.h"

namespace engine::backend::cuda {

// Where the device keeps choices in a file, the fastest way within the launch's scratch: the file's, or, timed now and kept,
// another than the rule's if that saves at least kLeastGain. The device must not be at work, and its stream not be captured.
// Elsewhere the rule's: a choice that nobody keeps could be another in the next run, and its bits too. Error: the file
// cannot be written.
// In the file of choices (profile/choice_file.h), KEY is DEVICE \t versions of cuDNN and of our own kernels \t all else that
// the choice depends on, and CHOICE the kernels (AttributeOf).
absl::StatusOr<AttentionWay> ChooseAttention(Device& device, const LaunchArgs& args,
                                             const AttentionShape& shape, bool backward);

// Attentions that a file has a choice for, of all devices and versions; 0 where there is no such file.
std::int64_t CountKeptAttentions(const std::string& file);

}  // namespace engine::backend::cuda
