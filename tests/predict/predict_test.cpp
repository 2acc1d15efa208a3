// Predicted times: programs made by hand, whose times are known, real plans, and measurements.
#include "engine/predict/predict.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/compile/program.h"
#include "engine/plan/schedule.h"
#include "engine/predict/compare.h"
#include "engine/predict/components.h"
#include "engine/predict/cost_table.h"
#include "engine/predict/print.h"
#include "engine/predict/trace.h"
#include "tests/predict/plans.h"

namespace engine::predict {
namespace {

// Kernels of 10¹² FLOPs take a second; a push of 10⁹ bytes kStart and a second.
constexpr double kStart = kPushRate.start_s + kInsideHop;

recipe::Cluster HandCluster() {
  recipe::Cluster cluster;
  cluster.device = "h200";
  cluster.matmul_flops = 1e12;
  cluster.memory_bandwidth = 1e15;
  cluster.intra_node_bandwidth = 1e9 / kPushRate.share;
  cluster.inter_node_bandwidth = 1e9;
  return cluster;
}

plan::Instruction Work(const std::string& name, double seconds) {
  plan::Instruction instruction;
  instruction.name = name;
  instruction.AsKernel()->name = "work";
  instruction.AsKernel()->work.flops = seconds * 1e12;
  return instruction;
}

plan::Instruction Push(const std::string& name, double seconds) {
  plan::Instruction instruction;
  instruction.name = name;
  instruction.stream = plan::kExchangeStream;
  plan::Conversion conversion;
  conversion.collective = plan::Collective::kAllGather;
  conversion.axis = graph::Axis::kTp;
  conversion.push = true;
  conversion.wire_bytes = static_cast<std::int64_t>(seconds * 1e9);
  instruction.what = conversion;
  return instruction;
}

// That of a bucket, which computation waits for where it names the bucket alone.
plan::Instruction PushBucket(std::int32_t bucket, double seconds) {
  plan::Instruction instruction = Push("bucket", seconds);
  plan::BucketExchange exchange;
  static_cast<plan::Exchange&>(exchange) = *instruction.AsExchange();
  exchange.group = plan::AxisSet::Of(graph::Axis::kTp);
  exchange.bucket = bucket;
  instruction.what = exchange;
  return instruction;
}

// A copy to the host's memory that takes so long.
plan::Instruction ToHost(double seconds) {
  plan::Instruction instruction;
  instruction.name = "copy";
  instruction.stream = plan::kHostStream;
  instruction.inputs = {
      {.elements = static_cast<std::int64_t>(seconds * kHostBandwidth), .dtype = DType::kU8}};
  instruction.what = plan::HostCopy{};
  return instruction;
}

// Two ranks of one stage that run these instructions, then an update of 0.25 s.
plan::Plan OneStage(std::vector<plan::Instruction> instructions) {
  // What computes waits for all that has been converted beside it.
  std::vector<std::int32_t> under_way;
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (instructions[i].AsKernel() != nullptr) instructions[i].waits = std::exchange(under_way, {});
    if (instructions[i].AsConversion() != nullptr && plan::IsBehind(instructions[i].stream))
      under_way.push_back(static_cast<std::int32_t>(i));
  }
  plan::Plan plan;
  plan.mesh.sizes[static_cast<size_t>(graph::Axis::kTp)] = 2;
  plan.stages.resize(1);
  plan::StagePlan& stage = plan.stages[0];
  stage.segments.push_back({.name = "forward.0", .chunk = 0, .instructions = std::move(instructions)});
  stage.segments.push_back({.name = "update", .chunk = -1, .instructions = {Work("adamw", 0.25)}});
  stage.ends[plan::kTrainForm].last = 1;
  stage.programs = {{{.segment = 0, .microbatch = 0, .slot = 0, .chunk = 0}, {.segment = 1}}};
  plan.programs = {{.form = plan::kTrainForm}};
  return plan;
}

// 1F1B of stages whose passes take one and two seconds.
plan::Plan Pipeline(std::int64_t stages, std::int64_t microbatches, std::int64_t transfer_bytes) {
  plan::Plan plan;
  plan.mesh.pp = stages;
  plan.microbatches = microbatches;
  plan.programs = {{.form = plan::kTrainForm, .microbatches = microbatches}};
  plan.values.emplace_back().name = "activation";
  for (std::int32_t s = 0; s < stages; ++s) {
    plan.chunk_stage.push_back(s);
    if (s == 0) continue;
    plan.transfers.push_back({.value = 0, .from_chunk = s - 1, .to_chunk = s, .bytes = transfer_bytes});
    plan.transfers.push_back({.value = 0, .from_chunk = s, .to_chunk = s - 1, .bytes = transfer_bytes});
  }
  for (std::int32_t s = 0; s < stages; ++s) {
    plan::StagePlan stage;
    stage.segments.push_back({.name = "forward", .chunk = s, .instructions = {Work("forward", 1)}});
    stage.segments.push_back({.name = "backward", .chunk = s, .instructions = {Work("backward", 2)}});
    plan::Chunk& chunk = stage.chunks.emplace_back();
    chunk.index = s;
    chunk.train().forward = 0;
    chunk.train().backward = 1;
    chunk.slots = stages;
    compile::TransferBuffers buffers;
    for (std::int32_t t = 0; t < static_cast<std::int32_t>(plan.transfers.size()); ++t) {
      const plan::Transfer& transfer = plan.transfers[static_cast<size_t>(t)];
      if (transfer.from_chunk == s) buffers.send[t] = {};
      if (transfer.to_chunk == s) buffers.receive[t] = {};
    }
    stage.programs = {compile::UnrollProgram({.plan = &plan, .stage = &stage, .buffers = &buffers},
                                             plan::OneForwardOneBackward(stages, s, microbatches))};
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

double Total(const StageTime& stage) {
  return stage.compute_s + stage.exposed_s + stage.bubble_s + stage.update_s;
}

recipe::Recipe RecipeOf(const std::string& name, const std::vector<std::string>& sets) {
  recipe::LoadOptions options;
  options.sets = sets;
  const recipe::LoadResult loaded =
      recipe::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/" + name + ".toml", options);
  for (const Diagnostic& diagnostic : loaded.diagnostics) MESSAGE(Format(diagnostic));
  REQUIRE_MESSAGE(loaded.ok(), name);
  return loaded.recipe;
}

nlohmann::json Rows(const char* kind) {
  std::ifstream file(std::string(ENGINE_SOURCE_DIR) + "/tests/predict/measured.json");
  return nlohmann::json::parse(file).at(kind);
}

// Between its marks in docs/prediction.md.
void ExpectTable(const std::string& name, const std::string& table) {
  const std::string path = std::string(ENGINE_SOURCE_DIR) + "/docs/prediction.md";
  std::ifstream file(path, std::ios::binary);
  const std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::string begin = "<!-- table: " + name + " -->\n";
  const size_t from = page.find(begin);
  REQUIRE(from != std::string::npos);
  const size_t at = from + begin.size();
  const size_t to = page.find("<!-- end of table -->", at);
  REQUIRE(to != std::string::npos);
  if (std::getenv("ENGINE_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << page.substr(0, at) + table + page.substr(to);
    return;
  }
  CHECK_MESSAGE(page.substr(at, to - at) == table, "docs/prediction.md is old: ENGINE_UPDATE_GOLDEN=1");
}

}  // namespace

TEST_CASE("predict: exchange is hidden behind what does not wait for it, and exposed before what does") {
  const double start = kStart;
  const double launch = kCuda.launch_s;
  // Computation goes on at 1 − kPushBesideCost of its speed while 0.5 s are pushed.
  const double slowed = (0.5 + start) * kPushBesideCost;
  plan::Instruction detached = PushBucket(0, 0.5);
  const Prediction hidden = Predict(OneStage({Work("a", 1), detached, Work("b", 1)}), HandCluster());
  CHECK(hidden.iteration_s == doctest::Approx(2.25 + slowed + 3 * launch).epsilon(1e-9));
  CHECK(hidden.stages[0].exposed_s == doctest::Approx(0));
  CHECK(hidden.stages[0].exchange_s == doctest::Approx(0.5 + start));
  CHECK(hidden.stages[0].update_s == doctest::Approx(0.25 + launch));

  const Prediction exposed =
      Predict(OneStage({Work("a", 1), Push("gather", 0.5), Work("b", 1)}), HandCluster());
  CHECK(exposed.iteration_s == doctest::Approx(2.75 + start + 3 * launch).epsilon(1e-9));
  CHECK(exposed.stages[0].exposed_s == doctest::Approx(0.5 + start));
  CHECK(exposed.exposed == doctest::Approx((0.5 + start) / exposed.iteration_s));

  // Read by what follows: the ranks meet, the bytes cross while that runs.
  plan::Instruction direct = Push("sum", 0.5);
  direct.stream = plan::kComputeStream;
  plan::Instruction reader = Work("norm", 0.125);
  direct.AsConversion()->addition = plan::Addition::kByDirectReader;
  reader.AsKernel()->adds = {
      .input = 0, .place = {.elements = 125'000'000, .dtype = DType::kF32}, .direct = true};
  const double crossing = 0.5 * kPushRate.share / kDirectRate.share;
  const Prediction read = Predict(OneStage({Work("a", 1), direct, reader}), HandCluster());
  CHECK(read.iteration_s == doctest::Approx(1.25 + start + crossing + 3 * launch).epsilon(1e-9));
  CHECK(read.stages[0].exposed_s == doctest::Approx(start));
  reader.AsKernel()->work.flops = 2e12;
  CHECK(Predict(OneStage({Work("a", 1), direct, reader}), HandCluster()).iteration_s ==
        doctest::Approx(3.25 + start + 3 * launch).epsilon(1e-9));

  // Longer than what runs beside it: the update waits for the rest.
  detached.AsExchange()->wire_bytes = 3'000'000'000;
  const Prediction rest = Predict(OneStage({Work("a", 1), detached, Work("b", 1)}), HandCluster());
  CHECK(rest.iteration_s == doctest::Approx(1 + launch + 3 + start + 0.25 + launch).epsilon(1e-9));
  CHECK(rest.stages[0].exposed_s == doctest::Approx(3 + start - (1 + launch) / (1 - kPushBesideCost)));
}

TEST_CASE("predict: copies to the host are hidden behind what does not wait for them") {
  const double launch = kCuda.launch_s;
  const double await = kCuda.await_s;  // of an event, where nothing is left to wait for
  const auto took = [&](std::vector<plan::Instruction> instructions, std::vector<std::int32_t> waits) {
    plan::Plan plan = OneStage(std::move(instructions));
    plan.stages[0].segments[0].instructions.back().waits = std::move(waits);
    return Predict(plan, HandCluster());
  };
  const Prediction hidden = took({Work("a", 1), ToHost(0.5), Work("b", 1)}, {});
  CHECK(hidden.iteration_s == doctest::Approx(2.25 + 3 * launch + await).epsilon(1e-9));
  CHECK(hidden.stages[0].exposed_s == doctest::Approx(await));
  // Two copies have one link; what waits for the second one alone waits for both.
  const Prediction exposed = took({Work("a", 1), ToHost(0.5), ToHost(0.25), Work("b", 1)}, {2});
  CHECK(exposed.iteration_s == doctest::Approx(3 + 5 * launch + await).epsilon(1e-9));
  CHECK(exposed.stages[0].exposed_s == doctest::Approx(0.75 + 2 * launch + await));
  CHECK(exposed.stages[0].exchange_s == doctest::Approx(0));  // between ranks
}

TEST_CASE("predict: an instruction waits for the detached exchange that it names alone") {
  const plan::Instruction first = PushBucket(0, 0.5);
  const plan::Instruction second = PushBucket(1, 0.5);
  plan::Instruction reads = Work("reads", 1);
  reads.waits_for_bucket = 0;
  // It begins when the first is through and, with the second beside it for 0.5 s, goes on more slowly.
  const Prediction prediction = Predict(OneStage({first, second, reads}), HandCluster());
  const double start = kStart;
  const double slowed = (0.5 + start) * kPushBesideCost;
  CHECK(prediction.stages[0].exposed_s == doctest::Approx(0.5 + start));
  CHECK(prediction.iteration_s ==
        doctest::Approx(0.5 + start + 1 + slowed + 0.25 + 2 * kCuda.launch_s).epsilon(1e-9));
}

TEST_CASE("predict: what is exchanged of buckets holds up other exchange on its stream, or on its link") {
  const double start = kStart;
  const double launch = kCuda.launch_s;
  plan::Instruction bucket = PushBucket(0, 2);
  const auto run = [&] {
    return Predict(OneStage({bucket, Push("gather", 0.5), Work("b", 1)}), HandCluster());
  };
  CHECK(run().stages[0].exposed_s == doctest::Approx(2.5 + 2 * start));
  bucket.stream = plan::kBucketStream;
  // Each takes as much longer as both are under way.
  const Prediction shared = run();
  CHECK(shared.iteration_s == doctest::Approx(2.5 + 2 * start + 0.25 + launch).epsilon(1e-9));
  const double joined = 2.5 + 2 * start - (1 + 2 * start) - (1 + launch) / (1 - kPushBesideCost);
  CHECK(shared.stages[0].exposed_s == doctest::Approx(1 + 2 * start + joined));
  plan::Instruction reads = Work("b", 1);
  reads.waits_for_bucket = 0;
  const Prediction waits = Predict(OneStage({bucket, Push("gather", 0.5), reads}), HandCluster());
  CHECK(waits.iteration_s == doctest::Approx(2.5 + 2 * start + 1.25 + 2 * launch).epsilon(1e-9));
  bucket.AsExchange()->push = false;  // between hosts
  bucket.AsExchange()->wire_bytes = 1000;
  CHECK(run().stages[0].exposed_s == doctest::Approx(0.5 + start));
}

TEST_CASE("predict: beside exchange on both streams, computation is slower still") {
  plan::Instruction bucket = PushBucket(0, 1);
  const plan::Instruction other = PushBucket(1, 0.5);
  bucket.stream = plan::kBucketStream;
  const Prediction prediction = Predict(OneStage({bucket, other, Work("a", 3)}), HandCluster());
  const double both = 1 + 2 * kStart;  // of the link, until the other one is through
  CHECK(prediction.iteration_s ==
        doctest::Approx(3.25 + 2 * kCuda.launch_s + (2 * both + 0.5) * kPushBesideCost).epsilon(1e-9));
  CHECK(prediction.stages[0].exposed_s == doctest::Approx(0));
}

TEST_CASE("predict: two halves in turns hide each other's exchange") {
  // Each half: a second of work, half a second of exchange, a second of work.
  std::vector<plan::Instruction> list = {Work("a", 1),        Push("gather", 0.5), Work("a", 1),
                                         Push("gather", 0.5), Work("b", 1),        Work("b", 1)};
  for (const size_t i : {2, 3, 5}) list[i].half = plan::Half::kSecond;
  list[4].waits = {1};
  list[5].waits = {3};
  plan::Plan plan = OneStage({});
  plan.halves = plan.microbatches = plan.programs[0].microbatches = 2;
  plan.stages[0].segments[0].instructions = std::move(list);
  plan.stages[0].segments[0].halves = true;
  plan.stages[0].programs[0] = {{.segment = 0, .microbatch = 0, .slot = 0, .chunk = 0}, {.segment = 1}};
  const Prediction prediction = Predict(plan, HandCluster());
  CHECK(prediction.stages[0].exposed_s == doctest::Approx(2 * kCuda.await_s));
  CHECK(prediction.stages[0].exchange_s == doctest::Approx(1).epsilon(1e-3));
  CHECK(prediction.iteration_s == doctest::Approx(4.25 + 2 * 0.5 * kPushBesideCost).epsilon(1e-3));
}

TEST_CASE("predict: 1F1B of equal stages idles (p - 1) / m of its work") {
  for (const std::int64_t stages : {2, 4, 8}) {
    for (const std::int64_t microbatches : {8, 32}) {
      const Prediction prediction = Predict(Pipeline(stages, microbatches, 0), HandCluster());
      const double work = 3.0 * static_cast<double>(microbatches);
      const double bubble = 3.0 * static_cast<double>(stages - 1);
      CHECK(prediction.iteration_s == doctest::Approx(work + bubble).epsilon(1e-3));
      CHECK(prediction.bubble == doctest::Approx(bubble / (work + bubble)).epsilon(1e-3));
      for (const StageTime& stage : prediction.stages) {
        CHECK(stage.compute_s == doctest::Approx(work).epsilon(1e-3));
        CHECK(stage.bubble_s == doctest::Approx(bubble).epsilon(1e-3));
      }
    }
  }
}

// With two stages a backward pass of the last one leads, over a transfer, to that of the first, its next
// forward pass and, over a transfer, the last one's forward and backward pass two microbatches later: 2 · (F
// + B + transfer).
TEST_CASE("predict: 1F1B hides one of the two transfers of a microbatch") {
  const recipe::Cluster cluster = HandCluster();
  const double transfer = kSendRate.start_s + 0.25;
  const auto bytes = static_cast<std::int64_t>(0.25 * kSendRate.share * cluster.intra_node_bandwidth);
  const std::int64_t microbatches = 64;
  const Prediction prediction = Predict(Pipeline(2, microbatches, bytes), cluster);
  const double m = static_cast<double>(microbatches);
  CHECK(prediction.iteration_s == doctest::Approx(3 + m * (3 + transfer)).epsilon(1e-3));
  CHECK(prediction.stages[0].transfer_s == doctest::Approx(2 * m * transfer));
}

TEST_CASE("predict: a program that does not end has no time") {
  plan::Plan plan = Pipeline(2, 4, 0);
  plan.stages[1].programs[0].pop_back();  // the last gradient is never sent
  const Prediction prediction = Predict(plan, HandCluster());
  CHECK(prediction.iteration_s == 0);
  CHECK(prediction.stages.size() == 2);
}

TEST_CASE("predict: what a stage's time goes to adds up to the iteration") {
  for (const std::vector<std::string>& layout : kLayouts) {
    CAPTURE(Text(layout));
    const plan::Plan plan = PlanOfLayout(layout);
    const Prediction prediction = Predict(plan, SmallNodes());
    CHECK(prediction.missing.empty());
    REQUIRE(prediction.stages.size() == plan.stages.size());
    for (const StageTime& stage : prediction.stages) {
      CHECK(Total(stage) == doctest::Approx(prediction.iteration_s).epsilon(1e-9));
      CHECK(stage.compute_s > 0);
      CHECK(stage.update_s > 0);
    }
    CHECK(prediction.mfu > 0);
  }
}

TEST_CASE("predict: a better machine is never slower") {
  for (const std::vector<std::string>& layout : kLayouts) {
    CAPTURE(Text(layout));
    const plan::Plan plan = PlanOfLayout(layout);
    const double before = Predict(plan, SmallNodes()).iteration_s;
    for (double recipe::Cluster::*rate :
         {&recipe::Cluster::matmul_flops, &recipe::Cluster::memory_bandwidth,
          &recipe::Cluster::intra_node_bandwidth, &recipe::Cluster::inter_node_bandwidth}) {
      recipe::Cluster better = SmallNodes();
      better.*rate *= 2;
      CHECK(Predict(plan, better).iteration_s <= before * (1 + 1e-12));
    }
  }
}

TEST_CASE(
    "predict: a group across nodes takes the network, by as many ways out as it has members on a node") {
  const plan::Plan plan = PlanOfLayout({"parallelism.dp=4", "parallelism.overlap=off"});
  const double slow = Predict(plan, SmallNodes()).iteration_s;
  recipe::Cluster one_node = SmallNodes();
  one_node.devices_per_node = 4;
  CHECK(Predict(plan, one_node).iteration_s < slow);
}

TEST_CASE("predict: with events, the same time; kernels of a stream do not overlap") {
  for (const std::vector<std::string>& layout : kLayouts) {
    CAPTURE(Text(layout));
    const plan::Plan plan = PlanOfLayout(layout);
    std::vector<PlayedEvent> events;
    const Prediction prediction = Predict(plan, SmallNodes(), &events);
    CHECK(prediction.iteration_s == doctest::Approx(Predict(plan, SmallNodes()).iteration_s).epsilon(1e-9));
    std::map<std::pair<std::int32_t, std::int32_t>, double> until;
    double last = 0;
    int overlaps = 0;
    for (const PlayedEvent& event : events) {
      double& end = until[{event.stage, event.stream}];
      overlaps += event.begin_s < end - 1e-12 ? 1 : 0;
      end = event.end_s;
      last = std::max(last, event.end_s);
    }
    CHECK(overlaps == 0);
    CHECK(last == doctest::Approx(prediction.iteration_s).epsilon(1e-9));
  }
}

TEST_CASE("predict: the trace has a process a stage, a thread a stream, and every event once") {
  const plan::Plan plan = PlanOfLayout({"parallelism.pp=4"});
  std::vector<PlayedEvent> events;
  Predict(plan, SmallNodes(), &events);
  const nlohmann::json trace = nlohmann::json::parse(ChromeTrace(events, "predicted"));
  std::map<std::string, size_t> kinds;
  std::set<std::string> names;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    ++kinds[event.at("ph")];
    if (event.at("ph") == "M") names.insert(event.at("args").at("name"));
  }
  CHECK(kinds["X"] == events.size());
  // Computation of 4 stages; both streams of a direction at each of 3 borders, both ways.
  CHECK(kinds["M"] == 4 + 4 + 3 * 4);
  for (const char* name : {"predicted stage 0", "predicted stage 3", "computation", "send to next",
                           "receive from previous", "send to previous", "receive from next"}) {
    CHECK_MESSAGE(names.contains(name), name);
  }
}

TEST_CASE("predict: rates that are not given are named") {
  const plan::Plan plan = PlanOfLayout({"parallelism.dp=4"});
  recipe::Cluster nothing;
  nothing.device = "h200";
  nothing.devices_per_node = 2;
  const Prediction prediction = Predict(plan, nothing);
  CHECK(prediction.missing == std::vector<std::string>{"matmul_flops", "memory_bandwidth",
                                                       "intra_node_bandwidth", "inter_node_bandwidth"});
  CHECK(prediction.mfu == 0);
  CHECK(prediction.iteration_s > 0);
  nothing.devices_per_node = 1;
  CHECK(Predict(plan, nothing).missing.size() == 3);  // no two ranks on a node
}

// 6 × parameters of products × tokens, and 6 × layers × hidden × sequence for causal attention, which counts
// (S + 1) / 2 keys a query: of GPT-2 large by hand.
TEST_CASE("predict: FLOPs of the model are those of its formula") {
  const recipe::Recipe recipe = RecipeOf("gpt2-large-1gpu", {});
  const double layers = 36, hidden = 1280, sequence = 1024, rows = 50304;
  const double products = layers * 12 * hidden * hidden + rows * hidden;
  const double attention = layers * hidden * (sequence + 1);
  const double tokens = 32 * sequence;
  const double expected = 6 * tokens * (products + attention);
  CHECK(Predict(CudaPlan(recipe), recipe.cluster).model_flops == doctest::Approx(expected).epsilon(1e-12));
  // Recomputation is not counted, and tp does not count anything twice.
  const recipe::Recipe again = RecipeOf("gpt2-large-1gpu", {"recompute.granularity=full"});
  CHECK(Predict(CudaPlan(again), again.cluster).model_flops == doctest::Approx(expected).epsilon(1e-12));
  const recipe::Recipe split = RecipeOf("gpt2-large-tp2", {});
  CHECK(Predict(CudaPlan(split), split.cluster).model_flops == doctest::Approx(2 * expected).epsilon(4e-3));
}

// What the plan's FLOPs have beyond those of the model is what is computed twice.
TEST_CASE("predict: FLOPs of the model are the plan's without recomputation, and less with it") {
  const auto of_plan = [](const plan::Plan& plan) {
    double flops = 0;
    for (const plan::StagePlan& stage : plan.stages)
      flops += stage.flops * static_cast<double>(plan.mesh.ranks_per_stage());
    return flops;
  };
  for (const char* name : {"gpt2-124m-1gpu", "gpt2-large-tp2", "gpt2-large-sp2", "gpt2-large-cp2tp2",
                           "gpt2-large-pp2-interleaved", "gpt2-large-pp2-zb", "gpt2-large-4gpu-zero3",
                           "llama-1b-1gpu", "llama-7b-1gpu-fp8", "llama3-8b-cp2"}) {
    CAPTURE(name);
    recipe::Recipe recipe = RecipeOf(name, {"recompute.granularity=none"});
    const plan::Plan plan = CudaPlan(recipe);
    const double model = Predict(plan, recipe.cluster).model_flops;
    CHECK(of_plan(plan) == doctest::Approx(model).epsilon(1e-12));
    recipe.recompute.granularity = "full";
    const plan::Plan again = CudaPlan(recipe);
    CHECK(Predict(again, recipe.cluster).model_flops == doctest::Approx(model).epsilon(1e-12));
    CHECK(of_plan(again) > 1.1 * model);
  }
}

TEST_CASE(
    "predict: a window takes pairs out of the model's FLOPs, and Hopper's kernels compute those within it "
    "alone") {
  const auto predicted = [](const std::vector<std::string>& sets) {
    const recipe::Recipe recipe = RecipeOf("llama-1b-1gpu", sets);
    return Predict(CudaPlan(recipe), recipe.cluster);
  };
  const recipe::Recipe recipe = RecipeOf("llama-1b-1gpu", {});
  const double tokens = static_cast<double>(recipe.data.sequence_length);
  const Prediction all = predicted({});
  // Queries times features times two, of two products, forward and twice backward.
  const double of_pair = 12.0 * static_cast<double>(recipe.model.layers * recipe.training.global_batch *
                                                    recipe.model.attention.heads * recipe.head_dim());
  double longer = all.iteration_s;
  for (const double window : {2048.0, 256.0, 16.0}) {
    CAPTURE(window);
    const Prediction inside = predicted({fmt::format("model.attention.window={}", window)});
    const double left_out = (tokens - window) * (tokens - window + 1) / 2;
    CHECK(all.model_flops - inside.model_flops == doctest::Approx(of_pair * left_out).epsilon(1e-9));
    CHECK(inside.slow.empty());
    CHECK(inside.iteration_s < longer);
    longer = inside.iteration_s;
  }
  CHECK(predicted({fmt::format("model.attention.window={}", tokens)}).iteration_s ==
        doctest::Approx(all.iteration_s).epsilon(1e-12));
}

TEST_CASE("predict: of ranks of cp, each computes the pairs of its two chunks with all keys before") {
  const plan::DeviceProfile profile = backend::cuda::CudaProfile(true, {.major = 8, .hopper = false});
  const graph::TensorType q = {{2, 512, 6, 64}, DType::kBF16};
  const graph::TensorType k = {{2, 1024, 3, 64}, DType::kBF16};
  const std::vector<graph::TensorType> inputs = {q, k, k};
  const auto flops = [&](const char* kernel, std::int64_t window) {
    const plan::SlowPath slow = profile.slow(kernel, inputs, {{"window", window}});
    CHECK(slow.kind == plan::SlowPath::Kind::kMasked);
    return slow.flops;
  };
  // Chunks of 256 tokens, of the first rank the first and the last: of 6 heads of 2 samples, 64 elements.
  CHECK(flops("attention", 100) == 4.0 * 64 * 12 * (256 * 256 + 256 * 1024));
  CHECK(flops("attention_grad", 100) == 10.0 * 64 * 12 * (256 * 256 + 256 * 1024));
  // The first chunk is within the window: its mask is the causal one.
  CHECK(flops("attention", 256) == 4.0 * 64 * 12 * (256 * 257 / 2 + 256 * 1024));
  CHECK(profile.slow("attention", inputs, {{"window", std::int64_t{0}}}).kind == plan::SlowPath::Kind::kNone);
  CHECK(profile.slow("linear", inputs, {}).kind == plan::SlowPath::Kind::kNone);
}

TEST_CASE("predict: what rests on slow kernels says so, and what fast ones would take") {
  const recipe::Recipe plain = RecipeOf("gpt2-large-1gpu", {});
  const Prediction fast = Predict(CudaPlan(plain), plain.cluster);
  CHECK(fast.slow.empty());
  CHECK(fast.fast_iteration_s == fast.iteration_s);
  const std::string_view asked = "attention that asks for the reference kernels";
  const recipe::Recipe asks = RecipeOf("gpt2-large-1gpu", {"precision.attention=reference"});
  const plan::Plan plan = CudaPlan(asks);
  const Prediction slow = Predict(plan, asks.cluster);
  REQUIRE(slow.slow.size() == 1);
  CHECK(slow.slow[0].why == asked);
  CHECK(slow.iteration_s > 10 * fast.iteration_s);
  CHECK(slow.fast_iteration_s < 2 * fast.iteration_s);
  CHECK(slow.slow[0].seconds - slow.slow[0].fast_s ==
        doctest::Approx(slow.iteration_s - slow.fast_iteration_s).epsilon(0.01));
  const std::string text = PredictionText(plan, asks.cluster, slow);
  CHECK(text.find("slow: attention that asks for the reference kernels runs in reference kernels: ") !=
        std::string::npos);
  CHECK(PredictionText(plan, plain.cluster, fast).find("slow:") == std::string::npos);
  const nlohmann::json json = PredictionToJson(slow);
  CHECK(json.at("slow_kernels").at(0).at("what") == asked);
  CHECK(json.at("slow_kernels").at(0).at("times_fast").get<double>() > 100);
  for (const auto& [set, why] :
       {std::pair("model.attention.head_dim=60", "attention of heads of less than 64 elements"),
        std::pair("model.attention.heads=40", ""), std::pair("model.attention.heads=16", ""),
        std::pair("precision.compute=fp32", "attention in fp32"), std::pair("model.attention.window=100", ""),
        std::pair("model.dropout.attention=0.1", "")}) {
    CAPTURE(set);
    const recipe::Recipe recipe = RecipeOf("gpt2-large-1gpu", {set});
    const Prediction prediction = Predict(CudaPlan(recipe), recipe.cluster);
    REQUIRE(prediction.slow.size() == (*why == '\0' ? 0 : 1));
    if (*why != '\0') CHECK(prediction.slow[0].why == why);
  }
}

TEST_CASE("predict: evaluation is the forward passes of a global batch") {
  for (const char* name : {"gpt2-large-1gpu", "gpt2-large-tp2", "gpt2-large-pp2"}) {
    CAPTURE(name);
    const recipe::Recipe recipe = RecipeOf(name, {});
    const plan::Plan plan = CudaPlan(recipe);
    const double iteration_s = Predict(plan, recipe.cluster).iteration_s;
    const double evaluation_s = PredictEvaluation(plan, recipe.cluster);
    CHECK(evaluation_s > 0.25 * iteration_s);
    CHECK(evaluation_s < 0.45 * iteration_s);
  }
}

TEST_CASE("predict: JSON has null for what is unknown") {
  const plan::Plan plan = PlanOfLayout({});
  recipe::Cluster cluster = SmallNodes();
  const nlohmann::json known = PredictionToJson(Predict(plan, cluster));
  for (const char* key : {"iteration_s", "tokens_per_s", "mfu", "bubble", "exposed", "fast_iteration_s"})
    CHECK_MESSAGE(known.at(key).is_number(), key);
  CHECK(known.at("stages").size() == 1);
  cluster.peak_flops = 0;
  CHECK(PredictionToJson(Predict(plan, cluster)).at("mfu").is_null());
  cluster.matmul_flops = 0;
  const nlohmann::json unknown = PredictionToJson(Predict(plan, cluster));
  for (const char* key : {"iteration_s", "tokens_per_s", "mfu", "bubble", "exposed", "fast_iteration_s"})
    CHECK_MESSAGE(unknown.at(key).is_null(), key);
  CHECK(unknown.at("stages").empty());
  CHECK(unknown.at("model_flops").get<double>() > 0);
}

// The tables of docs/prediction.md are these tests'; ENGINE_UPDATE_GOLDEN=1 writes them anew.
TEST_CASE("predict: golden: measured on H200, within what docs/prediction.md says") {
  std::string table =
      "| run | measured, ms | predicted, ms | error | held within | Megatron-LM, published |\n"
      "|---|---|---|---|---|---|\n";
  for (const nlohmann::json& row : Rows("measured")) {
    const std::string name = row.at("name");
    CAPTURE(name);
    const recipe::Recipe recipe = RecipeOf(row.at("recipe"), row.value("set", std::vector<std::string>{}));
    const double measured = row.at("ms");
    const double predicted = 1e3 * Predict(CudaPlan(recipe), recipe.cluster).iteration_s;
    const double error = 100 * (predicted / measured - 1);
    CHECK(std::abs(error) <= row.at("within").get<double>());
    table += fmt::format("| {} | {:.1f} | {:.0f} | {:+.1f} % | {} % | {} |\n", name, measured, predicted,
                         error, row.at("within").get<int>(),
                         row.contains("megatron") ? fmt::format("{}", row.at("megatron").get<int>()) : "–");
  }
  ExpectTable("measured", table);
}

TEST_CASE("predict: golden: an iteration by components of the model") {
  const recipe::Recipe recipe = RecipeOf("gpt2-large-tp2", {});
  const std::string text = ComponentsText(Predict(CudaPlan(recipe), recipe.cluster));
  ExpectTable("components", "```" + text + "```\n");
}

TEST_CASE("predict: golden: published for H100") {
  std::string table =
      "| model | GPUs: TP/PP/DP | MFU published | predicted | exposed exchange | bubble "
      "|\n|---|---|---|---|---|---|\n";
  for (const nlohmann::json& row : Rows("published")) {
    const recipe::Recipe recipe = RecipeOf(row.at("recipe"), {});
    const Prediction prediction = Predict(CudaPlan(recipe), recipe.cluster);
    table += fmt::format("| {} | {} | {} % | {:.0f} % | {:.0f} % | {:.0f} % |\n",
                         row.at("name").get<std::string>(), row.at("layout").get<std::string>(),
                         row.at("mfu").get<int>(), 100 * prediction.mfu, 100 * prediction.exposed,
                         100 * prediction.bubble);
  }
  ExpectTable("published", table);
}

TEST_CASE("predict: copies of the state on other hosts, of what they take and how often they are made") {
  const auto predicted = [](const std::vector<std::string>& sets) {
    std::vector<std::string> all = OnSmallNodes({"model.dropout.attention=0", "checkpoint.memory=true"});
    all.insert(all.end(), sets.begin(), sets.end());
    recipe::Recipe recipe = plan::TinyRecipe(false, all);
    recipe.cluster = SmallNodes();
    const plan::Plan plan = CudaPlan(recipe);
    const MemoryCheckpointPrediction memory = PredictMemoryCheckpoint(plan, recipe);
    return std::make_pair(memory, Predict(plan, recipe.cluster).iteration_s);
  };
  const auto [one_host, one_s] = predicted({"parallelism.tp=2"});
  CHECK(one_host.sent_bytes == 0);
  const auto [copies, copies_s] = predicted({"parallelism.dp=2", "parallelism.tp=2"});
  CHECK(copies.sent_bytes == 0);  // data-parallel copies are on the other host
  const auto [sent, sent_s] = predicted({"parallelism.dp=4", "parallelism.zero_stage=1"});
  CHECK(sent.bytes == 4 * sent.sent_bytes);
  CHECK(sent.sent_bytes > 0);
  CHECK(static_cast<double>(sent.interval) * sent_s >= static_cast<double>(sent.sent_bytes) / kLinkBandwidth);
  const auto [none, none_s] =
      predicted({"parallelism.dp=4", "parallelism.zero_stage=1", "checkpoint.memory_partner=false"});
  CHECK(none.sent_bytes == 0);
  CHECK(none.bytes == 2 * sent.sent_bytes);
  CHECK(none.interval <= sent.interval);
}

}  // namespace engine::predict
