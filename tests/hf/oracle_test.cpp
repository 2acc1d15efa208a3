// Models of every family, read from folders of Hugging Face's form, give the logits of an oracle in float64; models whose
// tensors were exchanged or turned do not.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/hf/family.h"
#include "engine/hf/folder.h"
#include "engine/hf/weights.h"
#include "engine/model/load.h"
#include "tests/data/temp_dir.h"
#include "tests/hf/oracle_case.h"
#include "tests/train/testing.h"

namespace engine::hf::testing {
namespace {

using train::testing::CpuDevice;

// Both sides read the same numbers, and what they compute differs by the roundings of float32 alone.
constexpr double kTolerance = 2e-5;
// A mistake in a map of names is an error of another size.
constexpr double kMistake = 1e-2;

// The recipe that a config comes to, with data for a pass over all samples.
absl::StatusOr<recipe::Recipe> OracleRecipe(const std::string& text, const std::vector<std::string>& sets,
                                            const OracleFile& oracle, const data::TempDir& folder) {
  const std::string path = folder / "recipe.toml";
  data::WriteFile(path, fmt::format(R"({}
[data]
source = "random"
sequence_length = {}
[optimizer]
learning_rate = 1e-3
[training]
global_batch = {}
micro_batch = {}
iterations = 1
)",
                                    text, oracle.sequence(), oracle.samples(), oracle.samples()));
  const recipe::LoadResult loaded = model::Load(path, {.sets = sets, .root = {}});
  if (loaded.ok()) return loaded.recipe;
  std::string errors;
  for (const Diagnostic& diagnostic : loaded.diagnostics) errors += Format(diagnostic);
  return InvalidArgument("{}{}", errors, text);
}

// Each parameter of `executor` as `source` has it.
absl::Status UploadAll(const plan::Plan& plan, const checkpoint::TensorSource& source,
                       executor::RankExecutor& executor) {
  for (const executor::LocalTensor& tensor : executor.Parameters()) {
    const plan::PlanParameter& parameter = plan.parameters[static_cast<size_t>(tensor.parameter)];
    if (source.Find(parameter.name) == nullptr) return NotFound("no parameter {}", parameter.name);
    std::vector<float> values(static_cast<size_t>(parameter.logical_shape.elements()));
    RETURN_IF_ERROR(
        source.Read(parameter.name, checkpoint::WholeBox(parameter.logical_shape), values.data()));
    RETURN_IF_ERROR(executor.backend().Upload(static_cast<std::byte*>(tensor.view.data), values.data(),
                                              static_cast<std::int64_t>(values.size() * sizeof(float))));
  }
  return absl::OkStatus();
}

// [sample, column, class] of a pass over the oracle's tokens.
absl::StatusOr<std::vector<float>> OracleLogits(const plan::Plan& plan, const OracleFile& oracle,
                                                executor::RankExecutor& executor) {
  const executor::FeedFunction feed = [&](const std::string& input, std::int64_t,
                                          const backend::TensorView& host) -> absl::Status {
    for (std::int64_t i = 0; i < host.shape.elements(); ++i) {
      const std::int64_t column = i % host.shape[1];
      host.as<std::int32_t>()[i] = input == model::kPositions ? static_cast<std::int32_t>(column)
                                   : input == model::kLabels  ? 0
                                                              : oracle.Token(i / host.shape[1], column);
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(executor.Evaluate(feed).status());
  std::vector<float> logits;
  const float* row = executor.Logits().as<float>();
  for (std::int64_t token = 0; token < oracle.samples() * oracle.sequence();
       ++token, row += plan.vocab_rows) {
    logits.insert(logits.end(), row, row + plan.vocab);
  }
  return logits;
}

// What the importer's notes say about a case's config, done.
std::vector<std::string> SetsOf(const std::string& name) {
  // Its samples are longer than `original_max_position_embeddings`: transformers turns them by long_factor.
  if (name == "phi3_long") return {"model.rotary.rope.factors=[1.5, 3.0]"};
  return {};
}

// How far the logits of the model in a folder are from those of a case.
absl::StatusOr<double> ErrorOfFolder(const OracleFile& oracle, const std::string& name,
                                     const data::TempDir& folder) {
  ASSIGN_OR_RETURN(const nlohmann::json config,
                   ParseJson(data::ReadFile(folder / "config.json"), folder / "config.json"));
  ASSIGN_OR_RETURN(const ImportedModel imported, ImportConfig(config, folder / "config.json"));
  ASSIGN_OR_RETURN(const recipe::Recipe recipe, OracleRecipe(imported.recipe, SetsOf(name), oracle, folder));
  const state::Device device = CpuDevice();
  ASSIGN_OR_RETURN(
      const plan::Plan plan,
      driver::CompileRecipe(recipe, {.profile = device.profile, .training = false, .keep_logits = true}));
  std::vector<checkpoint::TensorInfo> parameters;
  for (const plan::PlanParameter& parameter : plan.parameters) {
    parameters.push_back({.name = parameter.name, .shape = parameter.logical_shape});
  }
  ASSIGN_OR_RETURN(Folder opened, Folder::Open(folder.path()));
  ASSIGN_OR_RETURN(std::vector<Mapping> mappings,
                   MappingsOf(RowsFor(imported, opened.names()), imported.sizes, parameters));
  ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::TensorSource> source,
                   OpenWeights(std::move(opened), std::move(mappings), imported.ignored));
  ASSIGN_OR_RETURN(const std::unique_ptr<state::Ranks> ranks, state::Ranks::Create(plan, device, 0));
  executor::RankExecutor& executor = *ranks->executors()[0];
  RETURN_IF_ERROR(UploadAll(plan, *source, executor));
  ASSIGN_OR_RETURN(const std::vector<float> logits, OracleLogits(plan, oracle, executor));
  return oracle.Error(name, logits);
}

// The same of a folder that is written for it.
absl::StatusOr<double> ErrorOfCase(const OracleFile& oracle, const std::string& name,
                                   const OracleTensors& tensors) {
  const data::TempDir folder;
  const nlohmann::json& config = oracle.config(name);
  WriteModel(folder.path(), config, tensors, config.value("torch_dtype", "float32") == "bfloat16");
  return ErrorOfFolder(oracle, name, folder);
}

// Rows [a, a + count) and [b, b + count) of two tensors, or of one.
void ExchangeRows(OracleTensor& first, std::int64_t a, OracleTensor& second, std::int64_t b,
                  std::int64_t count) {
  const std::int64_t width = first.shape.elements() / first.shape[0];
  REQUIRE(width == second.shape.elements() / second.shape[0]);
  std::swap_ranges(first.values.begin() + a * width, first.values.begin() + (a + count) * width,
                   second.values.begin() + b * width);
}

void Transpose(OracleTensor& tensor) {
  REQUIRE(tensor.shape.rank() == 2);
  REQUIRE(tensor.shape[0] == tensor.shape[1]);
  const std::int64_t size = tensor.shape[0];
  for (std::int64_t i = 0; i < size; ++i) {
    for (std::int64_t j = 0; j < i; ++j) {
      std::swap(tensor.values[static_cast<size_t>(i * size + j)],
                tensor.values[static_cast<size_t>(j * size + i)]);
    }
  }
}

// Exchanges everything of two experts whose tensors' names begin so.
void ExchangeExperts(OracleTensors& tensors, const std::string& prefix, int a, int b) {
  int exchanged = 0;
  const std::string first = prefix + std::to_string(a) + ".";
  for (auto& [name, tensor] : tensors) {
    if (!name.starts_with(first)) continue;
    std::swap(tensor.values, tensors.at(prefix + std::to_string(b) + "." + name.substr(first.size())).values);
    ++exchanged;
  }
  REQUIRE(exchanged == 3);
}

struct Mistake {
  std::string name;
  std::string what;
  std::function<void(OracleTensors&)> make;
};

// Of a head's queries and keys, of gate and up, of a square matrix and of experts, for each way in which a file holds them.
std::vector<Mistake> Mistakes() {
  const std::string llama = "model.layers.1.", gpt2 = "transformer.h.1.", neox = "gpt_neox.layers.1.";
  return {
      {"llama", "q and k of a head",
       [=](OracleTensors& t) {
         ExchangeRows(t.at(llama + "self_attn.q_proj.weight"), 8, t.at(llama + "self_attn.k_proj.weight"), 8,
                      8);
       }},
      {"llama", "gate and up",
       [=](OracleTensors& t) {
         std::swap(t.at(llama + "mlp.gate_proj.weight"), t.at(llama + "mlp.up_proj.weight"));
       }},
      {"llama", "a matrix transposed",
       [=](OracleTensors& t) { Transpose(t.at(llama + "self_attn.o_proj.weight")); }},
      {"llama_grouped", "heads of two groups",
       [=](OracleTensors& t) {
         OracleTensor& q = t.at(llama + "self_attn.q_proj.weight");
         ExchangeRows(q, 0, q, 3 * 6, 6);
       }},
      {"gpt2", "a matrix transposed",
       [=](OracleTensors& t) { Transpose(t.at(gpt2 + "attn.c_proj.weight")); }},
      {"gpt2", "biases of q and k of a head",
       [=](OracleTensors& t) {
         OracleTensor& bias = t.at(gpt2 + "attn.c_attn.bias");
         ExchangeRows(bias, 8, bias, 40 + 8, 8);
       }},
      {"gpt_neox", "q and k of a head",
       [=](OracleTensors& t) {
         OracleTensor& qkv = t.at(neox + "attention.query_key_value.weight");
         ExchangeRows(qkv, 24, qkv, 32, 8);
       }},
      {"phi3", "q and k of a head",
       [=](OracleTensors& t) {
         OracleTensor& qkv = t.at(llama + "self_attn.qkv_proj.weight");
         ExchangeRows(qkv, 8, qkv, 40 + 8, 8);
       }},
      {"phi3", "gate and up",
       [=](OracleTensors& t) {
         OracleTensor& both = t.at(llama + "mlp.gate_up_proj.weight");
         ExchangeRows(both, 0, both, 37, 37);
       }},
      {"falcon_grouped", "q and k of a head",
       [=](OracleTensors& t) {
         OracleTensor& qkv = t.at("transformer.h.1.self_attention.query_key_value.weight");
         ExchangeRows(qkv, 5 * 6, qkv, 8 * 6, 6);
       }},
      {"mixtral", "experts",
       [=](OracleTensors& t) { ExchangeExperts(t, llama + "block_sparse_moe.experts.", 2, 5); }},
      {"mixtral", "gate and up",
       [=](OracleTensors& t) {
         for (int e = 0; e < 7; ++e) {
           const std::string expert = llama + "block_sparse_moe.experts." + std::to_string(e);
           std::swap(t.at(expert + ".w1.weight"), t.at(expert + ".w3.weight"));
         }
       }},
      {"qwen3_moe", "experts", [=](OracleTensors& t) { ExchangeExperts(t, llama + "mlp.experts.", 0, 1); }},
      {"deepseek_v3", "experts",
       [=](OracleTensors& t) { ExchangeExperts(t, llama + "mlp.experts.", 0, 11); }},
      {"deepseek_v3", "a head's rotated features",  // the last 8 of a head's 14 are neighbours' pairs
       [=](OracleTensors& t) {
         OracleTensor& q = t.at(llama + "self_attn.q_b_proj.weight");
         ExchangeRows(q, 6 + 1, q, 6 + 4, 1);
       }},
      {"deepseek_v2", "k and v of a head",
       [=](OracleTensors& t) {
         OracleTensor& kv = t.at(llama + "self_attn.kv_b_proj.weight");
         ExchangeRows(kv, 0, kv, 6, 6);
       }},
  };
}

}  // namespace

TEST_CASE("models in folders of every family give the logits of an oracle in float64") {
  const OracleFile oracle;
  for (const std::string& name : oracle.names()) {
    INFO(name);
    const absl::StatusOr<double> error = ErrorOfCase(oracle, name, oracle.Tensors(name));
    CHECK_MESSAGE(error.ok(), Message(error.status()));
    if (error.ok()) CHECK(*error <= kTolerance);
  }
}

TEST_CASE("what was imported of the oracle's configurations is written as it came") {
  const OracleFile oracle;
  for (const std::string& name : oracle.names()) {
    INFO(name);
    const data::TempDir folder;
    const absl::StatusOr<ImportedModel> imported = ImportConfig(oracle.config(name), "config.json");
    REQUIRE_MESSAGE(imported.ok(), Message(imported.status()));
    const absl::StatusOr<recipe::Recipe> recipe = OracleRecipe(imported->recipe, {}, oracle, folder);
    REQUIRE_MESSAGE(recipe.ok(), Message(recipe.status()));
    const absl::StatusOr<ExportedModel> written = ExportConfig(*recipe, &oracle.config(name), "");
    REQUIRE_MESSAGE(written.ok(), Message(written.status()));
    CHECK(ConfigText(written->config) == ConfigText(oracle.config(name)));
  }
}

TEST_CASE("the oracle's logits tell mistakes in the order of tensors") {
  const OracleFile oracle;
  for (const Mistake& mistake : Mistakes()) {
    INFO(mistake.name, ": ", mistake.what);
    OracleTensors tensors = oracle.Tensors(mistake.name);
    mistake.make(tensors);
    const absl::StatusOr<double> error = ErrorOfCase(oracle, mistake.name, tensors);
    CHECK_MESSAGE(error.ok(), Message(error.status()));
    if (error.ok()) CHECK(*error >= kMistake);
  }
}

}  // namespace engine::hf::testing
