// Event files of TensorBoard, byte by byte: records in TFRecord's framing, each a protobuf `Event`
// (tensorflow/core/util/event.proto, summary.proto; tensorboard/plugins/hparams/api.proto).
//
//   record = length (u64) · masked CRC-32C of those 8 bytes · data · masked CRC-32C of the data    (little-endian)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/metrics/sink.h"

namespace engine::metrics {

// The CRC-32C (Castagnoli), rotated right by 15 bits, plus a constant. TFRecord masks its checksums so because the CRC of data that
// end in their own CRC is the same whatever the data are (tensorflow/core/lib/hash/crc32c.h).
std::uint32_t MaskedCrc32c(std::string_view data);
std::string TfRecord(std::string_view data);

// Each returns a whole record. `wall`: Unix time in seconds; `step`: the position on the curve's axis.

// The first record of every file.
std::string VersionEvent(double wall);
// A reader that goes through the files of a run in order discards all of earlier files from `step` on.
std::string SessionStartEvent(double wall, std::int64_t step);
std::string ScalarsEvent(double wall, std::int64_t step,
                         std::span<const std::pair<std::string, double>> values);
// Buckets without elements between others are one.
std::string HistogramsEvent(double wall, std::int64_t step,
                            std::span<const std::pair<std::string, Histogram>> histograms);
// `markdown` as the plugin "text" shows it.
std::string TextEvent(double wall, std::int64_t step, const std::string& tag, const std::string& markdown);
// The three parts of a run in the table of hyper-parameters: what the table has, what this run's settings are, how it ended.
std::string ExperimentEvent(double wall, std::span<const std::pair<std::string, Setting>> settings,
                            std::span<const std::string> metric_tags);
std::string HyperParametersEvent(double wall, std::span<const std::pair<std::string, Setting>> settings);
std::string SessionEndEvent(double wall, bool succeeded);

}  // namespace engine::metrics
