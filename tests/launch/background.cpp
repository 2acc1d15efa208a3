#include "tests/launch/background.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "engine/launch/socket.h"

namespace engine::launch {

using cli::TinyRun;

Background::Background(const TinyRun& tiny, const std::string& name, const std::string& arguments,
                       const std::string& environment, const std::string& before)
    : log_(tiny.folder / name + ".log") {
  const std::string command = "exec " + before + " env " + environment + " " + ENGINE_BINARY + " " +
                              arguments + " > " + log_ + " 2>&1";
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
}

Background::~Background() { KillAll(); }

pid_t Background::pid() const {
  REQUIRE_MESSAGE(pid_ > 0, log());
  return pid_;
}

void Background::KillAll() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  kill(-pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::string Background::log() const { return data::ReadFile(log_); }

std::vector<pid_t> Background::children() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children");
  return {std::istream_iterator<pid_t>(file), std::istream_iterator<pid_t>()};
}

int Background::Wait(double seconds) {
  int status = 0;
  for (const Clock::time_point end =
           Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
       Clock::now() < end;) {
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return -1;
}

bool WaitForMetrics(const std::string& out, std::uintmax_t bytes) {
  std::error_code error;
  for (int i = 0; i < 12000; ++i) {
    const std::uintmax_t size = std::filesystem::file_size(out + "/metrics.jsonl", error);
    if (!error && size >= bytes) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

bool HasOrphans(const TinyRun& tiny) {
  for (int i = 0; i < 400; ++i) {
    bool found = false;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string arguments = data::ReadFile(entry.path() / "cmdline");
      found = found || arguments.find(tiny.out) != std::string::npos;
    }
    if (!found) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  return true;
}

std::string NewestCheckpoint(const std::string& out) {
  std::string newest;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(out + "/checkpoints", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("iteration_")) newest = std::max(newest, name);
  }
  return newest;
}

std::vector<std::string> LossesOf(const std::string& out) {
  std::vector<std::string> losses;
  std::istringstream file(data::ReadFile(out + "/metrics.jsonl"));
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json.contains("loss")) losses.push_back(json["loss"].dump() + " " + json["grad_norm"].dump());
  }
  return losses;
}

int FreePort() {
  const absl::StatusOr<Descriptor> listener = Listen({"127.0.0.1", 0});
  return PortOf(*listener);
}

std::string RankVariables(int rank, int world, int port, const std::string& token) {
  return "ENGINE_RANK=" + std::to_string(rank) + " ENGINE_WORLD_SIZE=" + std::to_string(world) +
         " ENGINE_LOCAL_RANK=" + std::to_string(rank) + " ENGINE_LOCAL_SIZE=" + std::to_string(world) +
         " ENGINE_COORDINATOR=127.0.0.1:" + std::to_string(port) + " ENGINE_TOKEN=" + token;
}

}  // namespace engine::launch
