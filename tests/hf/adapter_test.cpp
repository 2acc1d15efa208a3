// Adapters in PEFT's files and merged: both must say the same of the Hugging Face model, and what they say is checked in its own
// matrices, W + alpha / r · B A, which neither way of writing works in.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/hf/adapter.h"
#include "engine/hf/folder.h"
#include "engine/hf/safetensors.h"
#include "engine/model/load.h"
#include "engine/train/hf_export.h"
#include "tests/train/run_testing.h"

namespace engine::hf::testing {
namespace {

namespace fs = std::filesystem;
using data::TempDir;
using train::testing::Contains;

struct Matrix {
  Shape shape;
  std::vector<float> values;
};
using Matrices = std::map<std::string, Matrix>;

Matrices MatricesOf(const std::string& path) {
  const auto file = SafetensorsFile::Open(path);
  REQUIRE_MESSAGE(file.ok(), Message(file.status()));
  Matrices matrices;
  for (const auto& tensor : file->tensors()) {
    REQUIRE(tensor.type == StoredType::kF32);
    Matrix& matrix = matrices[tensor.name];
    matrix.shape = tensor.shape;
    matrix.values.resize(static_cast<std::size_t>(tensor.shape.elements()));
    std::memcpy(matrix.values.data(), file->DataOf(tensor).data(), matrix.values.size() * sizeof(float));
  }
  return matrices;
}

recipe::Recipe LoraRun(const std::string& blocks, std::vector<std::string> more) {
  std::vector<std::string> sets = {
      "data.source=random",      "data.sequence_length=16", "schedule.kind=constant",
      "training.global_batch=8", "training.micro_batch=2",  "logging.interval=1000",
      "optimizer.epsilon=1e-3",  "model.init_std=0.2",      "model.vocab_multiple=8"};
  sets.insert(sets.end(), more.begin(), more.end());
  const recipe::LoadResult loaded =
      model::Load(ENGINE_SOURCE_DIR "/configs/" + blocks + ".toml", {.sets = sets, .root = ""});
  REQUIRE_MESSAGE(loaded.ok(), Format(loaded.diagnostics.front()));
  return loaded.recipe;
}

train::HfExport MustWrite(const std::string& run, const std::string& out,
                          const train::HfExportOptions& options) {
  const absl::StatusOr<train::HfExport> exported = train::ExportHf(run, out, options);
  REQUIRE_MESSAGE(exported.ok(), Message(exported.status()));
  return *exported;
}

struct LoraCase {
  std::string blocks;
  std::vector<std::string> sizes;
  std::string targets;
  std::vector<std::string> target_modules;
  bool transposed = false;
  std::string family = {};
};

// Of the merged model each matrix is the base's, plus what the adapter's files say where they name it.
void CheckMerged(const Matrices& base, const Matrices& merged, const Matrices& adapter,
                 const nlohmann::json& config, bool transposed) {
  CHECK(base.size() == merged.size());
  std::size_t adapted = 0;
  for (const auto& [name, matrix] : base) {
    INFO(name);
    REQUIRE(merged.contains(name));
    const Matrix& other = merged.at(name);
    REQUIRE(other.shape == matrix.shape);
    const std::string head = "base_model.model." + name.substr(0, name.rfind('.'));
    if (!name.ends_with(".weight") || !adapter.contains(head + ".lora_A.weight")) {
      CHECK(other.values == matrix.values);
      continue;
    }
    ++adapted;
    const Matrix& a = adapter.at(head + ".lora_A.weight");
    const Matrix& b = adapter.at(head + ".lora_B.weight");
    const std::int64_t out = matrix.shape[transposed ? 1 : 0], in = matrix.shape[transposed ? 0 : 1];
    const std::int64_t r = config["r"].get<std::int64_t>();
    REQUIRE(a.shape == Shape{r, in});
    REQUIRE(b.shape == Shape{out, r});
    const double scale = config["lora_alpha"].get<double>() / static_cast<double>(r);
    double apart = 0, moved = 0;
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t i = 0; i < in; ++i) {
        const auto at = static_cast<std::size_t>(transposed ? i * out + o : o * in + i);
        double sum = 0;
        for (std::int64_t k = 0; k < r; ++k)
          sum += static_cast<double>(b.values[static_cast<std::size_t>(o * r + k)]) *
                 a.values[static_cast<std::size_t>(k * in + i)];
        moved = std::max(moved, std::abs(scale * sum));
        apart = std::max(apart, std::abs(matrix.values[at] + scale * sum - other.values[at]));
      }
    }
    CHECK(moved > 1e-4);
    CHECK(apart < 1e-6);
  }
  CHECK(adapter.size() == 2 * adapted);
}

void CheckAdapter(const LoraCase& c) {
  INFO(c.blocks);
  const TempDir folder;
  const auto run = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), c.sizes.begin(), c.sizes.end());
    train::testing::MustRun(LoraRun(c.blocks, more), folder / name);
  };
  run("drawn", {"training.iterations=1", "optimizer.learning_rate=0"});
  MustWrite(folder / "drawn", folder / "base", {.dtype = "fp32", .family = c.family});
  run("run", {"training.iterations=3", "optimizer.learning_rate=2e-2", "lora.rank=3", "lora.alpha=7.5",
              "lora.targets=" + c.targets, "training.weights_from=\"" + folder / "base" + "\""});
  const train::HfExport adapter =
      MustWrite(folder / "run", folder / "adapter", {.family = c.family, .adapter = true});
  CHECK(adapter.dtype == "fp32");
  MustWrite(folder / "run", folder / "merged", {.dtype = "fp32", .family = c.family, .merge = true});
  const nlohmann::json config = nlohmann::json::parse(data::ReadFile(folder / "adapter/adapter_config.json"));
  CHECK(config["peft_type"] == "LORA");
  CHECK(config["task_type"] == "CAUSAL_LM");
  CHECK(config["base_model_name_or_path"] == folder / "base");
  CHECK(config["lora_alpha"] == 7.5);
  CHECK(config["fan_in_fan_out"] == c.transposed);
  CHECK(config["target_modules"].get<std::vector<std::string>>() == c.target_modules);
  CHECK(nlohmann::json::parse(data::ReadFile(folder / "merged/config.json")) ==
        nlohmann::json::parse(data::ReadFile(folder / "base/config.json")));
  CheckMerged(MatricesOf(folder / "base/model.safetensors"), MatricesOf(folder / "merged/model.safetensors"),
              MatricesOf(folder / "adapter/adapter_model.safetensors"), config, c.transposed);
}

const std::vector<std::string> kText = {
    "model.dims={ D = 32, L = 2, H = 4, K = 2, E = 8, F = 48, X = 4, T = 2, V = 200 }"};
const std::vector<std::string> kKeys = {"model.layers=2", "model.hidden=32", "model.attention.heads=4",
                                        "model.vocab=200", "model.max_positions=16"};

}  // namespace

TEST_CASE("adapters in PEFT's files and merged weights say the same of the Hugging Face model") {
  CheckAdapter({"blocks/llama",
                kText,
                R"(["*"])",
                {"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"}});
  CheckAdapter({"blocks/qwen3", kText, R"(["*.qkv", "*.fc2"])", {"down_proj", "k_proj", "q_proj", "v_proj"}});
  CheckAdapter({"blocks/llama",
                kText,
                R"(["layers.1.mlp.fc2", "*.proj"])",
                {"model.layers.1.mlp.down_proj", "o_proj"}});
  CheckAdapter({"models/gpt2-124m", kKeys, R"(["*"])", {"c_attn", "c_fc", "c_proj"}, true});
  CheckAdapter({"models/gpt2-124m",
                kKeys,
                R"(["*.fc2"])",
                {"transformer.h.0.mlp.c_proj", "transformer.h.1.mlp.c_proj"},
                true});
  CheckAdapter({"models/phi3-mini",
                {"model.dims={ D = 32, L = 2, H = 4, K = 4, E = 8, F = 48, V = 200 }"},
                R"(["*"])",
                {"down_proj", "gate_up_proj", "o_proj", "qkv_proj"},
                false,
                "phi3"});
}

TEST_CASE("a run with adapters goes on from its checkpoint, which has the frozen weights too") {
  const TempDir folder;
  const auto run = [&](const std::string& name, const std::string& iterations) {
    std::vector<std::string> sets = kText;
    sets.insert(sets.end(), {"training.iterations=" + iterations, "optimizer.learning_rate=2e-2",
                             "lora.rank=3", "schedule.kind=constant"});
    train::testing::MustRun(LoraRun("blocks/llama", sets), folder / name);
  };
  run("straight", "4");
  run("resumed", "2");
  run("resumed", "4");
  CHECK((train::testing::TensorsOf(folder / "straight", 4) ==
         train::testing::TensorsOf(folder / "resumed", 4)));
  const auto tensors = train::testing::TensorsOf(folder / "straight", 4);
  CHECK(tensors.contains("layers.0.attention.qkv.weight"));
  CHECK(tensors.contains("layers.0.attention.qkv.lora_a"));
  CHECK(tensors.contains("adam.m/layers.0.attention.qkv.lora_b"));
  CHECK(!tensors.contains("adam.m/layers.0.attention.qkv.weight"));
}

TEST_CASE("exports of adapters that would lose something are refused") {
  const TempDir folder;
  const auto run = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), kText.begin(), kText.end());
    more.insert(more.end(), {"training.iterations=1", "optimizer.learning_rate=1e-3"});
    train::testing::MustRun(LoraRun("blocks/llama", more), folder / name);
  };
  const auto why = [&](const std::string& name, const train::HfExportOptions& options) {
    const auto exported = train::ExportHf(folder / name, folder / "out", options);
    CHECK(!exported.ok());
    CHECK(!fs::exists(folder / "out"));
    return Message(exported.status());
  };
  run("plain", {});
  CHECK(Contains(why("plain", {.adapter = true}), "the run has no adapters"));
  CHECK(Contains(why("plain", {.merge = true}), "the run has no adapters"));
  run("lora", {"lora.rank=2"});
  CHECK(
      Contains(why("lora", {}), "--merge adds them to the weights beside them; --adapter writes them alone"));
  run("more", {"lora.rank=2", "optimizer.group=[{ match = \"*.norm.weight\", frozen = false }]"});
  CHECK(Contains(why("more", {.adapter = true}), "trains other parameters beside its adapters"));
  MustWrite(folder / "more", folder / "merged", {.dtype = "bf16", .merge = true});
  CHECK(Contains(why("lora", {.merge = true}), "which BF16 cannot say exactly"));
  // A group may speak of adapters, which the exported model has not.
  run("faster", {"lora.rank=2", "optimizer.group=[{ match = \"*.lora_b\", learning_rate_scale = 16.0 }]"});
  MustWrite(folder / "faster", folder / "merged", {.dtype = "bf16", .merge = true});
  MustWrite(folder / "faster", folder / "faster-adapter", {.adapter = true});
  MustWrite(folder / "lora", folder / "faster-adapter", {.adapter = true});  // in the place of its own kind
  // Neither kind goes into a folder of the other.
  const auto into = [&](const std::string& out, const train::HfExportOptions& options) {
    const auto exported = train::ExportHf(folder / "faster", folder / out, options);
    CHECK(!exported.ok());
    return Message(exported.status());
  };
  CHECK(Contains(into("merged", {.adapter = true}), "it holds other files than an adapter's"));
  CHECK(Contains(into("faster-adapter", {.dtype = "bf16", .merge = true}),
                 "it holds other files than a model's"));
}

}  // namespace engine::hf::testing
