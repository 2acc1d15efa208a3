// The program's set-up of its own process, which is the same for every command.
#pragma once

namespace engine::cli {

// Opens /dev/null in the place of each standard stream that is closed: else the next file or socket would get
// its number, and what is meant for the stream would go there. To be called before anything is opened.
void OpenStandardStreams();

// Gives SIGHUP back the meaning that whoever started the program gave it: nohup(1) has it ignored. A library
// that Gloo is linked with on some systems (UCX, by its setting UCX_DEBUG_SIGNO) puts a handler of its own
// there before main() begins.
void RestoreHangUp();

// From now on SIGINT, SIGTERM and SIGHUP are taken by a thread that does nothing else, of the name below, and by none that is started later. A handler
// on a thread that computes would be the end of it: oneDNN's matrix products use the stack pointer for addresses of their own, and
// the system writes what it calls a handler with to where that points. To be called before any other thread is started.
void TakeSignalsElsewhere();
inline constexpr const char* kSignalThread = "engine-signals";  // at most 15 bytes

// From now on too little memory, on any thread, ends the process with exit code 1 and a line on standard
// error that begins with the command: "engine run: not enough memory: …".
void EndWhereMemoryEnds(const char* command);

// Whoever reads what the program writes may go: a long run ends for other reasons.
void OutliveReaders();

// Writes all output that waits. Returns the exit code; 1 in place of 0 where the output could not be written,
// which is said.
int WithOutputWritten(int exit_code);

}  // namespace engine::cli
