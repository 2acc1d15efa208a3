#include "engine/study/study.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/print.h"
#include "engine/base/write_file.h"
#include "engine/launch/socket.h"
#include "engine/launch/supervisor.h"
#include "engine/model/load.h"
#include "engine/recipe/print.h"
#include "engine/study/report.h"

namespace engine::study {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDevices = "CUDA_VISIBLE_DEVICES";

struct Job {
  std::string name;  // "swiglu, seed 3"
  std::string folder;
  recipe::Recipe recipe;
  pid_t pid = 0;
  std::int64_t slot = 0;
};

absl::Status MakeFolder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Unavailable("{}: cannot create: {}", path.string(), error.message());
  return absl::OkStatus();
}

// The numbers of the GPUs that the jobs share, as CUDA_VISIBLE_DEVICES names them; from 0 where it says
// nothing.
std::string DevicesOfSlot(std::int64_t slot, std::int64_t each) {
  std::vector<std::string> named;
  if (const char* list = std::getenv(kDevices); list != nullptr && *list != '\0') {
    std::string word;
    for (const char* c = list;; ++c) {
      if (*c != ',' && *c != '\0') {
        word += *c;
        continue;
      }
      named.push_back(std::exchange(word, ""));
      if (*c == '\0') break;
    }
  }
  std::string devices;
  for (std::int64_t i = slot * each; i < (slot + 1) * each; ++i) {
    if (!named.empty() && i >= static_cast<std::int64_t>(named.size())) break;
    devices += (devices.empty() ? "" : ",") +
               (named.empty() ? fmt::format("{}", i) : named[static_cast<std::size_t>(i)]);
  }
  return devices;
}

class Runner {
 public:
  Runner(const recipe::Study& study, const StudyOptions& options, const ProfileFunction& profile)
      : study_(study), options_(options), profile_(profile) {}

  absl::StatusOr<StudyEnd> Run() {
    RETURN_IF_ERROR(MakeFolder(options_.out));
    RETURN_IF_ERROR(Lock());
    RETURN_IF_ERROR(Prepare());
    ASSIGN_OR_RETURN(const std::unique_ptr<launch::Signals> signals, launch::Signals::Make());
    signals_ = signals.get();
    const std::size_t all = waiting_.size() + finished_;
    Print(stdout, "{} runs, {} of them finished before\n", all, finished_);
    RETURN_IF_ERROR(Report());
    while (!running_.empty() || (!waiting_.empty() && !stopping_)) {
      while (!stopping_ && !waiting_.empty() && static_cast<std::int64_t>(running_.size()) < options_.jobs) {
        RETURN_IF_ERROR(StartNext());
      }
      Wait();
      RETURN_IF_ERROR(Reap());
    }
    Print(stdout, "{}\n", (fs::path(options_.out) / kReportName).string());
    if (stopping_)
      Print(stdout, "interrupted with {} of {} runs finished; the same command goes on\n", finished_, all);
    return stopping_ && finished_ < all ? StudyEnd::kInterrupted
           : failed_ > 0                ? StudyEnd::kFailed
                                        : StudyEnd::kFinished;
  }

 private:
  absl::Status Lock() {
    lock_ = launch::Descriptor(open(options_.out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (flock(lock_.number(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return absl::OkStatus();
    return FailedPrecondition("{} is in use by another study; wait for its end, or give another --out",
                              options_.out);
  }

  // All of the folder but what runs write, so that it can be looked at before they do.
  absl::Status Prepare() {
    ASSIGN_OR_RETURN(planned_, PlanResults(study_, profile_));
    ASSIGN_OR_RETURN(const Side base, SideOf("base", study_.base, profile_(study_.base)));
    // Seed by seed: what else the machine does then slows all variants alike.
    for (const std::int64_t seed : study_.seeds) {
      for (const recipe::Variant& variant : study_.variants) RETURN_IF_ERROR(AddRun(variant, seed));
    }
    for (const recipe::Variant& variant : study_.variants) {
      ranks_ = std::max(ranks_, variant.recipe.world_size());
      ASSIGN_OR_RETURN(const Side side, SideOf(variant.name, variant.recipe, profile_(variant.recipe)));
      const fs::path folder = fs::path(StudyRunFolder(options_.out, variant.name, 0)).parent_path();
      RETURN_IF_ERROR(WriteFile(folder / "diff.md", ToMarkdown(Compare(base, side))));
    }
    return absl::OkStatus();
  }

  absl::Status AddRun(const recipe::Variant& variant, std::int64_t seed) {
    Job job{.name = fmt::format("{}, seed {}", variant.name, seed),
            .folder = StudyRunFolder(options_.out, variant.name, seed),
            .recipe = WithSeed(variant.recipe, seed)};
    RETURN_IF_ERROR(MakeFolder(job.folder));
    const fs::path path = fs::path(job.folder) / "recipe.toml";
    std::error_code error;
    if (fs::exists(path, error)) {
      const recipe::LoadResult before = model::Load(path.string());
      const std::vector<recipe::Change> changes = recipe::Diff(before.recipe, job.recipe);
      if (!changes.empty()) {
        return FailedPrecondition(
            "{} was made with {} = {}, which is now {}; give another --out, or remove that folder",
            job.folder, changes[0].key, changes[0].before, changes[0].after);
      }
    } else {
      RETURN_IF_ERROR(WriteFile(path, recipe::ToToml(job.recipe)));
    }
    if (ReadFinished(job.folder, job.recipe)) {
      ++finished_;
    } else {
      waiting_.push_back(std::move(job));
    }
    return absl::OkStatus();
  }

  absl::Status StartNext() {
    Job job = std::move(waiting_.front());
    waiting_.pop_front();
    const auto taken = [&](std::int64_t slot) {
      return std::any_of(running_.begin(), running_.end(),
                         [&](const Job& other) { return other.slot == slot; });
    };
    while (taken(job.slot)) ++job.slot;
    RETURN_IF_ERROR(Start(&job));
    Print(stdout, "{}: started\n", job.name);
    std::fflush(stdout);
    running_.push_back(std::move(job));
    return absl::OkStatus();
  }

  // The run of a study that was killed dies with it, but not at once.
  static void AwaitEndOfOther(const std::string& out) {
    constexpr int kMostTries = 500;
    const launch::Descriptor folder(open(out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.open()) return;
    for (int tries = 0; flock(folder.number(), LOCK_EX | LOCK_NB) != 0 && tries < kMostTries; ++tries) {
      usleep(10'000);
    }
  }

  absl::Status Start(Job* job) const {
    const std::string recipe = (fs::path(job->folder) / "recipe.toml").string();
    const std::string out = (fs::path(job->folder) / "run").string();
    AwaitEndOfOther(out);
    std::vector<std::string> words = {"engine", "run", recipe, "--out", out};
    words.insert(words.end(), options_.run_arguments.begin(), options_.run_arguments.end());
    std::vector<std::string> variables;
    for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
    if (options_.jobs > 1 && job->recipe.cluster.device != "cpu") {
      std::erase_if(variables,
                    [](const std::string& v) { return v.starts_with(std::string(kDevices) + "="); });
      variables.push_back(fmt::format("{}={}", kDevices, DevicesOfSlot(job->slot, ranks_)));
    }
    const std::vector<char*> arguments = Pointers(&words);
    const std::vector<char*> environment = Pointers(&variables);
    const std::string log_path = (fs::path(job->folder) / "log.txt").string();
    ASSIGN_OR_RETURN(const int log_number, OpenRegular(log_path, O_WRONLY | O_CREAT | O_APPEND));
    const launch::Descriptor log(log_number);
    const launch::Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
    std::fflush(nullptr);
    const pid_t parent = getpid();
    job->pid = signals_->Fork();
    if (job->pid < 0) return Unavailable("cannot start {}: {}", job->name, std::strerror(errno));
    if (job->pid > 0) return absl::OkStatus();
    // A group of its own: Ctrl-C reaches it through us alone.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(nothing.number(), STDIN_FILENO);
    dup2(log.number(), STDOUT_FILENO);
    dup2(log.number(), STDERR_FILENO);
    execve(options_.program.c_str(), arguments.data(), environment.data());
    _exit(127);
  }

  static std::vector<char*> Pointers(std::vector<std::string>* texts) {
    std::vector<char*> pointers;
    for (std::string& text : *texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    return pointers;
  }

  void Wait() {
    pollfd readable{.fd = signals_->number(), .events = POLLIN, .revents = 0};
    poll(&readable, 1, -1);
    for (int number = signals_->Next(); number != 0; number = signals_->Next()) {
      if (number == SIGCHLD) continue;
      if (!stopping_)
        Print(stderr, "the runs under way finish their iteration and save; again to stop at once\n");
      stopping_ = true;
      for (const Job& job : running_) kill(job.pid, number);
    }
  }

  absl::Status Reap() {
    for (std::size_t i = 0; i < running_.size();) {
      int status = 0;
      rusage usage{};
      if (wait4(running_[i].pid, &status, WNOHANG, &usage) != running_[i].pid) {
        ++i;
        continue;
      }
      const Job job = std::move(running_[i]);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      RETURN_IF_ERROR(End(job, status, usage.ru_maxrss * 1024));
    }
    return absl::OkStatus();
  }

  absl::Status End(const Job& job, int status, std::int64_t peak_memory_bytes) {
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      ++failed_;
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      Print(stdout, "{}: failed with exit code {}, see {}/log.txt\n", job.name, code, job.folder);
    } else if (!TrainedToTheEnd(job.folder, job.recipe)) {
      ++failed_;
      Print(stdout, "{}: stopped before its end\n", job.name);
    } else {
      RETURN_IF_ERROR(WriteFinished(job.folder, job.recipe, {peak_memory_bytes}));
      ++finished_;
      Print(stdout, "{}: finished\n", job.name);
    }
    return Report();
  }

  absl::Status Report() const {
    std::fflush(stdout);
    const StudyResults results = ReadResults(planned_, study_, options_.out);
    const fs::path out = options_.out;
    constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
    RETURN_IF_ERROR(WriteFile(out / kResultsName, ToJson(results).dump(1, ' ', false, kReplace) + "\n"));
    return WriteFile(out / kReportName, ReportPage(results));
  }

  const recipe::Study& study_;
  const StudyOptions& options_;
  const ProfileFunction& profile_;
  const launch::Signals* signals_ = nullptr;
  StudyResults planned_;
  launch::Descriptor lock_;
  std::deque<Job> waiting_;
  std::vector<Job> running_;
  std::size_t finished_ = 0, failed_ = 0;
  std::int64_t ranks_ = 1;  // of the largest variant
  bool stopping_ = false;
};

}  // namespace

absl::StatusOr<StudyEnd> RunStudy(const recipe::Study& study, const StudyOptions& options,
                                  const ProfileFunction& profile) {
  return Runner(study, options, profile).Run();
}

}  // namespace engine::study
