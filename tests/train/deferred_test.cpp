// Exchange whose result is there no sooner than the executor has waited for it and finished it, as on a GPU:
// what reads too soon, or what nothing waits for, reads NaN.
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "tests/train/testing.h"

namespace engine::train::testing {
namespace {

// Runs the exchange at once, but shows what it made in Finish.
class DeferredLaunch final : public backend::Launch {
 public:
  DeferredLaunch(std::unique_ptr<backend::Launch> inner, std::vector<std::span<std::byte>> made)
      : inner_(std::move(inner)), made_(std::move(made)), kept_(made_.size()) {}

  absl::Status Run(const backend::KernelContext& context) override {
    RETURN_IF_ERROR(inner_->Run(context));
    for (size_t i = 0; i < made_.size(); ++i) {
      kept_[i].assign(made_[i].begin(), made_[i].end());
      std::memset(made_[i].data(), 0xFF, made_[i].size());
    }
    return absl::OkStatus();
  }
  absl::Status Finish() override {
    for (size_t i = 0; i < made_.size(); ++i) std::copy(kept_[i].begin(), kept_[i].end(), made_[i].begin());
    return inner_->Finish();
  }

 private:
  const std::unique_ptr<backend::Launch> inner_;
  const std::vector<std::span<std::byte>> made_;  // by the exchange, from other ranks' bytes
  std::vector<std::vector<std::byte>> kept_;
};

class DeferredCommunicator final : public backend::cpu::CpuCommunicator {
 public:
  // joined: the detached exchange that some instruction names.
  DeferredCommunicator(backend::cpu::World* world, std::int64_t rank, const std::set<std::string>& joined)
      : CpuCommunicator(world, rank), joined_(joined) {}

  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::CollectiveArgs args) override {
    const std::vector<std::span<std::byte>> made = MadeBy(args);
    ASSIGN_OR_RETURN(std::unique_ptr<backend::Launch> launch, CpuCommunicator::Prepare(std::move(args)));
    return std::make_unique<DeferredLaunch>(std::move(launch), made);
  }

 private:
  std::vector<std::span<std::byte>> MadeBy(const backend::CollectiveArgs& args) const {
    const plan::Instruction& instruction = *args.instruction;
    // Nothing is left to finish of these: where the update begins and the program ends, the executor waits
    // for the exchange's stream.
    if (instruction.detached && args.scratch.empty() && !joined_.contains(instruction.name)) return {};
    if (instruction.unsummed) return {args.scratch};
    auto* const out = args.output.as<std::byte>();
    const auto bytes = static_cast<size_t>(args.output.shape.elements() * SizeOf(args.output.dtype));
    if (!instruction.flat || instruction.collective == plan::Collective::kAllReduce) return {{out, bytes}};
    const size_t part = bytes / args.group.size();
    const size_t own = static_cast<size_t>(args.index) * part;
    if (instruction.collective == plan::Collective::kReduceScatter) return {{out + own, part}};
    return {{out, own}, {out + own + part, bytes - own - part}};
  }

  const std::set<std::string>& joined_;
};

Device DeferringDevice(const recipe::Recipe& recipe) {
  const auto world = std::make_shared<backend::cpu::World>();
  Device device = PushingDevice();
  const auto plan = CompileRecipe(recipe, {.profile = device.profile});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const auto joined = std::make_shared<std::vector<std::set<std::string>>>();  // by stage
  for (const plan::StagePlan& stage : plan->stages) {
    std::set<std::string>& names = joined->emplace_back();
    for (const plan::Segment& segment : stage.segments) {
      for (const plan::Instruction& instruction : segment.instructions) names.insert(instruction.joins);
    }
  }
  const std::int64_t ranks_per_stage = plan->mesh.ranks_per_stage();
  device.make_communicator = [world, joined, ranks_per_stage](std::int64_t rank) {
    return std::make_unique<DeferredCommunicator>(world.get(), rank,
                                                  (*joined)[static_cast<size_t>(rank / ranks_per_stage)]);
  };
  device.abort = [world] { world->Abort(); };
  return device;
}

}  // namespace

TEST_CASE("what is exchanged behind computation is waited for and finished before anything reads it") {
  for (const char* model : {kGptLike, kLlamaLike}) {
    for (const std::string layout :
         {"dp=2 micro_batch=4", "dp=4 zero_stage=1 micro_batch=2", "dp=4 zero_stage=2 micro_batch=1",
          "dp=4 zero_stage=3 micro_batch=2", "dp=2 tp=2 zero_stage=1 micro_batch=4",
          "dp=2 tp=2 micro_batch=1", "dp=2 tp=2 sequence_parallel=true zero_stage=1 micro_batch=4",
          "dp=2 cp=2 zero_stage=1 micro_batch=4", "dp=2 pp=2 zero_stage=1 micro_batch=2",
          "dp=2 pp=2 virtual_stages=2 zero_stage=1 micro_batch=2",
          "dp=2 pp=2 zero_stage=1 schedule=zero_bubble micro_batch=2", "tp=2 micro_batch=4"}) {
      INFO(std::string(model == kGptLike ? "GPT " : "Llama ") << layout);
      const recipe::Recipe recipe = MakeRecipe(model, SetsOf(layout + " overlap=on"));
      const Trained one = TrainFor(recipe, 2, PushingDevice());
      const Trained other = TrainFor(recipe, 2, DeferringDevice(recipe));
      CHECK(one.losses == other.losses);
      CHECK(one.grad_norms == other.grad_norms);
      CHECK(one.weights == other.weights);
      CHECK(one.evaluations == other.evaluations);
    }
  }
}

}  // namespace engine::train::testing
