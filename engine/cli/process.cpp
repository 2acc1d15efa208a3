#include "engine/cli/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "engine/base/memory_limit.h"
#include "engine/base/units.h"
#include "engine/cli/device.h"

namespace engine::cli {
namespace {

// Made before it is needed: then there is no memory to make it.
std::string no_memory;
std::string no_thread;
std::terminate_handler terminate_before = nullptr;

// Returns what to say of the exception that ends the process; null: it is not for want of memory.
const std::string* ReasonOfEnd() {
  if (std::current_exception() == nullptr) return nullptr;
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return &no_memory;
  } catch (const std::system_error& error) {  // of std::thread
    if (error.code() == std::errc::not_enough_memory) return &no_memory;
    return error.code() == std::errc::resource_unavailable_try_again ? &no_thread : nullptr;
  } catch (...) {
    return nullptr;
  }
}

// Whether SIGHUP was ignored before any library could change that. `.preinit_array` of an executable runs
// before the constructors of its libraries (System V ABI), one of which may also stand in for sigaction(): so
// a system call.
bool hang_up_was_ignored = false;

void NoteHangUp() {
  struct {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    unsigned long mask;
  } action = {};  // as the kernel has it, on x86-64 and Arm
  if (syscall(SYS_rt_sigaction, SIGHUP, nullptr, &action, sizeof(action.mask)) == 0)
    hang_up_was_ignored = action.handler == SIG_IGN;
}
__attribute__((section(".preinit_array"), used)) void (*const kNoteHangUp)() = NoteHangUp;

sigset_t StopSignalSet() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  return set;
}

void* TakeSignals(void* /*unused*/) {
  const sigset_t set = StopSignalSet();
  pthread_setname_np(pthread_self(), kSignalThread);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  for (;;) pause();
}

void OnTerminate() {
  const std::string* reason = ReasonOfEnd();
  if (reason == nullptr) terminate_before();
  static std::atomic<bool> told = false;
  if (told.exchange(true)) {  // another thread is about to end the process
    for (;;) pause();
  }
  (void)!write(STDERR_FILENO, reason->data(), reason->size());
  _exit(kFailed);
}

}  // namespace

void OpenStandardStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest number that is free is this one's.
    if (fcntl(stream, F_GETFD) < 0 && errno == EBADF) (void)!open("/dev/null", O_RDWR);
  }
}

void RestoreHangUp() { std::signal(SIGHUP, hang_up_was_ignored ? SIG_IGN : SIG_DFL); }

void TakeSignalsElsewhere() {
  constexpr std::size_t kStackBytes = std::size_t{256} << 10;  // handlers need little
  const sigset_t set = StopSignalSet();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &set, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread{};
  // Where the system gives no thread, it soon refuses those that the command needs, which is an error then.
  if (pthread_create(&thread, &attributes, TakeSignals, nullptr) != 0)
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
}

void EndWhereMemoryEnds(const char* command) {
  const MemoryLimit limit = MemoryOfProcess();
  const std::string has = fmt::format("{} {} of memory", limit.source, FormatBytes(limit.bytes));
  no_memory = fmt::format("engine {}: not enough memory: {}\n", command, has);
  no_thread = fmt::format(
      "engine {}: no more threads can be started: {}, and ulimit -u bounds their number\n", command, has);
  terminate_before = std::set_terminate(OnTerminate);
}

void OutliveReaders() { std::signal(SIGPIPE, SIG_IGN); }

int WithOutputWritten(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  std::fputs("engine: standard output could not be written\n", stderr);
  return exit_code != 0 ? exit_code : kFailed;
}

}  // namespace engine::cli
