#include "engine/view/events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "engine/view/lines.h"
#include "engine/view/take_record.h"
#include "engine/view/words.h"

namespace engine::view {
namespace {

using Kind = Event::Kind;

double BeganAt(double ended_unix_s, double seconds) { return ended_unix_s > 0 ? ended_unix_s - seconds : 0; }

Event EventOf(const Interruption& interruption) {
  return {Kind::kInterruption, interruption.after_iteration, interruption.began_unix_s, interruption.seconds,
          fmt::format("resumed after {}", Duration(interruption.seconds))};
}

Event EventOf(const ResizedView& resized) {
  return {Kind::kResized, resized.iteration, resized.began_unix_s, 0,
          fmt::format("{} ranks instead of {}", resized.ranks, resized.ranks_before)};
}

Event EventOf(const RewoundView& rewound) {
  const std::string which = rewound.rewinds > 0 ? fmt::format(" (rewind {})", rewound.rewinds) : "";
  return {Kind::kRewind, rewound.iteration, rewound.unix_s, 0,
          fmt::format("back from iteration {}{}", rewound.bad_iteration, which)};
}

Event EventOf(const FaultView& fault) {
  return {Kind::kFault, fault.iteration, fault.unix_s, 0, Printable(fault.fault)};
}

Event EventOf(const SkippedView& skipped) {
  const std::int64_t count = skipped.last_iteration - skipped.first_iteration + 1;
  return {Kind::kSkipped, skipped.first_iteration, BeganAt(skipped.ended_unix_s, skipped.seconds),
          skipped.seconds, fmt::format("{} iteration{} without an update", count, count == 1 ? "" : "s")};
}

Event EventOf(const EvaluationView& evaluation) {
  return {Kind::kEvaluation, evaluation.iteration, BeganAt(evaluation.ended_unix_s, evaluation.seconds),
          evaluation.seconds, "validation loss " + LossText(evaluation.loss)};
}

// Where training stood still for it is known in sum alone; it is put before its end.
Event EventOf(const CheckpointView& checkpoint) {
  return {Kind::kCheckpoint, checkpoint.iteration, BeganAt(checkpoint.ended_unix_s, checkpoint.stall_s),
          checkpoint.stall_s,
          fmt::format("training stood still for {}, whole on disk after {}", Duration(checkpoint.stall_s),
                      Duration(checkpoint.save_s))};
}

Event EventOf(const NotSavedView& not_saved) {
  return {Kind::kNotSaved, not_saved.iteration, not_saved.unix_s, 0, "the checkpoint could not be written"};
}

// `last_unix_s`: when all else was over. The file counts in whole seconds, and nothing follows it.
Event EndEvent(const RunView& view, double last_unix_s) {
  const OutcomeView& outcome = *view.outcome;
  const double ended_unix_s = UnixSecondsOf(outcome.ended);
  const std::string reason = outcome.reason.empty() ? "" : ": " + outcome.reason;
  return {Kind::kEnd, outcome.iteration.value_or(view.last.iteration),
          ended_unix_s > 0 ? std::max(ended_unix_s, last_unix_s) : 0, 0, Printable(outcome.outcome + reason)};
}

template <class Records>
void AddEvents(const Records& records, std::vector<Event>* events) {
  for (const auto& record : records) events->push_back(EventOf(record));
}

}  // namespace

std::vector<Event> EventsOf(const RunView& view) {
  std::vector<Event> events;
  if (view.first_iteration > 0)
    events.push_back({Kind::kStart, view.first_iteration, view.first_began_unix_s, 0, "first iteration"});
  AddEvents(view.time.listed(), &events);
  AddEvents(view.resized_records, &events);
  AddEvents(view.fault_records, &events);
  AddEvents(view.rewound_records, &events);
  if (view.nan_iteration > 0)
    events.push_back(
        {Kind::kNotFinite, view.nan_iteration, view.nan_ended_unix_s, 0, "loss or gradient norm"});
  AddEvents(view.skipped_records, &events);
  AddEvents(view.evaluation_records, &events);
  AddEvents(view.checkpoint_records, &events);
  AddEvents(view.not_saved_records, &events);
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.began_unix_s, a.iteration) < std::tie(b.began_unix_s, b.iteration);
  });
  double last_unix_s = 0;
  for (const Event& event : events) last_unix_s = std::max(last_unix_s, event.began_unix_s + event.seconds);
  if (view.outcome) events.push_back(EndEvent(view, last_unix_s));
  return events;
}

}  // namespace engine::view
