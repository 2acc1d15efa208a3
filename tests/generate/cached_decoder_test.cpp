// Prompts and steps over caches give the logits of the whole sequence's forward pass, in every family and layout.
#include "engine/generate/cached_decoder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "tests/generate/decoding.h"
#include "tests/generate/invariant.h"
#include "tests/plan/plans.h"
#include "tests/train/text_testing.h"

namespace engine::generate {
namespace {

using testing::CheckLikeliest;
using testing::CheckRows;
using testing::Generating;
using testing::OfFamily;
using testing::OfText;
using testing::RandomTokens;
using testing::WholeLogits;
using train::testing::CpuDevice;

std::vector<double> TemperaturesOf(const std::vector<Decoder::Next>& next) {
  std::vector<double> temperatures;
  for (const Decoder::Next& one : next) temperatures.push_back(one.temperature);
  return temperatures;
}

// A prompt, then token by token to the end of the context; in the second slot, another prompt of the same sequence's tokens
// is in between, so that slots are told apart.
void CheckCaches(const recipe::Recipe& recipe) {
  const std::int64_t context = recipe.data.sequence_length;
  const std::vector<std::int32_t> tokens = RandomTokens(context, recipe.model.vocab);
  const std::vector<float> whole = WholeLogits(recipe, tokens);
  Generating run(recipe);
  const std::int64_t vocab = run.decoder->vocabulary();
  const std::span<const std::int32_t> all(tokens);
  std::vector<float> logits;
  const std::int64_t prompt = 11;
  REQUIRE(run.decoder->PrefillAndRead(2, all.first(prompt), prompt, &logits).ok());
  CheckRows(logits, whole, 0, vocab);
  CheckLikeliest(*run.decoder, prompt - 1, {1}, logits);
  CHECK(!run.decoder->ReadLikeliest(prompt - 2)->has_value());
  REQUIRE(run.decoder->PrefillAndRead(0, all.first(30), 1, &logits).ok());
  CheckRows(logits, whole, 29, vocab);
  for (std::int64_t s = prompt; s < context; ++s) {
    std::vector<Decoder::Next> next = {{2, tokens[static_cast<std::size_t>(s)]}};
    const bool both = s % 2 == 0 && 30 + (s - prompt) / 2 < context;
    const std::int64_t other = 30 + (s - prompt) / 2;
    if (both) next.insert(next.begin(), {0, tokens[static_cast<std::size_t>(other)], 0.3});
    REQUIRE(run.decoder->StepAndRead(next, &logits).ok());
    REQUIRE(std::ssize(logits) == std::ssize(next) * vocab);
    if (s % 3 == 0) CheckLikeliest(*run.decoder, 0, TemperaturesOf(next), logits);
    const auto last = logits.end() - vocab;
    CheckRows({last, logits.end()}, whole, s, vocab);
    if (both) CheckRows({logits.begin(), last}, whole, other, vocab);
  }
}

TEST_CASE("cached decoder: learned positions and rotary embedding, tp and pp") {
  for (const bool llama : {false, true}) {
    for (const char* sets :
         {"", "parallelism.tp=2", "parallelism.pp=2", "parallelism.tp=4 parallelism.pp=2"}) {
      CAPTURE(llama);
      CAPTURE(std::string(sets));
      std::vector<std::string> all = {"training.global_batch=1", "data.sequence_length=40"};
      std::string text = sets;
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find(' ', at), text.size());
        all.push_back(text.substr(at, end - at));
        at = end + 1;
      }
      CheckCaches(plan::TinyRecipe(llama, all));
    }
  }
}

TEST_CASE("cached decoder: published families, tp") {
  const std::vector<std::pair<std::string, std::string>> families = {
      {"gemma2-2b", "D = 32, L = 4, H = 4, K = 2, E = 8, F = 48, V = 300, Q = 8"},
      {"gemma3-1b", "D = 32, L = 6, H = 4, K = 1, E = 8, F = 48, V = 300"},
      {"deepseek-v2-lite",
       "D = 32, L = 3, J = 1, H = 4, C = 16, N = 8, R = 4, U = 6, F = 48, X = 8, W = 8, V = 300"},
      {"deepseek-v3",
       "D = 32, L = 3, J = 1, H = 4, Q = 24, C = 16, N = 8, R = 4, U = 6, F = 48, X = 16, W = 8, V = 300"},
      {"mixtral-8x7b", "D = 32, L = 2, H = 4, K = 2, E = 8, F = 32, X = 8, V = 300"},
      {"qwen3-30b-a3b", "D = 32, L = 2, H = 4, K = 2, E = 8, F = 16, X = 16, V = 300"},
      {"olmo2-7b", "D = 32, L = 2, H = 4, K = 4, E = 8, F = 48, V = 300"},
      {"falcon-7b", "D = 32, L = 2, H = 4, K = 1, E = 8, F = 48, V = 300"},
      {"pythia-70m", "D = 32, L = 2, H = 4, E = 8, F = 48, V = 300"},
      {"opt-125m", "D = 32, L = 2, H = 4, E = 8, F = 48, V = 300"},
  };
  for (const auto& [model, dims] : families) {
    CAPTURE(model);
    for (const int tp : {1, 2}) {
      CAPTURE(tp);
      recipe::Recipe recipe = OfFamily(model, dims);
      recipe.parallelism.tp = tp;
      CheckCaches(recipe);
    }
  }
}

TEST_CASE("cached decoder: fewer classes than are told, and a number of them that tp does not divide") {
  for (const int vocab : {65, 130, 300}) {
    CAPTURE(vocab);
    const std::string dims = fmt::format("D = 32, L = 2, H = 6, K = 6, E = 8, F = 48, V = {}", vocab);
    for (const int tp : {1, 2, 3}) {
      CAPTURE(tp);
      recipe::Recipe recipe = OfFamily("olmo2-7b", dims);
      recipe.parallelism.tp = tp;
      CheckCaches(recipe);
    }
  }
}

constexpr const char* kWindows = R"(
[model]
dims = { D = 32, L = 3, H = 4, K = 2, E = 8, F = 48, V = 300 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
rotary.rope = { dim = "E", base = 1e4 }
init_std = 0.1
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["mine"], cycle = { window = [5, 0, 64] } },
  { do = "layer_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"], weight = "embedding.tokens" },
  { do = "softcap", as = "capped", cap = 30.0 },
  { do = "cross_entropy", as = "loss" },
]
[block.mine]
steps = [
  { do = "layer_norm", as = "norm", of = "x" },
  { do = "linear", as = "qkv", of = "norm", out = ["K", "H/K+2", "E"] },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"] },
  { do = "rotary", of = ["q", "k"], to = ["q", "k"], table = "rope" },
  { do = "relative_bias", as = "bias", heads = "H", buckets = 8, max_distance = 20 },
  { do = "attention", as = "core", of = ["q", "k", "v"], window = "$window", softcap = 5.0, sinks = true, alibi = true, bias = "bias" },
  { do = "linear", as = "proj", out = ["D"] },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
)";

TEST_CASE(
    "cached decoder: windows that forget, caps, sinks, linear biases and those of distances, far past the "
    "window") {
  CheckCaches(OfText(kWindows, {"data.sequence_length=1040"}));
  CheckCaches(OfText(kWindows, {"data.sequence_length=150", "parallelism.tp=2"}));
}

TEST_CASE("cached decoder: a bias for each pair of places, and windows that forget") {
  std::string text = kWindows;
  const std::string by_distance =
      R"({ do = "relative_bias", as = "bias", heads = "H", buckets = 8, max_distance = 20 })";
  const std::size_t at = text.find(by_distance);
  REQUIRE(at != std::string::npos);
  text.replace(at, by_distance.size(),
               R"({ do = "pair_bias", as = "bias", heads = "H", places = 160, init = 0.5 })");
  CheckCaches(OfText(text, {"data.sequence_length=150"}));
  CheckCaches(OfText(text, {"data.sequence_length=160", "parallelism.tp=2"}));
}

TEST_CASE("cached decoder: caches of windows have as many rows as the window, in the plan's bytes") {
  const recipe::Recipe recipe = OfText(kWindows, {"data.sequence_length=300"});
  const Generating run(recipe, 2);
  std::vector<std::int64_t> rows;
  std::int64_t bytes = 0;
  for (const plan::State& state : run.plan.stages[0].states) {
    rows.push_back(run.plan.values[static_cast<std::size_t>(state.buffer.value)].shape[1]);
    bytes += state.buffer.bytes();
  }
  CHECK(rows == std::vector<std::int64_t>{64, 64, 300, 300, 64, 64});
  CHECK(bytes == 2 * (64 + 300 + 64) * 2 * 2 * 8 * 4);  // slots, rows, keys and values, heads, features, f32
  CHECK(run.plan.stages[0].memory.activations >= bytes);
}

// All logits of a prompt of `prompt` tokens and of each step behind it.
std::vector<float> Transcript(const recipe::Recipe& recipe, const std::vector<std::int32_t>& tokens,
                              std::size_t prompt) {
  const Generating run(recipe, 2);
  const std::span<const std::int32_t> all(tokens);
  std::vector<float> told;
  REQUIRE(run.decoder->PrefillAndRead(1, all.first(prompt), static_cast<std::int64_t>(prompt), &told).ok());
  std::vector<float> logits;
  for (std::size_t s = prompt; s < tokens.size(); ++s) {
    const std::vector<Decoder::Next> next = {{1, tokens[s]}};
    REQUIRE(run.decoder->StepAndRead(next, &logits).ok());
    told.insert(told.end(), logits.begin(), logits.end());
  }
  return told;
}

double RootMeanSquare(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

void CheckInvariant(const recipe::Recipe& recipe) {
  testing::CheckInvariant(recipe, [] { return CpuDevice(); });
}

TEST_CASE("cached decoder: invariant, the bits are those of evaluation and training, beside any others") {
  CheckInvariant(plan::TinyRecipe(false, {"data.sequence_length=60"}));
  CheckInvariant(plan::TinyRecipe(true, {"data.sequence_length=60"}));
  CheckInvariant(OfFamily("gemma3-1b", "D = 32, L = 6, H = 4, K = 1, E = 8, F = 48, V = 300"));
  CheckInvariant(OfFamily("gemma2-2b", "D = 32, L = 4, H = 4, K = 2, E = 8, F = 48, V = 300, Q = 8"));
  CheckInvariant(OfText(kWindows, {"data.sequence_length=150"}));
  CheckInvariant(OfFamily("olmo2-7b", "D = 32, L = 2, H = 4, K = 4, E = 8, F = 48, V = 300"));
  testing::CheckNotInvariant(plan::TinyRecipe(true, {"data.sequence_length=60"}), [] { return CpuDevice(); });
}

// Routed experts alone, with shared ones beside and attention of latents, and with a choice by groups.
TEST_CASE("cached decoder: invariant, experts too, of which each token has others beside it") {
  const recipe::Recipe mixtral =
      OfFamily("mixtral-8x7b", "D = 32, L = 2, H = 4, K = 2, E = 8, F = 32, X = 8, V = 300");
  CheckInvariant(mixtral);
  CheckInvariant(
      OfFamily("deepseek-v2-lite",
               "D = 32, L = 3, J = 1, H = 4, C = 16, N = 8, R = 4, U = 6, F = 48, X = 8, W = 8, V = 300"));
  CheckInvariant(OfFamily("deepseek-v3",
                          "D = 32, L = 3, J = 1, H = 4, Q = 24, C = 16, N = 8, R = 4, U = 6, F = 48, X = 16, "
                          "W = 8, V = 300"));
  testing::CheckNotInvariant(mixtral, [] { return CpuDevice(); });
}

// Multi-head latent attention, with the shared part of keys behind the heads' own; {latent} wide latents, and what is to differ.
constexpr const char* kLatents = R"(
[model]
dims = {{ D = 32, L = 2, H = 4, C = {latent}, N = 8, R = 4, E = "N+R", U = 6, F = 48, V = 300 }}
means = {{ C = "other", N = "other", R = "other", U = "other" }}
inputs = {{ tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }}
rotary.shared = {{ dim = "R", base = 1e4 }}
init_std = 0.1
main = [
  {{ do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" }},
  {{ do = "stack", as = "layers", repeat = "L", layer = ["mine"], cycle = {{ window = [5, 0] }} }},
  {{ do = "layer_norm", as = "final_norm" }},
  {{ do = "linear", as = "head", out = ["V"] }},
  {{ do = "cross_entropy", as = "loss" }},
]
[block.mine]
steps = [
  {{ do = "layer_norm", as = "norm", of = "x" }},
  {{ do = "linear", as = "q", out = ["H", "E"] }},
  {{ do = "linear", as = "kv_down", of = "norm", parts = {{ latent = ["C"], shared = [1, "R"] }} }},
  {heads}
  {{ do = "rotary", of = "shared", to = "shared", table = "shared" }},
  {{ do = "join", as = "key", of = ["k", "shared"] }},
  {key_norm}
  {{ do = "attention", as = "core", of = ["q", "key", "v"], window = "$window" {scores} }},
  {{ do = "linear", as = "proj", out = ["D"] }},
  {{ do = "residual", as = "residual", of = ["x", "proj"], to = "x" }},
]
)";

struct LatentForm {
  std::int64_t latent = 16;
  const char* heads =
      R"({ do = "linear", as = "kv", of = "latent", parts = { k = ["H", "N"], v = ["H", "U"] } },)";
  const char* key_norm = "";
  const char* scores = "";
};

recipe::Recipe OfLatents(const LatentForm& form, std::vector<std::string> sets) {
  const std::string text =
      fmt::format(kLatents, fmt::arg("latent", form.latent), fmt::arg("heads", form.heads),
                  fmt::arg("key_norm", form.key_norm), fmt::arg("scores", form.scores));
  return OfText(text, std::move(sets));
}

// What a rank's caches are called behind the name of their attention, and what their tokens are: of all layers, in their order.
std::string CachesOf(const plan::Plan& plan) {
  std::string text;
  for (const plan::State& state : plan.stages[0].states) {
    const plan::LocalValue& value = plan.values[static_cast<std::size_t>(state.buffer.value)];
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", value.name.substr(value.name.rfind('.') + 1),
                        value.local.ToString());
  }
  return text;
}

TEST_CASE("cached decoder: latents and the shared parts of keys are kept, whole on every rank") {
  for (const int tp : {1, 2}) {
    CAPTURE(tp);
    const recipe::Recipe recipe =
        OfLatents({}, {"data.sequence_length=150", fmt::format("parallelism.tp={}", tp)});
    CheckCaches(recipe);
    const Generating run(recipe, 2);
    CHECK(CachesOf(run.plan) ==
          "latents [2, 64, 16], shared [2, 64, 1, 4], latents [2, 150, 16], shared [2, 150, 1, 4]");
    std::int64_t bytes = 0;
    for (const plan::State& state : run.plan.stages[0].states) bytes += state.buffer.bytes();
    CHECK(bytes == 2 * (64 + 150) * (16 + 4) * 4);  // slots, rows, latent and shared part, f32
  }
  recipe::Recipe published =
      OfFamily("deepseek-v2-lite",
               "D = 32, L = 2, J = 1, H = 4, C = 16, N = 8, R = 4, U = 6, F = 48, X = 8, W = 8, V = 300");
  CHECK(CachesOf(Generating(published, 2).plan) ==
        "latents [2, 96, 16], shared [2, 96, 1, 4], latents [2, 96, 16], shared [2, 96, 1, 4]");
}

// In e4m3 a number has an error of 1/16 of itself at most, and about 1/40 in the mean.
TEST_CASE("cached decoder: caches in fp8 take a byte a number, and steps read them rounded") {
  const std::vector<recipe::Recipe> models = {
      OfText(kWindows, {"data.sequence_length=150"}), OfLatents({}, {"data.sequence_length=150"}),
      plan::TinyRecipe(true, {"training.global_batch=1", "data.sequence_length=40"})};
  for (recipe::Recipe recipe : models) {
    const std::vector<std::int32_t> tokens = RandomTokens(recipe.data.sequence_length, recipe.model.vocab);
    const std::size_t prompt = 20;
    const std::vector<float> exact = Transcript(recipe, tokens, prompt);
    const Generating whole(recipe, 2);
    recipe.generate.cache_dtype = "fp8";
    const Generating narrow(recipe, 2);
    REQUIRE(whole.plan.stages[0].states.size() == narrow.plan.stages[0].states.size());
    for (std::size_t i = 0; i < whole.plan.stages[0].states.size(); ++i) {
      CHECK(narrow.plan.stages[0].states[i].buffer.bytes() * 4 ==
            whole.plan.stages[0].states[i].buffer.bytes());
    }
    const std::vector<float> rounded = Transcript(recipe, tokens, prompt);
    REQUIRE(rounded.size() == exact.size());
    const std::size_t of_prompt = prompt * static_cast<std::size_t>(recipe.model.vocab);
    const std::span<const float> a(exact);
    const std::span<const float> b(rounded);
    CHECK(std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(of_prompt), b.begin()));
    const std::vector<float> zeros(exact.size() - of_prompt, 0);
    const double scale = RootMeanSquare(a.subspan(of_prompt), zeros);
    const double error = RootMeanSquare(a.subspan(of_prompt), b.subspan(of_prompt)) / scale;
    CAPTURE(error);
    CHECK(error > 1e-4);
    CHECK(error < 0.06);
    recipe.parallelism.tp = 2;
    const std::vector<float> split = Transcript(recipe, tokens, prompt);
    // Sums in another order move some numbers over a border between two of e4m3.
    CHECK(RootMeanSquare(a.subspan(of_prompt), std::span<const float>(split).subspan(of_prompt)) / scale <
          0.06);
  }
}

TEST_CASE(
    "cached decoder: invariant, attention of latents keeps keys and values, whose bits are training's") {
  recipe::Recipe recipe = OfLatents({}, {"data.sequence_length=70"});
  CheckInvariant(recipe);
  recipe.generate.invariant = true;
  CHECK(CachesOf(Generating(recipe, 2).plan) ==
        "keys [2, 70, 4, 12], values [2, 70, 4, 6], keys [2, 70, 4, 12], values [2, 70, 4, 6]");
}

TEST_CASE(
    "cached decoder: attention of latents in which something else stands between keeps keys and values") {
  for (
      const LatentForm& form :
      {LatentForm{.latent = 80},
       LatentForm{
           .heads =
               R"({ do = "linear", as = "kv", of = "latent", bias = true, parts = { k = ["H", "N"], v = ["H", "U"] } },)"},
       LatentForm{.heads = R"({ do = "linear", as = "kv_k", of = "latent", out = ["H", "N"], to = "k" },
  { do = "linear", as = "kv_v", of = "norm", out = ["H", "U"], to = "v" },)"},
       LatentForm{.key_norm = R"({ do = "rms_norm", as = "key_norm", of = "key", to = "key" },)"},
       LatentForm{.scores = ", softcap = 5.0"}, LatentForm{.scores = ", sinks = true"},
       LatentForm{.scores = ", alibi = true"}}) {
    const recipe::Recipe recipe = OfLatents(form, {"data.sequence_length=70"});
    CheckCaches(recipe);
    CHECK(CachesOf(Generating(recipe, 2).plan) ==
          "keys [2, 64, 4, 12], values [2, 64, 4, 6], keys [2, 70, 4, 12], values [2, 70, 4, 6]");
  }
}

TEST_CASE("cached decoder: invariant is refused where a token's experts depend on other tokens") {
  const auto mistake_of = [](const std::string& router, const std::string& experts,
                             const std::string& parallelism) {
    const data::TempDir folder;
    const std::string path = folder / "recipe.toml";
    data::WriteFile(
        path, fmt::format(
                  R"(extends = "{}/configs/models/mixtral-8x7b.toml"
[model]
dims = {{ D = 32, L = 2, H = 4, K = 2, E = 8, F = 32, X = 8, V = 384 }}
[block.mlp]
steps = [
  {{ do = "rms_norm", as = "norm", of = "x" }},
  {{ do = "route", as = "router", experts = "X", top_k = "T" {}, to = ["choice", "weight"] }},
  {{ do = "experts", as = "experts", of = ["norm", "choice", "weight"], hidden = "F" {} }},
  {{ do = "residual", as = "residual", of = ["x", "experts"], to = "x" }},
]
[generate]
invariant = true
[parallelism]
{}
{})",
                  std::filesystem::current_path().string(), router, experts, parallelism, testing::kRest));
    const recipe::LoadResult loaded = model::Load(path);
    return loaded.diagnostics.empty() ? std::string() : loaded.diagnostics.front().message;
  };
  CHECK(mistake_of("", "", "") == "");
  CHECK(mistake_of(", select = \"sinkhorn\"", "", "") ==
        "what layers.0.mlp.router.sinkhorn (sinkhorn) gives of a token depends on the other tokens, so that "
        "none "
        "has bits of its own");
  CHECK(mistake_of("", ", capacity = 1.0", "") ==
        "what layers.0.mlp.experts.drop (drop) gives of a token depends on the other tokens, so that none "
        "has bits "
        "of its own");
  CHECK(mistake_of("", "", "expert_rows = 1.5") ==
        "with expert_rows 1.5 what a token's experts give is added up in an order that depends on the other "
        "tokens");
}

TEST_CASE("cached decoder: what a model must have, one error each") {
  const auto error_of = [](const recipe::Recipe& recipe) {
    const auto plan = driver::CompileGeneration(recipe, {.profile = CpuDevice().profile},
                                                ShapeFor(1, recipe.data.sequence_length));
    REQUIRE(!plan.ok());
    return Message(plan.status());
  };
  recipe::Recipe in_parts = plan::TinyRecipe(true, {"parallelism.cp=2"});
  in_parts.data.sequence_length = 30;
  CHECK(error_of(in_parts) ==
        "cp = 2 cuts prompts into 4 equal pieces, and 30 tokens are none: a context of 32 is");
  CHECK(error_of(plan::TinyRecipe(true, {"parallelism.dp=2"})) ==
        "1 sequences at a time are no equal parts for the 2 ranks of dp · ep: 2 are");
  recipe::Recipe longer = plan::TinyRecipe(false, {"training.global_batch=1"});
  longer.data.sequence_length = 128;
  CHECK(error_of(longer) ==
        "1 samples of 128 tokens: embedding.positions: 64 positions are fewer than the 128 of a sequence");
}

}  // namespace
}  // namespace engine::generate
