// Collectives of virtual ranks against a serial recomputation from the extents alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "engine/backend/cpu/world.h"
#include "tests/executor/conversion_cases.h"

namespace engine::backend::cpu {
namespace {

// Row-major index in the logical tensor of each local element, in local order.
std::vector<std::int64_t> LogicalIndices(const Extent& extent, const Shape& local, const Shape& logical) {
  std::vector<std::int64_t> indices;
  for (std::int64_t flat = 0; flat < local.elements(); ++flat) {
    std::int64_t rest = flat;
    std::int64_t index = 0;
    std::int64_t stride = 1;
    for (int dim = local.rank() - 1; dim >= 0; --dim) {
      index += LogicalIndex(extent.dims[static_cast<size_t>(dim)], rest % local[dim]) * stride;
      rest /= local[dim];
      stride *= logical[dim];
    }
    indices.push_back(index);
  }
  return indices;
}

struct Local {
  std::vector<std::int64_t> in, out;  // logical index of each element
  std::vector<std::int64_t> place;    // of each logical element in `in`, or −1
  std::vector<float> input, output;
};

std::vector<Local> MakeLocals(const Case& c, Random& random) {
  std::vector<Local> locals(static_cast<size_t>(c.mesh.world()));
  std::uniform_real_distribution<float> uniform(-4.0F, 4.0F);
  // What is not partial must agree between the ranks that hold it: one value for each logical element.
  std::vector<float> whole(static_cast<size_t>(c.shape.elements()));
  for (float& value : whole) value = uniform(random);
  for (std::int64_t rank = 0; rank < c.mesh.world(); ++rank) {
    const plan::Coordinates at = c.mesh.CoordinatesOf(rank);
    Local& local = locals[static_cast<size_t>(rank)];
    local.in =
        LogicalIndices(c.from.ExtentOf(c.shape, c.mesh, at), c.from.LocalShape(c.shape, c.mesh), c.shape);
    local.out = LogicalIndices(c.to.ExtentOf(c.shape, c.mesh, at), c.to.LocalShape(c.shape, c.mesh), c.shape);
    for (std::int64_t index : local.in) {
      local.input.push_back(c.from.HasPartial() ? uniform(random) : whole[static_cast<size_t>(index)]);
    }
    local.place.assign(whole.size(), -1);
    for (size_t i = 0; i < local.in.size(); ++i) {
      local.place[static_cast<size_t>(local.in[i])] = static_cast<std::int64_t>(i);
    }
    local.output.assign(local.out.size(), std::numeric_limits<float>::quiet_NaN());
  }
  return locals;
}

absl::Status RunRank(const Case& c, const plan::Instruction& instruction, World* world, std::int64_t rank,
                     Local* local) {
  CpuCommunicator communicator(world, rank);
  CollectiveArgs args = ArgsOf(c, instruction, rank);
  args.input.data = local->input.data();
  args.output.data = local->output.data();
  ASSIGN_OR_RETURN(const std::unique_ptr<Launch> launch, communicator.Prepare(std::move(args)));
  for (int repeat = 0; repeat < 2; ++repeat)
    RETURN_IF_ERROR(launch->Run({}));  // a second time gives the same
  return absl::OkStatus();
}

// What output element `index` of `rank` must be: of the members' inputs that hold it, in order of rank. NaN
// if none does.
double Expected(const Case& c, const std::vector<Local>& locals, const std::vector<std::int64_t>& group,
                std::int64_t index) {
  double sum = 0;
  double exponentials = 0;
  bool found = false;
  for (std::int64_t member : group) {
    const Local& theirs = locals[static_cast<size_t>(member)];
    const std::int64_t place = theirs.place[static_cast<size_t>(index)];
    if (place < 0) continue;
    const double value = static_cast<double>(theirs.input[static_cast<size_t>(place)]);
    sum = c.from.HasPartial() ? sum + value : value;
    exponentials += std::exp(value);
    found = true;
  }
  if (!found) return std::numeric_limits<double>::quiet_NaN();
  return c.reduction == Reduction::kLogSumExp ? std::log(exponentials) : sum;
}

void CheckCase(const Case& c, Random& random) {
  std::vector<Local> locals = MakeLocals(c, random);
  const plan::Instruction instruction = InstructionOf(c);
  World world;
  std::vector<absl::Status> statuses(locals.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < locals.size(); ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = RunRank(c, instruction, &world, static_cast<std::int64_t>(rank), &locals[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // At most 3 members' values up to 4: two float32 roundings of sums below 12, or of two log1p and exp each.
  constexpr double kBound = 2 * 12 * std::numeric_limits<float>::epsilon();
  for (size_t rank = 0; rank < locals.size(); ++rank) {
    REQUIRE_MESSAGE(statuses[rank].ok(), Message(statuses[rank]));
    const auto self = static_cast<std::int64_t>(rank);
    const bool alone = c.collective == Collective::kSlice;
    const std::vector<std::int64_t> group =
        alone ? std::vector<std::int64_t>{self} : c.mesh.Group(self, AxisSet::Of(c.axis));
    double largest = 0;
    for (size_t i = 0; i < locals[rank].out.size(); ++i) {
      const double expected = Expected(c, locals, group, locals[rank].out[i]);
      const double difference = std::abs(expected - static_cast<double>(locals[rank].output[i]));
      largest = difference <= largest ? largest : std::isnan(difference) ? HUGE_VAL : difference;
    }
    CHECK(largest <= (c.from.HasPartial() ? kBound : 0.0));
  }
}

// One flat collective of `members` ranks; buffer i is rank i's.
std::vector<std::vector<double>> RunFlat(Collective collective, std::vector<std::vector<double>> buffers,
                                         Reduction reduction = Reduction::kSum) {
  const plan::Instruction instruction = FlatOf(collective, reduction);
  World world;
  std::vector<std::int64_t> group;
  for (size_t i = 0; i < buffers.size(); ++i) group.push_back(static_cast<std::int64_t>(i));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < buffers.size(); ++rank) {
    threads.emplace_back([&, rank] {
      TensorView view;
      view.data = buffers[rank].data();
      view.dtype = DType::kF64;
      view.shape = {static_cast<std::int64_t>(buffers[rank].size())};
      CpuCommunicator communicator(&world, static_cast<std::int64_t>(rank));
      const auto launch = communicator.Prepare({.instruction = &instruction,
                                                .group = group,
                                                .index = static_cast<std::int64_t>(rank),
                                                .input = view,
                                                .output = view,
                                                .member_inputs = {},
                                                .member_outputs = {},
                                                .scratch = {}});
      if (launch.ok()) (*launch)->Run({}).IgnoreError();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return buffers;
}

}  // namespace

TEST_CASE("every conversion between placements, in random layouts") {
  Random random(11);
  for (Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                Collective::kAllToAll, Collective::kSlice}) {
    for (int i = 0; i < 25; ++i) {
      const Case c = DrawCase(collective, random);
      INFO(std::string(plan::Name(collective))
           << " of " << c.shape.ToString() << " from " << c.from.ToString() << " to " << c.to.ToString());
      CheckCase(c, random);
    }
  }
}

TEST_CASE("flat collectives: sums in order of rank, parts of a buffer") {
  constexpr size_t kElements =
      12 * 1024 + 4;  // more than one block of a part, and a part that is not whole blocks
  for (size_t members : {2U, 3U, 4U}) {
    INFO(members << " members");
    std::vector<std::vector<double>> buffers(members, std::vector<double>(kElements));
    std::vector<double> sum(kElements, 0.0);
    for (size_t rank = 0; rank < members; ++rank) {
      for (size_t i = 0; i < kElements; ++i) {
        buffers[rank][i] = static_cast<double>((i * 37 + rank * 1001) % 4096);  // integers: sums are exact
        sum[i] += buffers[rank][i];
      }
    }
    const auto part = [&](size_t member) {
      return static_cast<std::ptrdiff_t>(kElements * member / members);
    };
    const auto same = [&](size_t member, const std::vector<double>& a, const std::vector<double>& b) {
      return std::equal(a.begin() + part(member), a.begin() + part(member + 1), b.begin() + part(member));
    };
    for (const std::vector<double>& result : RunFlat(Collective::kAllReduce, buffers)) CHECK((result == sum));
    const auto scattered = RunFlat(Collective::kReduceScatter, buffers);
    const auto gathered = RunFlat(Collective::kAllGather, buffers);
    for (size_t rank = 0; rank < members; ++rank) {
      CHECK(same(rank, scattered[rank], sum));
      for (size_t from = 0; from < members; ++from) CHECK(same(from, gathered[rank], buffers[from]));
    }
  }
}

TEST_CASE("flat collectives: the largest, and a NaN, which spreads") {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kMost = std::numeric_limits<double>::infinity();
  const std::vector<std::vector<double>> buffers = {{1, -2, 0, kMost, kNaN, 5, 4, -kMost},
                                                    {3, -7, -1, 2, 1, kNaN, 4, -kMost},
                                                    {2, -3, 1e-300, 8, 2, 6, 4, -kMost}};
  const std::vector<double> largest = {3, -2, 1e-300, kMost, kNaN, kNaN, 4, -kMost};
  for (const std::vector<double>& result : RunFlat(Collective::kAllReduce, buffers, Reduction::kMax)) {
    REQUIRE(result.size() == largest.size());
    for (size_t i = 0; i < result.size(); ++i) {
      CAPTURE(i);
      CHECK((result[i] == largest[i] || (std::isnan(result[i]) && std::isnan(largest[i]))));
    }
  }
}

TEST_CASE("a log-sum-exp with −∞, the sum of nothing, and with a NaN, which spreads") {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Case c;
  c.mesh.sizes[static_cast<size_t>(Axis::kTp)] = 2;
  c.shape = {5};
  c.reduction = Reduction::kLogSumExp;
  c.collective = Collective::kAllReduce;
  c.axis = Axis::kTp;
  const plan::Instruction instruction = InstructionOf(c);
  c.from.Set(Axis::kTp, Placement::P(Reduction::kLogSumExp));
  std::vector<Local> locals(2);
  locals[0].input = {kNothing, 1.5F, kNothing, kNaN, 1.0F};
  locals[1].input = {2.5F, kNothing, kNothing, 1.0F, kNaN};
  World world;
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    Local& local = locals[static_cast<size_t>(rank)];
    local.output.assign(5, 0.0F);
    threads.emplace_back([&, rank] { RunRank(c, instruction, &world, rank, &local).IgnoreError(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Local& local : locals) {
    const std::vector<float> numbers(local.output.begin(), local.output.begin() + 3);
    CHECK((numbers == std::vector<float>{2.5F, 1.5F, kNothing}));
    CHECK(std::isnan(local.output[3]));
    CHECK(std::isnan(local.output[4]));
  }
}

TEST_CASE("a conversion whose members do not hold all of the output is an error") {
  Case c;
  c.mesh.sizes[static_cast<size_t>(Axis::kTp)] = 2;
  c.shape = {4};
  c.from.Set(Axis::kTp, Placement::S(0));
  for (const Collective collective : {Collective::kSlice, Collective::kAllReduce}) {
    c.collective = collective;
    c.axis = Axis::kTp;
    plan::Instruction instruction = InstructionOf(c);
    instruction.name = "gather";
    Local local;
    local.input.resize(2);
    local.output.resize(4);
    World world;
    CHECK(Message(RunRank(c, instruction, &world, 0, &local)) ==
          "gather: its group holds 2 of the 4 elements that rank 0 needs");
  }
}

TEST_CASE("a dtype that the CPU does not exchange is an error, not a crash") {
  plan::Instruction instruction = FlatOf(Collective::kAllReduce);
  instruction.name = "grad";
  World world;
  TensorView view;
  view.dtype = DType::kBF16;
  CpuCommunicator communicator(&world, 0);
  const auto launch = communicator.Prepare({.instruction = &instruction,
                                            .group = {0},
                                            .index = 0,
                                            .input = view,
                                            .output = view,
                                            .member_inputs = {},
                                            .member_outputs = {},
                                            .scratch = {}});
  CHECK(Message(launch.status()) == "the CPU executor exchanges no bf16 (grad)");
}

}  // namespace engine::backend::cpu
