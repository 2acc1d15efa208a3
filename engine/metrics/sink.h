// Where a run's numbers go.
//
// A run tells of iterations, evaluations and checkpoints. Each of them is a Record: values of the quantities of
// quantities.h. The training loop makes it once and gives it to Sinks (sinks.h), which passes it to every Sink. A sink
// is one form of output and one file here:
//
//   jsonl.h                 metrics.jsonl, which every run has
//   tensorboard.h           event files of TensorBoard
//   wandb.h                 offline files of Weights & Biases
//   prometheus_textfile.h   a file for the node exporter
//   prometheus_listener.h   GET /metrics; both write the text of prometheus.h
//
// A RunDescription holds what does not change while a process runs: the recipe's settings, texts, the host. A sink is constructed
// with it, and writes it before its first record. A sink opens its file or port at its first record, again after an error, and
// whenever its file has been removed; so nothing of a run depends on a sink. An error of Write means that nothing of the record
// was put out: Sinks warns once, keeps the records and calls Write again later. So what must happen once for a record, such as
// counting it, belongs in Take. Records come in the order of their iterations, from one thread.
//
// No sink knows of training, and the training loop knows no format; the formats need no library but zlib, for a checksum.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/histogram.h"
#include "engine/base/status.h"
#include "engine/metrics/quantities.h"

namespace engine::metrics {

struct Measurement {
  const Quantity* quantity = nullptr;
  double value = 0;       // NaN where it is not known; sinks but metrics.jsonl leave out what is not finite
  std::string name = {};  // of Quantity::Each::kName; of kRank the rank
};

struct Record {
  enum class Event { kIteration, kEvaluation, kCheckpoint, kNotSaved, kLeftOut, kRewind, kHistograms };

  Event event = Event::kIteration;
  // From 1; of an evaluation or a checkpoint, the one after which it was made; of a rewind, the one after which the run goes on.
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;  // after that iteration
  double unix_seconds = 0;            // when the event was over
  std::vector<Measurement> values = {};
  // Histograms of tensors, by tag. A record of kHistograms has them instead of values, for sinks that show them.
  std::vector<std::pair<std::string, Histogram>> histograms = {};
};

using Setting = std::variant<std::int64_t, double, bool, std::string>;

struct RunDescription {
  std::string name;                    // of its folder
  std::int64_t resumed_iteration = 0;  // after which this process goes on; 0: from the beginning
  std::int64_t resumed_samples = 0;    // consumed until then
  double begin_unix_seconds = 0;       // of this process
  std::string host;                    // of rank 0
  std::string version;                 // of the program
  std::string plan_hash;
  std::vector<std::pair<std::string, Setting>> settings;   // by the recipe's keys
  std::vector<std::pair<std::string, std::string>> texts;  // Markdown by title
};

class Sink {
 public:
  virtual ~Sink() = default;
  // The name that a warning gives the sink.
  virtual std::string Name() const = 0;
  virtual bool ShowsHistograms() const { return false; }
  // Whether each record is put out by itself, so that one that is not is lost. Else a record stands for all before it, too.
  virtual bool PutsOutEach() const { return true; }
  // Sees each record once, when it is made, whether or not it can be put out; for sinks that keep sums.
  virtual void Take(const Record& /*record*/) {}
  // Puts the record out, after it was taken; again with the same record after an error.
  virtual absl::Status Write(const Record& record) = 0;
  // The run is over; no record follows. `succeeded`: it has finished, or was stopped and saved.
  virtual absl::Status Close(bool /*succeeded*/) { return absl::OkStatus(); }
};

}  // namespace engine::metrics
