#include "engine/launch/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>

#include "engine/base/print.h"
#include "engine/base/status.h"
#include "engine/launch/handshake.h"
#include "engine/launch/rank_log.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/stop_requests.h"

namespace engine::launch {

namespace {

constexpr std::array<int, 4> kWatched = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
std::atomic<int> signal_pipe = -1;  // where the handler writes
static_assert(std::atomic<int>::is_always_lock_free);

// Runs on whichever thread gets the signal.
void NoteSignal(int number) {
  const int before = errno;
  const auto byte = static_cast<unsigned char>(number);
  if (const int pipe = signal_pipe; pipe >= 0) (void)!write(pipe, &byte, 1);
  errno = before;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Signals>> Signals::Make() {
  ENGINE_CHECK(signal_pipe < 0, "a process has its signals watched once");
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    return Unavailable("cannot make a pipe: {}", std::strerror(errno));
  }
  std::unique_ptr<Signals> signals(new Signals());
  signals->out_ = Descriptor(ends[0]);
  signals->in_ = Descriptor(ends[1]);
  signal_pipe = signals->in_.number();
  struct sigaction note {};
  note.sa_handler = NoteSignal;
  note.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kWatched.size(); ++i) {
    struct sigaction& before = signals->before_[i];
    sigaction(kWatched[i], nullptr, &before);
    if (kWatched[i] != SIGHUP || before.sa_handler != SIG_IGN) sigaction(kWatched[i], &note, nullptr);
  }
  return signals;
}

Signals::~Signals() {
  for (size_t i = 0; i < kWatched.size(); ++i) sigaction(kWatched[i], &before_[i], nullptr);
  signal_pipe = -1;
}

pid_t Signals::Fork() const {
  sigset_t watched;
  sigset_t before;
  sigemptyset(&watched);
  for (const int number : kWatched) sigaddset(&watched, number);
  pthread_sigmask(SIG_BLOCK, &watched, &before);
  const pid_t pid = fork();
  if (pid == 0) {
    for (size_t i = 0; i < kWatched.size(); ++i) sigaction(kWatched[i], &before_[i], nullptr);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return pid;
}

int Signals::Next() const {
  unsigned char byte = 0;
  return read(out_.number(), &byte, 1) == 1 ? byte : 0;
}

namespace {

constexpr auto kSurvivorEnd = std::chrono::seconds(3);  // of a process for which there is no further attempt
constexpr auto kOwnEnd = std::chrono::seconds(5);       // for the others to end by themselves
constexpr auto kTermEnd = std::chrono::seconds(3);      // after SIGTERM
constexpr int kSignalBase = 128;                        // of exit codes, as shells have it

// Lines of one stream of a rank, given on whole.
struct Lines {
  Descriptor pipe;
  std::int64_t rank = 0;
  bool is_error = false;
  std::string unfinished;

  // False: the stream has ended.
  template <typename Take>
  bool Pump(const Take& take) {
    std::array<char, 65536> buffer;
    const ssize_t got = read(pipe.number(), buffer.data(), buffer.size());
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got > 0) unfinished.append(buffer.data(), static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = unfinished.find('\n', begin)) != std::string::npos; begin = end + 1) {
      take(*this, unfinished.substr(begin, end - begin));
    }
    unfinished.erase(0, begin);
    if (got <= 0 && !unfinished.empty()) take(*this, std::exchange(unfinished, ""));
    return got > 0;
  }

  bool WaitReadable() const {
    pollfd waiting{pipe.number(), POLLIN, 0};
    return pipe.open() && poll(&waiting, 1, 0) > 0;
  }
};

// By proc(5): the state follows the program's name, which is in brackets.
bool IsStopped(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  return name_end != std::string::npos && line.substr(name_end + 1, 2) == " T";
}

struct Child {
  std::int64_t rank = 0;
  pid_t pid = 0;
  bool running = true;       // and takes part in the attempt
  int signals_sent = 0;      // by us, to end it
  PlaceGiver places = {};    // not open: it ends with the attempt
  bool waits = false;        // for a place in another attempt
  bool is_survivor = false;  // of an attempt before
};

class Supervisor {
 public:
  Supervisor(SupervisorOptions& options, const Signals& signals, SupervisedCodes codes)
      : options_(options), signals_(signals), codes_(codes) {}

  absl::StatusOr<SupervisedEnd> Run() {
    std::fflush(nullptr);  // what is buffered must not be written by the children too
    absl::Status started;
    for (std::int64_t local = 0; local < options_.local_size && started.ok(); ++local) started = Start(local);
    if (!started.ok()) {
      for (const Child& child : children_) kill(child.pid, SIGKILL);
      for (const Child& child : children_) waitpid(child.pid, nullptr, 0);
      return started;
    }
    while (AnyRunning()) {
      Poll();
      for (int number = signals_.Next(); number != 0; number = signals_.Next()) {
        if (number != SIGCHLD) Stop(number);
      }
      Reap();
      if (log_.is_due()) log_.Flush();
      EndTheRest();
    }
    for (Lines& lines : lines_) PumpAll(lines);
    log_.Flush();
    FinishReport();
    server_.reset();
    KeepSurvivors();
    return SupervisedEnd{.code = Code(),
                         .asked_to_stop = stop_requests_.any(),
                         .is_of_survivor = is_of_survivor_,
                         .verdict = Verdict()};
  }

 private:
  int Code() const {
    if (stopped_by_ != 0) return kSignalBase + stopped_by_;
    return code_ == 0 && stopped_ ? codes_.stopped : code_;
  }

  std::string Verdict() const {
    return whole_verdict_.empty() && stopped_by_ != 0 ? kStoppedAtOnce : whole_verdict_;
  }

  struct Pipe {
    Descriptor out, in;
  };
  static absl::StatusOr<Pipe> MakePipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0)
      return Unavailable("cannot make a pipe: {}", std::strerror(errno));
    return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
  }

  absl::StatusOr<Descriptor> AddPipe(std::int64_t rank, bool is_error) {
    ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
    fcntl(pipe.out.number(), F_SETFL, O_NONBLOCK);
    lines_.push_back({std::move(pipe.out), rank, is_error, ""});
    return std::move(pipe.in);
  }

  bool Pump(Lines& lines) {
    return lines.Pump(
        [this](const Lines& from, const std::string& line) { log_.Take(from.rank, from.is_error, line); });
  }
  // All that is there: a pipe that something else still holds is not waited for.
  void PumpAll(Lines& lines) {
    while (lines.WaitReadable() && Pump(lines)) {
    }
  }

  // What a rank is told of its place, "NAME=value".
  std::vector<std::string> PlaceOf(std::int64_t local) const {
    const std::int64_t rank = options_.first_rank + local;
    std::vector<std::string> variables = {fmt::format("ENGINE_RANK={}", rank),
                                          fmt::format("ENGINE_WORLD_SIZE={}", options_.world),
                                          fmt::format("ENGINE_LOCAL_RANK={}", local),
                                          fmt::format("ENGINE_LOCAL_SIZE={}", options_.local_size),
                                          "ENGINE_COORDINATOR=" + options_.coordinator.ToString(),
                                          "ENGINE_TOKEN=" + options_.token};
    if (rank == 0) variables.push_back(fmt::format("ENGINE_LISTENER={}", options_.listener.number()));
    if (!options_.memory_files.empty()) {
      variables.push_back(fmt::format("ENGINE_MEMORY={}", options_.memory_files[static_cast<size_t>(local)]));
    }
    if (options_.copies_port > 0) variables.push_back(fmt::format("ENGINE_COPIES={}", options_.copies_port));
    if (!options_.copies_at.empty()) variables.push_back("ENGINE_COPIES_AT=" + options_.copies_at);
    if (options_.from_disk) variables.emplace_back("ENGINE_FROM_DISK=1");
    if (options_.is_restart) variables.emplace_back("ENGINE_RESTART=1");
    return variables;
  }

  // Its place, and the variables that we have.
  std::vector<std::string> Environment(std::int64_t local, const Descriptor& next_place) const {
    std::vector<std::string> variables = PlaceOf(local);
    if (next_place.open()) variables.push_back(fmt::format("ENGINE_NEXT_PLACE={}", next_place.number()));
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string text = *variable;
      const bool replaced = std::any_of(variables.begin(), variables.end(), [&](const std::string& ours) {
        return text.starts_with(ours.substr(0, ours.find('=') + 1));
      });
      if (!replaced) variables.push_back(text);
    }
    return variables;
  }

  absl::Status Start(std::int64_t local) {
    const std::int64_t rank = options_.first_rank + local;
    // Rank 0 keeps our standard output, with a terminal where there is one.
    Descriptor out;
    if (rank != 0 && options_.all_output) {
      ASSIGN_OR_RETURN(out, AddPipe(rank, /*is_error=*/false));
    } else if (rank != 0) {
      out = Descriptor(open("/dev/null", O_WRONLY | O_CLOEXEC));
    }
    if (Reuse(local, out.open() ? out.number() : STDOUT_FILENO)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const Descriptor error, AddPipe(rank, /*is_error=*/true));
    PlaceGiver places;
    Descriptor next_place;
    if (options_.survivors != nullptr) {
      ASSIGN_OR_RETURN(places, PlaceGiver::Make(&next_place));
    }
    ASSIGN_OR_RETURN(Pipe not_started, MakePipe());  // closed by exec; else the error comes
    // All that the child needs is made before the fork: between it and exec nothing may allocate.
    std::vector<std::string> arguments = options_.arguments;
    std::vector<std::string> environment = Environment(local, next_place);
    const std::vector<char*> argv = Pointers(arguments);
    const std::vector<char*> envp = Pointers(environment);
    const pid_t parent = getpid();
    const pid_t pid = signals_.Fork();
    if (pid < 0) {
      return ResourceExhausted("this machine starts no more than {} of {} ranks as processes: {}", local,
                               options_.local_size, std::strerror(errno));
    }
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      if (out.open()) dup2(out.number(), STDOUT_FILENO);
      dup2(error.number(), STDERR_FILENO);
      if (rank == 0) fcntl(options_.listener.number(), F_SETFD, 0);
      if (next_place.open()) fcntl(next_place.number(), F_SETFD, 0);
      if (!options_.memory_files.empty())
        fcntl(options_.memory_files[static_cast<size_t>(local)], F_SETFD, 0);
      execve(options_.program.c_str(), argv.data(), envp.data());
      const int why = errno;
      (void)!write(not_started.in.number(), &why, sizeof(why));
      _exit(1);
    }
    children_.push_back({.rank = rank, .pid = pid, .places = std::move(places)});
    not_started.in.Close();
    int why = 0;
    if (read(not_started.out.number(), &why, sizeof(why)) == sizeof(why)) {
      return Unavailable("{} cannot be started as rank {}: {}", options_.program, rank, std::strerror(why));
    }
    return absl::OkStatus();
  }

  // Gives the place to the process that has outlived the attempt before there. False: there is none.
  bool Reuse(std::int64_t local, int out) {
    if (options_.survivors == nullptr) return false;
    std::optional<Survivor> survivor = options_.survivors->Take(local);
    if (!survivor) return false;
    const std::int64_t rank = options_.first_rank + local;
    std::vector<std::pair<std::string, int>> shared;
    if (rank == 0) shared.emplace_back("ENGINE_LISTENER", options_.listener.number());
    if (!options_.memory_files.empty())
      shared.emplace_back("ENGINE_MEMORY", options_.memory_files[static_cast<size_t>(local)]);
    if (!survivor->places.Give({options_.arguments, PlaceOf(local)}, out, shared)) {
      kill(survivor->pid, SIGKILL);
      waitpid(survivor->pid, nullptr, 0);
      return false;
    }
    lines_.push_back({std::move(survivor->error), rank, /*is_error=*/true, ""});
    children_.push_back(
        {.rank = rank, .pid = survivor->pid, .places = std::move(survivor->places), .is_survivor = true});
    return true;
  }

  void KeepSurvivors() {
    for (Child& child : children_) {
      if (!child.waits) continue;
      const auto error = std::find_if(lines_.begin(), lines_.end(), [&](const Lines& lines) {
        return lines.rank == child.rank && lines.is_error;
      });
      options_.survivors->Add(
          child.rank - options_.first_rank,
          {.pid = child.pid, .places = std::move(child.places), .error = std::move(error->pipe)});
    }
  }

  static std::vector<char*> Pointers(std::vector<std::string>& texts) {
    std::vector<char*> pointers(texts.size() + 1);  // the last is null
    std::transform(texts.begin(), texts.end(), pointers.begin(),
                   [](std::string& text) { return text.data(); });
    return pointers;
  }

  bool AnyRunning() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.running; });
  }

  void Stop(int number) {
    const bool insists = stop_requests_.Take(number) == StopRequests::Meaning::kInsists;
    if (insists && stopped_by_ == 0) {
      stopped_by_ = number;
      Print(stderr, "{}\n", kStoppedAtOnce);
    }
    for (Child& child : children_) {
      if (!child.running) continue;
      if (insists) ++child.signals_sent;
      kill(child.pid, insists ? SIGKILL : number);
    }
  }

  void Poll() {
    std::vector<pollfd> waiting = {{signals_.number(), POLLIN, 0}};
    for (const Lines& lines : lines_) waiting.push_back({lines.pipe.number(), POLLIN, 0});
    for (const Child& child : children_)
      waiting.push_back({child.running ? child.places.number() : -1, POLLIN, 0});
    constexpr int kLookMs = 200;
    poll(waiting.data(), waiting.size(), next_signal_ == 0 && !log_.holds() ? -1 : kLookMs);
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (waiting[i + 1].revents != 0 && !Pump(lines_[i])) lines_[i].pipe.Close();
    }
  }

  void Reap() {
    for (Child& child : children_) {
      int status = 0;
      if (TakesLeave(child)) continue;
      if (!child.running || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
      child.running = false;
      Judge(child, status);
    }
  }

  // Whether it has left the attempt just now, to wait for another one.
  bool TakesLeave(Child& child) {
    if (!child.running || !child.places.HasAsked()) return false;
    child.running = false;
    child.waits = true;
    Judge(child, ExitStatus(codes_.peer_lost));
    return true;
  }

  // As waitpid(2) has it.
  static int ExitStatus(int code) { return code << 8; }

  // The first that failed by itself is the one that counts.
  void Judge(const Child& child, int status) {
    const int code = WIFSIGNALED(status) ? kSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
    stopped_ = stopped_ || (code == codes_.stopped && code != 0);
    if (code == 0 || code == codes_.stopped) return;
    if (next_signal_ == 0) {
      next_signal_ = SIGTERM;
      next_moment_ = Clock::now() + kOwnEnd;
      EndStopped();
    }
    const bool by_itself = code != codes_.peer_lost && child.signals_sent == 0;
    if (code_ != 0 && (code_ != codes_.peer_lost || !by_itself)) return;
    if (by_itself) {
      failed_ = {child.rank, child.pid};
      is_of_survivor_ = child.is_survivor;
      verdict_ = WIFSIGNALED(status) ? fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                                                   strsignal(WTERMSIG(status)))
                                     : fmt::format("ended with exit code {}", code);
      for (Lines& lines : lines_) {
        if (lines.rank == failed_.rank) PumpAll(lines);
      }
      whole_verdict_ = fmt::format("rank {} (pid {}) {}", failed_.rank, failed_.pid, verdict_);
      log_.Tell(failed_.rank, whole_verdict_);
      Report();
    }
    code_ = by_itself ? code : codes_.peer_lost;
  }

  // Tells ranks that wait for the failed one to join. If rank 0, whom they would ask, is gone, this process
  // takes its place, since ranks on other hosts may still come.
  void Report() {
    const std::string host = ProcessName();
    const Member member{.rank = failed_.rank,
                        .world = options_.world,
                        .build = "",
                        .plan_hash = "",
                        .device = "",
                        .process = fmt::format("{}, pid {}", host.substr(0, host.find(',')), failed_.pid)};
    if (failed_.rank == 0) return TakePlace(member, RendezvousOptions().linger);
    report_ = std::thread([this, member] {
      constexpr auto kForThoseWaiting = Milliseconds(500);
      const bool told =
          Client::ReportFailure(options_.coordinator, options_.token, member, {}, verdict_, &moot_);
      if (!told && options_.first_rank == 0) TakePlace(member, kForThoseWaiting);
    });
  }

  // Takes the port of rank 0, which is gone: whoever comes to join is told why the run has ended.
  void TakePlace(const Member& failed, Milliseconds linger) {
    RendezvousOptions rendezvous;
    rendezvous.linger = options_.local_size == options_.world ? Milliseconds(0) : linger;
    server_ = Server::Start(std::move(options_.listener), options_.token, failed, rendezvous,
                            failed.Name() + " " + verdict_);
  }

  void FinishReport() {
    moot_ = options_.first_rank == 0;  // who could hear it has ended
    if (report_.joinable()) report_.join();
  }

  static void End(Child& child, int number) {
    kill(child.pid, number);
    if (child.signals_sent++ > 0) return;
    Print(stderr, "engine run: rank {} (pid {}) did not end by itself: it is ended\n", child.rank, child.pid);
  }

  void EndTheRest() {
    if (next_signal_ == 0 || Clock::now() < next_moment_) return;
    for (Child& child : children_) {
      if (!TakesLeave(child) && child.running) End(child, next_signal_);
    }
    next_signal_ = SIGKILL;
    next_moment_ = Clock::now() + kTermEnd;
  }

  // Those that a signal has stopped cannot end by themselves.
  void EndStopped() {
    for (Child& child : children_) {
      if (child.running && IsStopped(child.pid)) End(child, SIGKILL);
    }
  }

  SupervisorOptions& options_;
  const Signals& signals_;
  const SupervisedCodes codes_;
  std::vector<Child> children_;
  std::vector<Lines> lines_;
  RankLog log_;
  int code_ = 0;
  bool stopped_ = false;  // a rank, before the end
  struct {
    std::int64_t rank = 0;
    pid_t pid = 0;
  } failed_;  // the first that failed by itself
  bool is_of_survivor_ = false;
  std::string verdict_;  // of it
  std::string whole_verdict_;
  std::unique_ptr<Server> server_;
  std::thread report_;              // tells the rendezvous of the failure
  std::atomic<bool> moot_ = false;  // nobody is left who could hear the report
  StopRequests stop_requests_;
  int stopped_by_ = 0;   // the signal that insisted
  int next_signal_ = 0;  // to the ranks that still run; 0: none has failed
  Clock::time_point next_moment_;
};

}  // namespace

absl::StatusOr<SupervisedEnd> Supervise(SupervisorOptions options, SupervisedCodes codes) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Signals> signals, Signals::Make());
  return Supervisor(options, *signals, codes).Run();
}

void Survivors::End() {
  for (auto& [local_rank, survivor] : by_local_rank_) survivor.places.Close();
  const Clock::time_point end = Clock::now() + kSurvivorEnd;
  for (auto& [local_rank, survivor] : by_local_rank_) {
    constexpr auto kLook = std::chrono::milliseconds(5);
    bool has_ended = false;
    while (!(has_ended = waitpid(survivor.pid, nullptr, WNOHANG) != 0) && Clock::now() < end)
      std::this_thread::sleep_for(kLook);
    if (has_ended) continue;
    kill(survivor.pid, SIGKILL);
    waitpid(survivor.pid, nullptr, 0);
  }
  by_local_rank_.clear();
}

void Survivors::Add(std::int64_t local_rank, Survivor survivor) {
  by_local_rank_.insert_or_assign(local_rank, std::move(survivor));
}

std::optional<Survivor> Survivors::Take(std::int64_t local_rank) {
  auto node = by_local_rank_.extract(local_rank);
  if (node.empty() || waitpid(node.mapped().pid, nullptr, WNOHANG) != 0) return std::nullopt;
  if (IsStopped(node.mapped().pid)) {  // by a signal: it would take part in nothing
    kill(node.mapped().pid, SIGKILL);
    waitpid(node.mapped().pid, nullptr, 0);
    return std::nullopt;
  }
  return std::move(node.mapped());
}

std::vector<std::string> OwnArguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

absl::StatusOr<std::string> RandomToken() {
  ASSIGN_OR_RETURN(const std::string bytes, RandomBytes(16));
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

}  // namespace engine::launch
