// Files for schedulers: as data, as goldens that are reviewed, and what is refused.
#include "engine/jobs/job_file.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/jobs/slurm.h"
#include "engine/jobs/yaml.h"
#include "engine/model/load.h"
#include "tests/data/temp_dir.h"

namespace engine::jobs {
namespace {

using Json = nlohmann::ordered_json;

const std::vector<std::string> kTwoNodes = {
    "parallelism.dp=8",
    "cluster.nodes=2",
    "training.global_batch=64",
    "cluster.device=\"h200\"",
    "cluster.devices_per_node=8",
    "launch.image=\"registry.example.com/engine:1\"",
    "launch.queue=\"team-a\"",
    "launch.priority=\"high\"",
    "launch.volumes=[\"fsx-claim:/fsx\",\"data.claim:/data\"]",
    "launch.recipe=\"/fsx/it's/r.toml\"",
    "launch.out=\"/fsx/runs/gpt\"",
    "launch.network=\"efa\"",
    "launch.network_devices=32",
    "launch.host_memory_bytes=\"1000GiB\"",
    "launch.time_limit_s=86400",
};

recipe::Recipe Load(std::vector<std::string> sets) {
  recipe::LoadOptions options;
  options.sets = std::move(sets);
  const recipe::LoadResult result = model::Load("recipes/quickstart.toml", options);
  std::string errors;
  for (const Diagnostic& diagnostic : result.diagnostics) errors += Format(diagnostic);
  REQUIRE_MESSAGE(result.ok(), errors);
  return result.recipe;
}

std::string FileOf(const recipe::Recipe& recipe, const std::string& scheduler) {
  const absl::StatusOr<Job> job = JobOf(recipe, scheduler);
  REQUIRE_MESSAGE(job.ok(), Message(job.status()));
  return JobFile(recipe, *job, scheduler);
}

std::string ErrorOf(std::vector<std::string> sets, const std::string& scheduler) {
  const absl::StatusOr<Job> job = JobOf(Load(std::move(sets)), scheduler);
  REQUIRE_FALSE(job.ok());
  return Message(job.status());
}

}  // namespace

TEST_CASE("jobs: files are those that were looked at") {
  const recipe::Recipe recipe = Load(kTwoNodes);
  for (const std::string& scheduler : Schedulers()) {
    const std::string path = std::string(ENGINE_SOURCE_DIR) + "/tests/jobs/golden/" + scheduler +
                             (scheduler == "slurm" ? ".sh" : ".yaml");
    const std::string text = FileOf(recipe, scheduler);
    if (std::getenv("ENGINE_UPDATE_GOLDEN") != nullptr) {
      std::ofstream(path, std::ios::binary) << text;
      continue;
    }
    std::ifstream file(path, std::ios::binary);
    REQUIRE_MESSAGE(file.good(), path);
    CHECK_MESSAGE(std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()) == text,
                  path);
  }
}

namespace {

// A batch script, with stand-ins for the scheduler's commands and the program.
class Script {
 public:
  explicit Script(const std::string& text) {
    Put("job.sh", text);
    Put("scontrol",
        "#!/bin/sh\n[ \"$1\" = show ] && echo node7 && echo node8\n[ \"$1\" = requeue ] && echo again "
        "$2 && echo $AFTER > state && exit ${REFUSED:-0}\ntrue\n");
    Put("scancel", "#!/bin/sh\necho cancelled $1\n");
    Put("engine",
        "#!/bin/sh\nfor a in \"$@\"; do echo \"<$a>\"; done\necho ${#ENGINE_TOKEN}\nexit ${RUN:-0}\n");
  }
  void Put(const std::string& name, const std::string& content) const {
    data::WriteFile(folder_ / name, content);
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
  }
  // What it prints, and its exit code. `variables`: "CODE=1 …", for the stand-ins.
  std::string Run(const std::string& variables) const {
    const std::string command = fmt::format(
        "cd {0} && {1} SLURM_JOB_ID=42 SLURM_JOB_NODELIST=x PATH={0}:$PATH bash job.sh; echo exit $?",
        folder_.path(), variables);
    std::FILE* pipe = ::popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string text;
    char buffer[4096];
    for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
      text.append(buffer, got);
    ::pclose(pipe);
    return text;
  }
  std::string folder() const { return folder_.path(); }

 private:
  const data::TempDir folder_;
};

}  // namespace

TEST_CASE("jobs: a batch script runs on each node what was asked for, and is queued again where that helps") {
  const Script script(FileOf(Load(kTwoNodes), "slurm"));
  script.Put("srun", "#!/bin/sh\nshift 2\nSLURM_NODEID=1 \"$@\"\nexit $CODE\n");
  const auto run = [&](int code, int restarts) {
    return script.Run(fmt::format("CODE={} SLURM_RESTART_COUNT={}", code, restarts));
  };
  const std::string ran =
      "<run>\n</fsx/it's/r.toml>\n<--out>\n</fsx/runs/"
      "gpt>\n<--nodes>\n<2>\n<--node-rank>\n<1>\n<--coordinator>\n"
      "<node7:10042>\n<--stopped-code>\n<75>\n<--retry-code>\n<76>\n32\n";
  CHECK(run(0, 0) == ran + "exit 0\n");
  CHECK(run(1, 0) == ran + "exit 1\n");
  CHECK(run(2, 0) == ran + "exit 2\n");
  for (const int code : {kBatchStoppedCode, kBatchRetryCode, 137}) {
    CHECK(run(code, 99) ==
          ran + fmt::format("ended with {}; into the queue again\nagain 42\nexit 0\n", code));
    CHECK(run(code, 100) == ran + fmt::format("exit {}\n", code));
  }
}

TEST_CASE("jobs: a batch script whose run outlives nodes sees to its end without the first of them") {
  std::vector<std::string> sets = kTwoNodes;
  sets.insert(sets.end(), {"launch.max_restarts=20", "launch.spares=1", "launch.out=\"run\""});
  const Script script(FileOf(Load(sets), "slurm"));
  // As on a node of number NODE. A step on the first node ends with code FIRST, but SLOW of them fail before; SLURM says that the
  // first node is THERE. The program ends with code RUN.
  script.Put("srun",
             "#!/bin/sh\nif [ \"$1\" = --overlap ]; then echo \"$4\"; echo >> steps\n"
             "[ $(wc -l < steps) -gt ${SLOW:-0} ] && exit $FIRST; exit 1; fi\nshift 3\n"
             "SLURM_NODEID=$NODE \"$@\" | grep -v '^[<0-9]'\nexit $CODE\n");
  script.Put("squeue",
             "#!/bin/sh\ncat state 2>/dev/null || echo $STATE\n");  // of after a requeue, if there was one
  script.Put("sinfo", "#!/bin/sh\necho ${THERE:-mixed}\n");
  script.Put("sleep", "#!/bin/sh\n");
  const auto run_of = [](const Script& of, const std::string& variables) {
    std::filesystem::remove(of.folder() + "/state");
    std::filesystem::remove(of.folder() + "/steps");
    return of.Run(variables);
  };
  const auto run = [&](const std::string& variables) { return run_of(script, variables); };
  const auto asks = [](int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += "--nodelist=node7\n";
    return text;
  };
  CHECK(run("CODE=0 NODE=0 FIRST=1 STATE=RUNNING") == "exit 0\n");
  CHECK(run("CODE=0 NODE=3 FIRST=1 STATE=RUNNING RUN=76") == "exit 0\n");
  for (const std::string node : {"1", "2"}) {
    const std::string on = "CODE=0 STATE=RUNNING NODE=" + node;
    CHECK(run(on + " FIRST=0") == asks(1) + "exit 0\n");
    CHECK(run(on + " FIRST=0 SLOW=1") == asks(2) + "exit 0\n");
    CHECK(run(on + " FIRST=0 SLOW=1 RUN=76") == asks(2) + "exit 0\n");
    // After a run that has ended well nothing is done until SLURM knows of a loss.
    CHECK(run(on + " FIRST=1") == asks(10) + "exit 0\n");
    CHECK(run(on + " FIRST=0 SLOW=9") == asks(10) + "exit 0\n");
    for (const std::string there : {"down", "'down*'", "'mixed*'"})
      CHECK(run(on + " FIRST=1 THERE=" + there) == asks(2) + "again 42\nexit 0\n");
    // So often as launch.retries says, and where another try may help.
    for (const std::string code : {"75", "76", "137"}) {
      CHECK(run(on + " FIRST=1 RUN=" + code) == asks(2) + "again 42\nexit 0\n");
      CHECK(run(on + " FIRST=1 SLURM_RESTART_COUNT=99 RUN=" + code) == asks(2) + "again 42\nexit 0\n");
      CHECK(run(on + " FIRST=1 SLURM_RESTART_COUNT=100 RUN=" + code) == asks(2) + "cancelled 42\nexit 0\n");
    }
    for (const std::string code : {"1", "2", "17"})
      CHECK(run(on + " FIRST=1 RUN=" + code) == asks(2) + "cancelled 42\nexit 0\n");
    CHECK(run("CODE=0 FIRST=1 STATE=CANCELLED RUN=76 NODE=" + node) == "exit 0\n");
    // Refused, as the other node has put it there, or as it may not be.
    const std::string refused = on + " FIRST=1 RUN=76 REFUSED=1";
    CHECK(run(refused + " AFTER=COMPLETING") == asks(2) + "again 42\nexit 0\n");
    CHECK(run(refused + " AFTER=RUNNING") == asks(2) + "again 42\ncancelled 42\nexit 0\n");
  }
  // Where it may not be queued again.
  sets.emplace_back("launch.retries=0");
  const Script never(FileOf(Load(sets), "slurm"));
  for (const char* name : {"srun", "squeue", "sinfo", "sleep"})
    never.Put(name, data::ReadFile(script.folder() + "/" + name));
  CHECK(run_of(never, "CODE=0 NODE=1 STATE=RUNNING FIRST=0 SLOW=1") == asks(2) + "exit 0\n");
  CHECK(run_of(never, "CODE=0 NODE=1 STATE=RUNNING FIRST=1") == asks(10) + "exit 0\n");
  CHECK(run_of(never, "CODE=0 NODE=1 STATE=RUNNING FIRST=1 RUN=76") == asks(2) + "cancelled 42\nexit 0\n");
  // The largest code is of a process that was killed. How the run itself ended is in its folder.
  const std::string killed = "CODE=137 NODE=0 FIRST=0 STATE=RUNNING";
  CHECK(run(killed) == "ended with 137; into the queue again\nagain 42\nexit 0\n");
  std::filesystem::create_directory(script.folder() + "/run");
  script.Put("run/outcome.json", "{\n  \"outcome\": \"finished\",\n");
  CHECK(run(killed) == "exit 0\n");
  CHECK(run("CODE=0 NODE=1 FIRST=1 STATE=RUNNING RUN=137") == asks(10) + "exit 0\n");
  CHECK(run("CODE=1 NODE=0 FIRST=0 STATE=RUNNING") == "exit 1\n");  // of what is refused before
  script.Put("run/outcome.json", "{\n  \"outcome\": \"stopped\",\n");
  CHECK(run(killed) == "ended with 75; into the queue again\nagain 42\nexit 0\n");
}

TEST_CASE("jobs: spares, and nodes that the run may go on without, are asked for and told to the program") {
  std::vector<std::string> sets = kTwoNodes;
  sets.insert(sets.end(), {"parallelism.dp=20", "cluster.nodes=5", "training.global_batch=1200",
                           "launch.max_restarts=20", "launch.spares=1", "launch.min_nodes=4"});
  const recipe::Recipe recipe = Load(sets);
  const std::string batch = FileOf(recipe, "slurm");
  const auto holds = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  CHECK_MESSAGE(holds(batch, "#SBATCH --nodes=6\n"), batch);
  CHECK(holds(batch, "#SBATCH --no-kill\n"));
  CHECK(holds(batch, "srun --no-kill --kill-on-bad-exit=0"));
  CHECK(holds(batch, " --max-restarts 20 --spares 1 --min-nodes 4 --nodes 5 "));
  const std::string pytorch = FileOf(recipe, "pytorchjob");
  CHECK_MESSAGE(holds(pytorch, "replicas: 5\n"), pytorch);  // and a master
  for (const std::string scheduler : {"pytorchjob", "hyperpod", "jobset", "trainjob"}) {
    std::string text = FileOf(recipe, scheduler);
    INFO(text);
    for (const char* part : {"--max-restarts", "\"20\"", "--spares", "--min-nodes", "\"4\""})
      CHECK(holds(text, part));
  }
  const std::string jobset = FileOf(recipe, "jobset");
  CHECK(holds(jobset, "parallelism: 6\n"));
  CHECK(holds(jobset, "completions: 6\n"));
  // Without it the job would end with the first pod that is lost, as its backoffLimit is 0.
  CHECK(holds(jobset,
              "- action: Ignore\n            onPodConditions:\n            - type: DisruptionTarget\n"
              "              status: \"True\"\n"));
  CHECK(holds(FileOf(recipe, "trainjob"), "numNodes: 6\n"));
  const absl::StatusOr<Job> job = JobOf(recipe, "slurm");
  REQUIRE(job.ok());
  const std::string summary = Summary(recipe, *job, "slurm");
  CHECK_MESSAGE(holds(summary, ": 5 nodes and 1 spare, 8 GPUs on each (40 ranks in all)\n"), summary);
  CHECK(holds(summary, "4 nodes at least"));

  const auto refused = [&](std::vector<std::string> more, const std::string& scheduler, const char* why) {
    std::vector<std::string> all = sets;
    all.insert(all.end(), more.begin(), more.end());
    const std::string error = ErrorOf(all, scheduler);
    CHECK_MESSAGE(holds(error, why), error);
  };
  refused({}, "mpijob", "mpirun starts the ranks of an MPIJob, and starts none of them again");
  refused({"launch.max_restarts=0"}, "slurm", "launch.spares is for runs whose ranks start again");
  refused({"launch.spares=5"}, "slurm", "launch.spares 5 are not fewer than the 5 nodes of the layout");
  refused({"launch.min_nodes=3"}, "slurm",
          "launch.min_nodes 3 is not between 4, more than half of all 6 nodes, and the 5 of the layout");
  refused({"launch.min_nodes=6"}, "slurm", "launch.min_nodes 6 is not between 4");
  const std::string alone = ErrorOf({"launch.max_restarts=1"}, "slurm");
  CHECK_MESSAGE(holds(alone, "the run is one process"), alone);
}

TEST_CASE("jobs: what a scheduler must know and a recipe does not say is an error at its key") {
  const std::string image = ErrorOf({}, "jobset");
  CHECK_MESSAGE(
      image.find(": error: launch.image is empty, and a pod runs a container's image") != std::string::npos,
      image);
  std::vector<std::string> sets = kTwoNodes;
  sets.emplace_back("launch.volumes=[\"fsx-claim\"]");
  const std::string volume = ErrorOf(sets, "pytorchjob");
  CHECK_MESSAGE(volume.find("launch.volumes has 'fsx-claim', which is not a claim and where it is mounted") !=
                    std::string::npos,
                volume);
  CHECK(JobOf(Load(sets), "slurm").ok());  // which mounts nothing
  const std::string name = ErrorOf({"launch.name=\"My_Job\""}, "slurm");
  CHECK_MESSAGE(name.find("launch.name 'My_Job' is no name of a job") != std::string::npos, name);
  CHECK_MESSAGE(name.find("name = \"my-job\"") != std::string::npos, name);
  sets = kTwoNodes;
  sets.emplace_back("launch.host_memory_bytes=0");
  CHECK(ErrorOf(sets, "jobset").find("launch.host_memory_bytes is 0, and Kubernetes") != std::string::npos);
  sets = kTwoNodes;
  sets.emplace_back("launch.grace_period_s=86400");
  CHECK(ErrorOf(sets, "slurm").find("leaves nothing of time_limit_s 86400") != std::string::npos);
  sets = kTwoNodes;
  sets.emplace_back("launch.queue=\"a\\nb\"");
  CHECK(ErrorOf(sets, "slurm").find("launch.queue has a character that is no text") != std::string::npos);
  sets = kTwoNodes;
  sets.emplace_back("launch.network=\"infiniband\"");
  CHECK(ErrorOf(sets, "mpijob").find("network_resource") != std::string::npos);
  sets = kTwoNodes;
  sets.emplace_back("cluster.devices_per_node=0");
  sets.emplace_back("cluster.nodes=0");
  CHECK(ErrorOf(sets, "slurm").find("follows from cluster.devices_per_node, which is 0") !=
        std::string::npos);
}

TEST_CASE("jobs: what Kubernetes or an operator would refuse is an error at its key") {
  const auto with = [](std::vector<std::string> more) {
    std::vector<std::string> sets = kTwoNodes;
    sets.insert(sets.end(), more.begin(), more.end());
    return sets;
  };
  const auto refused = [&](std::vector<std::string> more, const std::string& scheduler, const char* why) {
    const std::string error = ErrorOf(with(std::move(more)), scheduler);
    CHECK_MESSAGE(error.find(why) != std::string::npos, error);
  };
  refused({"launch.queue=\"team a\""}, "jobset",
          "launch.queue 'team a' is no name that Kubernetes takes: small letters, digits, dots and hyphens "
          "between them, at most 63");
  refused({"launch.queue=\"" + std::string(64, 'q') + "\""}, "jobset", "is no name that Kubernetes takes");
  refused({"launch.kubernetes_namespace=\"a.b\""}, "mpijob",
          "launch.kubernetes_namespace 'a.b' is no name that Kubernetes takes: small letters, digits and "
          "hyphens between them, at most 63");
  for (const std::string name : {"High", "-high", "high-", "a..b", "a-.b", ".a", "a."})
    refused({"launch.priority=\"" + name + "\""}, "pytorchjob", "is no name that Kubernetes takes");
  refused({"launch.token_secret=\"\""}, "trainjob", "launch.token_secret '' is no name");
  refused({"launch.image=\"a b\""}, "hyperpod", "launch.image 'a b' has a space");
  refused({"launch.priority=\"a b\""}, "slurm", "launch.priority 'a b' has a blank or a quote");
  refused({"launch.queue=\"a\\n#SBATCH\""}, "slurm", "has a character that is no text");
  CHECK(JobOf(Load(with({"launch.queue=\"GPU_long,short\""})), "slurm").ok());  // which has other names

  refused({"launch.volumes=[\"Data_1:/x\"]"}, "jobset", "which is not a claim and where it is mounted");
  refused({"launch.volumes=[\"a:/x\",\"b:/x\"]"}, "jobset",
          "launch.volumes has 'b:/x', and something else is mounted there");
  refused({"launch.volumes=[\"a:/dev/shm\"]"}, "jobset", "something else is mounted there");
  const std::string twice = "launch.volumes=[\"a:/x\",\"a:/y\"]";
  refused({twice}, "trainjob", "launch.volumes mounts a twice, and a TrainJob mounts a volume at one place");
  const std::string text = FileOf(Load(with({twice, "launch.out=\"/x/run\""})), "jobset");
  CHECK_MESSAGE(text.find("claimName: a\n") == text.rfind("claimName: a\n"), text);  // a volume, once
  CHECK(text.find("mountPath: \"/x\"") != std::string::npos);
  CHECK(text.find("mountPath: \"/y\"") != std::string::npos);

  for (const std::string out : {"/scratch/run", "/fsx2/run", "/fsx/../run", "/"}) {
    refused({"launch.out=\"" + out + "\""}, "jobset",
            ("launch.out '" + out +
             "' is on none of the volumes, which are mounted at /fsx, /data: the run's checkpoints would be "
             "gone with its pods")
                .c_str());
    CHECK(JobOf(Load(with({"launch.out=\"" + out + "\"", "checkpoint.upload=\"s3://runs/gpt\""})), "jobset")
              .ok());
    CHECK(JobOf(Load(with({"launch.out=\"" + out + "\""})), "slurm").ok());  // which mounts nothing
  }
  for (const std::string out : {"/fsx", "/data/a/../b/", "runs/gpt", ""})
    CHECK(JobOf(Load(with({"launch.out=\"" + out + "\""})), "jobset").ok());
  CHECK(JobOf(Load(with({"launch.out=\"/scratch/run\"", "launch.volumes=[]"})), "jobset").ok());

  for (const std::string name : {"hca", "rdma/", "/hca", "rdma/h ca", "rdma/-hca", "Rdma/hca"}) {
    refused({"launch.network_resource=\"" + name + "\""}, "jobset",
            "is no name of a resource, which is DOMAIN/NAME");
  }
  refused({"launch.network=\"none\""}, "jobset", "32 network devices of a node are asked for, under no name");
}

TEST_CASE("jobs: HyperPod's priorities are Kueue's, and its restarts of all nodes stay a number of 32 bits") {
  std::vector<std::string> sets = kTwoNodes;
  sets.insert(sets.end(), {"launch.queue=\"\"", "launch.retries=1048576"});
  const recipe::Recipe recipe = Load(sets);
  absl::StatusOr<Job> job = JobOf(recipe, "hyperpod");
  REQUIRE(job.ok());
  const std::string two = JobFile(recipe, *job, "hyperpod");
  CHECK_MESSAGE(two.find("  labels:\n    kueue.x-k8s.io/priority-class: high\n") != std::string::npos, two);
  CHECK(two.find("priorityClassName") == std::string::npos);
  CHECK(two.find("backoffLimit: 2097152\n") != std::string::npos);
  job->nodes = 2048;
  CHECK(JobFile(recipe, *job, "hyperpod").find("backoffLimit: 2147483647\n") != std::string::npos);
  CHECK(JobFile(recipe, *job, "pytorchjob").find("priorityClassName: high\n") != std::string::npos);
}

TEST_CASE("jobs: one node, processors alone, and names") {
  const absl::StatusOr<Job> job = JobOf(Load({"parallelism.dp=2", "training.global_batch=8"}), "slurm");
  REQUIRE(job.ok());
  CHECK(job->name == "quickstart");
  CHECK(job->nodes == 1);
  CHECK(job->ranks_per_node == 4);
  CHECK_FALSE(job->gpus);
  const std::string script = JobFile(Load({}), *job, "slurm");
  CHECK(script.find("gpus-per-node") == std::string::npos);
  CHECK(script.find("--time=") == std::string::npos);
  recipe::Recipe odd = Load({});
  odd.path = "/x/7_GPT 2.v1.toml";
  CHECK(JobOf(odd, "slurm")->name == "gpt-2-v1");
  odd.path = "/x/42.toml";
  CHECK_FALSE(JobOf(odd, "slurm").ok());
  // JobSet and Kubernetes make names of it, which may have 63 characters.
  odd.path = "/x/" + std::string(80, 'a') + ".toml";
  REQUIRE(JobOf(odd, "slurm").ok());
  CHECK((JobOf(odd, "slurm")->name + "-node-0-99999-abcde").size() == 63);
  const std::string longer = ErrorOf({"launch.name=\"" + std::string(45, 'a') + "\""}, "slurm");
  CHECK_MESSAGE(longer.find("a letter first, at most 44") != std::string::npos, longer);
}

TEST_CASE("jobs: words of the shell, and YAML") {
  CHECK(ShellWord("a/b-c_1.toml") == "a/b-c_1.toml");
  CHECK(ShellWord("it's $HOME") == "'it'\\''s $HOME'");
  CHECK(ShellWord("") == "''");
  const Json value = {{"a", {{"b", Json::array()}, {"c", {1, "two", "yes", "3", "x: y"}}}},
                      {"d", Json::array({{{"e", true}, {"f", nullptr}}, Json::array({1, 2})})},
                      {"on", ""},
                      {"g", Json::object()}};
  CHECK(ToYaml(value) ==
        "a:\n  b: []\n  c:\n  - 1\n  - two\n  - \"yes\"\n  - \"3\"\n  - \"x: y\"\n"
        "d:\n- e: true\n  f: null\n- - 1\n  - 2\n\"on\": \"\"\ng: {}\n");
}

}  // namespace engine::jobs
