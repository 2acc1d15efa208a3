// A rank's profiled iterations as HolisticTraceAnalysis (github.com/facebookresearch/HolisticTraceAnalysis) reads them, with
// the plan's prediction beside them; Perfetto shows both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/predict/predict.h"
#include "engine/train/profile.h"

namespace engine::train {

// Chrome's trace event format, of all iterations one behind the other. What that program goes by:
//   - "rank": N, with a blank behind the colon;
//   - work on the device has the category "kernel" and the arguments stream, device and correlation;
//   - its kind is told by its name. Communication is, in version 0.2.0, a name with "ncclKernel" in it; in that of May 2025, what
//     the pattern ^nccl.*Kernel matches; on the main branch of 2026, what begins with "nccl", and for stragglers with "ncclKernel".
//     All of these hold for ncclKernel_NAME;
//   - an iteration is a slice ProfilerStep#N.
// Waits are no work: they are left out, so that they show as idle time of their stream. `predicted`, of which those of the rank's
// stage are taken, has the category "predicted", which it passes over.
std::string HtaTrace(const plan::Plan& plan, std::int64_t rank, const std::vector<Timings>& iterations,
                     const std::vector<predict::PlayedEvent>& predicted);

// Of one iteration; none where the cluster's rates are not known.
std::vector<predict::PlayedEvent> PredictedEvents(const plan::Plan& plan, const recipe::Cluster& cluster);

// Writes it as DIR/traces/rank-R.json: that program takes all files of a folder for traces.
absl::Status WriteHtaTrace(const std::string& folder, const plan::Plan& plan, std::int64_t rank,
                           const std::vector<Timings>& iterations,
                           const std::vector<predict::PlayedEvent>& predicted);

}  // namespace engine::train
