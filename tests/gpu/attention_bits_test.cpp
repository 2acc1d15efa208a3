// Attention beside other work: its bits are the same each time. And every compiled form once, small, for those who look at
// what kernels do to memory (sanitize.py).
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/backend/cuda/kernels/attention_reference.h"
#include "engine/backend/cuda/kernels/elementwise.h"
#include "engine/backend/cuda/profile/attention_tiles.h"
#include "tests/gpu/attention_problem.h"

namespace engine::gpu_test {
namespace {

AttentionOptions OptionsOf(std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads,
                           std::int64_t head) {
  AttentionOptions o;
  o.batch = batch;
  o.queries = o.keys = tokens;
  o.heads = heads;
  o.kv_heads = kv_heads;
  o.head = o.value_head = head;
  o.scale = 1 / std::sqrt(static_cast<double>(head));
  return o;
}

// o and lse by the GPU, as the CPU would take long for large tensors.
absl::Status SaveByGpu(const AttentionOptions& options, Tensors* inputs) {
  ASSIGN_OR_RETURN(const Outcome forward, Launch(AttentionProblemOf(options, *inputs, /*backward=*/false)));
  (*inputs)[4] = forward.outputs[0];
  (*inputs)[5] = forward.outputs[1];
  return absl::OkStatus();
}

// Work of a stream of its own, more of it and less: what waits for memory, and what keeps multiprocessors busy.
class OtherWork {
 public:
  OtherWork() {
    REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaMalloc(&memory_, kBytes) == cudaSuccess);
    REQUIRE(cudaMemset(memory_, 0, kBytes) == cudaSuccess);
  }
  ~OtherWork() {
    cudaStreamSynchronize(stream_);
    cudaFree(memory_);
    cudaStreamDestroy(stream_);
  }
  OtherWork(const OtherWork&) = delete;
  OtherWork& operator=(const OtherWork&) = delete;

  // Enqueues some, where that of before is done.
  void Go(int turn) {
    if (cudaStreamQuery(stream_) != cudaSuccess) return;
    ++turns_;
    const std::int64_t elements = (std::int64_t{1} << 20) * (1 + 7 * turn % 61);
    for (int i = 0; i < 1 + turn % 3; ++i)
      backend::cuda::LaunchGelu(DType::kBF16, /*tanh_form=*/true, elements, memory_, memory_, stream_);
    if (turn % 2 == 0) backend::cuda::AttentionReference(Busy(32 + 16 * (turn % 7)), stream_);
  }
  int turns() const { return turns_; }

 private:
  static constexpr std::size_t kBytes = std::size_t{256} << 20;

  // Attention of zeros, 8 heads of 64.
  backend::cuda::AttentionProblem Busy(std::int64_t tokens) const {
    constexpr std::int64_t kHeads = 8;
    constexpr std::int64_t kHead = 64;
    backend::cuda::AttentionProblem p{.dtype = DType::kBF16,
                                      .batch = 4,
                                      .queries = tokens,
                                      .keys = tokens,
                                      .heads = kHeads,
                                      .kv_heads = kHeads,
                                      .head = kHead,
                                      .value_head = kHead,
                                      .scale = 0.125F};
    auto* const bytes = static_cast<std::byte*>(memory_);
    p.positions = reinterpret_cast<const std::int32_t*>(bytes);
    const auto view = [&](std::size_t at) {
      return backend::cuda::AttentionView{bytes + (at << 24U), tokens * kHeads * kHead, kHeads * kHead, kHead,
                                          kHead};
    };
    p.q = view(1);
    p.k = view(2);
    p.v = view(3);
    p.o = view(4);
    p.lse = {reinterpret_cast<float*>(bytes + (std::size_t{5} << 24U)), tokens * kHeads, kHeads, 1};
    return p;
  }

  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
  int turns_ = 0;
};

// Runs a problem 100 times beside other work: the bits of the first.
void CheckSameBits(const Problem& problem, OtherWork* other) {
  constexpr int kTimes = 100;
  const auto standing = StandingProblem::Make(problem, /*poison=*/true);
  REQUIRE_MESSAGE(standing.ok(), fmt::format("{}: {}", problem.where, Message(standing.status())));
  const auto first = (*standing)->Run();
  REQUIRE_MESSAGE(first.ok(), fmt::format("{}: {}", problem.where, Message(first.status())));
  int differing = 0;
  for (int i = 0; i < kTimes; ++i) {
    other->Go(i);
    const auto again = (*standing)->Run();
    REQUIRE_MESSAGE(again.ok(), fmt::format("{}: {}", problem.where, Message(again.status())));
    differing += *again == *first ? 0 : 1;
  }
  CHECK_MESSAGE(differing == 0,
                fmt::format("{}: {} of {} runs have other bits", problem.where, differing, kTimes));
}

std::vector<AttentionOptions> LargeOptions() {
  std::vector<AttentionOptions> all;
  const auto add = [&](AttentionOptions options, const auto& change) {
    change(&options);
    all.push_back(options);
  };
  const auto as_it_is = [](AttentionOptions*) {};
  for (const std::int64_t head : {64, 96, 128}) {
    add(OptionsOf(2, 2048, 8, 8, head), as_it_is);
    add(OptionsOf(1, 3001, 8, 2, head), as_it_is);
    add(OptionsOf(16, 512, 8, 8, head), as_it_is);
    add(OptionsOf(2, 1500, 8, 8, head), [](AttentionOptions* o) { o->dropout = 0.1; });
    add(OptionsOf(2, 2048, 8, 4, head), [](AttentionOptions* o) { o->window = 300; });
    add(OptionsOf(2, 1100, 8, 4, head), [](AttentionOptions* o) {
      o->dtype = DType::kF16;
      o->softcap = 20;
      o->alibi = true;
    });
    add(OptionsOf(2, 4096, 4, 2, head), [](AttentionOptions* o) {
      o->queries = 1024;
      o->positions = {{512, 512}, {3072, 512}};
    });
    // No query sees the last third of the keys.
    add(OptionsOf(2, 4096, 8, 8, head), [](AttentionOptions* o) {
      o->queries = 1024;
      o->positions = {{512, 512}, {2176, 512}};
    });
    add(OptionsOf(2, 1000, 8, 8, head), [](AttentionOptions* o) { o->causal = false; });
    add(OptionsOf(2, 2048, 8, 4, head), [](AttentionOptions* o) { o->distance = 128; });
    for (const std::int64_t pairs : {1101, 1104})
      add(OptionsOf(3, 1100, 8, 4, head), [&](AttentionOptions* o) { o->pairs = pairs; });
    add(OptionsOf(3, 1000, 8, 8, head), [](AttentionOptions* o) {
      o->causal = false;
      o->pairs = 1000;
    });
    add(OptionsOf(2, 1000, 8, 8, head), [](AttentionOptions* o) {
      o->causal = false;
      o->distance = 100;
      o->dropout = 0.1;
    });
    add(OptionsOf(1, 4000, 8, 4, head), [](AttentionOptions* o) { o->documents = {100, 3000, 7, 893}; });
    add(OptionsOf(2, 1024, 8, 8, head), [](AttentionOptions* o) { o->kernel = "cudnn"; });
    add(OptionsOf(1, 512, 4, 2, head), [](AttentionOptions* o) { o->kernel = "reference"; });
  }
  for (const std::int64_t value_head : {std::int64_t{128}, std::int64_t{256}}) {
    const std::int64_t head = value_head == 128 ? 192 : 256;
    add(OptionsOf(2, 1500, 4, 4, head), [&](AttentionOptions* o) {
      o->value_head = value_head;
      o->kernel = "own";
    });
    add(OptionsOf(2, 1500, 4, 2, head), [&](AttentionOptions* o) {
      o->value_head = value_head;
      o->distance = 60;
    });
    // More heads than are at work at once.
    add(OptionsOf(8, 512, 8, 8, head), [&](AttentionOptions* o) {
      o->value_head = value_head;
      o->dropout = 0.1;
    });
    add(OptionsOf(1, 4000, 8, 4, head), [&](AttentionOptions* o) {
      o->value_head = value_head;
      o->softcap = 20;
      o->documents = {100, 3000, 7, 893};
    });
  }
  return all;
}

}  // namespace

TEST_CASE("gpu attention: equal bits in 100 repetitions with other work beside") {
  OtherWork other;
  for (const AttentionOptions& options : LargeOptions()) {
    Tensors inputs = AttentionInputs(options, /*saved=*/false);
    const absl::Status saved = SaveByGpu(options, &inputs);
    REQUIRE_MESSAGE(saved.ok(), Message(saved));
    for (const bool backward : {false, true})
      CheckSameBits(AttentionProblemOf(options, inputs, backward), &other);
  }
  MESSAGE(fmt::format("{} times there was other work", other.turns()));
  CHECK(other.turns() > 500);
}

// Other tests compare with the CPU, for which shapes are small: thread blocks have one item each there. Here they take several, one
// after the other.
TEST_CASE("gpu attention: several items of each thread block are right by the reference kernels") {
  for (const AttentionOptions& options : LargeOptions()) {
    if (options.kernel == "cudnn" || options.kernel == "reference") continue;
    AttentionOptions own = options;
    own.kernel = "own";
    AttentionOptions reference = options;
    reference.kernel = "reference";
    Tensors inputs = AttentionInputs(options, /*saved=*/false);
    const absl::Status saved = SaveByGpu(reference, &inputs);
    REQUIRE_MESSAGE(saved.ok(), Message(saved));
    for (const bool backward : {false, true}) {
      const Problem problem = AttentionProblemOf(own, inputs, backward);
      const absl::StatusOr<Outcome> actual = Launch(problem);
      REQUIRE_MESSAGE(actual.ok(), fmt::format("{}: {}", problem.where, Message(actual.status())));
      const absl::StatusOr<Outcome> expected = Launch(AttentionProblemOf(reference, inputs, backward));
      REQUIRE_MESSAGE(expected.ok(), fmt::format("{}: {}", problem.where, Message(expected.status())));
      // Of the root mean square: both round what they give, and ours probabilities and gradients of scores.
      const double spread = 4 * UnitRoundoff(options.dtype);
      for (std::size_t i = 0; i < actual->outputs.size(); ++i) {
        CompareSpread(fmt::format("{}, output {}", problem.where, i), expected->outputs[i],
                      actual->outputs[i], {spread, 1e-6});
      }
    }
  }
}

namespace {

constexpr std::int64_t kShort = 200;
// Of which heads of 64 have forms of their own, forward: those of middle lengths, and of windows, pass by blocks.
constexpr std::int64_t kMiddle = 2100;
constexpr std::int64_t kLong = 4100;

// The options that kernels are compiled for, as bits, then biases by distance without and with dropout, and biases of pairs likewise; with others that are not
// compiled for: of every form of scores one has documents, one a window, one no mask.
AttentionOptions FormOf(const backend::cuda::OwnSizes& sizes, DType dtype, int form, std::int64_t tokens) {
  AttentionOptions o = OptionsOf(1, tokens, 2, 1, sizes.head);
  o.value_head = sizes.value_head;
  o.dtype = dtype;
  o.kernel = "own";
  if (form < 8 && (form & 1) != 0) o.softcap = 20;
  if (form < 8 && (form & 2) != 0) o.alibi = true;
  if (form == 8 || form == 9) o.distance = 50;
  if (form >= 10) o.pairs = tokens;
  if (form < 8 && (form & 4) != 0) o.dropout = 0.1;
  if (form == 9 || form == 11) o.dropout = 0.1;
  o.sinks = (form & 1) != 0;
  if (form == 1 || form == 6) o.documents = {tokens / 3, tokens - tokens / 3};
  if (form == 2 && tokens != kLong) o.window = 100;
  o.causal = form != 5 && form != 10;  // 10: all pairs are seen
  return o;
}

void RunOnce(const AttentionOptions& options, bool both) {
  const Tensors inputs = AttentionInputs(options, /*saved=*/both);
  for (const bool backward : {false, true}) {
    if (backward && !both) continue;
    const Problem problem = AttentionProblemOf(options, inputs, backward);
    const auto standing = StandingProblem::Make(problem, /*poison=*/false);
    REQUIRE_MESSAGE(standing.ok(), fmt::format("{}: {}", problem.where, Message(standing.status())));
    const auto outputs = (*standing)->Run();
    REQUIRE_MESSAGE(outputs.ok(), fmt::format("{}: {}", problem.where, Message(outputs.status())));
  }
}

void RunFormsOf(std::size_t index) {
  REQUIRE(index < std::size(backend::cuda::kOwnSizes));
  constexpr int kForms = 12;
  for (const DType dtype : kNarrow) {
    for (int form = 0; form < kForms; ++form)
      RunOnce(FormOf(backend::cuda::kOwnSizes[index], dtype, form, kShort), /*both=*/true);
  }
}

}  // namespace

// Skipped, as the sweep compares more; sanitize.py runs them, beside each other.
TEST_CASE("gpu attention: every compiled form once, heads of 64" * doctest::skip()) { RunFormsOf(0); }
TEST_CASE("gpu attention: every compiled form once, heads of 96" * doctest::skip()) { RunFormsOf(1); }
TEST_CASE("gpu attention: every compiled form once, heads of 128" * doctest::skip()) { RunFormsOf(2); }
TEST_CASE("gpu attention: every compiled form once, heads of 192 and 128" * doctest::skip()) {
  RunFormsOf(3);
}
TEST_CASE("gpu attention: every compiled form once, heads of 256" * doctest::skip()) {
  RunFormsOf(4);
  CHECK(std::size(backend::cuda::kOwnSizes) == 5);  // there are no others
}
TEST_CASE("gpu attention: every compiled form once, of longer sequences" * doctest::skip()) {
  for (const DType dtype : kNarrow) {
    for (const int form : {0, 2, 8}) {  // neither caps nor dropout
      for (const std::int64_t tokens : {kMiddle, kLong})
        RunOnce(FormOf(backend::cuda::kOwnSizes[0], dtype, form, tokens), /*both=*/false);
    }
  }
}

}  // namespace engine::gpu_test
