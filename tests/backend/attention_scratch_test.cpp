// How attention's gradient is cut for cuDNN, and what it may use of scratch.
#include "engine/backend/cuda/profile/scratch_attention.h"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/backend/cuda/profile/scratch_cached_attention.h"

namespace engine::backend::cuda {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

struct Sizes {
  std::int64_t batch, queries, keys, heads, kv_heads, head;
  std::int64_t value_head = 0;  // 0: head
};

AttentionShape ShapeOf(const Sizes& s, std::int64_t group_bytes = kGradGroupBytes) {
  return {.batch = s.batch,
          .queries = s.queries,
          .keys = s.keys,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head = s.head,
          .value_head = s.value_head > 0 ? s.value_head : s.head,
          .dtype = DType::kBF16,
          .grad_group_bytes = group_bytes};
}

std::string GroupOf(const AttentionShape& shape, bool deterministic = true) {
  const AttentionGroup group = BackwardGroup(shape, deterministic);
  return fmt::format("{} samples, {} kv heads, {} queries", group.samples, group.kv_heads, group.queries);
}

// first+count<keys of each chunk.
std::string ChunksOf(std::int64_t queries, std::int64_t keys, const DimExtent& positions, std::int64_t most) {
  const AttentionShape shape = ShapeOf({1, queries, keys, 1, 1, 64});
  const auto chunks = QueryChunks(shape, positions, most);
  if (!chunks.ok()) return Message(chunks.status());
  std::string text;
  for (const QueryChunk& c : *chunks) {
    text += fmt::format("{}{}+{}<{}", text.empty() ? "" : " ", c.first, c.count, c.keys);
  }
  return text;
}

}  // namespace

TEST_CASE("attention's gradient is cut by samples, then by kv heads, then by queries") {
  // B·H·S²·2 = 4 GiB, and dk and dv of each query head: one group.
  CHECK(GroupOf(ShapeOf({4, 4096, 4096, 32, 8, 64})) == "4 samples, 8 kv heads, 4096 queries");
  // Per kv head 4 · (32 MiB + 1 MiB): 8 kv heads of 4 samples in 4608 MiB.
  CHECK(GroupOf(ShapeOf({8, 4096, 4096, 32, 8, 64})) == "4 samples, 8 kv heads, 4096 queries");
  // 7 samples in parts of at most 4: 4 and 3.
  CHECK(GroupOf(ShapeOf({7, 4096, 4096, 32, 8, 64}, 4608 * kMiB)) == "4 samples, 8 kv heads, 4096 queries");
  // Not one sample: 3 of 8 kv heads fit.
  CHECK(GroupOf(ShapeOf({2, 4096, 4096, 32, 8, 64}, 400 * kMiB)) == "1 samples, 3 kv heads, 4096 queries");
  // Not one kv head: 128 queries take 4 · 1 MiB beside 4 · 1 MiB; 32 blocks in parts of at most 15.
  CHECK(GroupOf(ShapeOf({2, 4096, 4096, 32, 8, 64}, 67 * kMiB)) == "1 samples, 1 kv heads, 1408 queries");
  // At least one block.
  CHECK(GroupOf(ShapeOf({1, 4096, 4096, 2, 2, 64}, 1)) == "1 samples, 1 kv heads, 128 queries");
  CHECK(GroupOf(ShapeOf({1, 100, 4096, 2, 2, 64}, 1)) == "1 samples, 1 kv heads, 100 queries");
  // Of DeepSeek-V3: per head 32 MiB, of 144 in 4608 MiB; two samples are cut into one each.
  CHECK(GroupOf(ShapeOf({2, 4096, 4096, 128, 128, 192, 128})) == "1 samples, 128 kv heads, 4096 queries");
  // With grouped queries dk and dv of each query head are beside them: 2 · (32 + 1.5 + 1) MiB a kv head.
  CHECK(GroupOf(ShapeOf({1, 4096, 4096, 8, 4, 192, 128}, 138 * kMiB)) ==
        "1 samples, 2 kv heads, 4096 queries");
  CHECK(GroupOf(ShapeOf({1, 4096, 4096, 8, 4, 192, 128}, 137 * kMiB)) ==
        "1 samples, 1 kv heads, 4096 queries");
  // Without repeatable bits dq in fp32 is all that grows with the queries.
  CHECK(GroupOf(ShapeOf({1, 131072, 131072, 32, 8, 128}), false) == "1 samples, 8 kv heads, 131072 queries");
}

TEST_CASE("attention's gradient fits its scratch at 131072 tokens") {
  const AttentionShape shape = ShapeOf({1, 131072, 131072, 32, 8, 128});
  // 4 · (128 queries · 131072 · 2) = 128 MiB a block, 4 · 64 MiB beside: 34 of 1024 blocks.
  CHECK(GroupOf(shape) == "1 samples, 1 kv heads, 4352 queries");
  const AttentionGradLayout layout = CudnnGradLayout(shape, true);
  CHECK(layout.workspace_bytes <= kGradGroupBytes + kMiB);
  // Beside: dk and dv of a chunk in 16 bits, their sums in 32, row sums.
  CHECK(layout.bytes - layout.workspace_bytes == 2 * 32 * kMiB + 2 * 64 * kMiB + 4 * 4352 * 4);
  CHECK(CudnnGradLayout(shape, false).bytes < 5 * kGiB);
}

TEST_CASE("the parts of attention's scratch do not overlap") {
  for (const Sizes& sizes : {Sizes{2, 256, 256, 4, 2, 64}, Sizes{3, 200, 1000, 4, 4, 72},
                             Sizes{1, 37, 37, 2, 1, 128}, Sizes{2, 256, 1000, 2, 2, 192, 128}}) {
    for (const bool deterministic : {true, false}) {
      const AttentionShape shape = ShapeOf(sizes, 100000);
      const AttentionGroup group = BackwardGroup(shape, deterministic);
      const AttentionGradLayout layout = CudnnGradLayout(shape, deterministic);
      const std::int64_t rows = group.samples * group.kv_heads * shape.group() * group.queries;
      const std::int64_t rows_of_keys =
          SumsKeyGradients(shape, group) ? group.samples * group.kv_heads * shape.keys : 0;
      const std::int64_t keys = rows_of_keys * shape.head;
      const std::int64_t values = rows_of_keys * shape.value_head;
      CHECK(layout.row_sums >= layout.workspace_bytes);
      CHECK(layout.accumulator - layout.row_sums >= rows * 4);
      CHECK(layout.dk_part - layout.accumulator >= (deterministic ? 0 : rows * shape.head * 4));
      CHECK(layout.dv_part - layout.dk_part >= keys * 2);
      CHECK(layout.dk_sum - layout.dv_part >= values * 2);
      CHECK(layout.dv_sum - layout.dk_sum >= keys * 4);
      CHECK(layout.bytes - layout.dv_sum >= values * 4);
      for (const std::int64_t offset : {layout.row_sums, layout.accumulator, layout.dk_part, layout.dv_part,
                                        layout.dk_sum, layout.dv_sum, layout.bytes}) {
        CHECK(offset % 256 == 0);
      }
    }
  }
}

// Workspace of the deterministic backward pass as cuDNN 9.19 asks for it on an H200, in bytes.
TEST_CASE("cuDNN's workspace fits what attention reserves") {
  struct Asked {
    Sizes sizes;
    std::int64_t bytes;
  };
  for (const Asked& asked :
       {Asked{{2, 1024, 1024, 4, 4, 64}, 16777472}, Asked{{2, 256, 1024, 8, 2, 128}, 16777472},
        Asked{{2, 1000, 1000, 8, 2, 128}, 41746688}, Asked{{2, 200, 1000, 8, 2, 128}, 16580864},
        Asked{{1, 320, 320, 1, 1, 256}, 246016}, Asked{{1, 129, 129, 1, 1, 64}, 98560},
        Asked{{1, 1, 4096, 1, 1, 64}, 524544}, Asked{{1, 130, 4096, 1, 1, 64}, 1573120},
        Asked{{1, 128, 128, 16, 16, 192, 128}, 524544}, Asked{{1, 4096, 4096, 16, 16, 192, 128}, 536871168},
        Asked{{1, 131, 131, 4, 4, 192, 128}, 393472}, Asked{{2, 512, 512, 4, 2, 192, 128}, 6816000},
        Asked{{1, 1000, 1000, 4, 4, 192, 128}, 8388864}}) {
    const std::int64_t reserved = CudnnGradLayout(ShapeOf(asked.sizes), true).workspace_bytes;
    CHECK(reserved >= asked.bytes);
    CHECK(reserved <= asked.bytes + kMiB);
  }
}

TEST_CASE("queries are cut where the sequence is, and into equal blocks") {
  CHECK(ChunksOf(512, 512, {{0, 512}}, 512) == "0+512<512");
  CHECK(ChunksOf(512, 512, {{0, 512}}, 256) == "0+256<256 256+256<512");
  CHECK(ChunksOf(500, 500, {{0, 500}}, 384) == "0+256<256 256+244<500");
  // Ranks 1 and 3 of context parallelism by 4: chunks 1 and 6, and 3 and 4, which touch.
  CHECK(ChunksOf(256, 1024, {{128, 128}, {768, 128}}, 256) == "0+128<256 128+128<896");
  CHECK(ChunksOf(256, 1024, {{384, 128}, {512, 128}}, 256) == "0+256<640");
  CHECK(ChunksOf(768, 3072, {{384, 384}, {2304, 384}}, 256) ==
        "0+256<640 256+128<768 384+256<2560 640+128<2688");
  CHECK(ChunksOf(256, 256, {{0, 200}}, 256) == "attention of 256 queries that stand at 200 positions of 256");
}

TEST_CASE("key gradients are summed where queries are cut or a part of the sequence") {
  const auto sums = [](const AttentionShape& shape) {
    return SumsKeyGradients(shape, BackwardGroup(shape, true));
  };
  CHECK_FALSE(sums(ShapeOf({2, 512, 512, 2, 2, 64})));
  CHECK(sums(ShapeOf({2, 256, 512, 2, 2, 64})));
  CHECK(sums(ShapeOf({2, 512, 512, 2, 2, 64}, 300000)));
}

constexpr CudaChip kAmpere = {.major = 8, .hopper = false};

TEST_CASE("the profile reserves what the chosen form of attention needs") {
  const graph::TensorType q = {{1, 1024, 4, 64}, DType::kBF16};
  const std::vector<graph::TensorType> inputs = {q, q, q};
  const graph::Attributes attributes = {{"scale", 0.125}};
  const AttentionShape shape = ShapeOf({1, 1024, 1024, 4, 4, 64});
  for (const bool deterministic : {true, false}) {
    CHECK(CudaProfile(deterministic, kAmpere).scratch_bytes("attention_grad", inputs, {}, attributes) ==
          CudnnGradLayout(shape, deterministic).bytes);
    // On Hopper by our own kernels, whose bits always repeat: dq in fp32, two numbers a row and a counter a tile of 128.
    const std::int64_t own =
        CudaProfile(deterministic).scratch_bytes("attention_grad", inputs, {}, attributes);
    CHECK(own == OwnGradLayoutOf(shape).bytes);
    CHECK(own >= 4 * 1024 * (64 * 4 + 8) + 4 * 8 * 4);
    CHECK(own <= 4 * (1024 + 128) * (64 * 4 + 8) + 4 * 9 * 4 + 1024);
  }
  CHECK(CudnnGradLayout(shape, true).bytes > CudnnGradLayout(shape, false).bytes);
}

TEST_CASE("attention goes to cuDNN, to our own kernels or to the reference kernels") {
  const auto kernels = [](AttentionShape shape, bool backward, const CudaChip& chip = {}) {
    shape.chip = chip;
    return KernelsOf(shape, backward);
  };
  AttentionShape shape = ShapeOf({2, 512, 512, 4, 2, 128});
  CHECK(kernels(shape, false) == AttentionKernels::kCudnn);
  CHECK(kernels(shape, true) == AttentionKernels::kOwn);
  CHECK(kernels(shape, true, kAmpere) == AttentionKernels::kCudnn);
  CHECK(kernels(shape, true, {.major = 10, .hopper = false}) == AttentionKernels::kCudnn);
  shape.window = 100;
  CHECK(kernels(shape, false) == AttentionKernels::kOwn);
  CHECK(kernels(shape, false, kAmpere) == AttentionKernels::kCudnn);
  shape.dropout = 0.1;
  CHECK(kernels(shape, false) == AttentionKernels::kOwn);
  CHECK(kernels(shape, false, kAmpere) == AttentionKernels::kReference);
  // Chunks of 24 queries would cut the 16 that draws are made for.
  shape.queries = 48;
  CHECK(kernels(shape, false) == AttentionKernels::kReference);
  shape.queries = 64;
  CHECK(kernels(shape, false) == AttentionKernels::kOwn);
  shape.scale = 0;
  CHECK(kernels(shape, false) == AttentionKernels::kReference);
  // Our own kernels take heads of up to 256 elements, in steps of 8.
  shape.scale = 1;
  for (const std::int64_t head : {8, 96, 192, 256}) {
    shape.head = shape.value_head = head;
    CHECK(kernels(shape, true) == AttentionKernels::kOwn);
  }
  for (const std::int64_t head : {4, 100, 264}) {
    shape.head = shape.value_head = head;
    CHECK(kernels(shape, true) == AttentionKernels::kReference);
  }
  shape.head = shape.value_head = 96;
  shape.dropout = 0;
  shape.scale = -1;
  CHECK(kernels(shape, true) == AttentionKernels::kCudnn);
  shape.scale = 0;
  CHECK(kernels(shape, true) == AttentionKernels::kReference);
  shape.dtype = DType::kF32;
  CHECK(kernels(shape, true) == AttentionKernels::kReference);
  for (const std::string_view asked : {"cudnn", "reference"}) {
    AttentionShape of_test = ShapeOf({2, 512, 512, 4, 2, 128});
    of_test.kernel = asked;
    CHECK(kernels(of_test, true) ==
          (asked == "cudnn" ? AttentionKernels::kCudnn : AttentionKernels::kReference));
  }
}

// What a recipe is refused for, and what is said of it, follow from the tables that the choice goes by.
TEST_CASE(
    "attention in 16 bits that no fast kernel takes has obstacles in each family; what asks for slow ones "
    "has none") {
  int refused = 0;
  int taken = 0;
  for (const CudaChip& chip : {CudaChip{}, kAmpere, CudaChip{.major = 10, .hopper = false}}) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const std::int64_t head : {20, 32, 64, 100, 128, 192, 256, 320}) {
        for (const std::int64_t value_head : {head, std::int64_t{128}}) {
          for (const double dropout : {0.0, 0.1}) {
            for (const double softcap : {0.0, 30.0}) {
              AttentionShape shape = ShapeOf({2, 512, 512, 4, 2, head});
              shape.dtype = dtype;
              shape.value_head = value_head;
              shape.chip = chip;
              shape.dropout = dropout;
              shape.softcap = softcap;
              const bool slow = KernelsOf(shape, /*backward=*/false) == AttentionKernels::kReference;
              CHECK(slow == (KernelsOf(shape, /*backward=*/true) == AttentionKernels::kReference));
              const std::vector<plan::Obstacle> obstacles = ObstaclesOf(shape);
              CHECK(obstacles.empty() == (!slow || dtype == DType::kF32));
              (obstacles.empty() ? taken : refused) += 1;
              bool in_cudnn = false;
              bool in_own = false;
              for (const plan::Obstacle& obstacle : obstacles) {
                CHECK(obstacle.why.starts_with("attention "));
                CHECK(!obstacle.takes.empty());
                in_cudnn = in_cudnn || obstacle.why == WhyNotCudnn(shape);
                in_own = in_own || obstacle.why == WhyNotOwn(shape);
              }
              CHECK(in_cudnn == !obstacles.empty());
              CHECK(in_own == !obstacles.empty());
            }
          }
        }
      }
    }
  }
  CHECK(refused > 50);
  CHECK(taken > 50);
  // A GPU that no family of them is for has none to be kept out of.
  AttentionShape old = ShapeOf({2, 512, 512, 4, 2, 64});
  old.chip = {.major = 7, .hopper = false};
  CHECK(KernelsOf(old, /*backward=*/false) == AttentionKernels::kReference);
  CHECK(ObstaclesOf(old).empty());
  const graph::TensorType q = {{2, 128, 4, 20}, DType::kBF16};
  const std::vector<graph::TensorType> inputs = {q, q, q, {{2, 128}, DType::kI32}};
  CHECK(CudaProfile().slow("attention", inputs, {}).obstacles.size() >= 2);
  const plan::SlowPath asked =
      CudaProfile().slow("attention", inputs, {{"kernel", std::string("reference")}});
  CHECK(asked.kind == plan::SlowPath::Kind::kReference);
  CHECK(asked.why == "attention that asks for the reference kernels");
  CHECK(asked.obstacles.empty());
}

// Of sizes that cuDNN has: each form of score is the reference kernels', which need one number a query and head, but on
// Hopper, where our own kernels have all of them.
TEST_CASE(
    "attention with a soft cap, linear biases, sinks, documents or values of another width than keys is slow "
    "where "
    "there "
    "are no kernels for it, and says why") {
  const plan::DeviceProfile profile = CudaProfile(/*deterministic=*/true, kAmpere);
  const plan::DeviceProfile hopper = CudaProfile();
  const graph::TensorType q = {{2, 128, 4, 64}, DType::kBF16};
  const graph::TensorType positions = {{2, 128}, DType::kI32};
  const graph::TensorType lse = {{2, 128, 4}, DType::kF32};
  const graph::TensorType spans = {{2, 128, 2}, DType::kI32};
  const graph::TensorType sinks = {{4}, DType::kBF16};
  const graph::TensorType narrow = {{2, 128, 4, 32}, DType::kBF16};
  struct Form {
    std::string_view why;
    graph::Attributes attributes;
    bool sinks = false;
    bool narrow = false;
    bool spans = false;
  };
  const graph::TensorType biases = {{4, 11}, DType::kBF16};
  for (const Form& form :
       {Form{"", {{"softcap", 0.0}, {"alibi", std::int64_t{0}}}},
        Form{"attention with dropout", {{"dropout", 0.1}}},
        Form{"attention with a soft cap", {{"softcap", 50.0}}},
        Form{"attention with linear biases", {{"alibi", std::int64_t{1}}}},
        Form{"attention with biases by distance", {{"distance", std::int64_t{5}}}},
        Form{"attention with sinks", {}, true}, Form{"attention within documents", {}, false, false, true},
        Form{"attention with sinks", {}, true, false, true},
        Form{"attention whose keys and values are of two widths", {}, false, true}}) {
    CAPTURE(form.why);
    for (const bool backward : {false, true}) {
      CAPTURE(backward);
      const graph::TensorType& v = form.narrow ? narrow : q;
      std::vector<graph::TensorType> inputs = {q, q, v, positions};
      if (form.spans) inputs.push_back(spans);
      if (backward) inputs.insert(inputs.end(), {v, lse, v});
      if (form.sinks) inputs.push_back(sinks);
      if (form.attributes.Int("distance", 0) > 0) inputs.push_back(biases);
      const std::string kernel = backward ? "attention_grad" : "attention";
      const plan::SlowPath slow = profile.slow(kernel, inputs, form.attributes);
      CHECK(slow.why == form.why);
      const bool fast = form.why.empty();
      CHECK(slow.kind == (fast ? plan::SlowPath::Kind::kNone : plan::SlowPath::Kind::kReference));
      CHECK(hopper.slow(kernel, inputs, form.attributes).why.empty());
      if (form.spans && !form.sinks) {  // beside positions, on the packed tensor too
        std::vector<graph::TensorType> packed = {{{2, 128, 4, 3, 64}, DType::kBF16}, positions, spans};
        if (backward) packed.insert(packed.end(), {q, lse, q});
        CHECK(profile
                  .slow(kernel == "attention" ? "attention_packed" : "attention_packed_grad", packed,
                        form.attributes)
                  .why == form.why);
      }
      const std::int64_t bytes = profile.scratch_bytes(kernel, inputs, {}, form.attributes);
      if (!fast) CHECK(bytes == (backward ? 2 * 128 * 4 * 4 : 0));
      if (fast) CHECK(bytes >= kMiB);
    }
  }
}

TEST_CASE(
    "our own kernels take biases by distance of up to 1024 places, alone, with sums of each warp of keys in "
    "scratch") {
  AttentionShape shape{.batch = 2,
                       .queries = 300,
                       .keys = 300,
                       .heads = 4,
                       .kv_heads = 2,
                       .head = 64,
                       .value_head = 64,
                       .dtype = DType::kBF16,
                       .chip = {.major = 9, .hopper = true}};
  const std::int64_t plain = OwnGradLayoutOf(shape).bytes;
  shape.distance = 10;
  CHECK(WhyNotOwn(shape).empty());
  // Three blocks of 128 keys, eight warps, 11 distances of keys that are not behind their queries, in fp32. The log-sum-exp is there less
  // the first bias, too: of at most four tiles of 128 queries.
  const std::int64_t lse = 2 * 4 * 4 * 128 * 4;
  CHECK(OwnGradLayoutOf(shape).bytes == plain + lse + 2 * 4 * 3 * 8 * 11 * 4);
  CHECK(OwnGradLayoutOf(shape).distance_sums == plain + lse);
  shape.causal = false;  // then there are 21, and it is there less the last bias, too
  CHECK(OwnGradLayoutOf(shape).bytes == plain + 2 * lse + 2 * 4 * 3 * 8 * 21 * 4);
  shape.causal = true;
  shape.softcap = 5;
  CHECK(WhyNotOwn(shape) == "attention with a soft cap beside trained biases");
  shape.softcap = 0;
  shape.alibi = true;
  CHECK(WhyNotOwn(shape) == "attention with linear biases beside trained biases");
  shape.alibi = false;
  shape.distance = 1025;
  CHECK(WhyNotOwn(shape) == "attention with biases by distance of more than 1024 places");
}

TEST_CASE("our own kernels fill a head up to the next of their widths, which scratch is for") {
  struct Filled {
    std::int64_t head, value_head;
    int width, value_width;
    std::int64_t tile, sums;
  };
  for (const Filled& f :
       {Filled{64, 64, 64, 64, 128, 64}, Filled{72, 72, 96, 96, 64, 96}, Filled{96, 96, 96, 96, 64, 96},
        Filled{96, 8, 96, 96, 64, 96}, Filled{8, 72, 96, 96, 64, 96}, Filled{104, 104, 128, 128, 64, 128},
        Filled{96, 104, 128, 128, 64, 128}, Filled{136, 96, 192, 128, 64, 256},
        Filled{96, 136, 256, 256, 64, 256}, Filled{256, 256, 256, 256, 64, 256}}) {
    CAPTURE(f.head);
    CAPTURE(f.value_head);
    const OwnSizes& own = OwnSizesOf(f.head, f.value_head);
    CHECK(own.head == f.width);
    CHECK(own.value_head == f.value_width);
    // Of 2 samples and 3 heads of 1024 queries, and of a tile that may be filled up.
    const OwnGradLayout layout = OwnGradLayoutOf(ShapeOf({2, 1024, 1024, 3, 3, f.head, f.value_head}));
    CHECK(layout.turns - layout.dq_sums == 2 * 3 * (1024 + f.tile) * f.sums * 4);
  }
}

// Widths of DeepSeek-V2 and V3.
TEST_CASE(
    "cuDNN's attention of keys of 192 and values of 128 elements is fast, and of other pairs of widths it is "
    "not; ours is of every pair") {
  const plan::DeviceProfile profile = CudaProfile(/*deterministic=*/true, {.major = 9, .hopper = false});
  const plan::DeviceProfile own = CudaProfile();
  const plan::DeviceProfile older = CudaProfile(/*deterministic=*/true, kAmpere);
  struct Pair {
    std::int64_t keys, values;
    std::string_view why;
    DType dtype = DType::kBF16;
  };
  const std::string_view two_widths = "attention whose keys and values are of two widths";
  for (const Pair& pair : {Pair{192, 128, ""}, Pair{192, 128, "", DType::kF16},
                           Pair{192, 128, "attention in fp32", DType::kF32}, Pair{96, 64, two_widths},
                           Pair{128, 192, two_widths}, Pair{192, 192, ""}, Pair{192, 64, two_widths}}) {
    CAPTURE(pair.keys);
    CAPTURE(pair.values);
    const graph::TensorType k = {{2, 384, 4, pair.keys}, pair.dtype};
    const graph::TensorType v = {{2, 384, 4, pair.values}, pair.dtype};
    const graph::TensorType positions = {{2, 384}, DType::kI32};
    const graph::TensorType lse = {{2, 384, 4}, DType::kF32};
    const std::vector<graph::TensorType> inputs = {k, k, v, positions};
    const std::vector<graph::TensorType> saved = {k, k, v, positions, v, lse, v};
    CHECK(profile.slow("attention", inputs, {}).why == pair.why);
    CHECK(profile.slow("attention_grad", saved, {}).why == pair.why);
    const bool full = pair.dtype == DType::kF32;
    CHECK(own.slow("attention", inputs, {}).why == (full ? pair.why : ""));
    CHECK(own.slow("attention_grad", saved, {}).why == (full ? pair.why : ""));
    const bool both = pair.why.empty() && pair.keys != pair.values;
    const std::string_view before =
        "attention whose keys and values are of two widths before compute capability 9.0";
    CHECK(older.slow("attention", inputs, {}).why == (both ? before : pair.why));
    CHECK(older.slow("attention_grad", saved, {}).why == (both ? before : pair.why));
    // The gradients of the scores, or Σ d_o·o.
    const std::int64_t bytes = profile.scratch_bytes("attention_grad", saved, {}, {});
    CHECK((pair.why.empty() ? bytes >= 2 * 4 * 384 * 384 * 2 : bytes == 2 * 4 * 384 * 4));
  }
}

TEST_CASE("attention ways: what timing may choose between needs no more scratch than the rule's kernels") {
  const auto text = [](const AttentionShape& shape, bool backward, bool deterministic, std::int64_t scratch) {
    std::string ways;
    for (const AttentionWay& way : AttentionWays(shape, backward, deterministic, scratch))
      ways += fmt::format("{}{}", ways.empty() ? "" : " ", AttributeOf(way.kernels));
    return ways;
  };
  const AttentionShape gpt2 = ShapeOf({32, 1024, 1024, 20, 20, 64});
  const std::int64_t own_bytes = OwnGradLayoutOf(gpt2).bytes;
  CHECK(text(gpt2, false, true, kMiB) == "cudnn own");
  CHECK(text(gpt2, true, true, own_bytes) == "own cudnn");
  CHECK(text(gpt2, true, false, own_bytes) == "own cudnn");
  // cuDNN's groups are halved until they fit, and no further.
  for (const bool deterministic : {true, false}) {
    const AttentionWay cudnn = AttentionWays(gpt2, true, deterministic, own_bytes)[1];
    AttentionShape grouped = gpt2;
    grouped.grad_group_bytes = cudnn.grad_group_bytes;
    CHECK(CudnnGradLayout(grouped, deterministic).bytes <= own_bytes);
    grouped.grad_group_bytes *= 2;
    const bool is_whole = cudnn.grad_group_bytes == kGradGroupBytes;
    CHECK(is_whole != (CudnnGradLayout(grouped, deterministic).bytes > own_bytes));
    CHECK(is_whole == !deterministic);
  }
  // As tests/gpu/attention_choice_test.cpp has it: whole sequences, so that the sums are the same as in larger groups.
  const AttentionShape small = ShapeOf({8, 512, 512, 8, 8, 64});
  const std::int64_t bytes = OwnGradLayoutOf(small).bytes;
  REQUIRE(text(small, true, true, bytes) == "own cudnn");
  AttentionShape cut = small;
  cut.grad_group_bytes = AttentionWays(small, true, true, bytes)[1].grad_group_bytes;
  CHECK(BackwardGroup(cut, true).queries == 512);
  // Not enough for the least group, or, forward, for cuDNN's workspace.
  CHECK(text(gpt2, true, true, kMiB) == "own");
  AttentionShape window = gpt2;
  window.window = 100;
  CHECK(text(window, false, true, 0) == "own");
  CHECK(text(window, false, true, kMiB) == "own cudnn");
  // What only one takes, what is asked for, and another chip.
  AttentionShape dropping = gpt2;
  dropping.dropout = 0.1;
  CHECK(text(dropping, true, true, own_bytes) == "own");
  AttentionShape asked = gpt2;
  asked.kernel = "cudnn";
  CHECK(text(asked, true, true, own_bytes) == "cudnn");
  AttentionShape elsewhere = gpt2;
  elsewhere.chip = {.major = 8, .hopper = false};
  CHECK(text(elsewhere, true, true, kGiB) == "cudnn");
  AttentionShape single = gpt2;
  single.dtype = DType::kF32;
  CHECK(text(single, true, true, kGiB) == "reference");
}

TEST_CASE("attention ways: the fastest is taken where it saves enough") {
  const auto fastest = [](std::vector<double> milliseconds) { return FastestWay(milliseconds); };
  CHECK(fastest({1.0}) == 0);
  CHECK(fastest({1.0, 0.98}) == 0);
  CHECK(fastest({1.0, 0.96}) == 1);
  CHECK(fastest({1.0, 0.96, 0.9}) == 2);
  CHECK(fastest({1.0, 2.0}) == 0);
  CHECK(fastest({1.0, 0.0}) == 0);  // was not timed
  CHECK(fastest({0.0, 1.0}) == 1);  // of those that were
  CHECK(fastest({0.0, 0.0}) == 0);
  CHECK(fastest({1.0, 0.0, 0.5}) == 2);
}

TEST_CASE("attention over caches: keys are cut into as many blocks as multiprocessors have room for") {
  // 16 sequences of 8 kv heads are 128 blocks of one chunk: two for each of 264, four for each of 528.
  const Shape q = {16, 1, 32, 128};
  const Shape cache = {16, 8192, 8, 128};
  const CachedAttentionCut half = CutCachedAttention(q, cache, cache, /*narrow_cache=*/false);
  CHECK(half.chunks == 2);
  CHECK(half.chunk == 4096);
  CHECK(half.scratch_bytes == 16 * 32 * 2 * 130 * 4);
  CHECK(CutCachedAttention(q, cache, cache, /*narrow_cache=*/true).chunks == 4);
  // Rows that are too wide leave room for two.
  const Shape wide = {16, 8192, 8, 256};
  CHECK(CutCachedAttention({16, 1, 32, 256}, wide, wide, /*narrow_cache=*/true).chunks == 2);
  // The scratch of an op is that of its caches' type.
  const CudaTarget target = {};
  const auto scratch = [&](DType dtype) {
    const std::vector<graph::TensorType> inputs = {{q, DType::kBF16},
                                                   {{16, 1, 8, 128}, DType::kBF16},
                                                   {{16, 1, 8, 128}, DType::kBF16},
                                                   {cache, dtype},
                                                   {cache, dtype}};
    return CachedAttentionScratch(inputs, {}, {}, target);
  };
  CHECK(scratch(DType::kBF16) == half.scratch_bytes);
  CHECK(scratch(DType::kE4M3) == 2 * half.scratch_bytes);
}

}  // namespace engine::backend::cuda
