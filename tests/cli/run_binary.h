// Runs the program itself, as a user would.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

namespace engine::cli {

struct ProgramResult {
  int exit_code = 0;
  std::string output;  // of both streams
};

inline ProgramResult RunShell(const std::string& command) {
  ProgramResult result;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    result.output.append(buffer, got);
  const int status = ::pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

// `arguments` as in a shell; `environment` as "NAME=value".
inline ProgramResult RunProgram(const std::string& arguments, const std::string& environment = "") {
  return RunShell(environment + " " + ENGINE_BINARY + " " + arguments);
}

// Starts the program and sends it the signal once it is `under_way`. Its exit code; −1 where the signal ended
// it.
inline int Interrupt(const std::string& arguments, const std::function<bool()>& under_way, int signal_number,
                     int times = 1) {
  const pid_t pid = fork();
  if (pid == 0) {
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    signal(SIGINT, SIG_DFL);  // a shell's background ignores it
    execl("/bin/sh", "sh", "-c", ("exec " ENGINE_BINARY " " + arguments).c_str(), nullptr);
    _exit(127);
  }
  while (!under_way()) {
    REQUIRE(waitpid(pid, nullptr, WNOHANG) == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (int sent = 0; sent < times; ++sent) {
    if (sent > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // as senders repeat a request
    kill(pid, signal_number);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

inline bool Contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  MESSAGE("no '" << part << "' in: " << text);
  return false;
}

}  // namespace engine::cli
