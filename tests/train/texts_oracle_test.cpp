// The engine against PyTorch: logits, loss and all gradients of a small model of each text of configs/blocks, and of one
// with the forms that none of them has. tests/oracles/torch_texts.py has the formulas; texts/ the recipes.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/train/oracle_engine.h"

namespace engine::train::testing {
namespace {

// The longest product is the gradient's through the head, over 131 classes. At most 6 layers, each with 6 products (qkv,
// scores, values, proj, fc1, fc2), and the head.
constexpr OracleBound kTextsBound{.longest_product = 131, .products = 6 * 6 + 1};

void CheckText(const std::string& name) {
  INFO(name);
  const OracleGroup group(ENGINE_SOURCE_DIR "/tests/oracles/texts.h5", name);
  OracleEngine engine(TextOf(name), group);
  CheckForwardAndBackward(group, kTextsBound, &engine);
}

// The losses of routers, each by itself; the gradients above are of their weighted sum with the model's loss.
void CheckRouters(const std::string& name, size_t losses) {
  INFO(name);
  const OracleGroup group(ENGINE_SOURCE_DIR "/tests/oracles/texts.h5", name);
  OracleEngine engine(TextOf(name), group);
  const std::vector<std::string> names = group.NamesIn("router_losses");
  CHECK(names.size() == losses);
  for (const std::string& metric : names) {
    INFO(metric);
    const double expected = group.Doubles("router_losses/" + metric)[0];
    const double bound = kTextsBound.Of(ErrorOf(group, "router_losses/" + metric), expected);
    CHECK(std::abs(engine.Metric(metric) - expected) <= bound);
  }
}

}  // namespace

TEST_CASE("texts of today's decoders give PyTorch's logits, loss and gradients") {
  for (const char* name : {"qwen2", "qwen3", "olmo2", "neox", "gpt-j", "falcon", "opt", "stablelm2", "gemma",
                           "gemma2", "gemma3"}) {
    CheckText(name);
  }
}

TEST_CASE("texts with experts give PyTorch's logits, losses and gradients") {
  for (const char* name : {"mixtral", "olmoe", "qwen2-moe", "qwen3-moe", "switch"}) CheckText(name);
  CheckRouters("mixtral", 2);
  CheckRouters("olmoe", 4);
  CheckRouters("qwen2-moe", 2);
  CheckRouters("qwen3-moe", 2);
  CheckRouters("switch", 2);
}

TEST_CASE("DeepSeek's attention and routers give PyTorch's logits, losses and gradients") {
  CheckText("mla");
  CheckText("mla-v3");
  CheckRouters("mla", 2);
  CheckRouters("mla-v3", 2);
}

TEST_CASE(
    "linear biases, sinks, YaRN, other gates and terms of the loss give PyTorch's logits, loss and "
    "gradients") {
  CheckText("mixture");
}

}  // namespace engine::train::testing
