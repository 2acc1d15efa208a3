// Exchange whose result is there no sooner than the executor has waited for it and finished it, as on a GPU:
// what reads too soon, or what nothing waits for, reads NaN.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tests/train/testing.h"

namespace engine::train::testing {
namespace {

// The tickets of a rank's streams.
struct Tickets {
  // What shows when computation has waited for its stream, as nothing is left to finish of it.
  struct Pending {
    std::int32_t stream = 0;
    std::int64_t begun = 0;
    std::function<void()> show;
  };
  std::int64_t last = 0;
  std::map<std::int64_t, std::int32_t> stream_of;
  std::array<std::int64_t, plan::kStreams> reached =
      {};  // by stream: its last that computation has waited for
  std::vector<Pending> pending;
};

class TicketBackend final : public backend::cpu::CpuBackend {
 public:
  explicit TicketBackend(Tickets* tickets) : CpuBackend(1), tickets_(*tickets) {}

  absl::StatusOr<std::int64_t> Signal(std::int32_t stream) override {
    tickets_.stream_of[++tickets_.last] = stream;
    return tickets_.last;
  }
  absl::Status Await(std::int32_t stream, std::int64_t ticket) override {
    if (stream != plan::kComputeStream) return absl::OkStatus();
    std::int64_t& reached = tickets_.reached[static_cast<size_t>(tickets_.stream_of.at(ticket))];
    reached = std::max(reached, ticket);
    std::erase_if(tickets_.pending, [&](const Tickets::Pending& pending) {
      if (pending.stream != tickets_.stream_of.at(ticket) || ticket <= pending.begun) return false;
      pending.show();
      return true;
    });
    return absl::OkStatus();
  }

 private:
  Tickets& tickets_;
};

// Runs the exchange at once, but shows what it made in Finish, and only if computation has waited for it.
// Until then it lies in the scratch of the exchange, where there is one.
class DeferredLaunch final : public backend::LaunchAround {
 public:
  DeferredLaunch(std::unique_ptr<backend::Launch> inner, std::vector<std::span<std::byte>> made,
                 std::span<std::byte> scratch, std::int32_t stream, bool finishes, Tickets* tickets)
      : LaunchAround(std::move(inner)),
        made_(std::move(made)),
        scratch_(scratch),
        stream_(stream),
        finishes_(finishes),
        tickets_(*tickets) {
    size_t bytes = 0;
    for (const std::span<std::byte>& part : made_) bytes += part.size();
    if (scratch_.size() >= bytes) return;
    own_.resize(bytes);
    scratch_ = own_;
  }

  absl::Status Run(const backend::KernelContext& context) override {
    RETURN_IF_ERROR(LaunchAround::Run(context));
    begun_ = tickets_.last;
    std::byte* to = scratch_.data();
    for (const std::span<std::byte>& part : made_) {
      to = std::copy(part.begin(), part.end(), to);
      std::memset(part.data(), 0xFF, part.size());
    }
    if (!finishes_) tickets_.pending.push_back({stream_, begun_, [this] { Show(); }});
    return absl::OkStatus();
  }
  absl::Status Finish() override {
    const bool computes = stream_ == plan::kComputeStream;
    const std::int64_t reached = tickets_.reached[static_cast<size_t>(stream_)];
    if (!finishes_ || (!computes && reached <= begun_)) return absl::OkStatus();  // it is not there yet
    Show();
    return LaunchAround::Finish();
  }

 private:
  void Show() const {
    const std::byte* from = scratch_.data();
    for (const std::span<std::byte>& part : made_) {
      std::copy(from, from + part.size(), part.begin());
      from += part.size();
    }
  }

  const std::vector<std::span<std::byte>> made_;  // by the exchange, from other ranks' bytes
  std::span<std::byte> scratch_;
  std::vector<std::byte> own_;
  const std::int32_t stream_;
  const bool finishes_;  // after the wait
  Tickets& tickets_;
  std::int64_t begun_ = 0;
};

class DeferredCommunicator final : public backend::cpu::CpuCommunicator {
 public:
  // joined: the detached exchange that some instruction names.
  DeferredCommunicator(backend::cpu::World* world, std::int64_t rank, const std::set<std::string>& joined,
                       Tickets* tickets)
      : CpuCommunicator(world, rank), joined_(joined), tickets_(*tickets) {}

  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::CollectiveArgs args) override {
    const std::vector<std::span<std::byte>> made = MadeBy(args);
    const bool unsummed = args.instruction->LeavesAddition();  // what it made is the scratch
    const std::span<std::byte> scratch = unsummed ? std::span<std::byte>() : args.scratch;
    const std::int32_t stream = args.instruction->stream;
    // Of the rest nothing is left to finish: where the update begins and the program ends, the executor waits
    // for their stream.
    const bool finishes =
        !args.instruction->detached() || !args.scratch.empty() || joined_.contains(args.instruction->name);
    ASSIGN_OR_RETURN(std::unique_ptr<backend::Launch> launch, CpuCommunicator::Prepare(std::move(args)));
    return std::make_unique<DeferredLaunch>(std::move(launch), made, scratch, stream, finishes, &tickets_);
  }

 private:
  static std::vector<std::span<std::byte>> MadeBy(const backend::CollectiveArgs& args) {
    const plan::Instruction& instruction = *args.instruction;
    if (instruction.direct()) return {};
    if (instruction.LeavesAddition()) return {args.scratch};
    auto* const out = args.output.as<std::byte>();
    const auto bytes = static_cast<size_t>(args.output.shape.elements() * SizeOf(args.output.dtype));
    if (!instruction.IsBucketExchange() || instruction.collective() == plan::Collective::kAllReduce)
      return {{out, bytes}};
    const size_t part = bytes / args.group.size();
    const size_t own = static_cast<size_t>(args.index) * part;
    if (instruction.collective() == plan::Collective::kReduceScatter) return {{out + own, part}};
    return {{out, own}, {out + own + part, bytes - own - part}};
  }

  const std::set<std::string>& joined_;
  Tickets& tickets_;
};

struct Shared {
  backend::cpu::World world;
  std::vector<std::set<std::string>> joined;  // by stage
  std::vector<Tickets> tickets;               // by rank
};

state::Device DeferringDevice(const recipe::Recipe& recipe) {
  state::Device device = PushingDevice();
  const auto plan = driver::CompileRecipe(recipe, {.profile = device.profile});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const auto shared = std::make_shared<Shared>();
  shared->tickets.resize(static_cast<size_t>(plan->mesh.world()));
  for (const plan::StagePlan& stage : plan->stages) {
    std::set<std::string>& names = shared->joined.emplace_back();
    for (const plan::Program& program : stage.programs) {
      std::map<std::int32_t, std::string> last;  // exchange of each bucket
      for (const plan::Step& step : program) {
        if (step.kind != plan::StepKind::kRun) continue;
        for (const auto& instruction : stage.segments[static_cast<size_t>(step.segment)].instructions) {
          if (instruction.waits_for_bucket >= 0) names.insert(last[instruction.waits_for_bucket]);
          if (instruction.detached()) last[instruction.AsBucketExchange()->bucket] = instruction.name;
        }
      }
    }
  }
  device.make_backend = [shared](std::int64_t rank, std::int64_t) {
    return std::make_unique<TicketBackend>(&shared->tickets[static_cast<size_t>(rank)]);
  };
  const std::int64_t ranks_per_stage = plan->mesh.ranks_per_stage();
  device.make_communicator = [shared, ranks_per_stage](std::int64_t rank) {
    return std::make_unique<DeferredCommunicator>(&shared->world, rank,
                                                  shared->joined[static_cast<size_t>(rank / ranks_per_stage)],
                                                  &shared->tickets[static_cast<size_t>(rank)]);
  };
  device.abort = [shared] { shared->world.Abort(); };
  return device;
}

}  // namespace

TEST_CASE("what is exchanged behind computation is waited for and finished before anything reads it") {
  for (const char* model : {kGptLike, kLlamaLike}) {
    for (const std::string layout :
         {"dp=2 micro_batch=4",
          "dp=4 zero_stage=1 micro_batch=2",
          "dp=4 zero_stage=1 micro_batch=2 matmul_flops=1e6 intra_node_bandwidth=1e12",
          "dp=4 zero_stage=2 micro_batch=1",
          "dp=4 zero_stage=3 micro_batch=2",
          "dp=2 tp=2 zero_stage=1 micro_batch=4",
          "dp=2 tp=2 micro_batch=1",
          "dp=2 tp=2 micro_batch=1 exchange=push",
          "dp=2 tp=2 sequence_parallel=true zero_stage=1 micro_batch=1",
          "dp=2 tp=2 zero_stage=1 micro_batch=2",
          "dp=2 tp=2 sequence_parallel=true zero_stage=1 micro_batch=4",
          "dp=2 cp=2 zero_stage=1 micro_batch=4",
          "dp=2 pp=2 zero_stage=1 micro_batch=2",
          "dp=2 pp=2 virtual_stages=2 zero_stage=1 micro_batch=2",
          "dp=2 pp=2 zero_stage=1 schedule=zero_bubble micro_batch=2",
          "tp=2 micro_batch=4",
          "tp=2 pp=2 micro_batch=4",
          "cp=2 pp=2 virtual_stages=2 micro_batch=2",
          "dp=2 tp=2 pp=2 sequence_parallel=true zero_stage=1 micro_batch=2",
          "cp=2 pp=2 schedule=zero_bubble micro_batch=4",
          "cp=2 zero_stage=2 micro_batch=4",
          "cp=2 zero_stage=3 micro_batch=4",
          "dp=2 tp=2 sequence_parallel=true zero_stage=3 micro_batch=2",
          "dp=2 tp=2 pp=2 zero_stage=3 micro_batch=2",
          "dp=2 tp=2 zero_stage=1 micro_batch=4 devices_per_node=2",
          "dp=2 tp=2 zero_stage=3 micro_batch=4 devices_per_node=2",
          "dp=2 tp=2 pp=2 zero_stage=2 micro_batch=2 devices_per_node=2"}) {
      INFO(std::string(model == kGptLike ? "GPT " : "Llama ") << layout);
      const recipe::Recipe recipe = MakeRecipe(model, SetsOf(layout + " overlap=on"));
      const Trained one = TrainFor(recipe, 2, PushingDevice());
      // Beside a plan that pushes nothing, so that what neither of the two gathers is seen.
      const Trained plain = TrainFor(recipe, 2);
      for (size_t i = 0; i < plain.losses.size(); ++i)
        CHECK(one.losses[i] == doctest::Approx(plain.losses[i]).epsilon(1e-6));
      const Trained other = TrainFor(recipe, 2, DeferringDevice(recipe));
      CHECK(one.losses == other.losses);
      CHECK(one.grad_norms == other.grad_norms);
      CHECK(one.weights == other.weights);
      CHECK(one.evaluations == other.evaluations);
    }
  }
}

}  // namespace engine::train::testing
