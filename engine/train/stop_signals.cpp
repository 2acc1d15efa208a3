#include "engine/train/stop_signals.h"

#include <semaphore.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "engine/launch/stop_requests.h"

namespace engine::train {
namespace {

// What the handler knows. It may run on any thread, in the middle of anything.
launch::StopRequests requests;
StopOptions options;
std::atomic<bool> asked_again = false;
std::atomic<std::int64_t> under_way = 0;  // an iteration; 0: none yet
std::atomic<std::int64_t> told = -1;      // what TellLast has said
std::atomic<launch::Client*> client = nullptr;
bool on_terminal = false;
sem_t ender_wakes;  // posted by the handler: nearly nothing else is safe there (signal-safety(7))
std::atomic<int> insisted_by = 0;  // the signal that ends this process; 0: none
static_assert(std::atomic<launch::Client*>::is_always_lock_free);

// One write of all of it, with no memory allocated.
class Line {
 public:
  void Add(std::string_view text) {
    const std::size_t count = std::min(text.size(), text_.size() - size_);
    std::memcpy(text_.data() + size_, text.data(), count);
    size_ += count;
  }
  void Add(std::int64_t number) {
    std::array<char, 20> digits{};
    std::size_t first = digits.size();
    do {
      digits[--first] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0);
    Add(std::string_view(digits.data() + first, digits.size() - first));
  }
  void Write() const { (void)!write(STDERR_FILENO, text_.data(), size_); }

 private:
  std::array<char, 256> text_{};
  std::size_t size_ = 0;
};

constexpr const char* kClearLine = "\r\x1b[K";  // of the progress bar, and the terminal's ^C

// Tells the user what is finished before the run stops, once. `iteration`: the last one, from 1; 0: none has
// begun.
void TellLast(std::int64_t iteration) {
  if (!options.tells || told.exchange(iteration) == iteration) return;
  Line line;
  if (on_terminal) line.Add(kClearLine);
  if (iteration > 0) {
    line.Add("finishing iteration ");
    line.Add(iteration);
    line.Add(", then saving");
  } else {
    line.Add("stopping before the first iteration");
  }
  if (options.again != StopOptions::Again::kNobody) line.Add("; again to stop at once");
  line.Add("\n");
  line.Write();
}

constexpr int kSignalBase = 128;  // of exit codes, as shells have it

// Leaves it to the thread of AwaitInsistence to tell how the run ended, and to end the process. That may wait for a disk: then
// one more request ends the process at once.
void EndAtOnce(int number) {
  if (insisted_by.exchange(number) != 0) _exit(kSignalBase + number);
  Line line;
  if (on_terminal) line.Add(kClearLine);
  line.Add(launch::kStoppedAtOnce);
  line.Add("\n");
  line.Write();
  sem_post(&ender_wakes);
}

// Returns where the run has ended by itself.
void AwaitInsistence(const std::function<void()>& before_end) {
  while (sem_wait(&ender_wakes) != 0) {
  }  // interrupted by a signal
  if (insisted_by == 0) return;
  if (before_end) before_end();
  _exit(kSignalBase + insisted_by);
}

void OnSignal(int number) {
  const int before = errno;
  const launch::StopRequests::Meaning meaning = requests.Take(number);
  launch::Client* const ranks = client;
  if (meaning == launch::StopRequests::Meaning::kStop && ranks != nullptr) {
    ranks->RequestStop();  // and TellLast when they have agreed
  } else if (meaning == launch::StopRequests::Meaning::kStop) {
    TellLast(under_way);
  } else if (meaning == launch::StopRequests::Meaning::kInsists &&
             options.again != StopOptions::Again::kThisProcess) {
    asked_again = true;
  } else if (meaning == launch::StopRequests::Meaning::kInsists) {
    EndAtOnce(number);
  }
  errno = before;
}

}  // namespace

StopSignals::StopSignals(const StopOptions& chosen, std::function<void()> before_end) {
  requests.Forget();
  options = chosen;
  asked_again = false;
  under_way = 0;
  told = -1;
  on_terminal = isatty(STDERR_FILENO) == 1;
  insisted_by = 0;
  sem_init(&ender_wakes, 0, 0);
  if (options.again == StopOptions::Again::kThisProcess)
    ender_ = std::thread(AwaitInsistence, std::move(before_end));
  struct sigaction stop {};
  stop.sa_handler = OnSignal;
  stop.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    Before before{.number = number};
    sigaction(number, nullptr, &before.action);
    if (number == SIGHUP && before.action.sa_handler == SIG_IGN) continue;
    sigaction(number, &stop, nullptr);
    before_.push_back(before);
  }
}

StopSignals::~StopSignals() {
  for (const Before& before : before_) sigaction(before.number, &before.action, nullptr);
  client = nullptr;
  sem_post(&ender_wakes);
  if (ender_.joinable()) ender_.join();
  sem_destroy(&ender_wakes);
}

bool StopSignals::requested() const { return requests.any(); }

bool StopSignals::insisted() const { return asked_again; }

void StopSignals::Begin(std::int64_t iteration) { under_way = iteration; }

void StopSignals::Attach(launch::Client* ranks) {
  ranks->OnStop([](std::int64_t last) { TellLast(last + 1); });
  client = ranks;
}

}  // namespace engine::train
