#include "tests/launch/emulated_hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

namespace engine::launch {

EmulatedHosts::EmulatedHosts(const cli::TinyRun& of, std::string more, Numbers numbers_of)
    : tiny(of),
      sets(std::move(more)),
      numbers(numbers_of),
      hosts(static_cast<std::size_t>(numbers.nodes + numbers.spares)) {
  for (int host = 0; host < numbers.nodes + numbers.spares; ++host) Start(host);
}

void EmulatedHosts::Start(int host) {
  std::unique_ptr<Background>& process = hosts[static_cast<std::size_t>(host)];
  process.reset();
  const int all = numbers.nodes + numbers.spares;
  process = std::make_unique<Background>(
      tiny, fmt::format("host{}-{}", host, ++starts),
      fmt::format("run {}{}{} --nodes {} --spares {} --node-rank {} --coordinator 127.0.0.1:{} "
                  "--max-restarts 2 --out {}",
                  tiny.recipe, kKept, sets, numbers.nodes, numbers.spares, host, port, tiny.out),
      fmt::format("ENGINE_TOKEN=t SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NTASKS={} SLURM_PROCID={} "
                  "SLURM_NODEID={} SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE='1(x{})' "
                  "SLURM_STEP_NODELIST=n[0-{}]",
                  all, host, host, all, all - 1));
}

bool WaitForFault(const std::string& out) {
  for (int i = 0; i < 12000; ++i) {
    if (!data::ReadFile(out + "/faults.jsonl").empty()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

std::string ShardsOf(const std::string& out, int iteration) {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(fmt::format("{}/checkpoints/iteration_{:07}", out, iteration)))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::string all;
  for (const std::string& file : files) {
    if (file.ends_with(".h5")) all += data::ReadFile(file);
  }
  return all;
}

}  // namespace engine::launch
