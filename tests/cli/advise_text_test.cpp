// Warnings of `engine check` about models whose steps are text: what gives each, and where in the text it points.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/cli/commands.h"
#include "tests/cli/run_command.h"
#include "tests/recipe/test_files.h"

namespace engine::cli {
namespace {

using Json = nlohmann::json;

// GPT-2's training on one H200, of steps that give no warning. Rotary positions stand beside learned ones so that both
// can be spoiled.
std::string GoodText() {
  return R"(extends = ["ROOT/configs/optimizers/adamw-gpt2.toml", "ROOT/configs/data/openwebtext.toml",
           "ROOT/configs/clusters/h200-x1.toml"]
[training]
global_batch = 64
micro_batch = 64
iterations = 500_000
[precision]
compute = "bf16"
[evaluation]
interval = 1000
[checkpoint]
interval = 1000
keep = 3
[model]
dims = { D = 768, L = 12, H = 12, E = 64, F = 3072, V = 50257, P = 1024 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
rotary.rope = { dim = "E", base = 1e4 }
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "embedding", as = "embedding.positions", of = "positions", rows = "P", width = "D" },
  { do = "add", as = "embedding", of = ["embedding.tokens", "embedding.positions"] },
  { do = "stack", as = "layers", repeat = "L", layer = ["attention as attention", "mlp as mlp"], cycle = { window = [0, 0] } },
  { do = "layer_norm", as = "final_norm", epsilon = 1e-5 },
  { do = "linear", as = "head", out = ["V"], weight = "embedding.tokens" },
  { do = "cross_entropy", as = "loss" },
]
[block.attention]
steps = [
  { do = "layer_norm", as = "norm", of = "x" },
  { do = "linear", as = "qkv", out = ["H", 3, "E"], init = "normal" },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"], rotary = "rope" },
  { do = "attention", as = "core", of = ["q", "k", "v"], mask = "causal", window = "$window" },
  { do = "linear", as = "proj", out = ["D"], init = "normal" },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[block.mlp]
steps = [
  { do = "layer_norm", as = "norm", of = "x" },
  { do = "linear", as = "fc1", out = ["F"], init = "normal" },
  { do = "act", as = "activation", act = "gelu_tanh" },
  { do = "linear", as = "fc2", out = ["D"], init = "normal" },
  { do = "residual", as = "residual", of = ["x", "fc2"], to = "x" },
]
)";
}

// The text with every `from` replaced; it must have one.
std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  std::size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  for (; at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  return text;
}

struct Found {
  std::string code, message, hint;
  std::string at;  // what stands at its place in the text; else the file that it is in
};

std::vector<Found> CheckText(const std::string& spoilt, const std::vector<std::string>& sets = {},
                             int exit_code = 0) {
  const recipe::TemporaryFolder folder;
  const std::string text = Replaced(spoilt, "ROOT", ENGINE_SOURCE_DIR);
  const std::string path = folder.Write("recipe.toml", text);
  std::vector<std::string> arguments = {"check", "--format", "json", path};
  for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
  const CommandResult result = RunCommand(AddCheckCommand, arguments);
  CHECK_MESSAGE(result.exit_code == exit_code, result.output);
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::vector<Found> found;
  const Json report = Json::parse(result.output);
  for (const Json& diagnostic : report["files"][0]["diagnostics"]) {
    const auto line = diagnostic["line"].get<std::size_t>();
    const auto column = diagnostic["column"].get<std::size_t>();
    const std::string file = diagnostic["file"];
    found.push_back({diagnostic["code"], diagnostic["message"], diagnostic["hint"],
                     file == path ? lines.at(line - 1).substr(column - 1) : file});
  }
  return found;
}

std::vector<Found> OfCode(const std::vector<Found>& all, const std::string& code) {
  std::vector<Found> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found),
               [&](const Found& one) { return one.code == code; });
  return found;
}

struct TextCase {
  std::string code;
  std::string from, to;  // gives the warning
  std::string message, at;
};

const std::vector<TextCase>& TextCases() {
  static const std::vector<TextCase> cases = {
      {"W204", "micro_batch = 64", "micro_batch = 1",
       "1024 tokens of a microbatch × 768 features are 24 tiles of 128 × 256", "1"},
      {"W205", "F = 3072", "F = 3000",
       "layers.0.mlp.fc2 contracts 3000 features on a rank, no multiple of 64", "\"linear\", as = \"fc2\""},
      {"W205", "E = 64", "E = 72", "layers.0.attention.proj contracts 864 features on a rank",
       "\"linear\", as = \"proj\""},
      {"W211", "  { do = \"cross_entropy\"", "  { do = \"dropout\", p = 0.1 },\n  { do = \"cross_entropy\"",
       "all logits of a microbatch exist at once, 6.14 GiB on a rank, and once more as gradients: "
       "loss.cross_entropy is not computed in chunks with its head, since dropout stands between them",
       "\"dropout\", p"},
      {"W211", "  { do = \"cross_entropy\"",
       "  { do = \"softcap\", cap = 30.0 },\n  { do = \"scale\", by = 0.5 },\n  { do = \"cross_entropy\"",
       "since softcap stands between them", "\"scale\", by"},
      {"W309", "P = 1024", "P = 2048",
       "positions 1024 to 2047 of the learned table are never trained: sequence_length is 1024", "\"P\""},
      {"W310", "[0, 0]", "[0, 4096]", "a window of 4096 does nothing to sequences of 1024", "4096"},
      {"W313", "init = \"normal\"", "init = \"zeros\"", "no product's weights begin as random numbers",
       "\"zeros\""},
      {"W313", "epsilon = 1e-5", "epsilon = 1.5",
       "epsilon 1.5 of final_norm is added to the mean square of what is normalised", "1.5"},
      {"W313", "base = 1e4", "base = 2",
       "base 2 of layers.0.attention.split: the slowest pair of a head turns round in 12 tokens", "2 }"},
  };
  return cases;
}

}  // namespace

// Hopper's kernels have both.
TEST_CASE("a text: dropout and windows of attention, where the GPU has no kernels for them") {
  const std::string dropout = Replaced(GoodText(), "mask = \"causal\"", "mask = \"causal\", dropout = 0.1");
  CHECK(CheckText(dropout).empty());
  const std::vector<Found> refused =
      OfCode(CheckText(dropout, {"cluster.device=a100"}, /*exit_code=*/1), "E305");
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].message ==
        "attention with dropout 0.1 of layers.0.attention.core has no fast kernel on a100: in cuDNN none "
        "with dropout; in the kernels for Hopper none on other GPUs than H100 and H200 (sm_90a)");
  CHECK(refused[0].at == "--set");  // which comes before the text
  CHECK((refused[0].hint.find("no dropout; or H100 or H200; or precision.attention = \"reference\": the "
                              "reference kernels take 1") == 0));

  const std::string window = Replaced(GoodText(), "[0, 0]", "[0, 256]");
  CHECK(CheckText(window).empty());
  const std::vector<Found> slow = OfCode(CheckText(window, {"cluster.device=a100"}), "W210");
  REQUIRE(slow.size() == 1);
  CHECK((slow[0].message.find("with a window of 256 of 1024 tokens an iteration takes 1.") == 0));
  CHECK(slow[0].at.starts_with("256"));
}

// Of several causes all are named, and the place is that of what the step says.
TEST_CASE("a text: attention is refused where the size of heads keeps it out of all fast kernels") {
  const std::string text =
      Replaced(Replaced(GoodText(), "mask = \"causal\"", "mask = \"causal\", softcap = 50.0"),
               "H = 12, E = 64", "H = 24, E = 36");
  const std::vector<Found> both = OfCode(CheckText(text, {}, /*exit_code=*/1), "E305");
  REQUIRE(both.size() == 1);
  CHECK((both[0].message.find("attention with heads of 36 elements and softcap 50 of layers.0.attention.core "
                              "has no fast kernel on h200: ") == 0));
  CHECK(both[0].at.starts_with("50.0"));
  const std::vector<Found> alone = OfCode(
      CheckText(Replaced(GoodText(), "H = 12, E = 64", "H = 24, E = 36"), {}, /*exit_code=*/1), "E305");
  REQUIRE(alone.size() == 1);
  CHECK(alone[0].at.starts_with("\"attention\", as = \"core\""));
  // One who asks for them has the reference kernels, with a warning.
  const std::vector<Found> asked = CheckText(text, {"precision.attention=reference"});
  CHECK(OfCode(asked, "W209").size() == 1);
}

TEST_CASE("a text: biases by distance are named where the GPU has no kernels for them") {
  const std::string core = "{ do = \"attention\", as = \"core\",";
  const std::string text = Replaced(
      Replaced(
          GoodText(), core,
          "{ do = \"relative_bias\", as = \"distances\", heads = \"H\", max_distance = 64 },\n  " + core),
      "mask = \"causal\",", "mask = \"causal\", bias = \"distances\",");
  CHECK(CheckText(text).empty());
  const std::vector<Found> refused =
      OfCode(CheckText(text, {"cluster.device=b200"}, /*exit_code=*/1), "E305");
  REQUIRE(refused.size() == 1);
  CHECK(
      refused[0].message.starts_with("attention with biases by distance up to 64 has no fast kernel on b200: "
                                     "in cuDNN none with biases by distance; "));
  CHECK(refused[0].hint.starts_with("no biases by distance; or H100 or H200; or "));
}

TEST_CASE("warnings of a text: each at the attribute that causes it, once") {
  for (const Found& one : CheckText(GoodText())) CHECK_MESSAGE(false, one.message);
  for (const TextCase& test : TextCases()) {
    CAPTURE(test.code);
    CAPTURE(test.to);
    const std::vector<Found> all = CheckText(Replaced(GoodText(), test.from, test.to));
    const std::vector<Found> found = OfCode(all, test.code);
    CHECK(found.size() == 1);
    if (found.size() != 1) continue;
    CAPTURE(found[0].message);
    CHECK((found[0].message.find(test.message) != std::string::npos));
    CAPTURE(found[0].at);
    CHECK(found[0].at.starts_with(test.at));
    CHECK(!found[0].hint.empty());
  }
}

TEST_CASE("warnings of a text: a --set comes before the text, and the text before what it extends") {
  const std::vector<Found> set =
      CheckText(GoodText(), {"model.main.layers={ cycle = { window = [4096, 0] } }"});
  REQUIRE(OfCode(set, "W310").size() == 1);
  CHECK(OfCode(set, "W310")[0].at == "--set");
  const std::vector<Found> shorter = CheckText(GoodText(), {"data.sequence_length=512"});
  REQUIRE(OfCode(shorter, "W309").size() == 1);
  CHECK(OfCode(shorter, "W309")[0].at == "--set");
  const std::vector<Found> zero = CheckText(Replaced(GoodText(), "[model]", "[model]\ninit_std = 0"));
  REQUIRE(OfCode(zero, "W313").size() == 1);
  CHECK(OfCode(zero, "W313")[0].message.starts_with("init_std 0: all weights of a matrix are equal"));
}

TEST_CASE("warnings of a text: what is small, split or random is not warned of") {
  // A product of rank 16 beside the others has few tiles, and takes no time.
  const std::string adapted =
      Replaced(Replaced(Replaced(GoodText(), "P = 1024 }", "P = 1024, R = 16 }"), "  { do = \"act\"",
                        "  { do = \"linear\", as = \"down\", of = \"norm\", out = [\"R\"] },\n"
                        "  { do = \"linear\", as = \"up\", of = \"down\", out = [\"D\"] },\n"
                        "  { do = \"act\""),
               "[\"x\", \"fc2\"]", "[\"x\", \"fc2\", \"up\"]");
  const std::string straight = Replaced(adapted, "{ do = \"act\", as", "{ do = \"act\", of = \"fc1\", as");
  const std::vector<Found> low = CheckText(straight);
  CHECK(OfCode(low, "W204").empty());
  REQUIRE(OfCode(low, "W205").size() == 1);
  CHECK((OfCode(low, "W205")[0].message.find("up contracts 16 features") != std::string::npos));
  // One random matrix is enough for the others to learn.
  CHECK(OfCode(CheckText(Replaced(GoodText(), "out = [\"D\"], init = \"normal\"",
                                  "out = [\"D\"], init = \"zeros\"")),
               "W313")
            .empty());
  // Each of two ranks has half of the logits, and a small microbatch few.
  const std::string apart = Replaced(GoodText(), "  { do = \"cross_entropy\"",
                                     "  { do = \"dropout\", p = 0.1 },\n  { do = \"cross_entropy\"");
  CHECK(OfCode(CheckText(apart), "W211").size() == 1);
  CHECK(
      OfCode(CheckText(apart, {"parallelism.tp=2", "cluster.devices_per_node=2", "cluster.nodes=1"}), "W211")
          .empty());
  CHECK(OfCode(CheckText(apart, {"training.micro_batch=8"}), "W211").empty());
  // What the kernel of head and loss takes with it.
  const std::string biased = Replaced(GoodText(), "out = [\"V\"]", "out = [\"V\"], bias = true");
  const std::string capped = Replaced(
      biased, "  { do = \"cross_entropy\"",
      "  { do = \"scale\", by = 0.5 },\n  { do = \"softcap\", cap = 30.0 },\n  { do = \"cross_entropy\"");
  CHECK(OfCode(CheckText(capped), "W211").empty());
  const std::string frozen = Replaced(
      capped, "[block.mlp]", "[[optimizer.group]]\nmatch = \"embedding.tokens\"\nfrozen = true\n[block.mlp]");
  CHECK(OfCode(CheckText(frozen), "W211").empty());
}

// DeepSeek-V2-Lite's attention, of heads whose keys have 192 elements and whose values have 128, is cuDNN's.
TEST_CASE("a text: attention of two widths is refused, but for the widths that there are kernels for") {
  std::string text = GoodText();
  text.resize(text.find("[model]"));
  text = Replaced(text, "extends = [", "extends = [\"ROOT/configs/models/deepseek-v2-lite.toml\", ") +
         "[model]\ndims = { L = 2 }\n";
  CHECK(OfCode(CheckText(text, {"training.micro_batch=8"}), "W209").empty());
  const std::vector<Found> odd =
      OfCode(CheckText(text, {"training.micro_batch=8", "model.dims.U=100"}, /*exit_code=*/1), "E305");
  REQUIRE(odd.size() == 1);
  CHECK((odd[0].message.find("attention with heads of 192 elements and values of 100 has no fast kernel on "
                             "h200: ") == 0));
}

// Of models whose steps are text, what can be said of any model.
TEST_CASE("warnings of a text: padding") {
  const CommandResult result = RunCommand(
      AddCheckCommand, {"check", SourcePath("recipes/custom-block.toml"), "--set", "data.source=random",
                        "--set", "data.paths=[]", "--set", "model.vocab_multiple=4096"});
  CHECK(
      (result.output.find("vocab 257 is padded to 8192 (vocab_multiple 4096 × tp 2)") != std::string::npos));
}

}  // namespace engine::cli
