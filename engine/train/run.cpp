#include "engine/train/run.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/base/version.h"
#include "engine/base/write_file.h"
#include "engine/checkpoint/store.h"
#include "engine/data/fingerprint.h"
#include "engine/data/source.h"
#include "engine/driver/check_device.h"
#include "engine/driver/compile_recipe.h"
#include "engine/driver/plan_document.h"
#include "engine/driver/run_folder.h"
#include "engine/predict/predict.h"
#include "engine/recipe/batch_size.h"
#include "engine/recipe/learning_rate.h"
#include "engine/recipe/print.h"
#include "engine/state/state.h"
#include "engine/train/feed.h"
#include "engine/train/origin.h"
#include "engine/train/profile.h"
#include "engine/train/report.h"
#include "engine/train/resume.h"
#include "engine/train/stop_signals.h"
#include "engine/verify/verify.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Nothing of a model whose one metric is the loss.
std::vector<std::pair<std::string, double>> MetricsOf(const plan::Plan& plan, const std::vector<double>& sums,
                                                      std::int64_t samples) {
  std::vector<std::pair<std::string, double>> metrics;
  for (size_t m = 0; m < plan.metrics.size() && plan.metrics.size() > 1; ++m)
    metrics.emplace_back(plan.metrics[m].name, plan.MeanOf(m, sums[m], samples));
  return metrics;
}

absl::Status CheckLimits(const recipe::Recipe& recipe, const plan::DeviceProfile& device) {
  std::string errors;
  for (const Diagnostic& diagnostic : driver::CheckDevice(recipe, device)) errors += Format(diagnostic);
  if (errors.empty()) return absl::OkStatus();
  errors.pop_back();  // the last line's end
  return absl::InvalidArgumentError(errors);
}

// Holds a run's folder for as long as it lives: two runs in one folder would mix.
class RunLock {
 public:
  static absl::StatusOr<RunLock> Take(const std::string& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return Unavailable("{}: cannot create: {}", folder, error.message());
    const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return Unavailable("{}: cannot open: {}", folder, std::strerror(errno));
    RunLock lock(descriptor);
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) return lock;
    if (errno != EWOULDBLOCK) return lock;  // a file system without locks
    return FailedPrecondition("{} is in use by another run; wait for its end, or give another --out", folder);
  }
  RunLock(RunLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }

 private:
  explicit RunLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

class Training {
 public:
  Training(const recipe::Recipe& recipe, const RunOptions& options, const state::Device& device)
      : recipe_(recipe),
        options_(options),
        device_(device),
        retention_(CheckpointRoot(options.out), static_cast<int>(recipe.checkpoint.keep)),
        stop_(options.stop) {}

  absl::Status Run() {
    absl::Status status = Train();
    if (processes_ == nullptr) return status;
    // Nobody hangs up before all have had what they wait for.
    if (status.ok()) status = processes_->Barrier("end");
    if (ranks_ != nullptr && ranks_->executors()[0]->backend().asynchronous()) ranks_->Leave();
    return status;
  }

 private:
  absl::Status Train() {
    RETURN_IF_ERROR(CheckLimits(recipe_, device_.profile));
    ASSIGN_OR_RETURN(source_, data::Source::Open(recipe_));
    ASSIGN_OR_RETURN(plan_, driver::CompileRecipe(recipe_, {.profile = device_.profile}));
    std::int64_t arenas_bytes = 0;
    for (const plan::StagePlan& stage : plan_.stages)
      arenas_bytes += stage.arena_bytes * plan_.mesh.ranks_per_stage();
    if (device_.rank) {
      ASSIGN_OR_RETURN(processes_, device_.join(plan_.hash));
      stop_.Attach(processes_);
      RETURN_IF_ERROR(AgreeOnRecipe(recipe_, Leads(), processes_));
      RETURN_IF_ERROR(
          CheckMemory(plan_.stages[static_cast<size_t>(plan_.StageOfRank(*device_.rank))].arena_bytes, 1));
    } else {
      RETURN_IF_ERROR(CheckMemory(arenas_bytes, plan_.mesh.world()));
    }
    std::optional<RunLock> lock;
    if (Leads()) {
      ASSIGN_OR_RETURN(RunLock taken, RunLock::Take(options_.out));
      lock.emplace(std::move(taken));
      if (options_.own_folder) RETURN_IF_ERROR(CheckOrigin(recipe_, options_.out));
      fingerprints_ = FingerprintsOf(recipe_, *source_);
    }
    ASSIGN_OR_RETURN(
        std::optional<ResumePoint> resume,
        AgreeOnResumePoint({recipe_, fingerprints_, options_.out, options_.fresh}, Leads(), processes_));
    if (resume) retention_.Resumed(resume->reader.metadata().iteration);
    if (resume && resume->reader.metadata().iteration >= recipe_.iterations()) {
      if (!Leads()) return absl::OkStatus();
      for (const std::string& note : resume->notes) Print(stderr, "note: {}\n", note);
      Print(stdout, "resumed from {} after iteration {}; the recipe has {}, so there is nothing to train\n",
            resume->reader.folder(), resume->reader.metadata().iteration, recipe_.iterations());
      return retention_.Prune();  // where the run before was killed after its last save
    }
    if (Leads()) RETURN_IF_ERROR(PrepareFolder());
    const auto start = Clock::now();
    AloneAt("preparing kernels");
    ASSIGN_OR_RETURN(ranks_, state::Ranks::Create(plan_, device_, Seed(), options_.executor));
    const double kernels_ms = MillisecondsSince(start);
    AloneAt("the first weights");
    RETURN_IF_ERROR(LoadState(resume));
    const double weights_ms = MillisecondsSince(start) - kernels_ms;
    first_iteration_ = iteration_;
    if (!Leads()) return Loop();
    ASSIGN_OR_RETURN(Reporter reporter,
                     Reporter::Open(options_.out, iteration_, recipe_.logging.interval, Facts(arenas_bytes)));
    reporter_ = &reporter;
    Announce(*source_, resume);
    reporter_->Line(fmt::format("ready: kernels prepared in {:.1f} s, weights in {:.1f} s", kernels_ms / 1e3,
                                weights_ms / 1e3));
    RETURN_IF_ERROR(retention_.Prune());  // as above
    return Loop();
  }

  // Whether this process speaks for the run.
  bool Leads() const { return device_.rank.value_or(0) == 0; }
  void Say(const std::string& text) {
    if (reporter_ != nullptr) reporter_->Line(text);
  }
  RunFacts Facts(std::int64_t arenas_bytes) const {
    RunFacts facts{.arenas_bytes = arenas_bytes,
                   .global_batch = plan_.global_batch,
                   .tokens = plan_.global_batch * plan_.sequence,
                   .samples = recipe_.samples(),
                   .devices = plan_.mesh.world(),
                   .model_flops = predict::Predict(plan_, recipe_.cluster).model_flops,
                   .peak_flops = recipe_.cluster.peak_flops,
                   .gpus = device_.profile.name == "cuda"};
    for (const plan::StagePlan& stage : plan_.stages) {
      facts.arena_bytes = std::max(facts.arena_bytes, stage.arena_bytes);
    }
    return facts;
  }

  // Work whose time says nothing about the other ranks.
  void AloneAt(const std::string& work) {
    if (processes_ != nullptr) processes_->Progress(work, /*may_stand_still=*/true);
  }

  std::uint64_t Seed() const { return static_cast<std::uint64_t>(recipe_.training.seed); }

  // Against what this process can have now; the compiler has asked whether the cluster's devices are large
  // enough.
  absl::Status CheckMemory(std::int64_t arenas_bytes, std::int64_t ranks) const {
    if (device_.memory_bytes == 0 || arenas_bytes <= device_.memory_bytes) return absl::OkStatus();
    const auto fullest = std::max_element(
        plan_.stages.begin(), plan_.stages.end(),
        [](const plan::StagePlan& a, const plan::StagePlan& b) { return a.arena_bytes < b.arena_bytes; });
    return ResourceExhausted(
        "{} {}{}, but {} {} of memory for the {} executor; on stage {}, {}",
        ranks == 1 ? "one rank needs an arena of" : fmt::format("{} ranks need arenas of", ranks),
        FormatBytes(arenas_bytes), ranks == 1 ? "" : " together", device_.memory_source,
        FormatBytes(device_.memory_bytes), device_.profile.name, fullest - plan_.stages.begin(),
        verify::ArenaText(plan_, *fullest, device_.memory_bytes / ranks));
  }

  // An error of the device's work, with what would say more. A GPU's error comes up in a call after the one
  // that caused it, and spoils all later ones.
  absl::Status OnDevice(const absl::Status& status, const std::string& work,
                        executor::RankExecutor& rank) const {
    absl::Status located = WithContext(status, work);
    const bool late = absl::IsInternal(status) && rank.backend().asynchronous();
    if (!late || options_.executor.check) return located;
    return absl::Status(
        located.code(),
        Message(located) + "\n    hint: the same run with --check --no-graphs names the instruction");
  }

  // The iterations that the device works on.
  static std::string Iterations(std::int64_t first, std::int64_t last) {
    return first == last ? fmt::format("iteration {}", last) : fmt::format("iteration {} or {}", first, last);
  }

  absl::Status PrepareFolder() {
    // All of them before the first is written, and before ranks are made ready.
    for (const char* name :
         {driver::kResolvedName, driver::kOriginName, driver::kPlanName, driver::kMetricsName}) {
      RETURN_IF_ERROR(CheckRegularOrAbsent((fs::path(options_.out) / name).string()));
    }
    std::error_code error;
    fs::create_directories(CheckpointRoot(options_.out), error);
    if (error) return Unavailable("{}: cannot create: {}", CheckpointRoot(options_.out), error.message());
    RETURN_IF_ERROR(WriteFile(fs::path(options_.out) / driver::kResolvedName, recipe::ToToml(recipe_)));
    RETURN_IF_ERROR(WriteOrigin(recipe_, options_.out));
    return WriteFile(fs::path(options_.out) / driver::kPlanName,
                     driver::PlanDocument(recipe_, plan_).dump(1) + "\n");
  }

  absl::Status LoadState(const std::optional<ResumePoint>& resume) {
    if (!resume) {
      return ranks_->Run(
          [&](executor::RankExecutor& rank) { return state::InitializeParameters(plan_, Seed(), rank); });
    }
    const checkpoint::Metadata& metadata = resume->reader.metadata();
    iteration_ = metadata.iteration;
    consumed_samples_ = metadata.consumed_samples;
    optimizer_steps_ = metadata.optimizer_steps;
    // Older checkpoints do not say how large their skipped iterations were: they count as batches of now.
    schedule_samples_ = metadata.schedule_samples >= 0
                            ? metadata.schedule_samples
                            : consumed_samples_ - (iteration_ - optimizer_steps_) * plan_.global_batch;
    return ranks_->Run([&](executor::RankExecutor& rank) -> absl::Status {
      RETURN_IF_ERROR(rank.SetSteps(optimizer_steps_));
      return state::LoadCheckpoint(plan_, resume->reader, true, rank);
    });
  }

  void Announce(const data::Source& source, const std::optional<ResumePoint>& resume) {
    const recipe::Parallelism& p = recipe_.parallelism;
    reporter_->Line(
        fmt::format("plan {} | {} parameters | dp {} · tp {} · pp {} · cp {} · ep {} = {} ranks ({})",
                    plan_.hash, WithThousands(plan_.parameter_count), p.dp, p.tp, p.pp, p.cp, p.ep,
                    recipe_.world_size(), device_.profile.name));
    for (const std::string& note : plan_.notes) reporter_->Note(note);
    reporter_->Line(source.Summary());
    if (!resume) return;
    for (const std::string& note : resume->notes) reporter_->Note(note);
    reporter_->Line(fmt::format("resumed from {} after iteration {}", resume->reader.folder(), iteration_));
  }

  absl::Status Loop() {
    const std::int64_t iterations = recipe_.iterations();
    std::int64_t saved = iteration_;
    while (iteration_ < iterations) {
      ASSIGN_OR_RETURN(const bool may_begin, MayBegin());
      stopped_ = !may_begin;
      if (stopped_) break;
      RETURN_IF_ERROR(TrainOnce());
      if (EvaluationDue() || CheckpointDue()) RETURN_IF_ERROR(ReportLogged());
      // Before the checkpoint: a run that ends between the two and is resumed would never evaluate here.
      if (EvaluationDue()) RETURN_IF_ERROR(Evaluate());
      if (CheckpointDue()) {
        RETURN_IF_ERROR(Save());
        saved = iteration_;
      }
    }
    while (!started_.empty()) RETURN_IF_ERROR(Finish());
    RETURN_IF_ERROR(ReportLogged());
    const absl::Status profiled = WriteOwnProfile();
    if (saved != iteration_) RETURN_IF_ERROR(Save());
    AloneAt("the end");
    RETURN_IF_ERROR(profiled);
    if (stopped_) Say(fmt::format("stopped by a signal after iteration {}", iteration_));
    return absl::OkStatus();
  }

  absl::Status WriteOwnProfile() {
    for (const auto& [rank, iterations] : profile_) {
      const absl::StatusOr<std::string> table =
          WriteProfile(options_.out, plan_, rank, iterations, recipe_.cluster);
      if (rank == 0) {
        RETURN_IF_ERROR(table.status());
        Say(*table + "written to profile.txt and trace.json in " + options_.out);
      } else if (!table.ok()) {  // its host may not have the folder
        Print(stderr, "note: {}\n", Message(table.status()));
      }
    }
    return absl::OkStatus();
  }

  // No: a signal has come, here or in another process; then all stop after the same iteration.
  absl::StatusOr<bool> MayBegin() {
    if (processes_ == nullptr) return !stop_.requested();
    if (stop_.requested()) processes_->RequestStop();
    processes_->Progress(fmt::format("the beginning of iteration {}", iteration_ + 1));
    return processes_->MayBegin(iteration_);
  }

  bool CheckpointDue() const {
    const std::int64_t interval = recipe_.checkpoint.interval;
    return interval > 0 && iteration_ % interval == 0;
  }

  executor::FeedFunction FeedOf(std::int64_t first_sample) const {
    return MakeFeed(plan_, *source_, data::Split::kTrain, first_sample);
  }

  // Samples of the iteration that begins when so many have been consumed, and its program.
  std::int64_t BatchAt(std::int64_t consumed) const { return recipe::BatchAt(recipe_.training, consumed); }
  std::int32_t ProgramAt(std::int64_t consumed) const {
    return plan_.ProgramOf(plan::ProgramKind::kTrain, BatchAt(consumed));
  }

  // Rates for the update of the next iteration. The host does not know yet whether the one under way is
  // skipped, which the schedule then does not count (as in Megatron-LM).
  executor::LearningRates Rates() const {
    ENGINE_CHECK(started_.size() <= 1, "rates for one iteration under way, not for {}", started_.size());
    const std::int64_t under_way = started_.empty() ? 0 : started_.front().global_batch;
    return {optimizer_steps_, recipe::LearningRate(recipe_, schedule_samples_),
            recipe::LearningRate(recipe_, schedule_samples_ + under_way)};
  }

  // Starts an iteration. On a device that runs beside the host, the results are waited for when the next one
  // has been started, so that the device never waits for the host.
  absl::Status TrainOnce() {
    stop_.Begin(iteration_ + 1);
    const executor::LearningRates rates = Rates();
    const executor::FeedFunction feed = FeedOf(consumed_samples_);
    const std::int64_t batch = BatchAt(consumed_samples_);
    const std::int32_t program = ProgramAt(consumed_samples_);
    const std::int64_t next_samples = consumed_samples_ + batch;
    const bool more = iteration_ + 1 < recipe_.iterations();
    bool beside = false;
    const bool profiled = ProfilesNow();
    if (profiled) {
      for (const auto& rank : ranks_->executors()) profile_.try_emplace(rank->rank());
    }
    const std::string work =
        Iterations(started_.empty() ? iteration_ + 1 : started_.front().iteration, iteration_ + 1);
    RETURN_IF_ERROR(ranks_->Run([&](executor::RankExecutor& rank) -> absl::Status {
      if (profiled) {
        absl::StatusOr<Timings> timings = rank.Profile(iteration_, rates, feed, program);
        if (!timings.ok()) return OnDevice(timings.status(), work, rank);
        profile_.at(rank.rank()).push_back(*std::move(timings));
      } else if (const absl::Status status = rank.Launch(iteration_, rates, feed, program); !status.ok()) {
        return OnDevice(status, work, rank);
      }
      if (!rank.backend().asynchronous()) return absl::OkStatus();
      if (rank.rank() == 0) beside = true;
      if (more) rank.Prefetch(FeedOf(next_samples), ProgramAt(next_samples));
      return absl::OkStatus();
    }));
    ++iteration_;
    consumed_samples_ = next_samples;
    started_.push_back({iteration_, consumed_samples_, batch});
    const bool wait_for_all = !beside || !more || profiled || ProfilesNow() || EvaluationDue() ||
                              CheckpointDue() || stop_.requested();
    while (started_.size() > (wait_for_all ? 0U : 1U)) RETURN_IF_ERROR(Finish());
    return absl::OkStatus();
  }

  // A few iterations of warm-up, then so many as were asked for.
  bool ProfilesNow() const {
    constexpr std::int64_t kWarmUp = 3;
    const std::int64_t of_run = iteration_ - first_iteration_;
    return of_run >= kWarmUp && of_run < kWarmUp + options_.profile;
  }

  // Waits for the oldest started iteration and reports it.
  absl::Status Finish() {
    RETURN_IF_ERROR(ReportLogged());
    const Started started = started_.front();
    const std::string work = Iterations(started.iteration, started_.back().iteration);
    started_.pop_front();
    std::vector<executor::IterationResult> results(ranks_->executors().size());
    RETURN_IF_ERROR(ranks_->Run([&](executor::RankExecutor& rank) -> absl::Status {
      absl::StatusOr<executor::IterationResult> result = rank.Wait();
      if (!result.ok()) return OnDevice(result.status(), work, rank);
      results[IndexOf(rank)] = *result;
      return absl::OkStatus();
    }));
    const executor::IterationResult& result = results[0];  // the same on every rank
    IterationReport report{.iteration = started.iteration,
                           .iterations = recipe_.iterations(),
                           .consumed_samples = started.consumed_samples,
                           .global_batch = started.global_batch,
                           .loss = plan_.Objective(result.sums, started.global_batch),
                           .metrics = MetricsOf(plan_, result.sums, started.global_batch),
                           .grad_norm = result.grad_norm,
                           .learning_rate = result.learning_rate,
                           .elapsed_ms = result.elapsed_ms,
                           .skipped = result.steps == optimizer_steps_,
                           .skipped_iterations = result.skipped,
                           .loss_scale = result.loss_scale};
    report.nan = !std::isfinite(report.loss) || (!report.skipped && !std::isfinite(report.grad_norm));
    schedule_samples_ += (result.steps - optimizer_steps_) * started.global_batch;
    optimizer_steps_ = result.steps;
    if (report.nan) {
      if (reporter_ != nullptr) RETURN_IF_ERROR(reporter_->Iteration(report));
      return absl::DataLossError(fmt::format(
          "iteration {}: loss {} and gradient norm {}, so the weights are spoilt and not saved; a lower "
          "[optimizer] learning_rate or a longer warm-up may help",
          report.iteration, report.loss, report.grad_norm));
    }
    return Report(std::move(report), results);
  }

  // A report that needs times of other processes waits for them in `logged_`.
  absl::Status Report(IterationReport report, const std::vector<executor::IterationResult>& results) {
    const bool logged = IsLogged(report.iteration, report.iterations, recipe_.logging.interval);
    if (Leads() && device_.used_bytes && (logged || !device_bytes_)) device_bytes_ = device_.used_bytes();
    report.device_bytes = device_bytes_;
    if (plan_.mesh.world() > 1 && logged) {
      for (const executor::IterationResult& result : results) report.rank_busy_ms.push_back(result.busy_ms);
      if (!Leads()) {
        return processes_->Set(BusyKey(*device_.rank, report.iteration),
                               fmt::format("{}", report.rank_busy_ms[0]));
      }
      if (processes_ != nullptr) {
        logged_ = std::move(report);
        return absl::OkStatus();
      }
    }
    return reporter_ == nullptr ? absl::OkStatus() : reporter_->Iteration(report);
  }

  static std::string BusyKey(std::int64_t rank, std::int64_t iteration) {
    return fmt::format("busy time of rank {} in iteration {}", rank, iteration);
  }

  // Reports the iteration in `logged_`. Called when the next one has been started and, where the device works
  // beside the host, before its results are waited for: the times are here by then, or the device has work
  // while they are on their way.
  absl::Status ReportLogged() {
    if (!logged_) return absl::OkStatus();
    IterationReport report = *std::move(logged_);
    logged_.reset();
    std::vector<std::string> keys;
    for (std::int64_t rank = 1; rank < plan_.mesh.world(); ++rank) {
      keys.push_back(BusyKey(rank, report.iteration));
    }
    const absl::StatusOr<std::vector<std::string>> times = processes_->TakeAll(keys);
    if (!times.ok()) {  // the run has ended; what is known of the iteration is still told
      report.rank_busy_ms.clear();
      RETURN_IF_ERROR(reporter_->Iteration(report));
      return times.status();
    }
    for (const std::string& time : *times) report.rank_busy_ms.push_back(std::strtod(time.c_str(), nullptr));
    return reporter_->Iteration(report);
  }

  // Of a rank's executor among those of this process.
  size_t IndexOf(const executor::RankExecutor& rank) const {
    return static_cast<size_t>(rank.rank() - device_.rank.value_or(0));
  }

  bool EvaluationDue() const {
    const std::int64_t interval = recipe_.evaluation.interval;
    return interval > 0 && (iteration_ % interval == 0 || iteration_ == recipe_.iterations());
  }

  absl::Status Evaluate() {
    const auto start = Clock::now();
    const std::int64_t batches = recipe_.evaluation.iterations;
    // The n-th evaluation of a run has samples of its own; so a resumed run evaluates on the same ones.
    const std::int64_t nth = (iteration_ - 1) / recipe_.evaluation.interval;
    std::vector<double> all(plan_.metrics.size(), 0);
    for (std::int64_t b = 0; b < batches; ++b) {
      const std::int64_t first = (nth * batches + b) * plan_.global_batch;
      const executor::FeedFunction feed = MakeFeed(plan_, *source_, data::Split::kValid, first);
      std::vector<std::vector<double>> sums(ranks_->executors().size());
      RETURN_IF_ERROR(ranks_->Run([&](executor::RankExecutor& rank) -> absl::Status {
        const absl::StatusOr<executor::IterationResult> result = rank.Evaluate(feed);
        if (!result.ok()) {
          return OnDevice(result.status(), fmt::format("evaluation after iteration {}", iteration_), rank);
        }
        sums[IndexOf(rank)] = result->sums;
        return absl::OkStatus();
      }));
      for (size_t m = 0; m < all.size(); ++m) all[m] += sums[0][m];
    }
    if (reporter_ == nullptr) return absl::OkStatus();
    return reporter_->Evaluation({.iteration = iteration_,
                                  .validation_loss = plan_.Objective(all, batches * plan_.global_batch),
                                  .elapsed_ms = MillisecondsSince(start)});
  }

  absl::Status Save() {
    const recipe::Parallelism& p = recipe_.parallelism;
    const checkpoint::Metadata metadata{
        .iteration = iteration_,
        .consumed_samples = consumed_samples_,
        .seed = recipe_.training.seed,
        .optimizer_steps = optimizer_steps_,
        .schedule_samples = schedule_samples_,
        .plan_hash = plan_.hash,
        .recipe_toml = recipe::ToToml(recipe_),
        .engine_version = Version(),
        .mesh = {{"dp", p.dp}, {"tp", p.tp}, {"pp", p.pp}, {"cp", p.cp}, {"ep", p.ep}},
        .fingerprints = fingerprints_};
    const std::string root = CheckpointRoot(options_.out);
    AloneAt(fmt::format("saving the checkpoint of iteration {}", iteration_));
    const auto start = Clock::now();
    RETURN_IF_ERROR(state::SaveCheckpoint(plan_, root, metadata, *ranks_, processes_));
    if (!Leads()) return absl::OkStatus();
    RETURN_IF_ERROR(reporter_->Saved({.iteration = iteration_, .elapsed_ms = MillisecondsSince(start)}));
    reporter_->Line(fmt::format("saved checkpoint of iteration {} to {}", iteration_, root));
    retention_.Saved(iteration_);
    return retention_.Prune();
  }

  const recipe::Recipe& recipe_;
  const RunOptions& options_;
  const state::Device& device_;
  checkpoint::Retention retention_;
  StopSignals stop_;  // from the beginning: a signal during set-up ends the run before its first iteration
  std::optional<data::Source> source_;
  data::Fingerprints fingerprints_;  // of rank 0
  plan::Plan plan_;
  std::unique_ptr<state::Ranks> ranks_;  // after the two above, which its ranks may be reading until they end
  launch::Client* processes_ = nullptr;  // null: all ranks are this process's
  Reporter* reporter_ = nullptr;         // null: another process speaks for the run
  bool stopped_ = false;                 // by a signal
  std::int64_t iteration_ = 0;           // done
  std::int64_t optimizer_steps_ = 0;     // as far as results are known
  std::int64_t schedule_samples_ = 0;    // likewise: of the iterations that were steps
  std::int64_t consumed_samples_ = 0;
  std::int64_t first_iteration_ = 0;          // of this run
  std::optional<std::int64_t> device_bytes_;  // as it was last asked for
  struct Started {
    std::int64_t iteration = 0;         // from 1
    std::int64_t consumed_samples = 0;  // after it
    std::int64_t global_batch = 0;      // its own
  };
  std::deque<Started> started_;            // and not yet waited for
  std::optional<IterationReport> logged_;  // of rank 0: not yet told, for want of the other ranks' times
  std::map<std::int64_t, std::vector<Timings>> profile_;  // by rank of this process
};

}  // namespace

std::string CheckpointRoot(const std::string& out) { return (fs::path(out) / "checkpoints").string(); }

std::string CheckpointRootIn(const std::string& folder) {
  std::error_code error;
  const std::string of_run = CheckpointRoot(folder);
  return fs::is_directory(of_run, error) ? of_run : folder;
}

absl::Status Check(const recipe::Recipe& recipe, const plan::DeviceProfile& device) {
  RETURN_IF_ERROR(CheckLimits(recipe, device));
  RETURN_IF_ERROR(data::Source::Open(recipe).status());
  return driver::CompileRecipe(recipe, {.profile = device}).status();
}

absl::Status Run(const recipe::Recipe& recipe, const RunOptions& options, const state::Device& device) {
  return Training(recipe, options, device).Run();
}

}  // namespace engine::train
