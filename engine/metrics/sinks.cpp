#include "engine/metrics/sinks.h"

#include <utility>

namespace engine::metrics {

void Sinks::Add(std::unique_ptr<Sink> sink, std::int64_t interval) {
  entries_.push_back({.sink = std::move(sink), .interval = interval});
}

void Sinks::Write(const Record& record) {
  for (Entry& entry : entries_) {
    if (record.event == Record::Event::kHistograms && !entry.sink->ShowsHistograms()) continue;
    if (record.event != Record::Event::kIteration || record.iteration % entry.interval == 0)
      Pass(entry, record);
  }
}

void Sinks::Pass(Entry& entry, const Record& record) {
  entry.sink->Take(record);
  const bool fails = !entry.waiting.empty();
  entry.waiting.push_back(record);
  if (entry.waiting.size() > kMostWaiting) {
    entry.waiting.pop_front();
    ++entry.dropped;
  }
  if (fails && Clock::now() < entry.retry_at) return;
  const absl::Status status = WriteWaiting(entry);
  if (status.ok()) return;
  entry.retry_at = Clock::now() + retry_after_;
  if (!fails) {
    const std::string keeps =
        entry.sink->PutsOutEach() ? fmt::format(", keeps its last {} records", kMostWaiting) : "";
    warn_(fmt::format("{}; the run goes on{} and tries again", Message(status), keeps));
  }
}

absl::Status Sinks::WriteWaiting(Entry& entry) {
  while (!entry.waiting.empty()) {
    RETURN_IF_ERROR(entry.sink->Write(entry.waiting.front()));
    entry.waiting.pop_front();
  }
  return absl::OkStatus();
}

void Sinks::Close(bool succeeded) {
  for (Entry& entry : entries_) Close(entry, succeeded);
  entries_.clear();
}

void Sinks::Close(Entry& entry, bool succeeded) {
  absl::Status status = WriteWaiting(entry);
  const std::size_t lost = static_cast<std::size_t>(entry.dropped) + entry.waiting.size();
  if (status.ok()) status = entry.sink->Close(succeeded);
  if (lost > 0 && entry.sink->PutsOutEach()) {
    warn_(fmt::format("{}: {} records are lost{}", entry.sink->Name(), lost,
                      status.ok() ? "" : ": " + Message(status)));
  } else if (!status.ok()) {
    warn_(Message(status));
  }
}

}  // namespace engine::metrics
