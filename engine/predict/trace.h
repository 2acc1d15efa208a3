// Chrome's trace event format (chrome://tracing, ui.perfetto.dev) of what was played or measured: a process
// for each stage, a thread for each of its streams. So a prediction and a measurement of one plan lie side by
// side.
#pragma once

#include <span>
#include <string>

#include "engine/predict/predict.h"

namespace engine::predict {

// `process`: what stages are called; "predicted" gives "predicted stage 0".
std::string ChromeTrace(std::span<const PlayedEvent> events, const std::string& process);

}  // namespace engine::predict
