#include "engine/train/run.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/print.h"
#include "engine/checkpoint/store.h"
#include "engine/driver/compile_recipe.h"
#include "engine/driver/run_folder.h"
#include "engine/evaluate/score_rows.h"
#include "engine/predict/predict.h"
#include "engine/recipe/rules.h"
#include "engine/storage/storage.h"
#include "engine/train/bucket.h"
#include "engine/train/bucket_put.h"
#include "engine/train/check_copies.h"
#include "engine/train/evaluation.h"
#include "engine/train/fault_kit.h"
#include "engine/train/feed.h"
#include "engine/train/histograms.h"
#include "engine/train/iterations.h"
#include "engine/train/last_save.h"
#include "engine/train/memory_checkpoints.h"
#include "engine/train/origin.h"
#include "engine/train/outcome.h"
#include "engine/train/resume.h"
#include "engine/train/rewind.h"
#include "engine/train/run_context.h"
#include "engine/train/run_lock.h"
#include "engine/train/run_sinks.h"
#include "engine/train/save.h"
#include "engine/train/setup.h"
#include "engine/train/start.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;

// One run from its set-up to its last checkpoint: in which order its parts act, and when it ends.
class Training {
 public:
  Training(const recipe::Recipe& recipe, const RunOptions& options, const state::Device& device)
      : retention_(CheckpointRoot(options.out), static_cast<int>(recipe.checkpoint.keep),
                   recipe.guard.rewinds() ? std::max<std::int64_t>(1, recipe.checkpoint.interval) : 1),
        stop_(options.stop, [this] { outcome_.WriteStoppedAtOnce(); }),
        run_{.recipe = recipe, .options = options, .device = device} {}

  absl::StatusOr<RunEnd> Run() {
    absl::Status status = Train();
    // Nobody hangs up before all have had what they wait for.
    if (status.ok() && run_.processes != nullptr) status = run_.processes->Barrier("end");
    // What ends all ranks may be another's failure, of which this one has seen no more than that it is gone.
    if (!status.ok() && run_.processes != nullptr) status = run_.processes->Fail(status);
    const absl::Status told = outcome_.Write(OutcomeOf(status));
    if (!status.ok() && !told.ok()) TellUnwritten(told);
    if (status.ok()) status = told;
    if (run_.claim) {
      if (const absl::Status told = run_.claim->Release(); !told.ok())
        Print(stderr, "warning: {} is not told that this run has ended: {}\n", run_.claim->prefix(),
              Message(told));
    }
    if (run_.ranks != nullptr) {
      for (const auto& rank : run_.ranks->executors()) rank->memory_checkpoint().AwaitWhole();
    }
    const bool is_rank = run_.processes != nullptr && run_.ranks != nullptr;
    if (is_rank && run_.ranks->executors()[0]->backend().asynchronous()) {
      const bool is_of_another = absl::IsAborted(status);
      const bool is_quiet = is_of_another && run_.device.quieten && run_.device.quieten();
      if (!is_quiet) run_.ranks->Leave();
    }
    RETURN_IF_ERROR(status);
    return end_;
  }

 private:
  absl::Status Train() {
    RETURN_IF_ERROR(Plan());
    if (run_.Leads()) {
      const auto waits = [this](const std::string& holder) {
        Print(stderr, "engine run: {} is still held by {}; it is waited for, up to {} s\n", run_.options.out,
              holder.empty() ? "another run" : holder,
              std::chrono::duration_cast<std::chrono::seconds>(run_.options.lock_patience).count());
      };
      ASSIGN_OR_RETURN(RunLock taken, RunLock::Take(run_.options.out, run_.options.lock_patience, waits));
      lock_.emplace(std::move(taken));
      if (run_.options.own_folder) RETURN_IF_ERROR(CheckOrigin(run_.recipe, run_.options.out));
    }
    if (run_.Leads() && !run_.recipe.checkpoint.upload.empty()) RETURN_IF_ERROR(ClaimBucket());
    run_.fingerprints = FingerprintsOf(run_.recipe, *run_.source);
    if (run_.processes != nullptr)
      RETURN_IF_ERROR(AgreeOnData(run_.fingerprints, run_.Leads(), run_.processes));
    ASSIGN_OR_RETURN(
        const std::optional<ResumePoint> resume,
        AgreeOnResumePoint({run_.recipe, run_.fingerprints, run_.options.out, run_.options.fresh},
                           run_.Leads(), run_.processes));
    if (resume) retention_.Resumed(resume->reader.metadata().iteration);
    if (run_.Leads()) {  // what the last attempt came to is not this one's
      RETURN_IF_ERROR(RemoveOutcome(run_.options.out).status());
      outcome_.Begin(run_.options.out, run_.recipe.iterations());
    }
    if (resume) Reached(resume->reader.metadata().iteration);
    if (resume && end_.iteration >= run_.recipe.iterations()) {
      return NothingToTrain(*resume);
    }
    ASSIGN_OR_RETURN(const std::optional<KeptState> kept, AgreeOnKept(run_, resume ? end_.iteration : 1));
    if (kept) Reached(kept->position.iteration);
    if (run_.Leads() && !resume && !kept) {
      ASSIGN_OR_RETURN(const std::optional<std::string> note, KeepOldMetrics(run_.options.out));
      if (note) Print(stderr, "note: {}\n", *note);
    }
    std::optional<StartPoint> start;
    // A run that goes on from memory may go back to its beginning.
    if (!resume && (!kept || run_.recipe.guard.rewinds())) {
      ASSIGN_OR_RETURN(start, AgreeOnStart(run_.recipe, run_.plan, run_.Leads(), run_.processes));
    }
    if (run_.Leads()) RETURN_IF_ERROR(PrepareFolder(run_));
    return TrainFrom(kept, resume, start);
  }

  // Source and plan, in every process the same, and memory for its arenas.
  absl::Status Plan() {
    const state::Device& device = run_.device;
    if (const std::string& upload = run_.recipe.checkpoint.upload; !upload.empty())
      RETURN_IF_ERROR(storage::CheckUsable(upload));
    RETURN_IF_ERROR(CheckLimits(run_.recipe, device.profile));
    ASSIGN_OR_RETURN(run_.source,
                     data::Source::Open(run_.recipe, (fs::path(run_.options.out) / "indices").string()));
    ASSIGN_OR_RETURN(run_.tasks, TasksOf(run_.recipe));
    ASSIGN_OR_RETURN(run_.plan, driver::CompileRecipe(run_.recipe, {.profile = device.profile}));
    if (!run_.tasks.empty()) RETURN_IF_ERROR(evaluate::CheckScores(run_.plan));
    RETURN_IF_ERROR(CheckFast(run_.recipe, run_.plan));
    RETURN_IF_ERROR(CheckFaultTensors(run_.options.faults, run_.plan));
    const plan::Plan& plan = run_.plan;
    if (!device.rank) return CheckMemory(run_, ArenasBytes(plan), plan.mesh.world());
    ASSIGN_OR_RETURN(run_.processes, device.join(plan.hash));
    stop_.Attach(run_.processes);
    RETURN_IF_ERROR(AgreeOnRecipe(run_.recipe, run_.Leads(), run_.processes));
    return CheckMemory(run_, plan.stages[static_cast<size_t>(plan.StageOfRank(*device.rank))].arena_bytes, 1);
  }

  // From now on nobody else writes there.
  absl::Status ClaimBucket() {
    const std::string& upload = run_.recipe.checkpoint.upload;
    RETURN_IF_ERROR(TryBucket(upload));
    std::vector<std::string> notes;
    ASSIGN_OR_RETURN(BucketClaim claim,
                     BucketClaim::Take(upload, run_.options.out, run_.options.take_over, &notes));
    for (const std::string& note : notes) Print(stderr, "note: {}\n", note);
    run_.claim.emplace(std::move(claim));
    return absl::OkStatus();
  }

  absl::Status NothingToTrain(const ResumePoint& resume) {
    if (!run_.Leads()) return HelpToBringBucketUpToDate();
    for (const std::string& note : resume.notes) Print(stderr, "note: {}\n", note);
    const std::int64_t reached = resume.reader.metadata().iteration;
    Print(stdout, "resumed from {} after iteration {}; the recipe has {}, so there is nothing to train\n",
          resume.reader.folder(), reached, run_.recipe.iterations());
    if (reached > run_.recipe.iterations()) TellBeyond(reached);
    if (run_.claim) RETURN_IF_ERROR(BringBucketUpToDate(resume));
    return retention_.Prune();  // where the run before was killed after its last save
  }

  // Whoever asks for fewer iterations than there are gets no checkpoint of the last one that was asked for.
  void TellBeyond(std::int64_t reached) const {
    Print(stderr,
          "warning: {} has reached iteration {}, but the recipe has {} alone: it stays as it is\n"
          "    hint: with training.iterations of more than {} it trains on; another --out begins anew\n",
          run_.options.out, reached, run_.recipe.iterations(), reached);
  }

  // The run before may have failed, or been killed, while its last checkpoint was put there.
  absl::Status BringBucketUpToDate(const ResumePoint& resume) const {
    const std::string& bucket = run_.claim->prefix();
    const std::string root = CheckpointRoot(run_.options.out);
    const std::int64_t newest = resume.reader.metadata().iteration;
    std::set<std::int64_t> damaged = resume.damaged_in_bucket;
    ASSIGN_OR_RETURN(const std::vector<std::int64_t> there, ListBucket(bucket));
    const bool is_there = std::find(there.begin(), there.end(), newest) != there.end();
    if (run_.processes != nullptr) RETURN_IF_ERROR(run_.processes->Set(kIsInBucket, is_there ? "1" : "0"));
    if (!is_there) {
      ASSIGN_OR_RETURN(const Put put,
                       PutIntoBucket(*run_.claim, root, newest, &damaged, run_.TeamFor(kAtStart)));
      for (const std::string& report : put.reports) Print(stderr, "warning: {}\n", report);
      if (!put.failure.ok())
        return WithContext(put.failure, fmt::format("{} is whole, but could not be copied to {}",
                                                    resume.reader.folder(), bucket));
      Print(stdout, "copied {} to {}\n", resume.reader.folder(), bucket);
    }
    return PruneBucket(*run_.claim, newest, run_.recipe.checkpoint.keep, damaged, root);
  }

  // Of what fails rank 0 tells.
  absl::Status HelpToBringBucketUpToDate() const {
    const std::string& bucket = run_.recipe.checkpoint.upload;
    if (bucket.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string is_there, run_.processes->Get(kIsInBucket));
    if (is_there == "1") return absl::OkStatus();
    return HelpToPut(bucket, run_.TeamFor(kAtStart)).status();
  }

  // Those of the run, with who is told of the moments of an iteration.
  absl::StatusOr<executor::ExecutorOptions> MakeExecutorOptions() {
    executor::ExecutorOptions options = run_.options.executor;
    options.trace = run_.recipe.guard.trace;
    if (!run_.options.faults.empty()) {
      ASSIGN_OR_RETURN(faults_, FaultKit::Open(run_.options.faults, run_.options.out));
      options.record = false;  // a replayed program tells of no moment within it
    }
    options.on_moment = [this](executor::RankExecutor& rank, executor::Moment moment,
                               std::int64_t iteration) {
      const bool evaluates = iteration == executor::ExecutorOptions::kNoIteration;
      if (run_.processes != nullptr) AnnounceMoment(moment, evaluates, iteration + 1);
      if (faults_ == nullptr || evaluates) return absl::OkStatus();
      return faults_->At(rank, moment, iteration + 1);
    };
    return options;
  }

  // `iteration`: from 1.
  void AnnounceMoment(executor::Moment moment, bool evaluates, std::int64_t iteration) {
    const auto of = [&](const char* what) {
      return evaluates ? fmt::format("{} an evaluation", what)
                       : fmt::format("{} iteration {}", what, iteration);
    };
    if (moment == executor::Moment::kData) run_.Begin(launch::Work::kData, of("the data of"));
    if (moment == executor::Moment::kForward)
      run_.Begin(evaluates ? launch::Work::kEvaluation : launch::Work::kIteration, of("the passes of"));
  }

  // They come while kernels and weights are made ready.
  void AskForFirstSamples(const std::optional<KeptState>& kept, const std::optional<ResumePoint>& resume) {
    const std::int64_t first = kept     ? kept->position.consumed_samples
                               : resume ? resume->reader.metadata().consumed_samples
                                        : 0;
    const std::optional<std::int64_t> own = run_.device.rank;
    for (std::int64_t rank = own.value_or(0); rank < (own ? *own + 1 : run_.plan.mesh.world()); ++rank)
      AskForSamples(run_.plan, *run_.source, data::Split::kTrain, first, rank);
  }

  absl::Status TrainFrom(const std::optional<KeptState>& kept, const std::optional<ResumePoint>& resume,
                         const std::optional<StartPoint>& start) {
    const auto begin = Clock::now();
    AskForFirstSamples(kept, resume);
    run_.Begin(launch::Work::kAlone, "preparing kernels");
    ASSIGN_OR_RETURN(const executor::ExecutorOptions options, MakeExecutorOptions());
    ASSIGN_OR_RETURN(run_.ranks, state::Ranks::Create(run_.plan, run_.device, run_.Seed(), options));
    const double kernels_ms = MillisecondsSince(begin);
    run_.Begin(launch::Work::kAlone, "the first weights");
    ASSIGN_OR_RETURN(const Position position, FillRanks(kept, resume, start));
    const double weights_ms = MillisecondsSince(begin) - kernels_ms;
    Saver saver(run_, retention_, resume ? resume->reader.metadata().iteration : 0,
                resume ? resume->damaged_in_bucket : std::set<std::int64_t>());
    RETURN_IF_ERROR(saver.Prepare());
    // Until then a host that is lost would cost the iterations since the checkpoint on disk.
    if (kept && kept->other_layout != nullptr && run_.memory_interval > 0)
      RETURN_IF_ERROR(Keep(run_, position));
    if (!run_.recipe.logging.sinks.empty()) {
      ASSIGN_OR_RETURN(hosts_, HostsOf(run_));
    }
    const auto announce = [&](Reporter& reporter) {
      Announce(run_, kept, resume, start);
      reporter.Line(fmt::format("ready: kernels prepared in {:.1f} s, weights in {:.1f} s", kernels_ms / 1e3,
                                weights_ms / 1e3));
      return retention_.Prune();  // where the run before was killed after its last save
    };
    Rewinds rewinds(run_, retention_);
    ASSIGN_OR_RETURN(std::optional<Departure> left, TrainOn(position, saver, rewinds.rerun(), announce));
    while (left) {
      ASSIGN_OR_RETURN(const Return there, rewinds.GoBack(*left, resume.has_value(), start));
      Reached(there.position.iteration);
      saver.GoBackTo(there.position.iteration);
      ASSIGN_OR_RETURN(left, TrainOn(there.position, saver, rewinds.rerun(), [&](Reporter& reporter) {
                         reporter.Line(there.text);
                         reporter.WentBack(there.report);
                         return absl::OkStatus();
                       }));
    }
    return absl::OkStatus();
  }

  // Takes the memory for copies of the state, too.
  absl::StatusOr<Position> FillRanks(const std::optional<KeptState>& kept,
                                     const std::optional<ResumePoint>& resume,
                                     const std::optional<StartPoint>& start) {
    const bool other_layout = kept && kept->other_layout != nullptr;
    // Copies of another layout make place for those of this one.
    if (!other_layout) RETURN_IF_ERROR(PrepareKeeping(run_, kept ? kept->position.iteration : -1));
    ASSIGN_OR_RETURN(const Position position, LoadState(run_, kept, resume, start));
    if (other_layout) {
      RETURN_IF_ERROR(kept->other_layout->Finish(run_));
      RETURN_IF_ERROR(PrepareKeeping(run_, -1));
    }
    if (run_.ranks->executors()[0]->memory_checkpoint().is_open())
      run_.memory_interval = predict::PredictMemoryCheckpoint(run_.plan, run_.recipe).interval;
    return position;
  }

  // Trains from there to the end, or to an iteration for which the run goes back; no checkpoint is under way afterwards.
  // `announce`: what the process that leads does when it can tell.
  absl::StatusOr<std::optional<Departure>> TrainOn(const Position& position, Saver& saver, Rerun* rerun,
                                                   const std::function<absl::Status(Reporter&)>& announce) {
    Iterations iterations(run_, stop_, position, rerun);
    if (!run_.Leads()) {
      RETURN_IF_ERROR(LoopAndFinish(iterations, saver));
      return DepartureOf(iterations);
    }
    const recipe::Logging& logging = run_.recipe.logging;
    ASSIGN_OR_RETURN(const std::unique_ptr<Reporter> reporter,
                     Reporter::Open(run_.options.out, position.iteration, logging.interval, FactsOf(run_)));
    run_.reporter = reporter.get();
    AddSinks(logging, run_.options.out, DescriptionOf(run_, position, hosts_), *reporter);
    absl::Status status = announce(*reporter);
    if (status.ok()) status = LoopAndFinish(iterations, saver);
    reporter->Close(status.ok());
    run_.reporter = nullptr;
    RETURN_IF_ERROR(status);
    return DepartureOf(iterations);
  }

  static std::optional<Departure> DepartureOf(const Iterations& iterations) {
    if (!iterations.bad()) return std::nullopt;
    return Departure{*iterations.bad(), iterations.position().guard};
  }

  // A run that fails, or goes back, has the checkpoint that was under way, if that can still be written. A rank that fails among processes does not wait
  // for the bucket, to which all of them send their parts: meanwhile those that have not failed would wait for it. What is in the folder gets there with the next checkpoint.
  absl::Status LoopAndFinish(Iterations& iterations, Saver& saver) {
    absl::Status status = Loop(iterations, saver);
    if (!status.ok() && run_.processes != nullptr) {
      saver.AwaitFolder();
      status = run_.processes->Fail(status);
    }
    const absl::Status saved = saver.Finish();
    return status.ok() ? saved : status;
  }

  // Until the end, a stop, or an iteration for which the run goes back.
  absl::Status Loop(Iterations& iterations, Saver& saver) {
    const recipe::Recipe& recipe = run_.recipe;
    const Position& position = iterations.position();
    while (position.iteration < recipe.iterations()) {
      ASSIGN_OR_RETURN(const bool may_begin, MayBegin(position.iteration));
      end_.stopped = !may_begin;
      if (end_.stopped) break;
      last_began_ = Clock::now();
      RETURN_IF_ERROR(iterations.TrainOnce());
      if (iterations.bad()) return absl::OkStatus();
      Reached(position.iteration);
      RETURN_IF_ERROR(saver.Poll());
      const bool evaluation_due = EvaluationDue(recipe, position.iteration);
      const bool is_last = position.iteration == recipe.iterations();  // saved below
      const bool in_doubt = iterations.doubtful() > 0;
      const bool checkpoint_due = CheckpointDue(recipe, position.iteration) && !is_last && !in_doubt;
      const bool is_kept = run_.IsKept(position.iteration) && !in_doubt;
      if (in_doubt && CheckpointDue(recipe, position.iteration) && !is_last) TellPutOff(iterations);
      if (CopiesAreCompared(recipe, position.iteration))
        RETURN_IF_ERROR(CheckCopies(run_, position.iteration));
      const bool histograms_due = HistogramsDue(recipe, position.iteration);
      // What a run goes on from has its iteration's lines behind it.
      if (evaluation_due || checkpoint_due || is_kept || histograms_due) RETURN_IF_ERROR(iterations.Flush());
      // Before an evaluation, which may write where gradients are.
      if (histograms_due) RETURN_IF_ERROR(TellHistograms(run_, position));
      // Before the checkpoint: a run that ends between the two and is resumed would never evaluate here.
      if (evaluation_due) RETURN_IF_ERROR(Evaluate(run_, position.iteration));
      if (checkpoint_due) RETURN_IF_ERROR(saver.Save(position));
      if (is_kept) RETURN_IF_ERROR(Keep(run_, position));
    }
    RETURN_IF_ERROR(iterations.FinishAll());
    if (iterations.bad()) return absl::OkStatus();
    const absl::Status profiled = iterations.WriteProfiles();
    if (iterations.doubtful() > 0) return EndInDoubt(iterations);
    RETURN_IF_ERROR(SaveLast(run_, stop_, position, {end_.stopped, last_began_}, saver));
    run_.Begin(launch::Work::kAlone, "the end");
    if (faults_ != nullptr) {
      for (const auto& rank : run_.ranks->executors()) faults_->TellMissed(rank->rank());
    }
    RETURN_IF_ERROR(profiled);
    if (end_.stopped) run_.Say(fmt::format("stopped by a signal after iteration {}", position.iteration));
    // This rank alone has given up.
    if (stop_.insisted()) return saver.Last();
    return run_.OfAll(saver.Last());
  }

  // Ends a run whose last losses are not finite without a checkpoint: one of weights that may be spoilt would take the place of one of
  // good ones. All ranks see the same losses.
  absl::Status EndInDoubt(const Iterations& iterations) const {
    const std::string why = fmt::format(
        "the losses of the last {} up to iteration {} were not finite and their updates skipped, so that the "
        "weights may be spoilt and are not saved",
        recipe::Counted(iterations.doubtful(), "iteration"), iterations.position().iteration);
    if (end_.stopped) {
      run_.Say(fmt::format("stopped by a signal; {}", why));
      return absl::OkStatus();
    }
    return run_.OfAll(
        DataLoss("{}; a run goes on from the newest checkpoint\n"
                 "    hint: guard.skip_iterations leaves out iterations whose data is to blame; `engine run "
                 "--check` names the first instruction that makes a number that is not finite",
                 why));
  }

  void TellPutOff(const Iterations& iterations) const {
    if (run_.reporter == nullptr) return;
    run_.reporter->Warn(
        fmt::format("no checkpoint of iteration {}: the losses of the last {} were not finite, so that the "
                    "weights may be "
                    "spoilt",
                    iterations.position().iteration, recipe::Counted(iterations.doubtful(), "iteration")));
  }

  // An iteration is finished, or the run goes on from behind it.
  void Reached(std::int64_t iteration) {
    end_.iteration = iteration;
    outcome_.Reached(iteration);
  }

  Outcome OutcomeOf(const absl::Status& status) const {
    Outcome outcome;
    if (!status.ok()) {
      outcome.kind = Outcome::Kind::kFailed;
      outcome.reason = Message(status);
      outcome.retryable = IsRetryable(status);
    } else if (end_.stopped) {
      outcome.kind = Outcome::Kind::kStopped;
    }
    return outcome;
  }

  // No: a signal has come, here or in another process; then all stop after the same iteration.
  absl::StatusOr<bool> MayBegin(std::int64_t iteration) {
    launch::Client* processes = run_.processes;
    if (processes == nullptr) return !stop_.requested();
    if (stop_.requested()) processes->RequestStop();
    processes->Progress(fmt::format("the beginning of iteration {}", iteration + 1));
    return processes->MayBegin(iteration);
  }

  // Keys under which processes speak of the newest checkpoint, where there is nothing to train.
  static constexpr const char* kIsInBucket = "the newest checkpoint is in the bucket";
  static constexpr const char* kAtStart = "the newest checkpoint at the start";

  std::optional<RunLock> lock_;     // of rank 0's process
  std::vector<std::string> hosts_;  // of each rank, where sinks want to know
  RunEnd end_;
  Clock::time_point last_began_;  // the iteration under way; a signal that stops the run comes later
  checkpoint::Retention retention_;
  OutcomeWriter outcome_;  // begun by rank 0's process
  StopSignals stop_;  // from the beginning: a signal during set-up ends the run before its first iteration
  std::unique_ptr<FaultKit> faults_;  // null: none are to be made
  RunContext run_;
};

}  // namespace

std::string CheckpointRoot(const std::string& out) {
  return (fs::path(out) / driver::kCheckpointsName).string();
}

std::string CheckpointRootIn(const std::string& folder) {
  std::error_code error;
  const std::string of_run = CheckpointRoot(folder);
  return fs::is_directory(of_run, error) ? of_run : folder;
}

absl::Status Check(const recipe::Recipe& recipe, const plan::DeviceProfile& device) {
  RETURN_IF_ERROR(CheckLimits(recipe, device));
  RETURN_IF_ERROR(data::Source::Open(recipe).status());
  ASSIGN_OR_RETURN(const std::vector<evaluate::Task> tasks, TasksOf(recipe));
  ASSIGN_OR_RETURN(const plan::Plan plan, driver::CompileRecipe(recipe, {.profile = device}));
  if (!tasks.empty()) RETURN_IF_ERROR(evaluate::CheckScores(plan));
  return CheckFast(recipe, plan);
}

absl::StatusOr<RunEnd> Run(const recipe::Recipe& recipe, const RunOptions& options,
                           const state::Device& device) {
  return Training(recipe, options, device).Run();
}

}  // namespace engine::train
