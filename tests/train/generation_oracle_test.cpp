// Generation against PyTorch: the logits of a prompt and of one token after the other over caches, of a small model of each text of
// configs/blocks (tests/oracles/torch_texts.py, which passes over whole sequences).
#include <doctest/doctest.h>

#include <span>
#include <string>
#include <vector>

#include "engine/generate/cached_decoder.h"
#include "tests/train/oracle_engine.h"

namespace engine::train::testing {
namespace {

// As in texts_oracle_test.cpp, of logits alone: at most 6 layers, each with 6 products, and the head; the longest is over 131 terms
// at most.
constexpr OracleBound kGenerationBound{.longest_product = 131, .products = 6 * 6 + 1};

// Sequences of one prompt length each, which then go on together.
void CheckGeneration(const std::string& name) {
  INFO(name);
  const OracleGroup group(ENGINE_SOURCE_DIR "/tests/oracles/texts.h5", name);
  const recipe::Recipe recipe = TextOf(name);
  const std::vector<std::int32_t> tokens = group.Integers("tokens");
  const std::int64_t length = recipe.data.sequence_length;
  const std::int64_t samples = static_cast<std::int64_t>(tokens.size()) / length;

  const state::Device device = CpuDevice();
  const driver::GenerationShape shape = generate::ShapeFor(samples, length);
  const absl::StatusOr<plan::Plan> plan =
      driver::CompileGeneration(recipe, {.profile = device.profile}, shape);
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const std::string& cache =
      plan->values[static_cast<std::size_t>(plan->stages[0].states[0].buffer.value)].name;
  CHECK(cache.ends_with(name.starts_with("mla") ? ".latents" : ".keys"));
  const auto ranks = state::Ranks::Create(*plan, device, 0);
  REQUIRE_MESSAGE(ranks.ok(), Message(ranks.status()));
  UploadParameters(*plan, group, *(*ranks)->executors()[0]);
  const std::unique_ptr<generate::Decoder> decoder = generate::MakeCachedDecoder(*plan, **ranks, shape);

  const std::int64_t vocabulary = decoder->vocabulary();
  std::vector<float> all(static_cast<std::size_t>(samples * length * vocabulary));
  const auto keep = [&](std::int64_t sample, std::int64_t first, std::span<const float> rows) {
    std::copy(rows.begin(), rows.end(), all.begin() + (sample * length + first) * vocabulary);
  };
  std::vector<float> logits;
  for (std::int64_t b = 0; b < samples; ++b) {
    const std::int64_t prompt = 3 + 2 * b;
    const auto of_sample = std::span(tokens).subspan(static_cast<std::size_t>(b * length));
    const absl::Status status =
        decoder->PrefillAndRead(b, of_sample.first(static_cast<std::size_t>(prompt)), prompt, &logits);
    REQUIRE_MESSAGE(status.ok(), Message(status));
    keep(b, 0, logits);
  }
  for (std::int64_t step = 0; step + 3 < length; ++step) {
    std::vector<generate::Decoder::Next> next;
    for (std::int64_t b = 0; b < samples; ++b) {
      const std::int64_t at = 3 + 2 * b + step;
      if (at < length) next.push_back({b, tokens[static_cast<std::size_t>(b * length + at)]});
    }
    const absl::Status status = decoder->StepAndRead(next, &logits);
    REQUIRE_MESSAGE(status.ok(), Message(status));
    for (std::size_t i = 0; i < next.size(); ++i) {
      const auto width = static_cast<std::size_t>(vocabulary);
      keep(next[i].slot, 3 + 2 * next[i].slot + step, std::span(logits).subspan(i * width, width));
    }
  }
  const std::vector<float> expected = group.Floats("logits");
  CheckClose(expected, all, kGenerationBound.Of(ErrorOf(group, "logits"), LargestOf(expected)));
}

}  // namespace

TEST_CASE("generation over caches gives PyTorch's logits") {
  for (const char* name :
       {"qwen2", "qwen3", "olmo2", "neox", "gpt-j", "falcon", "opt", "stablelm2", "gemma", "gemma2", "gemma3",
        "mixtral", "olmoe", "qwen2-moe", "qwen3-moe", "mla", "mla-v3", "mixture"}) {
    CheckGeneration(name);
  }
}

}  // namespace engine::train::testing
