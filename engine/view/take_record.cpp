#include "engine/view/take_record.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/json.h"

namespace engine::view {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double NumberIn(const object& record, std::string_view key) {
  double value = kUnknown;
  return record[key].get(value) == simdjson::SUCCESS ? value : kUnknown;
}

double OrZero(double value) { return std::isfinite(value) ? value : 0; }

bool Has(const object& record, std::string_view key) { return record[key].error() == simdjson::SUCCESS; }

double EndOf(const object& record) {
  std::string_view text;
  return record["timestamp"].get(text) == simdjson::SUCCESS ? UnixSecondsOf(text) : 0;
}

void TakeWorld(const object& record, std::int64_t iteration, double began_unix_s, RunView* view) {
  std::int64_t ranks = 0;
  if (record[metrics::kWorldSize.key].get(ranks) != simdjson::SUCCESS) return;
  const std::int64_t before = std::exchange(view->world, ranks);
  if (before != 0 && before != ranks)
    RunView::Keep(ResizedView{iteration, began_unix_s, before, ranks}, &view->resized_records);
}

// False: the record has no such quantity.
bool TakeByRank(const object& record, const metrics::Quantity& quantity, std::vector<double>* values) {
  simdjson::dom::array ranks;
  if (record[quantity.key].get(ranks) != simdjson::SUCCESS) return false;
  values->clear();
  for (const element rank : ranks) {
    double value = kUnknown;
    values->push_back(rank.get(value) == simdjson::SUCCESS ? value : kUnknown);
  }
  return true;
}

void TakeGpus(const object& record, RunView* view) {
  if (!TakeByRank(record, metrics::kRankClock, &view->rank_clock_mhz) ||
      !TakeByRank(record, metrics::kRankTemperature, &view->rank_temperature_c))
    return;
  const std::size_t ranks = std::min(view->rank_clock_mhz.size(), view->rank_temperature_c.size());
  if (view->gpus.size() != ranks) view->gpus.assign(ranks, {});
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (std::isfinite(view->rank_clock_mhz[rank])) view->gpus[rank].clock_mhz.Add(view->rank_clock_mhz[rank]);
    if (std::isfinite(view->rank_temperature_c[rank]))
      view->gpus[rank].temperature_c.Add(view->rank_temperature_c[rank]);
  }
}

void TakeRanks(const object& record, std::int64_t iteration, RunView* view) {
  TakeGpus(record, view);
  if (TakeByRank(record, metrics::kRankBusy, &view->rank_busy_ms))
    view->ranks.Add(iteration, view->rank_busy_ms);
}

// An iteration without an update, which may follow another one.
void TakeSkipped(std::int64_t iteration, double ended_unix_s, double seconds, RunView* view) {
  std::vector<SkippedView>& records = view->skipped_records;
  if (records.empty() || records.back().last_iteration + 1 != iteration) {
    RunView::Keep(SkippedView{.first_iteration = iteration}, &records);
    ++view->skipped_stretches;
  }
  SkippedView& stretch = records.back();
  stretch.last_iteration = iteration;
  stretch.ended_unix_s = ended_unix_s;
  stretch.seconds += seconds;
}

void TakeIteration(const object& record, std::int64_t iteration, RunView* view) {
  LastIteration last{.iteration = iteration, .ended_unix_s = EndOf(record), .values = {}};
  for (const metrics::Quantity* quantity : kCurves) {
    last.values.push_back(NumberIn(record, quantity->key));
    view->history.Add(iteration, *quantity, last.values.back());
  }
  last.skipped = static_cast<std::int64_t>(OrZero(NumberIn(record, metrics::kSkippedIterations.key)));
  const bool updated = last.skipped <= view->last.skipped;
  const double seconds = OrZero(last[metrics::kElapsed]) / 1e3;
  view->time.AddIteration(iteration, last.ended_unix_s, seconds, OrZero(last[metrics::kDataWait]) / 1e3,
                          updated);
  if (!updated) TakeSkipped(iteration, last.ended_unix_s, seconds, view);
  if (view->first_iteration == 0) {
    view->first_iteration = iteration;
    view->first_began_unix_s = last.ended_unix_s > 0 ? last.ended_unix_s - seconds : 0;
  }
  view->history.SetTime(iteration,
                        view->time.training_s() + view->time.data_wait_s() + view->time.skipped_s());
  view->iteration_ms.Add(last[metrics::kElapsed]);
  const double samples = last[metrics::kGlobalBatch];
  view->recent.push_back({.seconds = seconds, .samples = std::isfinite(samples) ? samples : 1});
  if (view->recent.size() > RunView::kMostRecent) view->recent.pop_front();
  if (view->nan_iteration == 0 && OrZero(NumberIn(record, metrics::kNanIterations.key)) > 0) {
    view->nan_iteration = iteration;
    view->nan_ended_unix_s = last.ended_unix_s;
  }
  TakeWorld(record, iteration, last.ended_unix_s > 0 ? last.ended_unix_s - seconds : 0, view);
  TakeRanks(record, iteration, view);
  view->last = std::move(last);
}

// By the record's keys, both objects of numbers by name.
std::vector<TaskView> TasksIn(const object& record) {
  std::vector<TaskView> tasks;
  object values, errors;
  if (record[metrics::kTask.key].get(values) != simdjson::SUCCESS) return tasks;
  const bool has_errors = record[metrics::kTaskError.key].get(errors) == simdjson::SUCCESS;
  for (const auto& [name, value] : values) {
    const std::string key(name);
    TaskView& task = tasks.emplace_back();
    task.name = key;
    task.value = NumberIn(values, key.c_str());
    task.standard_error =
        has_errors ? NumberIn(errors, key.c_str()) : std::numeric_limits<double>::quiet_NaN();
  }
  return tasks;
}

void TakeEvaluation(const object& record, std::int64_t iteration, RunView* view) {
  view->last_evaluation_s = OrZero(NumberIn(record, metrics::kEvaluationTime.key)) / 1e3;
  view->time.AddEvaluation(EndOf(record), view->last_evaluation_s);
  ++view->evaluations;
  const double loss = NumberIn(record, metrics::kValidationLoss.key);
  const EvaluationView evaluation{.iteration = iteration,
                                  .loss = loss,
                                  .ended_unix_s = EndOf(record),
                                  .seconds = view->last_evaluation_s,
                                  .tasks = TasksIn(record)};
  RunView::Keep(evaluation, &view->evaluation_records);
  view->last_evaluation = evaluation;
  if (!std::isfinite(loss)) return;
  view->history.Add(iteration, metrics::kValidationLoss, loss);
  if (!view->best_evaluation || loss < view->best_evaluation->loss)
    view->best_evaluation = view->last_evaluation;
}

// `iteration`: the record's; of runs that were made before checkpoints were written beside training, the checkpoint's, too.
void TakeCheckpoint(const object& record, std::int64_t iteration, RunView* view) {
  std::int64_t saved_iteration = 0;
  if (record[metrics::kSavedIteration.key].get(saved_iteration) != simdjson::SUCCESS)
    saved_iteration = iteration;
  const double save_s = OrZero(NumberIn(record, metrics::kSaveTime.key));
  const double stall_s =
      Has(record, metrics::kStall.key) ? OrZero(NumberIn(record, metrics::kStall.key)) : save_s;
  const CheckpointView checkpoint{
      .iteration = saved_iteration, .ended_unix_s = EndOf(record), .save_s = save_s, .stall_s = stall_s};
  view->time.AddCheckpoint(checkpoint.ended_unix_s, stall_s);
  view->last_save_s = save_s;
  ++view->checkpoints;
  RunView::Keep(checkpoint, &view->checkpoint_records);
}

void TakeNotSaved(const object& record, RunView* view) {
  const auto iteration = static_cast<std::int64_t>(OrZero(NumberIn(record, metrics::kUnsavedIteration.key)));
  RunView::Keep(NotSavedView{.iteration = iteration, .unix_s = EndOf(record)}, &view->not_saved_records);
}

void TakeRewind(const object& record, std::int64_t iteration, RunView* view) {
  ++view->returns;
  RunView::Keep(
      RewoundView{
          .iteration = iteration,
          .bad_iteration = static_cast<std::int64_t>(OrZero(NumberIn(record, metrics::kBadIteration.key))),
          .rewinds = static_cast<std::int64_t>(OrZero(NumberIn(record, metrics::kRewinds.key))),
          .unix_s = EndOf(record)},
      &view->rewound_records);
}

// The number that the first `digits` characters are, which are taken from the text; −1 where they are none.
int TakeDigits(std::string_view* text, std::size_t digits) {
  int number = -1;
  const char* end = text->data() + std::min(digits, text->size());
  if (text->size() < digits || std::from_chars(text->data(), end, number).ptr != end) return -1;
  text->remove_prefix(digits);
  return number;
}

bool TakeLetter(std::string_view* text, char letter) {
  if (text->empty() || text->front() != letter) return false;
  text->remove_prefix(1);
  return true;
}

}  // namespace

bool TakeRecord(std::string_view line, simdjson::dom::parser* parser, RunView* view) {
  if (parser->allocate(std::max<std::size_t>(line.size(), 32), kMostJsonDepth) != simdjson::SUCCESS)
    return false;
  object record;
  std::int64_t iteration = 0;
  if (parser->parse(line.data(), line.size()).get(record) != simdjson::SUCCESS) return false;
  if (record["iteration"].get(iteration) != simdjson::SUCCESS || iteration < 0) return false;
  view->last_sign_unix_s = std::max(view->last_sign_unix_s, EndOf(record));
  if (Has(record, metrics::kResumedIterationKey)) view->time.Resume();
  if (Has(record, metrics::kLoss.key)) TakeIteration(record, iteration, view);
  if (Has(record, metrics::kValidationLoss.key)) TakeEvaluation(record, iteration, view);
  if (Has(record, metrics::kSaveTime.key)) TakeCheckpoint(record, iteration, view);
  if (Has(record, metrics::kSaveFailures.key)) TakeNotSaved(record, view);
  if (Has(record, metrics::kRewinds.key)) TakeRewind(record, iteration, view);
  return true;
}

double UnixSecondsOf(std::string_view text) {
  using namespace std::chrono;
  const int y = TakeDigits(&text, 4);
  if (!TakeLetter(&text, '-')) return 0;
  const int m = TakeDigits(&text, 2);
  if (!TakeLetter(&text, '-')) return 0;
  const int d = TakeDigits(&text, 2);
  if (!TakeLetter(&text, 'T')) return 0;
  const int hour = TakeDigits(&text, 2);
  if (!TakeLetter(&text, ':')) return 0;
  const int minute = TakeDigits(&text, 2);
  if (!TakeLetter(&text, ':')) return 0;
  const int second = TakeDigits(&text, 2);
  int millisecond = 0;
  if (TakeLetter(&text, '.')) millisecond = TakeDigits(&text, 3);
  const year_month_day date{year(y), month(static_cast<unsigned>(m)), day(static_cast<unsigned>(d))};
  if (text != "Z" || !date.ok() || hour < 0 || minute < 0 || second < 0 || millisecond < 0) return 0;
  const auto days = sys_days(date).time_since_epoch();
  return duration<double>(days + hours(hour) + minutes(minute) + seconds(second) + milliseconds(millisecond))
      .count();
}

}  // namespace engine::view
