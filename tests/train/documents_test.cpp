// Documents in training: what each rank is fed, and that every layout gives the one-rank run's numbers.
#include "engine/model/load.h"
#include "engine/train/feed.h"
#include "tests/train/equality.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

Trained TrainOnDocuments(const char* model, std::vector<std::string> sets) {
  sets.insert(sets.end(), {"data.documents=masked", "data.tokenizer.kind=none"});
  return TrainFor(MakeRecipe(model, sets), 3);
}

// Attention sees both ways, and nothing goes by positions; then, causal, a second token is predicted.
constexpr const char* kBothWays = R"(
[model]
dims = { D = 32, L = 2, H = 4, K = 2, E = 8, F = 48, V = 300 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", labels_2 = "i32[B,S]", positions = "i32[B,S]" }
rotary.rope = { dim = "E", base = 1e4 }
vocab_multiple = 16
init_std = 0.1
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["attention as attention"], set = { mask = "none", drop = 0.0 } },
  { do = "rms_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
  { do = "embedding", as = "next", of = "labels", weight = "embedding.tokens" },
  { do = "add", as = "sum", of = ["layers", "next"] },
  { do = "stack", as = "mtp", repeat = 1, layer = ["latent as latent"] },
  { do = "linear", as = "mtp.head", out = ["V"], weight = "head.weight" },
  { do = "cross_entropy", as = "loss_2", labels = "labels_2", weight = 0.3 },
]
[block.attention]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "qkv", out = ["K", "H/K+2", "E"] },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"] },
  { do = "attention", as = "core", of = ["q", "k", "v"], mask = "$mask", dropout = "$drop" },
  { do = "linear", as = "proj", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[block.latent]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "q", out = ["H", "E"] },
  { do = "linear", as = "k", of = "norm", out = ["H", "E"] },
  { do = "linear", as = "v", of = "norm", out = ["H", 6] },
  { do = "rotary", as = "turned", of = ["q", "k"], to = ["qr", "kr"], table = "rope" },
  { do = "attention", as = "core", of = ["qr", "kr", "v"], sinks = true, softcap = 5.0, alibi = true, dropout = 0.1 },
  { do = "linear", as = "proj", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
)";

Trained TrainBothWays(std::vector<std::string> sets) {
  sets.insert(sets.end(), {"data.documents=masked", "data.tokenizer.kind=none"});
  const recipe::LoadResult loaded =
      model::LoadText(std::string(kBothWays) + kCommon + kAdamW, "test.toml", {.sets = sets, .root = ""});
  std::string errors;
  for (const Diagnostic& diagnostic : loaded.diagnostics) errors += Format(diagnostic);
  REQUIRE_MESSAGE(loaded.ok(), errors);
  return TrainFor(loaded.recipe, 3);
}

struct FedInput {
  Shape shape;
  std::vector<std::int32_t> values;
};

FedInput FedTo(const plan::Plan& plan, const executor::FeedFunction& feed, const std::string& input,
               std::int64_t rank, std::int64_t microbatch) {
  const auto value = std::find_if(plan.values.begin(), plan.values.end(), [&](const plan::LocalValue& v) {
    return v.name == input && v.kind == graph::ValueKind::kInput;
  });
  REQUIRE(value != plan.values.end());
  FedInput fed{value->local, std::vector<std::int32_t>(static_cast<size_t>(value->local.elements()), -7)};
  backend::TensorView host;
  host.data = fed.values.data();
  host.dtype = DType::kI32;
  host.shape = value->local;
  host.logical = value->shape;
  host.extent = value->layout.ExtentOf(value->shape, plan.mesh, plan.mesh.CoordinatesOf(rank));
  REQUIRE(feed(input, microbatch, host).ok());
  return fed;
}

}  // namespace

TEST_CASE("documents: every layout gives the one-rank run's numbers") {
  for (const char* model : {kGptLike, kLlamaLike}) {
    CAPTURE(model);
    const Trained expected = TrainOnDocuments(model, {});
    for (const char* sets :
         {"micro_batch=2", "dp=2 micro_batch=2", "tp=2", "tp=2 sequence_parallel=true micro_batch=4", "cp=2",
          "cp=4 micro_batch=4", "pp=2 micro_batch=2", "granularity=full",
          "granularity=selective modules=[\"attention\"]", "cp=2 overlap=on micro_batch=4",
          "tp=2 overlap=on micro_batch=4", "pp=2 schedule=zero_bubble micro_batch=2",
          "cp=2 dp=2 tp=2 sequence_parallel=true zero_stage=1 micro_batch=2",
          "dp=2 tp=2 pp=2 micro_batch=1"}) {
      INFO(sets);
      CheckEqual(expected, TrainOnDocuments(model, SetsOf(sets)));
    }
    // Another model than the one that sees all documents.
    const Trained across = TrainFor(MakeRecipe(model, {}), 3);
    CHECK(across.initial == expected.initial);
    CHECK(across.losses != expected.losses);
  }
}

TEST_CASE(
    "documents: attention both ways, of two widths and with sinks, and a second token, in every layout") {
  const Trained expected = TrainBothWays({});
  for (const char* sets : {"tp=2 micro_batch=2", "tp=2 sequence_parallel=true micro_batch=4", "cp=2",
                           "pp=2 micro_batch=2", "dp=2 micro_batch=4", "granularity=full"}) {
    INFO(sets);
    CheckEqual(expected, TrainBothWays(SetsOf(sets)));
  }
}

// Where cp exchanges heads for the sequence, each rank turns all positions of its heads: those that begin again are gathered beside
// those of attention.
TEST_CASE("documents: heads that are exchanged for the sequence") {
  const std::vector<std::string> sets = {"model.attention.kv_heads=4"};
  std::vector<std::string> with_cp = sets;
  with_cp.insert(with_cp.end(), {"parallelism.cp=2", "training.micro_batch=4"});
  std::vector<std::string> masked = with_cp;
  masked.insert(masked.end(), {"data.documents=masked", "data.tokenizer.kind=none"});
  const state::Device device = CpuDevice();
  const auto plan = driver::CompileRecipe(MakeRecipe(kLlamaLike, masked), {.profile = device.profile});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  int exchanged = 0;
  int gathered = 0;
  for (const plan::Segment& segment : plan->stages[0].segments) {
    for (const plan::Instruction& instruction : segment.instructions) {
      exchanged += instruction.name.ends_with(".all_to_all") ? 1 : 0;
      gathered += instruction.name == "positions.all_gather" ? 1 : 0;
    }
  }
  CHECK(exchanged > 0);
  CHECK(gathered > 0);
  CheckEqual(TrainOnDocuments(kLlamaLike, sets), TrainOnDocuments(kLlamaLike, with_cp));
}

// Tokens are letters, but for one of some 10 that is 256, the end of a document of the byte tokenizer.
TEST_CASE("documents: positions and spans of every rank's slice of the global batch") {
  const TempDir folder;
  auto writer = data::IndexedDatasetWriter::Create(folder / "text", data::TokenType::kU16);
  REQUIRE(writer.ok());
  const PhiloxKey key = MakePhiloxKey(4, "text");
  for (std::uint64_t row = 0; row < 60; ++row) {  // the rows are told apart by their tokens
    std::vector<std::int32_t> tokens(5 + PhiloxWord(key, 2 * row) % 40);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = PhiloxWord(key, 1000 + 100 * row + i) % 10 == 0 ? 256 : static_cast<std::int32_t>(row);
    REQUIRE((*writer)->AddDocument({&tokens, 1}).ok());
  }
  REQUIRE((*writer)->Finish().ok());
  const recipe::Recipe recipe =
      RunRecipe(folder, {"parallelism.dp=2", "parallelism.cp=2", "parallelism.tp=2", "training.micro_batch=2",
                         "data.documents=masked", "data.tokenizer.kind=byte"});
  const auto source = data::Source::Open(recipe);
  REQUIRE_MESSAGE(source.ok(), Message(source.status()));
  const auto plan = driver::CompileRecipe(recipe, {.profile = CpuDevice().profile});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const executor::FeedFunction feed =
      MakeFeed(*plan, *source, data::Split::kTrain, {8, plan->global_batch}, {}).inputs;
  std::vector<std::int32_t> sample(17);
  int several = 0;
  for (std::int64_t microbatch = 0; microbatch < 2; ++microbatch) {
    for (std::int64_t rank = 0; rank < plan->mesh.world(); ++rank) {
      INFO("microbatch " << microbatch << " rank " << rank);
      const plan::Coordinates at = plan->mesh.CoordinatesOf(rank);
      const std::int64_t dp = at.axis[static_cast<size_t>(plan::Axis::kDp)];
      const std::int64_t cp = at.axis[static_cast<size_t>(plan::Axis::kCp)];
      const FedInput positions = FedTo(*plan, feed, model::kPositions, rank, microbatch);
      const FedInput whole = FedTo(*plan, feed, model::kSequencePositions, rank, microbatch);
      const FedInput spans = FedTo(*plan, feed, model::kDocumentSpans, rank, microbatch);
      REQUIRE((positions.shape == Shape{2, 8}));
      REQUIRE((spans.shape == Shape{2, 8, 2}));
      for (std::int64_t b = 0; b < 2; ++b) {
        REQUIRE(
            source->Sample(data::Split::kTrain, data::FirstSample(8, microbatch, dp, 2, 2) + b, sample).ok());
        // A token of another row than the one before, or behind an end: a document begins.
        std::vector<std::int64_t> document(17, 0);
        std::int32_t row = -1;
        for (size_t i = 0; i < 17; ++i) {
          const bool begins =
              i > 0 && (sample[i - 1] == 256 || (sample[i] != 256 && row >= 0 && sample[i] != row));
          document[i] = i == 0 ? 0 : document[i - 1] + (begins ? 1 : 0);
          if (begins) row = -1;
          if (sample[i] != 256) row = sample[i];
        }
        several += document[15] > 0 ? 1 : 0;
        for (std::int64_t i = 0; i < 8; ++i) {
          const std::int64_t chunk = i < 4 ? cp : 3 - cp;
          const std::int64_t s = 4 * chunk + i % 4;
          std::int64_t first = s;
          while (first > 0 && document[static_cast<size_t>(first - 1)] == document[static_cast<size_t>(s)])
            --first;
          std::int64_t last = s + 1;
          while (last < 16 && document[static_cast<size_t>(last)] == document[static_cast<size_t>(s)]) ++last;
          const auto flat = static_cast<size_t>(8 * b + i);
          REQUIRE(positions.values[flat] == s - first);
          REQUIRE(whole.values[flat] == s);
          REQUIRE(spans.values[2 * flat] == first);
          REQUIRE(spans.values[2 * flat + 1] == last);
        }
      }
    }
  }
  CHECK(several > 8);
}

TEST_CASE("documents: a run trains and evaluates on them") {
  const TempDir folder;
  WriteDataset(folder / "text", 60);
  std::vector<std::string> sets = {"evaluation.interval=2", "parallelism.cp=2", "training.micro_batch=4",
                                   "data.tokenizer.kind=byte"};
  MustRun(RunRecipe(folder, sets), folder / "across");
  sets.emplace_back("data.documents=masked");
  MustRun(RunRecipe(folder, sets), folder / "run");
  const auto losses = [&](const std::string& of) {
    std::vector<std::string> lines;
    for (const nlohmann::json& line : LossMetrics(folder / of)) {
      for (const char* name : {"loss", "validation_loss"}) {
        if (line.contains(name)) lines.push_back(line[name].dump());
      }
    }
    return lines;
  };
  CHECK(losses("run").size() == losses("across").size());
  CHECK(losses("run").size() > 5);
  CHECK(losses("run") != losses("across"));
}

}  // namespace engine::train::testing
