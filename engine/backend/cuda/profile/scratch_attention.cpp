#include "engine/backend/cuda/profile/scratch_attention.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "engine/graph/attention_inputs.h"
#include "engine/graph/mask.h"

namespace engine::backend::cuda {
namespace {

// What cuDNN asks for beside the large parts: 256 bytes in 9.19.
constexpr std::int64_t kMarginBytes = std::int64_t{1} << 20;

// Queries are cut in multiples of so many.
constexpr std::int64_t kQueryBlock = 128;

std::int64_t RoundedUp(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

void SetAttributes(const graph::Attributes& attributes, AttentionShape* shape) {
  const std::int64_t window = attributes.Int("window", 0);
  shape->window = window < shape->keys ? window : 0;
  shape->scale = attributes.Float("scale", 1);
  shape->dropout = attributes.Has("dropout") ? attributes.Float("dropout") : 0.0;
  shape->softcap = attributes.Has("softcap") ? attributes.Float("softcap") : 0.0;
  shape->alibi = attributes.Int("alibi", 0) != 0;
  shape->distance = attributes.Int("distance", 0);
  shape->pairs = attributes.Int("pairs", 0);
  shape->causal = graph::IsCausal(attributes);
  shape->grad_group_bytes = attributes.Int("grad_group_bytes", kGradGroupBytes);
  // In our own kernels' forward pass a row of a tile depends on nothing but its query and keys.
  if (attributes.Int("invariant", 0) != 0) shape->kernel = AttributeOf(AttentionKernels::kOwn);
  if (attributes.Has("kernel")) shape->kernel = attributes.String("kernel");
}

// Keys and values of two widths that cuDNN's forward and backward pass take, from compute capability 9.0 on (its guide promises
// no others): those of multi-head latent attention in DeepSeek-V2 and V3 (arXiv:2405.04434, arXiv:2412.19437).
bool HasPairOfWidths(const AttentionShape& shape) { return shape.head == 192 && shape.value_head == 128; }

// Of one query head of one sample, in cuDNN's workspace (9.19's own numbers): the deterministic form keeps
// the gradients of the scores in 2 bytes each, in blocks of 64 queries and 128 keys; with grouped queries dk
// and dv of each query head stand there before they are summed.
std::int64_t WorkspaceBytes(const AttentionShape& shape, std::int64_t queries, bool deterministic) {
  const std::int64_t scores = deterministic ? RoundedUp(queries, 64) * RoundedUp(shape.keys, 128) * 2 : 0;
  const std::int64_t key_gradients =
      shape.group() > 1 ? shape.keys * (shape.head + shape.value_head) * SizeOf(shape.dtype) : 0;
  return scores + key_gradients;
}
// dq in fp32.
std::int64_t AccumulatorBytes(const AttentionShape& shape, std::int64_t queries, bool deterministic) {
  return deterministic ? 0 : queries * shape.head * SizeOf(DType::kF32);
}
// What a group may have only so much of, of all query heads of a kv head of one sample.
std::int64_t LimitedBytes(const AttentionShape& shape, std::int64_t queries, bool deterministic) {
  return shape.group() *
         (WorkspaceBytes(shape, queries, deterministic) + AccumulatorBytes(shape, queries, deterministic));
}

// `total` in the fewest parts of at most `most`, evenly.
std::int64_t EvenPart(std::int64_t total, std::int64_t most) {
  const std::int64_t parts = (total + most - 1) / most;
  return (total + parts - 1) / parts;
}

std::int64_t ForwardScratch(AttentionShape shape, const CudaTarget& target) {
  shape.chip = target.chip;
  switch (KernelsOf(shape, /*backward=*/false)) {
    case AttentionKernels::kCudnn:
      return kMarginBytes;
    case AttentionKernels::kOwn:
      return kOwnCounterBytes;
    case AttentionKernels::kReference:
      break;
  }
  return 0;
}

std::int64_t GradScratch(AttentionShape shape, const CudaTarget& target) {
  shape.chip = target.chip;
  switch (KernelsOf(shape, /*backward=*/true)) {
    case AttentionKernels::kCudnn:
      return CudnnGradLayout(shape, target.deterministic).bytes;
    case AttentionKernels::kOwn:
      return OwnGradLayoutOf(shape).bytes;
    case AttentionKernels::kReference:
      break;
  }
  return Aligned(shape.batch * shape.heads * shape.queries * SizeOf(DType::kF32));  // Σ_U d_o·o
}

}  // namespace

AttentionShape ShapeOfSeparate(Types inputs, const graph::Attributes& attributes, bool backward) {
  const graph::TensorType& q = inputs[0];
  const graph::TensorType& k = inputs[1];
  const graph::AttentionInputs at = graph::InputsOfAttention(inputs, {.backward = backward});
  AttentionShape shape{.batch = q.shape[0],
                       .queries = q.shape[1],
                       .keys = k.shape[1],
                       .heads = q.shape[2],
                       .kv_heads = k.shape[2],
                       .head = q.shape[3],
                       .value_head = inputs[2].shape[3],
                       .dtype = q.dtype,
                       .sinks = at.has_sinks(),
                       .spans = at.has_spans()};
  SetAttributes(attributes, &shape);
  return shape;
}

AttentionShape ShapeOfPacked(Types inputs, const graph::Attributes& attributes, bool backward) {
  const graph::TensorType& qkv = inputs[0];
  const graph::AttentionInputs at = graph::InputsOfAttention(inputs, {.backward = backward, .packed = true});
  AttentionShape shape{.batch = qkv.shape[0],
                       .queries = qkv.shape[1],
                       .keys = qkv.shape[1],
                       .heads = qkv.shape[2] * (qkv.shape[3] - 2),
                       .kv_heads = qkv.shape[2],
                       .head = qkv.shape[4],
                       .value_head = qkv.shape[4],
                       .dtype = qkv.dtype,
                       .packed = true,
                       .spans = at.has_spans()};
  SetAttributes(attributes, &shape);
  return shape;
}

namespace {

bool HasNarrowType(const AttentionShape& s) { return s.dtype == DType::kBF16 || s.dtype == DType::kF16; }

bool HasTrainedBiases(const AttentionShape& s) { return s.distance > 0 || s.pairs > 0; }

// What a family of fast kernels does not take: rows of plan::Obstacle with the rule. Checks, plans and launches go by these
// rows, and errors and hints are made of their words, so that a family's table is all that says what it takes.
struct Limit {
  std::string_view attribute;
  bool (*holds)(const AttentionShape&);
  std::string_view why;    // where it does not hold: "attention …"
  std::string_view takes;  // as a remedy
};

constexpr std::string_view kCudnnHeads = "heads of 64 to 256 elements, in multiples of 8";
constexpr Limit kCudnnLimits[] = {
    {"dtype", HasNarrowType, "attention in fp32", "bf16 and fp16"},
    {"device", [](const AttentionShape& s) { return s.chip.major >= 8; },
     "attention before compute capability 8.0", "a GPU of compute capability 8.0 or later"},
    {"head", [](const AttentionShape& s) { return s.head == s.value_head || HasPairOfWidths(s); },
     "attention whose keys and values are of two widths",
     "keys and values of one width, or of 192 and 128 elements"},
    {"head", [](const AttentionShape& s) { return s.head >= 64; },
     "attention of heads of less than 64 elements", kCudnnHeads},
    {"head", [](const AttentionShape& s) { return s.head <= 256; },
     "attention of heads of more than 256 elements", kCudnnHeads},
    {"head", [](const AttentionShape& s) { return s.head % 8 == 0; },
     "attention of heads of no multiple of 8 elements", kCudnnHeads},
    {"queries", [](const AttentionShape& s) { return s.queries <= s.keys; },
     "attention of more queries than keys", "no more queries than keys"},
    {"head",
     [](const AttentionShape& s) {
       return s.head == s.value_head || !HasPairOfWidths(s) || s.chip.major >= 9;
     },
     "attention whose keys and values are of two widths before compute capability 9.0",
     "keys and values of one width"},
    // Of a scale of 0 its forward pass (9.19) gives no numbers.
    {"scale", [](const AttentionShape& s) { return s.scale != 0; }, "attention whose scale is 0",
     "a scale other than 0"},
    {"dropout", [](const AttentionShape& s) { return s.dropout == 0; }, "attention with dropout",
     "no dropout"},
    {"softcap", [](const AttentionShape& s) { return s.softcap == 0; }, "attention with a soft cap",
     "no soft cap"},
    {"alibi", [](const AttentionShape& s) { return !s.alibi; }, "attention with linear biases",
     "no linear biases"},
    {"bias", [](const AttentionShape& s) { return s.distance == 0; }, "attention with biases by distance",
     "no biases by distance"},
    {"bias", [](const AttentionShape& s) { return s.pairs == 0; }, "attention with a bias for each pair",
     "no bias for each pair"},
    {"sinks", [](const AttentionShape& s) { return !s.sinks; }, "attention with sinks", "no sinks"},
    {"mask", [](const AttentionShape& s) { return s.causal; }, "attention without a causal mask",
     "a causal mask"},
    {"documents", [](const AttentionShape& s) { return !s.spans; }, "attention within documents",
     "documents across"},
};

static_assert(kOwnMostElements == 256 && kOwnMostDistance == 1024 && kOwnMostPlaces == 32768);
constexpr std::string_view kOwnHeads = "heads of up to 256 elements, in multiples of 8";
constexpr Limit kOwnLimits[] = {
    {"dtype", HasNarrowType, "attention in fp32", "bf16 and fp16"},
    {"device", [](const AttentionShape& s) { return s.chip.hopper; },
     "attention on other GPUs than H100 and H200 (sm_90a)", "H100 or H200"},
    {"head", [](const AttentionShape& s) { return std::max(s.head, s.value_head) <= kOwnMostElements; },
     "attention of heads of more than 256 elements", kOwnHeads},
    {"head", [](const AttentionShape& s) { return s.head % 8 == 0 && s.value_head % 8 == 0; },
     "attention of heads of no multiple of 8 elements", kOwnHeads},
    {"queries", [](const AttentionShape& s) { return !s.causal || s.queries <= s.keys; },
     "attention of more queries than keys", "no more queries than keys"},
    // The largest product has to be the largest score.
    {"scale", [](const AttentionShape& s) { return s.scale > 0; },
     "attention whose scale is no positive number", "a positive scale"},
    {"bias", [](const AttentionShape& s) { return s.distance <= kOwnMostDistance; },
     "attention with biases by distance of more than 1024 places", "a max_distance of up to 1024"},
    {"bias", [](const AttentionShape& s) { return s.pairs <= kOwnMostPlaces; },
     "attention with a bias for each pair of more than 32768 places", "up to 32768 places"},
    {"bias", [](const AttentionShape& s) { return !HasTrainedBiases(s) || !s.alibi; },
     "attention with linear biases beside trained biases", "one of these biases"},
    {"bias", [](const AttentionShape& s) { return !HasTrainedBiases(s) || s.softcap == 0; },
     "attention with a soft cap beside trained biases", "no soft cap beside trained biases"},
    // Draws are made for 16 × 16 pairs at a time; a slice of the sequence has two chunks of as many queries.
    {"queries",
     [](const AttentionShape& s) { return s.dropout == 0 || s.queries == s.keys || s.queries / 2 % 16 == 0; },
     "attention with dropout in chunks of no multiple of 16 queries",
     "a sequence of a multiple of 32 tokens for each rank of cp"},
};

struct FastFamily {
  std::string_view name;
  std::span<const Limit> limits;
};
constexpr FastFamily kCudnn = {"cuDNN", kCudnnLimits};
constexpr FastFamily kOwn = {"the kernels for Hopper", kOwnLimits};
constexpr const FastFamily* kFastFamilies[] = {&kCudnn, &kOwn};

std::string_view WhyNot(const FastFamily& family, const AttentionShape& shape) {
  const auto broken = std::find_if(family.limits.begin(), family.limits.end(),
                                   [&](const Limit& limit) { return !limit.holds(shape); });
  return broken == family.limits.end() ? "" : broken->why;
}

}  // namespace

std::string_view WhyNotCudnn(const AttentionShape& shape) { return WhyNot(kCudnn, shape); }
std::string_view WhyNotOwn(const AttentionShape& shape) { return WhyNot(kOwn, shape); }

std::vector<plan::Obstacle> ObstaclesOf(const AttentionShape& shape) {
  std::vector<plan::Obstacle> obstacles;
  bool some_on_chip = false;
  for (const FastFamily* family : kFastFamilies) {
    if (WhyNot(*family, shape).empty()) return {};
    bool on_chip = true;
    for (const Limit& limit : family->limits) {
      if (limit.holds(shape)) continue;
      if (limit.attribute == "dtype") return {};
      on_chip = on_chip && limit.attribute != "device";
      obstacles.push_back({family->name, limit.attribute, limit.why, limit.takes});
    }
    some_on_chip = some_on_chip || on_chip;
  }
  if (!some_on_chip) obstacles.clear();
  return obstacles;
}

AttentionKernels KernelsOf(const AttentionShape& shape, bool backward) {
  const bool cudnn = WhyNotCudnn(shape).empty();
  if (shape.kernel == "reference") return AttentionKernels::kReference;
  if (shape.kernel == "cudnn" && cudnn) return AttentionKernels::kCudnn;
  const bool wide = shape.head > 128 || shape.value_head > 128;
  const bool faster = !cudnn || shape.window > 0 || (backward && !wide);
  if (WhyNotOwn(shape).empty() && (faster || shape.kernel == "own")) return AttentionKernels::kOwn;
  return cudnn ? AttentionKernels::kCudnn : AttentionKernels::kReference;
}

AttentionGroup ForwardGroup(const AttentionShape& shape) {
  // Packed, the query heads of one kv head are evenly spaced, those of several are not unless each has one.
  const bool evenly_spaced = !shape.packed || shape.group() == 1;
  return {shape.batch, evenly_spaced ? shape.kv_heads : 1, shape.queries};
}

AttentionGroup BackwardGroup(const AttentionShape& shape, bool deterministic) {
  const AttentionGroup whole = ForwardGroup(shape);
  const std::int64_t fitting = shape.grad_group_bytes / LimitedBytes(shape, shape.queries, deterministic);
  if (fitting >= whole.kv_heads) {
    const std::int64_t samples = EvenPart(whole.samples, std::min(fitting / whole.kv_heads, whole.samples));
    return {samples, whole.kv_heads, whole.queries};
  }
  if (fitting > 0) return {1, EvenPart(whole.kv_heads, fitting), whole.queries};
  const std::int64_t fixed_bytes = LimitedBytes(shape, 0, deterministic);
  const std::int64_t block_bytes = LimitedBytes(shape, kQueryBlock, deterministic) - fixed_bytes;
  const std::int64_t blocks = std::max<std::int64_t>((shape.grad_group_bytes - fixed_bytes) / block_bytes, 1);
  const std::int64_t all_blocks = RoundedUp(shape.queries, kQueryBlock) / kQueryBlock;
  return {1, 1, std::min(EvenPart(all_blocks, blocks) * kQueryBlock, shape.queries)};
}

absl::StatusOr<std::vector<QueryChunk>> QueryChunks(const AttentionShape& shape, const DimExtent& positions,
                                                    std::int64_t most) {
  std::vector<Interval> runs;
  for (const Interval& interval : positions) {
    const bool joins = !runs.empty() && runs.back().start + runs.back().length == interval.start;
    if (joins) {
      runs.back().length += interval.length;
    } else if (interval.length > 0) {
      runs.push_back(interval);
    }
  }
  std::vector<QueryChunk> chunks;
  std::int64_t first = 0;
  for (const Interval& run : runs) {
    const std::int64_t blocks = RoundedUp(run.length, kQueryBlock) / kQueryBlock;
    const std::int64_t part =
        run.length <= most ? run.length : EvenPart(blocks, most / kQueryBlock) * kQueryBlock;
    for (std::int64_t at = 0; at < run.length; at += part) {
      const std::int64_t count = std::min(part, run.length - at);
      chunks.push_back({first + at, count, run.start + at + count});
    }
    first += run.length;
  }
  const bool beyond = !chunks.empty() && shape.causal && chunks.back().keys > shape.keys;
  if (first != shape.queries || chunks.empty() || beyond) {
    return Internal("attention of {} queries that stand at {} positions of {}", shape.queries, first,
                    shape.keys);
  }
  return chunks;
}

bool SumsKeyGradients(const AttentionShape& shape, const AttentionGroup& group) {
  return shape.queries < shape.keys || group.queries < shape.queries;
}

AttentionGradLayout CudnnGradLayout(const AttentionShape& shape, bool deterministic) {
  const AttentionGroup group = BackwardGroup(shape, deterministic);
  const std::int64_t kv_heads = group.samples * group.kv_heads;
  const std::int64_t heads = kv_heads * shape.group();
  const std::int64_t keys = SumsKeyGradients(shape, group) ? kv_heads * shape.keys : 0;
  const auto bytes_of = [&](std::int64_t head, DType dtype) { return Aligned(keys * head * SizeOf(dtype)); };
  AttentionGradLayout layout;
  layout.workspace_bytes =
      Aligned(heads * WorkspaceBytes(shape, group.queries, deterministic) + kMarginBytes);
  layout.row_sums = layout.workspace_bytes;
  layout.accumulator = layout.row_sums + Aligned(heads * group.queries * SizeOf(DType::kF32));
  layout.dk_part =
      layout.accumulator + Aligned(heads * AccumulatorBytes(shape, group.queries, deterministic));
  layout.dv_part = layout.dk_part + bytes_of(shape.head, shape.dtype);
  layout.dk_sum = layout.dv_part + bytes_of(shape.value_head, shape.dtype);
  layout.dv_sum = layout.dk_sum + bytes_of(shape.head, DType::kF32);
  layout.bytes = layout.dv_sum + bytes_of(shape.value_head, DType::kF32);
  return layout;
}

OwnGradLayout OwnGradLayoutOf(const AttentionShape& shape) {
  const OwnSizes& own = OwnSizesOf(shape.head, shape.value_head);
  const std::int64_t tile = own.tile_queries;
  // The last tile of each chunk of queries may be filled up.
  const std::int64_t tiles = shape.batch * shape.heads * (RoundedUp(shape.queries, tile) / tile + 1);
  const std::int64_t rows = Aligned(tiles * tile * SizeOf(DType::kF32));
  OwnGradLayout layout;
  layout.row_sums = LsePlanes(shape.distance, shape.causal) * rows;
  layout.dq_sums = layout.row_sums + rows;
  layout.turns = layout.dq_sums + Aligned(tiles * tile * own.sums * SizeOf(DType::kF32));
  layout.taken = layout.turns + Aligned(tiles * own.turns * SizeOf(DType::kI32));
  layout.bytes = layout.taken + kOwnCounterBytes;
  const std::int64_t blocks = RoundedUp(shape.keys, own.block_keys) / own.block_keys;
  if (shape.distance > 0) {
    layout.distance_sums = layout.bytes;
    const std::int64_t distances = (shape.causal ? 1 : 2) * shape.distance + 1;
    layout.bytes +=
        Aligned(shape.batch * shape.heads * blocks * kOwnKeyWarps * distances * SizeOf(DType::kF32));
  }
  if (!shape.spans) return layout;
  constexpr std::int64_t kPairBytes = 2 * SizeOf(DType::kI32);
  layout.key_spans = layout.bytes;
  layout.walks = layout.key_spans + Aligned(shape.batch * shape.keys * kPairBytes);
  layout.first_blocks = layout.walks + Aligned(shape.batch * blocks * kPairBytes);
  layout.bytes = layout.first_blocks + Aligned(tiles / shape.heads * SizeOf(DType::kI32));
  return layout;
}

namespace {

// Below these no group is worth an execution.
constexpr std::int64_t kLeastGroupBytes = std::int64_t{1} << 20;

std::int64_t ScratchOf(AttentionShape shape, const AttentionWay& way, bool backward, bool deterministic) {
  shape.kernel = AttributeOf(way.kernels);
  shape.grad_group_bytes = way.grad_group_bytes;
  const CudaTarget target = {deterministic, shape.chip};
  return backward ? GradScratch(shape, target) : ForwardScratch(shape, target);
}

bool CarriesOut(AttentionShape shape, AttentionKernels kernels, bool backward) {
  shape.kernel = AttributeOf(kernels);
  return KernelsOf(shape, backward) == kernels;
}

}  // namespace

std::string_view AttributeOf(AttentionKernels kernels) {
  switch (kernels) {
    case AttentionKernels::kOwn:
      return "own";
    case AttentionKernels::kCudnn:
      return "cudnn";
    case AttentionKernels::kReference:
      break;
  }
  return "reference";
}

std::vector<AttentionWay> AttentionWays(const AttentionShape& shape, bool backward, bool deterministic,
                                        std::int64_t scratch_bytes) {
  const AttentionKernels rule = KernelsOf(shape, backward);
  std::vector<AttentionWay> ways = {{rule, shape.grad_group_bytes}};
  if (!shape.kernel.empty()) return ways;
  for (const AttentionKernels kernels : {AttentionKernels::kOwn, AttentionKernels::kCudnn}) {
    if (kernels == rule || !CarriesOut(shape, kernels, backward)) continue;
    AttentionWay way = {kernels, shape.grad_group_bytes};
    while (way.grad_group_bytes >= kLeastGroupBytes &&
           ScratchOf(shape, way, backward, deterministic) > scratch_bytes)
      way.grad_group_bytes /= 2;
    if (way.grad_group_bytes >= kLeastGroupBytes) ways.push_back(way);
  }
  return ways;
}

std::size_t FastestWay(std::span<const double> milliseconds) {
  std::size_t fastest = 0;
  for (std::size_t i = 1; i < milliseconds.size(); ++i) {
    if (milliseconds[i] == 0) continue;
    if (milliseconds[fastest] == 0 || milliseconds[i] < milliseconds[fastest]) fastest = i;
  }
  if (milliseconds[0] == 0) return fastest;  // the first one cannot be carried out
  return milliseconds[fastest] < (1 - kLeastGain) * milliseconds[0] ? fastest : 0;
}

namespace {

// Counts the query-key pairs that cuDNN computes for one head of one sample with a window. In a chunk whose
// keys the window covers, the mask is the causal one and cuDNN skips what it masks; in every other chunk it
// computes all pairs.
double PairsComputed(const AttentionShape& shape, bool backward, bool deterministic) {
  DimExtent positions = {{0, shape.queries}};
  if (shape.queries < shape.keys) {  // by cp, in zigzag: as many on every rank as on the first
    const std::int64_t half = shape.queries / 2;
    positions = {{0, half}, {shape.keys - half, half}};
  }
  const std::int64_t most = backward ? BackwardGroup(shape, deterministic).queries : shape.queries;
  const absl::StatusOr<std::vector<QueryChunk>> chunks = QueryChunks(shape, positions, most);
  if (!chunks.ok()) return static_cast<double>(shape.queries * shape.keys);
  double pairs = 0;
  for (const QueryChunk& chunk : *chunks) {
    const std::int64_t masked = chunk.keys > shape.window ? 0 : chunk.count * (chunk.count - 1) / 2;
    pairs += static_cast<double>(chunk.count * chunk.keys - masked);
  }
  return pairs;
}

constexpr std::array kAttentionOps = {
    AttentionOp{"attention", false, false},
    AttentionOp{"attention_grad", false, true},
    AttentionOp{"attention_packed", true, false},
    AttentionOp{"attention_packed_grad", true, true},
};

}  // namespace

const AttentionOp* FindAttentionOp(std::string_view kernel) {
  const auto* found = std::find_if(kAttentionOps.begin(), kAttentionOps.end(),
                                   [&](const AttentionOp& op) { return op.name == kernel; });
  return found == kAttentionOps.end() ? nullptr : found;
}

AttentionShape ShapeOf(const AttentionOp& op, Types inputs, const graph::Attributes& attributes) {
  return op.packed ? ShapeOfPacked(inputs, attributes, op.backward)
                   : ShapeOfSeparate(inputs, attributes, op.backward);
}

plan::SlowPath SlowAttention(std::string_view kernel, Types inputs, const graph::Attributes& attributes,
                             const CudaTarget& target) {
  const AttentionOp* op = FindAttentionOp(kernel);
  if (op == nullptr) return {};
  const bool backward = op->backward;
  AttentionShape shape = ShapeOf(*op, inputs, attributes);
  shape.chip = target.chip;
  const AttentionKernels kernels = KernelsOf(shape, backward);
  if (kernels == AttentionKernels::kOwn) return {};
  if (kernels == AttentionKernels::kReference) {
    // One that asks for them may be one that other kernels take, too.
    const bool asked = shape.kernel == "reference" && HasNarrowType(shape);
    return {.kind = plan::SlowPath::Kind::kReference,
            .why = asked ? "attention that asks for the reference kernels" : WhyNotCudnn(shape),
            .obstacles = asked ? std::vector<plan::Obstacle>() : ObstaclesOf(shape)};
  }
  if (shape.window == 0) return {};
  // Products with queries or keys, and with values or their gradients, of 2 FLOPs an element and pair.
  const auto elements =
      static_cast<double>((backward ? 3 : 1) * shape.head + (backward ? 2 : 1) * shape.value_head);
  return {.kind = plan::SlowPath::Kind::kMasked,
          .why = "attention within a window",
          .flops = 2 * elements * static_cast<double>(shape.batch * shape.heads) *
                   PairsComputed(shape, backward, target.deterministic)};
}

std::int64_t AttentionScratch(Types inputs, Types, const graph::Attributes& attributes,
                              const CudaTarget& target) {
  return ForwardScratch(ShapeOfSeparate(inputs, attributes, /*backward=*/false), target);
}
std::int64_t AttentionGradScratch(Types inputs, Types, const graph::Attributes& attributes,
                                  const CudaTarget& target) {
  return GradScratch(ShapeOfSeparate(inputs, attributes, /*backward=*/true), target);
}
std::int64_t AttentionPackedScratch(Types inputs, Types, const graph::Attributes& attributes,
                                    const CudaTarget& target) {
  return ForwardScratch(ShapeOfPacked(inputs, attributes, /*backward=*/false), target);
}
std::int64_t AttentionPackedGradScratch(Types inputs, Types, const graph::Attributes& attributes,
                                        const CudaTarget& target) {
  return GradScratch(ShapeOfPacked(inputs, attributes, /*backward=*/true), target);
}

}  // namespace engine::backend::cuda
