#include "engine/jobs/kubernetes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/jobs/yaml.h"

namespace engine::jobs {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kPort = 29500;

// "64Gi" where it is a whole number of these, else bytes.
std::string Quantity(std::int64_t bytes) {
  constexpr int kGibi = 30;
  return bytes >> kGibi << kGibi == bytes ? fmt::format("{}Gi", bytes >> kGibi) : fmt::format("{}", bytes);
}

class Writer {
 public:
  Writer(const recipe::Recipe& recipe, const Job& job) : launch_(recipe.launch), job_(job) {}

  Json PyTorchJob(bool hyperpod) const {
    Json pod = PodSpec("pytorch", {launch_.command}, RunArguments());  // the operator looks for this name
    if (hyperpod) {
      pod["nodeSelector"] = {{"sagemaker.amazonaws.com/node-health-status", "Schedulable"}};
      pod.erase("priorityClassName");
    }
    const auto replicas = [&](std::int64_t count) {
      // ExitCode: codes from 128 on are tried again, others are not.
      return Json{{"replicas", count},
                  {"restartPolicy", hyperpod ? "OnFailure" : "ExitCode"},
                  {"template", {{"spec", pod}}}};
    };
    Json object = Head("kubeflow.org/v1", "PyTorchJob");
    if (hyperpod) {
      // HyperPod's priorities are workload priority classes of Kueue, which pods do not know.
      if (!launch_.priority.empty())
        object["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = launch_.priority;
      object["metadata"]["annotations"] = {
          {"sagemaker.amazonaws.com/enable-job-auto-resume", launch_.retries > 0 ? "true" : "false"},
          {"sagemaker.amazonaws.com/job-max-retry-count", fmt::format("{}", launch_.retries)}};
    }
    // OnFailure counts the restarts of all pods together, in 32 bits. Without nprocPerNode, WORLD_SIZE counts pods, as the program's
    // --nodes does.
    constexpr std::int64_t kMostRestarts = std::numeric_limits<std::int32_t>::max();
    const std::int64_t restarts =
        hyperpod ? std::min(launch_.retries * job_.all_nodes(), kMostRestarts) : launch_.retries;
    object["spec"] = {{"runPolicy", WithDeadline({{"cleanPodPolicy", "None"}, {"backoffLimit", restarts}})},
                      {"pytorchReplicaSpecs", {{"Master", replicas(1)}}}};
    if (job_.all_nodes() > 1)
      object["spec"]["pytorchReplicaSpecs"]["Worker"] = replicas(job_.all_nodes() - 1);
    return object;
  }

  Json JobSet() const {
    std::vector<std::string> arguments = RunArguments();
    if (job_.nodes > 1) arguments.insert(arguments.end(), {"--nodes", fmt::format("{}", job_.nodes)});
    Json pod = PodSpec("engine", {launch_.command}, arguments);
    pod["restartPolicy"] = "Never";
    pod["containers"][0]["env"].push_back(
        {{"name", "ENGINE_COORDINATOR"}, {"value", fmt::format("{0}-node-0-0.{0}:{1}", job_.name, kPort)}});
    Json rules = Json::array(
        {{{"action", "FailJob"},
          {"onExitCodes", {{"containerName", "engine"}, {"operator", "In"}, {"values", {1, 2, 17}}}}}});
    // A pod that is lost with its node is made anew by itself where the run goes on meanwhile.
    if (job_.outlives_nodes()) {
      rules.push_back(
          {{"action", "Ignore"},
           {"onPodConditions", Json::array({{{"type", "DisruptionTarget"}, {"status", "True"}}})}});
    }
    Json spec = {{"parallelism", job_.all_nodes()},
                 {"completions", job_.all_nodes()},
                 {"completionMode", "Indexed"},
                 {"backoffLimit", 0},
                 {"podFailurePolicy", {{"rules", rules}}},
                 {"template", {{"spec", pod}}}};
    if (launch_.time_limit_s > 0) spec["activeDeadlineSeconds"] = launch_.time_limit_s;
    Json object = Head("jobset.x-k8s.io/v1alpha2", "JobSet");
    object["spec"] = {{"network", {{"enableDNSHostnames", true}, {"publishNotReadyAddresses", true}}},
                      {"failurePolicy",
                       {{"maxRestarts", launch_.retries},
                        {"restartStrategy", "BlockingRecreate"},
                        {"rules", Json::array({{{"name", "recipe"},
                                                {"action", "FailJobSet"},
                                                {"onJobFailureReasons", {"PodFailurePolicy"}}}})}}},
                      {"replicatedJobs",
                       Json::array({{{"name", "node"}, {"replicas", 1}, {"template", {{"spec", spec}}}}})}};
    return object;
  }

  // A TrainJob cannot say priority, retries and the time to save: the runtime that it names says them.
  Json TrainJob() const {
    Json trainer = {{"image", launch_.image},
                    {"command", {launch_.command}},
                    {"args", RunArguments()},
                    {"env", Environment()},
                    {"numNodes", job_.all_nodes()}};
    trainer["numProcPerNode"] = job_.ranks_per_node;
    if (const Json limits = Limits(); !limits.empty()) {
      trainer["resourcesPerNode"] = {{"requests", limits}, {"limits", limits}};
    }
    Json container = {{"name", "node"}, {"volumeMounts", Mounts()}};
    if (launch_.network != "none") container["securityContext"] = LockingMemory();
    const Json pod = {{"volumes", Volumes()}, {"containers", Json::array({container})}};
    const Json node = {{"name", "node"}, {"template", {{"spec", {{"template", {{"spec", pod}}}}}}}};
    Json object = Head("trainer.kubeflow.org/v1alpha1", "TrainJob");
    object["spec"] = WithDeadline(
        {{"runtimeRef", {{"name", "torch-distributed"}}},
         {"trainer", trainer},
         {"runtimePatches",
          Json::array({{{"manager", "engine/launch"},
                        {"trainingRuntimeSpec",
                         {{"template", {{"spec", {{"replicatedJobs", Json::array({node})}}}}}}}}})}});
    return object;
  }

  Json MpiJob() const {
    // mpirun passes SIGTERM on, and kills so many seconds later.
    std::vector<std::string> arguments = {
        "--mca",
        "odls_base_sigkill_timeout",
        fmt::format("{}", launch_.grace_period_s),
        "--allow-run-as-root",
        "--bind-to",
        "none",
        "-np",
        fmt::format("{}", job_.ranks),
        "-x",
        "ENGINE_TOKEN",
        "-x",
        fmt::format("ENGINE_COORDINATOR={0}-worker-0.{0}:{1}", job_.name, kPort)};
    for (const Json& variable : Environment()) {
      if (variable["name"] != "ENGINE_TOKEN") arguments.insert(arguments.end(), {"-x", variable["name"]});
    }
    arguments.push_back(launch_.command);
    const std::vector<std::string> run = RunArguments();
    arguments.insert(arguments.end(), run.begin(), run.end());
    Json launcher = PodSpec("launcher", {"mpirun"}, arguments);
    launcher["containers"][0].erase("resources");
    Json worker = PodSpec("worker", {"/usr/sbin/sshd", "-De"}, {});
    Json object = Head("kubeflow.org/v2beta1", "MPIJob");
    object["spec"] = {
        {"slotsPerWorker", job_.ranks_per_node},
        {"runPolicy", WithDeadline({{"cleanPodPolicy", "Running"}, {"backoffLimit", launch_.retries}})},
        {"mpiReplicaSpecs",
         {{"Launcher", {{"replicas", 1}, {"restartPolicy", "OnFailure"}, {"template", {{"spec", launcher}}}}},
          {"Worker", {{"replicas", job_.nodes}, {"template", {{"spec", worker}}}}}}}};
    return object;
  }

 private:
  Json Head(const char* version, const char* kind) const {
    Json metadata = {{"name", job_.name}};
    if (!launch_.kubernetes_namespace.empty()) metadata["namespace"] = launch_.kubernetes_namespace;
    if (!launch_.queue.empty()) metadata["labels"] = {{"kueue.x-k8s.io/queue-name", launch_.queue}};
    return {{"apiVersion", version}, {"kind", kind}, {"metadata", metadata}};
  }

  Json WithDeadline(Json policy) const {
    if (launch_.time_limit_s > 0) policy["activeDeadlineSeconds"] = launch_.time_limit_s;
    return policy;
  }

  std::vector<std::string> RunArguments() const {
    std::vector<std::string> arguments = {"run",
                                          job_.recipe,
                                          "--out",
                                          job_.out,
                                          "--stopped-code",
                                          fmt::format("{}", kStoppedCode),
                                          "--retry-code",
                                          fmt::format("{}", kRetryCode)};
    const std::vector<std::string> restarts = job_.RestartOptions();
    arguments.insert(arguments.end(), restarts.begin(), restarts.end());
    return arguments;
  }

  Json Environment() const {
    Json variables = Json::array(
        {{{"name", "ENGINE_TOKEN"},
          {"valueFrom", {{"secretKeyRef", {{"name", launch_.token_secret}, {"key", "token"}}}}}}});
    if (launch_.network == "efa") {
      variables.push_back({{"name", "FI_EFA_USE_HUGE_PAGE"}, {"value", "0"}});
      variables.push_back({{"name", "NCCL_SOCKET_IFNAME"}, {"value", "^lo"}});
    }
    return variables;
  }

  Json Limits() const {
    Json limits = Json::object();
    if (job_.gpus) limits["nvidia.com/gpu"] = job_.ranks_per_node;
    if (launch_.network_devices > 0) {
      limits[launch_.network_resource.empty() ? "vpc.amazonaws.com/efa" : launch_.network_resource] =
          launch_.network_devices;
    }
    if (launch_.network == "efa") limits["hugepages-2Mi"] = "5120Mi";
    if (launch_.host_memory_bytes > 0) limits["memory"] = Quantity(launch_.host_memory_bytes);
    return limits;
  }

  // Each once: one may be mounted at several places.
  std::vector<std::string> Claims() const {
    std::vector<std::string> claims;
    for (const std::string& volume : launch_.volumes) {
      const std::string claim = volume.substr(0, volume.find(':'));
      if (std::find(claims.begin(), claims.end(), claim) == claims.end()) claims.push_back(claim);
    }
    return claims;
  }

  Json Volumes() const {
    Json volumes = Json::array(
        {{{"name", "shm"},
          {"emptyDir", {{"medium", "Memory"}, {"sizeLimit", Quantity(launch_.shared_memory_bytes)}}}}});
    const std::vector<std::string> claims = Claims();
    for (std::size_t i = 0; i < claims.size(); ++i) {
      volumes.push_back(
          {{"name", fmt::format("volume-{}", i)}, {"persistentVolumeClaim", {{"claimName", claims[i]}}}});
    }
    return volumes;
  }

  Json Mounts() const {
    Json mounts = Json::array({{{"name", "shm"}, {"mountPath", "/dev/shm"}}});
    const std::vector<std::string> claims = Claims();
    for (const std::string& volume : launch_.volumes) {
      const std::size_t colon = volume.find(':');
      const auto claim = std::find(claims.begin(), claims.end(), volume.substr(0, colon)) - claims.begin();
      mounts.push_back({{"name", fmt::format("volume-{}", claim)}, {"mountPath", volume.substr(colon + 1)}});
    }
    return mounts;
  }

  // RDMA pins memory.
  static Json LockingMemory() { return {{"capabilities", {{"add", {"IPC_LOCK"}}}}}; }

  // The command is the container's first process, which is the one that gets SIGTERM.
  Json PodSpec(const char* name, const std::vector<std::string>& command,
               const std::vector<std::string>& arguments) const {
    Json container = {{"name", name}, {"image", launch_.image}, {"command", command}};
    if (!arguments.empty()) container["args"] = arguments;
    container["env"] = Environment();
    if (const Json limits = Limits(); !limits.empty()) container["resources"] = {{"limits", limits}};
    if (launch_.network != "none") container["securityContext"] = LockingMemory();
    container["volumeMounts"] = Mounts();
    Json pod = {{"terminationGracePeriodSeconds", launch_.grace_period_s}};
    if (!launch_.priority.empty()) pod["priorityClassName"] = launch_.priority;
    pod["containers"] = Json::array({container});
    pod["volumes"] = Volumes();
    return pod;
  }

  const recipe::Launch& launch_;
  const Job& job_;
};

}  // namespace

std::string KubernetesObject(const recipe::Recipe& recipe, const Job& job, const std::string& kind) {
  const Writer writer(recipe, job);
  const Json object = kind == "jobset"     ? writer.JobSet()
                      : kind == "trainjob" ? writer.TrainJob()
                      : kind == "mpijob"   ? writer.MpiJob()
                                           : writer.PyTorchJob(kind == "hyperpod");
  return fmt::format(
      "# Written by engine launch {}. The secret {} has the run's token, made once:\n"
      "#   kubectl create secret generic {} --from-literal=token=$(openssl rand -hex 16)\n{}",
      kind, recipe.launch.token_secret, recipe.launch.token_secret, ToYaml(object));
}

}  // namespace engine::jobs
