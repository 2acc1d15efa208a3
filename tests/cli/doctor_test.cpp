// What is found and what is missing, with a GPU and without.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/run_binary.h"
#include "tests/data/temp_dir.h"

namespace engine::cli {
namespace {

bool CompiledWithCuda() {
  return RunProgram("--version").output.find("CPU and CUDA executors") != std::string::npos;
}

// The state of a finding; empty where there is none of that name.
std::string StateOf(const nlohmann::json& json, const std::string& what) {
  for (const nlohmann::json& finding : json["findings"]) {
    if (finding["what"] == what) return finding["state"];
  }
  return "";
}

nlohmann::json Doctor(const std::string& environment) {
  const ProgramResult result = RunProgram("doctor --json", environment);
  nlohmann::json json = nlohmann::json::parse(result.output, nullptr, false);
  REQUIRE_MESSAGE(json.is_object(), result.output);
  CHECK(result.exit_code == (json["gpu_run_can_start"] ? 0 : 3));
  return json;
}

}  // namespace

TEST_CASE("doctor: text and exit code say the same, and what would be right") {
  const ProgramResult result = RunProgram("doctor");
  CHECK(Contains(result.output, "CUDA "));
  CHECK(Contains(result.output, "CPU       ok       "));
  if (result.exit_code == 0) {
    CHECK(Contains(result.output, "GPU 0     ok       "));
    CHECK(Contains(result.output, "\na run on a GPU can start here\n"));
    return;
  }
  CHECK(result.exit_code == 3);
  CHECK(Contains(result.output, "\nno run on a GPU can start here, for want of: "));
  CHECK(Contains(result.output, "; --device cpu runs in fp32 on the CPU\n"));
  if (!CompiledWithCuda())
    CHECK(Contains(result.output, "CUDA      missing  this program was compiled without"));
}

TEST_CASE("doctor: help has every key of an attention's shape") {
  const std::string help = RunProgram("doctor --help").output;
  CHECK_MESSAGE(Contains(help,
                         "as in batch=8,length=1024,heads=20,head=64; besides kv_heads, value_head, keys, "
                         "mask=none, window, softcap, dropout, alibi, distance, pairs, sinks, packed, "
                         "dtype=fp16, documents=300+724"),
                help);
}

TEST_CASE("doctor: a library that does not load is missing, with the loader's words") {
  if (!CompiledWithCuda()) return;
  const data::TempDir folder;
  data::WriteFile(folder / "libcublasLt.so.13", "no library");
  const nlohmann::json json = Doctor("LD_LIBRARY_PATH=" + folder.path() + ":$LD_LIBRARY_PATH");
  CHECK(json["gpu_run_can_start"] == false);
  CHECK(StateOf(json, "cuBLASLt") == "missing");
  const std::string text = json.dump();
  CHECK(Contains(text, "looked for libcublasLt.so.13; the loader says: " + (folder / "libcublasLt.so.13")));
  CHECK(Contains(text,
                 "matrix products need cuBLASLt 13 (of CUDA 13): install it, or name its folder in "
                 "LD_LIBRARY_PATH"));
}

#ifdef ENGINE_OLD_LIBRARIES
TEST_CASE("doctor: an old cuDNN is too old, with both versions") {
  const nlohmann::json json =
      Doctor(std::string("LD_LIBRARY_PATH=") + ENGINE_OLD_LIBRARIES + ":$LD_LIBRARY_PATH");
  CHECK(json["gpu_run_can_start"] == false);
  CHECK(StateOf(json, "cuDNN") == "too old");
  CHECK(Contains(json.dump(), "libcudnn.so.9 is version 9.13.0; attention needs cuDNN 9.14 or later"));
}
#endif

TEST_CASE("doctor: without a GPU to see, there is no run on one") {
  if (!CompiledWithCuda()) return;
  const nlohmann::json json = Doctor("CUDA_VISIBLE_DEVICES=");
  CHECK(json["gpu_run_can_start"] == false);
  CHECK(StateOf(json, "GPU") == "missing");
  CHECK(StateOf(json, "CUDA") == "ok");
}

TEST_CASE("doctor: the cache is where the environment says") {
  if (!CompiledWithCuda()) return;
  const nlohmann::json json = Doctor("ENGINE_CACHE=/nowhere/cache");
  CHECK(Contains(json.dump(), "/nowhere/cache, kept choices of 0 matrix products and 0 attentions"));
  const nlohmann::json none = Doctor("env -u ENGINE_CACHE -u XDG_CACHE_HOME -u HOME");
  CHECK(StateOf(none, "cache") == "missing");
}

TEST_CASE("doctor: networks, with what a recipe needs of them") {
  // Settings of the test's own, whatever those of this machine are.
  const std::string only = "NCCL_CONF_FILE=/dev/null NCCL_IB_DISABLE= NCCL_NET= NCCL_SOCKET_IFNAME=";
  const ProgramResult wrong = RunProgram("doctor --network --json", only + "no-such");
  CHECK(wrong.exit_code == 3);
  const nlohmann::json json = nlohmann::json::parse(wrong.output, nullptr, false);
  REQUIRE_MESSAGE(json.is_object(), wrong.output);
  CHECK(json["nothing_wrong"] == false);
  CHECK(StateOf(json, "lo") == "ok");
  CHECK(StateOf(json, "addresses") == "wrong");
  CHECK(Contains(json.dump(), "NCCL_SOCKET_IFNAME=no-such takes none of this host's interfaces"));

  const std::string recipe = ENGINE_SOURCE_DIR "/recipes/gpt2-large-tp2.toml";
  const ProgramResult one_host = RunProgram("doctor --network " + recipe, only + "no-such");
  CHECK(Contains(one_host.output, "all ranks are on one host: no network between hosts is used\n"));
  const ProgramResult efa =
      RunProgram("doctor --network " + recipe +
                 " --set cluster.nodes=2 --set cluster.devices_per_node=1 --set launch.network=efa");
  CHECK(efa.exit_code == 3);
  CHECK(Contains(efa.output, "launch.network is \"efa\", and this host has none\n"));
  CHECK(RunProgram("doctor --network no.toml").exit_code == 1);
  CHECK(RunProgram("doctor " + recipe).exit_code == 2);
}

}  // namespace engine::cli
