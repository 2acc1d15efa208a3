// A deadlock of a production schedule, built as a plan, and the counter-example that the verifier gives:
// github.com/NVIDIA/Megatron-LM/pull/5240, an interleaved pipeline (pp 4, two chunks a stage) whose sends and
// receives are not batched, on communicators of two ranks that are made when they are first needed.
//
// Three changes of the program that the compiler makes:
//   one at a time   nothing behind a send begins before the send is received, as on one queue of a device
//                   (CUDA_DEVICE_MAX_CONNECTIONS=1) without a group of operations around it
//   made when used  before its first operation with a neighbour, a stage makes their communicator: both must
//   come,
//                   and neither does anything else until the other has. Here: each sends a word and waits for
//                   the other's.
//   both            as reported
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/verify/verify.h"
#include "tests/plan/plans.h"
#include "tests/recipe/test_files.h"

namespace engine::verify {
namespace {

using Pair = std::pair<std::int32_t, std::int32_t>;  // stages, the one that sends forward first

std::int32_t StageOf(const plan::Plan& plan, std::int32_t chunk) {
  return plan.chunk_stage[static_cast<size_t>(chunk)];
}

bool IsForward(const plan::Transfer& transfer) { return transfer.from_chunk < transfer.to_chunk; }

Pair PairOf(const plan::Plan& plan, const plan::Transfer& transfer) {
  const std::int32_t from = StageOf(plan, transfer.from_chunk);
  const std::int32_t to = StageOf(plan, transfer.to_chunk);
  return IsForward(transfer) ? Pair{from, to} : Pair{to, from};
}

const plan::Plan& Interleaved() {
  static const plan::Plan plan =
      plan::TinyPlan(false, {"parallelism.pp=4", "parallelism.virtual_stages=2", "training.global_batch=8"});
  return plan;
}

plan::Plan OneAtATime(plan::Plan plan) {
  for (plan::StagePlan& stage : plan.stages) {
    for (size_t i = 0; i + 1 < stage.programs[0].size(); ++i) {
      if (stage.programs[0][i].kind == plan::StepKind::kSend)
        stage.programs[0][i + 1].waits.push_back(static_cast<std::int32_t>(i));
    }
  }
  return plan;
}

// The words that two stages exchange to make a communicator: one transfer each way, a copy of one that the
// plan has.
struct Handshake {
  std::int32_t forward = -1, backward = -1;            // Plan::transfers, new
  std::int32_t like_forward = -1, like_backward = -1;  // those that they are copies of
};

std::map<Pair, Handshake> AddHandshakes(plan::Plan* plan) {
  std::map<Pair, Handshake> handshakes;
  const size_t transfers = plan->transfers.size();
  for (size_t t = 0; t < transfers; ++t) {
    const plan::Transfer transfer = plan->transfers[t];
    Handshake& handshake = handshakes[PairOf(*plan, transfer)];
    std::int32_t& like = IsForward(transfer) ? handshake.like_forward : handshake.like_backward;
    if (like >= 0) continue;
    like = static_cast<std::int32_t>(t);
    (IsForward(transfer) ? handshake.forward : handshake.backward) =
        static_cast<std::int32_t>(plan->transfers.size());
    const Pair pair = PairOf(*plan, transfer);
    plan::LocalValue word = plan->values[static_cast<size_t>(transfer.value)];
    word.name = fmt::format("communicator of stages {} and {}", pair.first, pair.second);
    plan->transfers.push_back(transfer);
    plan->transfers.back().value = static_cast<std::int32_t>(plan->values.size());
    plan->values.push_back(std::move(word));
  }
  return handshakes;
}

// A step like the program's first of transfer `like`, for transfer `t`.
plan::Step StepLike(const plan::Program& program, std::int32_t like, std::int32_t t) {
  for (const plan::Step& step : program) {
    if (step.kind == plan::StepKind::kRun || step.transfer != like) continue;
    plan::Step copy = step;
    copy.transfer = t;
    copy.microbatch = 0;
    copy.waits.clear();
    return copy;
  }
  FAIL("no step of transfer " << like);
  return {};
}

std::vector<std::int32_t> Moved(std::vector<std::int32_t> steps, const std::vector<std::int32_t>& moved) {
  for (std::int32_t& step : steps) step = moved[static_cast<size_t>(step)];
  return steps;
}

plan::Plan MadeWhenUsed(plan::Plan plan) {
  const std::map<Pair, Handshake> handshakes = AddHandshakes(&plan);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::Program old = std::move(plan.stages[s].programs[0]);
    plan::Program program;
    std::vector<std::int32_t> moved;  // old step → new step
    std::set<Pair> made;
    for (const plan::Step& step : old) {
      std::int32_t word = -1;
      if (step.kind != plan::StepKind::kRun) {
        const Pair pair = PairOf(plan, plan.transfers[static_cast<size_t>(step.transfer)]);
        if (made.insert(pair).second) {
          const Handshake& handshake = handshakes.at(pair);
          const plan::Step forward = StepLike(old, handshake.like_forward, handshake.forward);
          const plan::Step backward = StepLike(old, handshake.like_backward, handshake.backward);
          const bool first = pair.first == static_cast<std::int32_t>(s);
          word = static_cast<std::int32_t>(program.size());
          program.push_back(first ? forward : backward);
          program.back().waits = Moved(step.waits, moved);
          program.push_back(first ? backward : forward);
        }
      }
      moved.push_back(static_cast<std::int32_t>(program.size()));
      program.push_back(step);
      program.back().waits = Moved(step.waits, moved);
      if (word >= 0) program.back().waits.push_back(word);
    }
    plan.stages[s].programs[0] = std::move(program);
  }
  return plan;
}

std::string CounterExample(const plan::Plan& plan) { return Message(VerifyCommunication(plan)); }

}  // namespace

TEST_CASE("deadlock: the schedule itself comes to an end") { CHECK(CounterExample(Interleaved()).empty()); }

TEST_CASE("deadlock: communicators made when used are no deadlock where sends do not wait") {
  CHECK(CounterExample(MadeWhenUsed(Interleaved())).empty());
}

TEST_CASE("deadlock: sends one at a time wait around the ring") {
  CHECK(
      CounterExample(OneAtATime(Interleaved())) ==
      "deadlock: stage 0 waits at train step 9 (receive layers.3.mlp.residual, microbatch 0) until train "
      "step 8 "
      "(send layers.0.mlp.residual, microbatch 3) is received for stage 1, which waits at train step 10 "
      "(receive "
      "layers.0.mlp.residual, microbatch 3) until train step 9 (send layers.1.mlp.residual, microbatch 2) is "
      "received for stage 2, which waits at train step 7 (receive layers.1.mlp.residual, microbatch 2) until "
      "train "
      "step 6 (send layers.2.mlp.residual, microbatch 1) is received for stage 3, which waits at train step "
      "4 "
      "(receive layers.2.mlp.residual, microbatch 1) until train step 3 (send layers.3.mlp.residual, "
      "microbatch 0) "
      "is received for stage 0");
}

TEST_CASE("deadlock: unbatched operations on communicators made when used") {
  const std::string text = CounterExample(MadeWhenUsed(OneAtATime(Interleaved())));
  CHECK(text ==
        "deadlock: stage 0 waits at train step 11 (send communicator of stages 3 and 0, microbatch 0) until "
        "train "
        "step 10 (send layers.0.mlp.residual, microbatch 3) is received for stage 1, which waits at train "
        "step 14 "
        "(receive layers.0.mlp.residual, microbatch 3) until train step 13 (send layers.1.mlp.residual, "
        "microbatch "
        "2) is received for stage 2, which waits at train step 11 (receive layers.1.mlp.residual, microbatch "
        "2) "
        "until train step 10 (send layers.2.mlp.residual, microbatch 1) is received for stage 3, which waits "
        "at "
        "train step 6 (receive communicator of stages 3 and 0, microbatch 0) for stage 0");

  // docs/verifier.md shows it, a line a stage.
  std::string lines = text;
  for (size_t at = 0; (at = lines.find(", which ", at)) != std::string::npos; ++at)
    lines.replace(at, 2, ",\n");
  CHECK(recipe::ReadText(std::filesystem::path(ENGINE_SOURCE_DIR) / "docs/verifier.md").find(lines) !=
        std::string::npos);
}

}  // namespace engine::verify
