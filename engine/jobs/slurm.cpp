#include "engine/jobs/slurm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string>
#include <string_view>

namespace engine::jobs {
namespace {

// HH:MM:SS, of which there may be more than 24 hours.
std::string Clock(std::int64_t seconds) {
  constexpr std::int64_t kMinute = 60;
  return fmt::format("{:02}:{:02}:{:02}", seconds / kMinute / kMinute, seconds / kMinute % kMinute,
                     seconds % kMinute);
}

// Lines "#SBATCH --OPTION", without those whose value is not there.
class Directives {
 public:
  Directives& Flag(const std::string& option) {
    text_ += "#SBATCH --" + option + "\n";
    return *this;
  }
  template <typename T>
  Directives& Value(const std::string& option, const T& value) {
    return Flag(fmt::format("{}={}", option, value));
  }
  Directives& Given(const std::string& option, const std::string& value) {
    return value.empty() ? *this : Value(option, value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

std::string ShellWord(const std::string& text) {
  const bool is_plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./=:,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (is_plain) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

namespace {

std::string InQuotes(const std::string& text) {
  std::string inner;
  for (const char c : text) inner += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return inner;
}

// srun tells the largest code of all tasks, also of one whose place a spare has taken.
std::string CodeOfRun(const Job& job) {
  if (!job.outlives_nodes()) return "code=$?\n";
  return fmt::format(R"(code=$?
if [ $code -gt 128 ]; then   # of a process that was killed, whose place another may have taken: the run itself may have ended well
  case $(grep -os '"outcome": "[a-z]*"' {}/outcome.json) in *finished*) code=0 ;; *stopped*) code={} ;; esac
fi
)",
                     ShellWord(job.out), kBatchStoppedCode);
}

// What srun starts on each node, within the quotes of bash -c. Where the job outlives nodes, two of them see to it that it does not
// stay, without a process, when its first node is lost, which runs the script: two, as one may be lost too.
std::string NodeCommand(const std::string& run, const Job& job, std::int64_t retries) {
  const std::string command =
      InQuotes(run) +
      fmt::format(
          R"( --nodes {} --node-rank "$SLURM_NODEID" --coordinator "$ENGINE_MEETS_AT" --stopped-code {} --retry-code {})",
          job.nodes, kBatchStoppedCode, kBatchRetryCode);
  if (!job.outlives_nodes()) return "exec " + command;
  return "trap : TERM INT HUP\n" + command + "\n" + InQuotes(CodeOfRun(job)) + R"(
case $SLURM_NODEID in 1 | 2) ;; *) exit $code ;; esac
first=${ENGINE_MEETS_AT%:*}
runs() { case $(squeue -h -j "$SLURM_JOB_ID" -o %T) in RUNNING | SIGNALING) ;; *) return 1 ;; esac; }
answers() { timeout 30 srun --overlap --nodes=1 --ntasks=1 --nodelist="$first" --mpi=none true; }
is_down() { case $(sinfo -h -n "$first" -o %T) in *down* | *\**) ;; *) return 1 ;; esac; }
# The first node is lost if it takes no step, twice: SLURM may only be slow. After a run that has ended well SLURM has to say so, too.
for try in 1 2 3 4 5 6 7 8 9 10; do
  runs && ! answers || exit $code
  if [ $try -gt 1 ]; then
    if [ $code -ne 0 ] || is_down; then break; fi
  fi
  [ $try -lt 10 ] || exit $code
  sleep 60
done
case $code in
  1 | 2 | 17) ;;   # another try ends alike
  *) [ "${SLURM_RESTART_COUNT:-0}" -lt )" +
         std::to_string(retries) +
         R"( ] && scontrol requeue "$SLURM_JOB_ID" && exit $code ;;   # refused, too, where the other node was first
esac
runs && scancel "$SLURM_JOB_ID"
exit $code)";
}

}  // namespace

std::string SlurmScript(const recipe::Recipe& recipe, const Job& job) {
  const recipe::Launch& launch = recipe.launch;
  Directives directives;
  directives.Value("job-name", job.name).Value("nodes", job.all_nodes()).Value("ntasks-per-node", 1);
  if (job.gpus) directives.Value("gpus-per-node", job.ranks_per_node);
  directives.Flag("exclusive");
  if (job.outlives_nodes()) directives.Flag("no-kill");  // the job, for a node that is lost
  // 0: all of a node's, which --exclusive by itself does not give.
  directives.Value("mem",
                   launch.host_memory_bytes == 0 ? "0" : fmt::format("{}M", launch.host_memory_bytes >> 20));
  if (launch.time_limit_s > 0) {
    // To the tasks and not to this shell (without B:), so that the runs save.
    directives.Value("time", Clock(launch.time_limit_s))
        .Value("signal", fmt::format("TERM@{}", launch.grace_period_s));
  }
  directives.Given("partition", launch.queue).Given("account", launch.account).Given("qos", launch.priority);
  directives.Flag(launch.retries > 0 ? "requeue" : "no-requeue");
  directives.Value("open-mode", "append").Value("output", job.name + "-%j.log");

  const std::string network =
      launch.network == "efa" ? "export FI_EFA_USE_HUGE_PAGE=0   # the program starts processes\n" : "";
  std::string run =
      fmt::format("{} run {} --out {}", ShellWord(launch.command), ShellWord(job.recipe), ShellWord(job.out));
  for (const std::string& option : job.RestartOptions()) run += " " + option;
  return fmt::format(
      R"(#!/bin/bash
{directives}
# Written by engine launch slurm. It saves {grace} s before a time limit; a stop, and a failure that another try may cure, put it into the
# queue again, up to {retries} times.
set -u
{network}# What the run's processes know each other by, and where they meet.
export ENGINE_TOKEN=${{ENGINE_TOKEN:-$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')}}
host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export ENGINE_MEETS_AT=$host:$((10000 + SLURM_JOB_ID % 20000))

{about_nodes}srun {no_kill}--kill-on-bad-exit=0 --mpi=none bash -c '{node}'
{code}
case $code in
  0 | 1 | 2 | 17) exit $code ;;   # the end; the recipe, the data, the options, a bad number of its own: another try ends alike
esac
if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {retries} ]; then
  echo "ended with $code; into the queue again"
  scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
exit $code
)",
      fmt::arg("directives", directives.text()), fmt::arg("grace", launch.grace_period_s),
      fmt::arg("retries", launch.retries), fmt::arg("network", network),
      fmt::arg("node", NodeCommand(run, job, launch.retries)), fmt::arg("code", CodeOfRun(job)),
      fmt::arg("about_nodes", job.outlives_nodes()
                                  ? "# When the first node is lost, the run goes on, without this script: at "
                                    "its end others put the job into the queue,\n"
                                    "# where it goes on, or finds that all is done, or end it.\n"
                                  : ""),
      fmt::arg("no_kill", job.outlives_nodes() ? "--no-kill " : ""));
}

}  // namespace engine::jobs
