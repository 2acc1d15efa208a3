#include "engine/jobs/job_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/jobs/kubernetes.h"
#include "engine/jobs/slurm.h"
#include "engine/recipe/rules.h"

namespace engine::jobs {
namespace {

using recipe::Recipe;

const std::array<std::string, 6> kSchedulers = {"slurm",    "pytorchjob", "jobset",
                                                "trainjob", "mpijob",     "hyperpod"};

absl::Status ErrorOf(const Recipe& recipe, const char* key, std::string message, std::string hint) {
  Diagnostic diagnostic{.span = {recipe.path, 0, 0, 1},
                        .message = std::move(message),
                        .hint = std::move(hint),
                        .source_line = "",
                        .code = "E211"};
  if (const auto found = recipe.provenance.find(key); found != recipe.provenance.end()) {
    diagnostic.span = found->second.span;
    diagnostic.source_line = found->second.source_line;
  }
  std::string text = Format(diagnostic);
  while (text.ends_with('\n')) text.pop_back();
  return absl::InvalidArgumentError(text);
}

// The longest name of a job. A JobSet's pod is called NAME-node-0-12345-abcde, and JobSet refuses names of more than 63 characters.
constexpr std::size_t kMostOfName = 44;

// A name as objects of Kubernetes have them, and hosts: of a recipe's file name, what of it such names may have.
std::string NameFrom(const std::string& file) {
  std::string name;
  for (const char c : std::filesystem::path(file).stem().string()) {
    const auto byte = static_cast<unsigned char>(c);
    const bool fits = std::isalnum(byte) != 0 && byte < 0x80;
    if (name.empty() && (!fits || std::isdigit(byte) != 0)) continue;  // a letter is first
    if (fits) {
      name += static_cast<char>(std::tolower(byte));
    } else if (name.back() != '-') {
      name += '-';
    }
  }
  name.resize(std::min(name.size(), kMostOfName));
  while (name.ends_with('-')) name.pop_back();
  return name;
}

// What goes into lines of a script, and into comments, is one line.
absl::Status CheckText(const Recipe& recipe) {
  const recipe::Launch& launch = recipe.launch;
  const std::pair<const char*, const std::string&> texts[] = {{"launch.queue", launch.queue},
                                                              {"launch.account", launch.account},
                                                              {"launch.priority", launch.priority},
                                                              {"launch.token_secret", launch.token_secret},
                                                              {"launch.command", launch.command},
                                                              {"launch.recipe", launch.recipe},
                                                              {"launch.out", launch.out}};
  for (const auto& [key, text] : texts) {
    const bool is_line =
        std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; });
    if (!is_line) return ErrorOf(recipe, key, fmt::format("{} has a character that is no text", key), "");
  }
  return absl::OkStatus();
}

absl::Status CheckRestarts(const Recipe& recipe, const Job& job, const std::string& scheduler) {
  const char* const key = job.spares > 0      ? "launch.spares"
                          : job.min_nodes > 0 ? "launch.min_nodes"
                                              : "launch.max_restarts";
  if (job.max_restarts == 0 && job.spares == 0 && job.min_nodes == 0) return absl::OkStatus();
  if (scheduler == "mpijob") {
    return ErrorOf(recipe, key, "mpirun starts the ranks of an MPIJob, and starts none of them again",
                   "another scheduler, or launch.max_restarts, spares and min_nodes 0");
  }
  if (job.all_nodes() == 1 && (job.ranks == 1 || !job.gpus)) {
    return ErrorOf(recipe, key,
                   "the run is one process, and nothing starts its ranks again but the scheduler",
                   "launch.max_restarts 0");
  }
  if (job.max_restarts == 0) {
    return ErrorOf(recipe, key,
                   fmt::format("{} is for runs whose ranks start again, and launch.max_restarts is 0", key),
                   "max_restarts = 20");
  }
  if (job.spares >= job.nodes && job.spares > 0) {
    return ErrorOf(recipe, "launch.spares",
                   fmt::format("launch.spares {} are not fewer than the {} of the layout", job.spares,
                               recipe::Counted(job.nodes, "node")),
                   "");
  }
  const std::int64_t least = job.all_nodes() / 2 + 1;
  if (job.min_nodes > 0 && (job.min_nodes < least || job.min_nodes > job.nodes)) {
    return ErrorOf(
        recipe, "launch.min_nodes",
        fmt::format("launch.min_nodes {} is not between {}, more than half of all {}, and the {} of "
                    "the layout",
                    job.min_nodes, least, recipe::Counted(job.all_nodes(), "node"), job.nodes),
        fmt::format("min_nodes = {}", least));
  }
  return absl::OkStatus();
}

// Whether Kubernetes takes it as the name of an object: labels as hosts' names have them, between dots.
bool IsObjectName(const std::string& text, std::size_t most) {
  const auto is_inner = [](char c) { return ('a' <= c && c <= 'z') || ('0' <= c && c <= '9'); };
  bool begins = true;  // a label begins
  for (const char c : text) {
    const bool fits = is_inner(c) || (!begins && (c == '-' || c == '.'));
    if (!fits) return false;
    begins = c == '.';
  }
  return !begins && is_inner(text.back()) && text.size() <= most && text.find("-.") == std::string::npos;
}

absl::Status CheckNames(const Recipe& recipe, const std::string& scheduler) {
  const recipe::Launch& launch = recipe.launch;
  constexpr std::size_t kLabel = 63, kName = 253;
  const std::size_t most_of_priority = scheduler == "hyperpod" ? kLabel : kName;
  const struct {
    const char* key;
    const std::string& name;
    bool needed, dots;
    std::size_t most;
  } names[] = {{"launch.kubernetes_namespace", launch.kubernetes_namespace, false, false, kLabel},
               {"launch.queue", launch.queue, false, true, kLabel},
               {"launch.priority", launch.priority, false, true, most_of_priority},
               {"launch.token_secret", launch.token_secret, true, true, kName}};
  for (const auto& [key, name, needed, dots, most] : names) {
    if (name.empty() && !needed) continue;
    if (IsObjectName(name, most) && (dots || name.find('.') == std::string::npos)) continue;
    return ErrorOf(
        recipe, key,
        fmt::format("{} '{}' is no name that Kubernetes takes: small letters, digits{} and hyphens "
                    "between them, at most {}",
                    key, name, dots ? ", dots" : "", most),
        "");
  }
  return absl::OkStatus();
}

absl::Status CheckVolumes(const Recipe& recipe, const std::string& scheduler) {
  std::set<std::string> claims, places = {"/dev/shm"};
  for (const std::string& volume : recipe.launch.volumes) {
    const std::size_t colon = std::min(volume.find(':'), volume.size());
    const std::string claim = volume.substr(0, colon);
    const std::string place = volume.substr(std::min(colon + 1, volume.size()));
    if (!IsObjectName(claim, 253) || !place.starts_with('/') || place.find(':') != std::string::npos) {
      return ErrorOf(
          recipe, "launch.volumes",
          fmt::format("launch.volumes has '{}', which is not a claim and where it is mounted", volume),
          "volumes = [\"fsx-claim:/fsx\"]");
    }
    if (!places.insert(place).second) {
      return ErrorOf(recipe, "launch.volumes",
                     fmt::format("launch.volumes has '{}', and something else is mounted there", volume), "");
    }
    if (!claims.insert(claim).second && scheduler == "trainjob") {
      return ErrorOf(
          recipe, "launch.volumes",
          fmt::format("launch.volumes mounts {} twice, and a TrainJob mounts a volume at one place", claim),
          "one place from which the rest is reached, or another scheduler");
    }
  }
  return absl::OkStatus();
}

// Refuses a run's folder that is on none of the volumes: a pod's own file system goes with the pod.
absl::Status CheckOut(const Recipe& recipe) {
  const recipe::Launch& launch = recipe.launch;
  if (launch.volumes.empty() || !launch.out.starts_with('/') || !recipe.checkpoint.upload.empty())
    return absl::OkStatus();
  const std::filesystem::path out = std::filesystem::path(launch.out).lexically_normal();
  std::vector<std::string> places;
  for (const std::string& volume : launch.volumes) {
    places.push_back(volume.substr(volume.find(':') + 1));
    const std::filesystem::path below =
        out.lexically_relative(std::filesystem::path(places.back()).lexically_normal());
    if (!below.empty() && *below.begin() != "..") return absl::OkStatus();
  }
  return ErrorOf(recipe, "launch.out",
                 fmt::format("launch.out '{}' is on none of the volumes, which are mounted at {}: the run's "
                             "checkpoints would be gone with its pods",
                             launch.out, fmt::join(places, ", ")),
                 fmt::format("out = \"{}\"; or checkpoint.upload = a bucket",
                             (std::filesystem::path(places.front()) / out.filename()).string()));
}

absl::Status CheckNetwork(const Recipe& recipe) {
  const recipe::Launch& launch = recipe.launch;
  if (launch.network == "efa" && launch.host_memory_bytes == 0) {
    return ErrorOf(recipe, "launch.host_memory_bytes",
                   "launch.host_memory_bytes is 0, and Kubernetes takes a pod with the large pages of efa "
                   "only if it asks for "
                   "memory as well",
                   "host_memory_bytes = \"1000GiB\"");
  }
  if (launch.network_devices == 0) return absl::OkStatus();
  const std::string& name = launch.network_resource;
  const char* const hint =
      "network_resource = what `kubectl describe node` calls them, as in \"rdma/hca_shared_devices_a\"";
  if (name.empty()) {
    if (launch.network == "efa") return absl::OkStatus();
    return ErrorOf(
        recipe, "launch.network_devices",
        fmt::format("{} network devices of a node are asked for, under no name", launch.network_devices),
        hint);
  }
  const std::size_t slash = std::min(name.find('/'), name.size());
  const auto is_inner = [](unsigned char c) { return c < 0x80 && std::isalnum(c) != 0; };
  const auto fits = [&](char c) { return is_inner(c) || c == '-' || c == '_' || c == '.'; };
  const std::string device = name.substr(std::min(slash + 1, name.size()));
  if (!IsObjectName(name.substr(0, slash), 253) || device.empty() || device.size() > 63 ||
      !std::all_of(device.begin(), device.end(), fits) || !is_inner(device.front()) ||
      !is_inner(device.back())) {
    return ErrorOf(
        recipe, "launch.network_resource",
        fmt::format("launch.network_resource '{}' is no name of a resource, which is DOMAIN/NAME", name),
        hint);
  }
  return absl::OkStatus();
}

absl::Status CheckSlurm(const Recipe& recipe) {
  const recipe::Launch& launch = recipe.launch;
  const std::pair<const char*, const std::string&> names[] = {{"launch.queue", launch.queue},
                                                              {"launch.account", launch.account},
                                                              {"launch.priority", launch.priority}};
  for (const auto& [key, name] : names) {
    if (name.find_first_of(" \t\r\n\"'") == std::string::npos) continue;
    return ErrorOf(
        recipe, key,
        fmt::format("{} '{}' has a blank or a quote, and a directive of sbatch ends there", key, Shown(name)),
        "");
  }
  return absl::OkStatus();
}

absl::Status CheckKubernetes(const Recipe& recipe, const std::string& scheduler) {
  const std::string& image = recipe.launch.image;
  if (image.empty() || image.find_first_of(" \t\n") != std::string::npos) {
    return ErrorOf(
        recipe, "launch.image",
        image.empty() ? "launch.image is empty, and a pod runs a container's image"
                      : fmt::format("launch.image '{}' has a space, and no image's name has", image),
        "image = \"registry.example.com/engine:1\", made by tools/Dockerfile (docs/kubernetes.md)");
  }
  RETURN_IF_ERROR(CheckNames(recipe, scheduler));
  RETURN_IF_ERROR(CheckVolumes(recipe, scheduler));
  RETURN_IF_ERROR(CheckOut(recipe));
  return CheckNetwork(recipe);
}

}  // namespace

std::span<const std::string> Schedulers() { return kSchedulers; }

std::vector<std::string> Job::RestartOptions() const {
  std::vector<std::string> options;
  const std::pair<const char*, std::int64_t> all[] = {
      {"--max-restarts", max_restarts}, {"--spares", spares}, {"--min-nodes", min_nodes}};
  for (const auto& [name, value] : all) {
    if (value > 0) options.insert(options.end(), {name, fmt::format("{}", value)});
  }
  return options;
}

absl::StatusOr<Job> JobOf(const Recipe& recipe, const std::string& scheduler) {
  const recipe::Launch& launch = recipe.launch;
  const recipe::Cluster& cluster = recipe.cluster;
  Job job;
  job.name = launch.name.empty() ? NameFrom(recipe.path) : launch.name;
  if (job.name.empty()) {
    return ErrorOf(recipe, "launch.name",
                   fmt::format("'{}' has no letter that a job's name could be made of", recipe.path),
                   "name = \"gpt\"");
  }
  if (job.name != NameFrom(job.name)) {
    return ErrorOf(recipe, "launch.name",
                   fmt::format("launch.name '{}' is no name of a job: small letters, digits and hyphens, a "
                               "letter first, at most {}",
                               job.name, kMostOfName),
                   fmt::format("name = \"{}\"", NameFrom(job.name)));
  }
  job.recipe = launch.recipe.empty() ? recipe.path : launch.recipe;
  job.out = launch.out.empty() ? "runs/" + job.name : launch.out;
  job.gpus = cluster.device != "cpu";
  job.ranks = recipe.world_size();
  if (cluster.devices_per_node > 0) {
    job.ranks_per_node = std::min(cluster.devices_per_node, job.ranks);
    job.nodes = job.ranks / job.ranks_per_node;
  } else if (cluster.nodes > 0 || !job.gpus || job.ranks == 1) {
    job.nodes = std::max<std::int64_t>(1, cluster.nodes);
    job.ranks_per_node = job.ranks / job.nodes;
  } else {
    return ErrorOf(
        recipe, "cluster.devices_per_node",
        fmt::format("how many nodes {} ranks need follows from cluster.devices_per_node, which is 0",
                    job.ranks),
        "devices_per_node = 8");
  }
  job.max_restarts = launch.max_restarts;
  job.spares = launch.spares;
  job.min_nodes = launch.min_nodes;
  RETURN_IF_ERROR(CheckText(recipe));
  RETURN_IF_ERROR(CheckRestarts(recipe, job, scheduler));
  if (launch.time_limit_s > 0 && launch.grace_period_s >= launch.time_limit_s) {
    return ErrorOf(recipe, "launch.grace_period_s",
                   fmt::format("grace_period_s {} leaves nothing of time_limit_s {}", launch.grace_period_s,
                               launch.time_limit_s),
                   "");
  }
  RETURN_IF_ERROR(scheduler == "slurm" ? CheckSlurm(recipe) : CheckKubernetes(recipe, scheduler));
  return job;
}

std::string JobFile(const Recipe& recipe, const Job& job, const std::string& scheduler) {
  return scheduler == "slurm" ? SlurmScript(recipe, job) : KubernetesObject(recipe, job, scheduler);
}

std::string Summary(const Recipe& recipe, const Job& job, const std::string& scheduler) {
  const recipe::Launch& launch = recipe.launch;
  const bool batch = scheduler == "slurm";
  std::string text = fmt::format(
      "{} '{}': {}{}, {} on each ({} in all)\n", scheduler, job.name, recipe::Counted(job.nodes, "node"),
      job.spares == 0 ? "" : fmt::format(" and {}", recipe::Counted(job.spares, "spare")),
      recipe::Counted(job.ranks_per_node, job.gpus ? "GPU" : "rank"), recipe::Counted(job.ranks, "rank"));
  const auto line = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) text += fmt::format("  {:<15} {}\n", name, value);
  };
  line("recipe", job.recipe);
  line("run's folder", job.out);
  line("image", batch ? "" : launch.image);
  line(batch ? "partition" : "queue", launch.queue);
  line("account", batch ? launch.account : "");
  const bool by_runtime = scheduler == "trainjob";  // whose runtime says when it stops and starts again
  line("priority", by_runtime ? "" : launch.priority);
  line("volumes", batch ? "" : fmt::format("{}", fmt::join(launch.volumes, ", ")));
  line("/dev/shm", batch ? "" : FormatBytes(launch.shared_memory_bytes));
  line("memory a node", launch.host_memory_bytes == 0 ? "" : FormatBytes(launch.host_memory_bytes));
  line("network", launch.network);
  line("lost ranks", job.max_restarts == 0 ? ""
                                           : fmt::format("start again in the job, up to {}",
                                                         recipe::Counted(job.max_restarts, "time")));
  line("goes on with", job.min_nodes == 0 ? "" : fmt::format("{} nodes at least", job.min_nodes));
  line("time limit", launch.time_limit_s == 0 ? "" : fmt::format("{} s", launch.time_limit_s));
  line("time to save", by_runtime ? "" : fmt::format("{} s", launch.grace_period_s));
  line("starts again", by_runtime ? "" : fmt::format("up to {}", recipe::Counted(launch.retries, "time")));
  text += fmt::format("Ask the scheduler itself, of the file: {}\n",
                      batch ? "sbatch --test-only FILE" : "kubectl apply --dry-run=server -f FILE");
  return text;
}

}  // namespace engine::jobs
