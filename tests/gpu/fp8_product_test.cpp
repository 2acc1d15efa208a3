// FP8 products against float64 on the numbers that their operands hold.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/gpu/fp8_testing.h"

namespace engine::gpu_test {

namespace {

struct Product {
  const graph::OpDef* op;
  std::int64_t m = 0, n = 0, k = 0;
  DType a = DType::kE4M3, b = DType::kE4M3, d = DType::kBF16;
  bool bias = false, adds = false;
};

// d[m, n] = a[m, k]·b[n, k]ᵀ / (scale_a·scale_b). Fast accumulation keeps 14 bits of the running sum
// (DeepSeek-V3 Technical Report, arXiv:2412.19437, §3.5.2): each of the k/32 steps of the instruction cuts
// off up to 2⁻¹³ of a sum that is at most Σ|terms|, with random signs √(k/32) of them; 4 for the worst of
// many.
void CheckProduct(const Product& of) {
  constexpr float kScaleA = 100.0F;
  constexpr float kScaleB = 230.0F;
  Problem problem;
  problem.where = fmt::format("{} m{} n{} k{} {}·{} to {}{}{}", of.op->name, of.m, of.n, of.k, Name(of.a),
                              Name(of.b), Name(of.d), of.bias ? ", bias" : "", of.adds ? ", added" : "");
  problem.kernel = std::string(of.op->name);
  problem.op = of.op;
  const Tensor a = Stored({of.m, of.k}, of.a, 0, kScaleA);
  const Tensor b = Stored({of.n, of.k}, of.b, 1, kScaleB);
  problem.inputs = {a, b, State(of.a, kScaleA), State(of.b, kScaleB)};
  problem.input_dtypes = {of.a, of.b, DType::kF32, DType::kF32};
  if (of.bias) {
    problem.inputs.push_back(Uniform({of.n}, of.d, 2));
    problem.input_dtypes.push_back(of.d);
  }
  problem.outputs = {Output::Whole({{of.m, of.n}, of.d})};
  problem.accumulate = of.adds ? 1 : 0;
  const double unscale = static_cast<double>(1.0F / kScaleA) * static_cast<double>(1.0F / kScaleB);
  Tensor expected = Zeros({of.m, of.n});
  double magnitude = 0;
  double largest = 0;
  for (std::int64_t i = 0; i < of.m; ++i) {
    for (std::int64_t j = 0; j < of.n; ++j) {
      double sum = 0;
      double terms = 0;
      for (std::int64_t c = 0; c < of.k; ++c) {
        const double term = a.Get(i * of.k + c) * b.Get(j * of.k + c);
        sum += term;
        terms += std::fabs(term);
      }
      magnitude = std::max(magnitude, terms * unscale);
      largest = std::max(largest, std::fabs(sum * unscale));
      expected.Set(i * of.n + j, sum * unscale + (of.bias ? problem.inputs[4].Get(j) : 0.0) +
                                     (of.adds ? Before(i * of.n + j) : 0.0));
    }
  }
  const double steps = std::sqrt(static_cast<double>(of.k) / 32 + 1);
  // Some of cuBLASLt's kernels round the product to 16 bits before they add it to what is there.
  const double before_adding = of.adds && of.d != DType::kF32 ? UnitRoundoff(of.d) * largest : 0.0;
  Compare(problem.where, expected, MustLaunch(problem).outputs[0],
          {1.01 * UnitRoundoff(of.d), 4 * 0x1p-13 * steps * magnitude + before_adding});
}

// m, n, k: multiples of 16, of 64 and beyond.
struct Size {
  std::int64_t m, n, k;
};
const std::vector<Size> kProducts = {
    {16, 16, 16}, {32, 48, 80}, {128, 256, 64}, {144, 16, 1280}, {64, 160, 512}};

}  // namespace

TEST_CASE("gpu fp8: linear_fp8") {
  for (const Size& size : kProducts) {
    for (DType d : kNarrow) {
      for (bool bias : {false, true})
        CheckProduct({.op = &ops::kLinearFp8, .m = size.m, .n = size.n, .k = size.k, .d = d, .bias = bias});
    }
  }
}

TEST_CASE("gpu fp8: linear_dgrad_fp8") {
  for (const Size& size : kProducts) {
    for (DType d : kNarrow) {
      for (DType gradients : kFormats)
        CheckProduct(
            {.op = &ops::kLinearDgradFp8, .m = size.m, .n = size.n, .k = size.k, .a = gradients, .d = d});
    }
  }
}

TEST_CASE("gpu fp8: linear_wgrad_fp8") {
  for (const Size& size : kProducts) {
    for (DType gradients : kFormats) {
      for (bool adds : {false, true}) {
        for (DType d : {DType::kF32, DType::kBF16}) {
          CheckProduct({.op = &ops::kLinearWgradFp8,
                        .m = size.m,
                        .n = size.n,
                        .k = size.k,
                        .a = gradients,
                        .d = d,
                        .adds = adds});
        }
      }
    }
  }
}

// Operands as the plan has them: more dims than two.
TEST_CASE("gpu fp8: products take the sizes of their operands from the numbers of elements") {
  Problem problem;
  problem.where = "linear_fp8 of x[2, 16, 4, 8] and w[3, 16, 4, 8]";
  problem.kernel = "linear_fp8";
  problem.op = &ops::kLinearFp8;
  problem.attributes = {{"in_dims", std::int64_t{2}}};
  const Tensor x = Stored({2, 16, 4, 8}, DType::kE4M3, 0, 100);
  const Tensor w = Stored({3, 16, 4, 8}, DType::kE4M3, 1, 100);
  problem.inputs = {x, w, State(DType::kE4M3, 1), State(DType::kE4M3, 1)};
  problem.input_dtypes = {DType::kE4M3, DType::kE4M3, DType::kF32, DType::kF32};
  problem.outputs = {Output::Whole({{2, 16, 3, 16}, DType::kBF16})};
  Tensor expected = Zeros({2, 16, 3, 16});
  double scale = 0;
  for (std::int64_t i = 0; i < 32; ++i) {
    for (std::int64_t j = 0; j < 48; ++j) {
      double sum = 0;
      double terms = 0;
      for (std::int64_t c = 0; c < 32; ++c) {
        sum += x.Get(i * 32 + c) * w.Get(j * 32 + c);
        terms += std::fabs(x.Get(i * 32 + c) * w.Get(j * 32 + c));
      }
      expected.Set(i * 48 + j, sum);
      scale = std::max(scale, terms);
    }
  }
  Compare(problem.where, expected, MustLaunch(problem).outputs[0], {0x1.02p-8, 4 * 0x1p-13 * 2 * scale});
}

// ----------------------------------------------------------------------------------------------------- head

namespace {

struct Fp8Head {
  std::int64_t tokens, features, columns, classes, chunk;
  DType format = DType::kE5M2;
  DType d_w = DType::kF32;
  bool adds = false;
  double by = 1, cap = 0;  // between product and softmax
  bool bias = false;       // with its gradient
  bool frozen = false;     // the table
};

// What the head must give, and what it may be off by (largest over the elements).
struct HeadWanted {
  Tensor d_x, d_w, d_bias;
  double loss = 0;
  double loss_error = 0, d_x_error = 0, d_w_error = 0, d_bias_error = 0;
};

constexpr double kHeadScale = 0.75;
constexpr double kHeadLossScale = 4;

// x of a chunk as it is stored, times its scale's inverse.
Tensor QuantisedByChunk(const Tensor& x, const Fp8Head& of) {
  Tensor stored = x;
  for (std::int64_t first = 0; first < of.tokens; first += of.chunk) {
    const std::int64_t begin = first * of.features;
    const std::int64_t end = std::min(of.tokens, first + of.chunk) * of.features;
    double largest = 0;
    for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(x.Get(i)));
    const float scale = 448.0F / static_cast<float>(largest);
    for (std::int64_t i = begin; i < end; ++i) {
      const auto code = Fp8FromFloat(static_cast<float>(x.Get(i)) * scale, DType::kE4M3);
      stored.Set(i, DoubleFromFp8(code, DType::kE4M3) / scale);
    }
  }
  return stored;
}

// The logits of a token as the softmax takes them, the derivative of each to its product, and what the largest of them is
// off by: in logits, and in derivatives.
struct HeadLogits {
  std::vector<double> z, slope;
  double off = 0, slope_off = 0;
};

// x and w are known to the bit. A product is off by its sums (CheckProduct) and by its rounding to 16 bits. What is between
// it and the softmax multiplies that by at most |a|, of a scale a; tanh is off by 2⁻²⁰ of a cap c; and the slope
// a·(1 − tanh²) by 0.77·a²/c times the product's error.
HeadLogits LogitsOf(const Fp8Head& of, const Tensor& x, const Tensor& w, const Tensor& bias,
                    std::int64_t token) {
  const double steps = 4 * 0x1p-13 * std::sqrt(static_cast<double>(of.features) / 32 + 1);
  HeadLogits logits;
  double delta = 0;
  for (std::int64_t v = 0; v < of.classes; ++v) {
    double product = of.bias ? bias.Get(v) : 0.0;
    double terms = 0;
    for (std::int64_t c = 0; c < of.features; ++c) {
      const double term = x.Get(token * of.features + c) * w.Get(v * of.features + c);
      product += term;
      terms += std::fabs(term);
    }
    delta =
        std::max(delta, steps * terms + UnitRoundoff(DType::kBF16) * (std::fabs(product) + steps * terms));
    const double share = of.cap > 0 ? std::tanh(of.by * product / of.cap) : 0;
    logits.z.push_back(of.cap > 0 ? of.cap * share : of.by * product);
    logits.slope.push_back(of.by * (1 - share * share));
  }
  logits.off = std::fabs(of.by) * delta + of.cap * 0x1p-20;
  logits.slope_off = of.cap > 0 ? 0.77 * of.by * of.by / of.cap * delta : 0;
  return logits;
}

// An error δ of a logit is e^±δ in the softmax; its gradient is then rounded to 16 bits and to 8, by half a unit of the
// last place or of the least number of the format. The bias's gradient is summed before it is rounded to 8.
HeadWanted Expected(const Fp8Head& of, const Tensor& x, const Tensor& w, const Tensor& bias,
                    const std::vector<int>& labels) {
  HeadWanted wanted{.d_x = Zeros({of.tokens, of.features}),
                    .d_w = Zeros({of.columns, of.features}),
                    .d_bias = Zeros({of.columns})};
  const double weight = kHeadScale * kHeadLossScale;
  const double unit = of.format == DType::kE4M3 ? 0x1p-4 : 0x1p-3;
  const double least = weight * std::fabs(of.by) / (of.format == DType::kE4M3 ? 448 : 57344) *
                       (of.format == DType::kE4M3 ? 0x1p-10 : 0x1p-17);
  const double steps = 4 * 0x1p-13 * std::sqrt(static_cast<double>(of.features) / 32 + 1);
  std::vector<double> d_w_error(static_cast<size_t>(of.columns * of.features), 0.0);
  std::vector<double> d_bias_error(static_cast<size_t>(of.columns), 0.0);
  for (std::int64_t t = 0; t < of.tokens; ++t) {
    const HeadLogits logits = LogitsOf(of, x, w, bias, t);
    double sum = 0;
    for (const double z : logits.z) sum += std::exp(z);
    const int label = labels[static_cast<size_t>(t)];
    if (label < 0) continue;
    wanted.loss += std::log(sum) - logits.z[static_cast<size_t>(label)];
    wanted.loss_error += 2 * logits.off;
    std::vector<double> d_x_error(static_cast<size_t>(of.features), 0.0);
    for (std::int64_t v = 0; v < of.classes; ++v) {
      const double p = std::exp(logits.z[static_cast<size_t>(v)]) / sum;
      const double slope = logits.slope[static_cast<size_t>(v)];
      const double of_logit = weight * (p - (v == label ? 1 : 0));
      const double d = of_logit * slope;
      const double before =
          weight * p * std::expm1(2 * logits.off) * std::fabs(slope) +
          (std::fabs(of_logit) + weight * p * std::expm1(2 * logits.off)) * logits.slope_off;
      const double rounding = 1.01 * (unit + 0x1p-8);
      const double off = before * (1 + rounding) + rounding * std::fabs(d) + least;
      wanted.d_bias.Set(v, wanted.d_bias.Get(v) + d);
      d_bias_error[static_cast<size_t>(v)] += before * (1 + 0x1p-8) + 1.01 * 0x1p-8 * std::fabs(d);
      for (std::int64_t c = 0; c < of.features; ++c) {
        const std::int64_t at_x = t * of.features + c;
        const std::int64_t at_w = v * of.features + c;
        wanted.d_x.Set(at_x, wanted.d_x.Get(at_x) + d * w.Get(at_w));
        wanted.d_w.Set(at_w, wanted.d_w.Get(at_w) + d * x.Get(at_x));
        d_x_error[static_cast<size_t>(c)] += (off + steps * std::fabs(d)) * std::fabs(w.Get(at_w));
        d_w_error[static_cast<size_t>(at_w)] += (off + steps * std::fabs(d)) * std::fabs(x.Get(at_x));
      }
    }
    for (double error : d_x_error) wanted.d_x_error = std::max(wanted.d_x_error, error);
  }
  for (double error : d_w_error) wanted.d_w_error = std::max(wanted.d_w_error, error);
  for (double error : d_bias_error) wanted.d_bias_error = std::max(wanted.d_bias_error, error);
  return wanted;
}

void CheckHead(const Fp8Head& of) {
  constexpr float kScaleW = 230.0F;
  const Tensor x = Uniform({1, of.tokens, of.features}, DType::kBF16);
  const Tensor stored = Stored({of.columns, of.features}, DType::kE4M3, 1, kScaleW);
  Tensor transposed = Zeros({of.features, of.columns});
  Tensor w = stored;
  for (std::int64_t v = 0; v < of.columns; ++v) {
    for (std::int64_t c = 0; c < of.features; ++c) {
      transposed.Set(c * of.columns + v, stored.Get(v * of.features + c));
      w.Set(v * of.features + c, stored.Get(v * of.features + c) * static_cast<double>(1.0F / kScaleW));
    }
  }
  Tensor labels({{1, of.tokens}, DType::kI32});
  std::vector<int> label(static_cast<size_t>(of.tokens));
  for (std::int64_t t = 0; t < of.tokens; ++t) {
    label[static_cast<size_t>(t)] = t % 7 == 3 ? -1 : static_cast<int>(t * 11 % of.classes);
    labels.Set(t, label[static_cast<size_t>(t)]);
  }
  Problem problem;
  problem.where = fmt::format(
      "linear_cross_entropy_fp8 of {}×{} and {} columns in chunks of {}, {} to {}{}, scaled by {}, "
      "capped at {}{}{}",
      of.tokens, of.features, of.columns, of.chunk, Name(of.format), Name(of.d_w), of.adds ? ", added" : "",
      of.by, of.cap, of.bias ? ", biased" : "", of.frozen ? ", frozen" : "");
  problem.kernel = "linear_cross_entropy_fp8";
  problem.op = &ops::kLinearCrossEntropyFp8;
  problem.attributes = {{"classes", of.classes},
                        {"scale", kHeadScale},
                        {"chunk", of.chunk},
                        {"format", std::int64_t{of.format == DType::kE5M2 ? 1 : 0}}};
  if (of.by != 1) problem.attributes.Set("by", of.by);
  if (of.cap != 0) problem.attributes.Set("cap", of.cap);
  if (of.frozen) problem.attributes.Set("frozen", kOne);
  const Tensor bias = Uniform({of.columns}, DType::kBF16, 2);
  problem.loss_scale = kHeadLossScale;
  problem.inputs = {x, stored, transposed, State(DType::kE4M3, kScaleW), labels};
  problem.input_dtypes = {DType::kBF16, DType::kE4M3, DType::kE4M3, DType::kF32, DType::kI32};
  problem.outputs = {Output::Whole({{1, of.tokens, of.features}, DType::kBF16})};
  if (!of.frozen) problem.outputs.push_back(Output::Whole({{of.columns, of.features}, of.d_w}));
  const size_t at_loss = problem.outputs.size();
  problem.outputs.push_back(Output::Whole({{1}, DType::kF64}));
  if (of.bias) {
    problem.attributes.Set("bias", kOne);
    problem.inputs.push_back(bias);
    problem.input_dtypes.push_back(DType::kBF16);
    problem.outputs.push_back(Output::Whole({{of.columns}, DType::kF32}));
  }
  problem.accumulate = of.adds ? (1U << problem.outputs.size()) - 2 : 0;
  HeadWanted wanted = Expected(of, QuantisedByChunk(x, of), w, bias, label);
  for (std::int64_t i = 0; of.adds && i < wanted.d_w.elements(); ++i)
    wanted.d_w.Set(i, wanted.d_w.Get(i) + Before(i));
  const double unit_w = UnitRoundoff(of.d_w);
  const auto chunks = static_cast<double>((of.tokens + of.chunk - 1) / of.chunk);
  const Outcome outcome = MustLaunch(problem);
  Compare(problem.where + ", dx", wanted.d_x, outcome.outputs[0],
          {1.01 * UnitRoundoff(DType::kBF16), wanted.d_x_error});
  if (!of.frozen) {  // rounded after each chunk
    Compare(problem.where + ", dw", wanted.d_w, outcome.outputs[1],
            {1.01 * unit_w, wanted.d_w_error + chunks * unit_w * (ops_test::Scale(wanted.d_w) + 2)});
  }
  if (of.bias) {
    for (std::int64_t i = 0; of.adds && i < of.columns; ++i)
      wanted.d_bias.Set(i, wanted.d_bias.Get(i) + Before(i));
    Compare(problem.where + ", d_bias", wanted.d_bias, outcome.outputs[at_loss + 1],
            {1e-6, wanted.d_bias_error + 1e-6 * ops_test::Scale(wanted.d_bias)});
  }
  const double loss = wanted.loss + (of.adds ? Before(0) : 0.0);
  CHECK_MESSAGE(std::fabs(outcome.outputs[at_loss].Get(0) - loss) <= wanted.loss_error + 1e-6 * loss,
                fmt::format("{}: loss {:.9g}, expected {:.9g} within {:.3g}", problem.where,
                            outcome.outputs[at_loss].Get(0), loss, wanted.loss_error));
}

}  // namespace

TEST_CASE("gpu fp8: linear_cross_entropy_fp8") {
  for (DType format : kFormats) {
    for (bool adds : {false, true}) {
      // One chunk; several; a last one that is shorter.
      CheckHead({64, 32, 48, 47, 64, format, DType::kF32, adds});
      CheckHead({128, 64, 272, 257, 32, format, DType::kF32, adds});
      CheckHead({80, 64, 160, 150, 32, format, DType::kF32, adds});
      CheckHead({80, 64, 160, 150, 32, format, DType::kBF16, adds});
    }
  }
}

TEST_CASE("gpu fp8: linear_cross_entropy_fp8 with scale, soft cap, bias and frozen table") {
  for (DType format : kFormats) {
    for (bool adds : {false, true}) {
      const Fp8Head head = {80, 64, 160, 150, 32, format, DType::kF32, adds};
      Fp8Head mapped = head;
      mapped.cap = 2.5;
      CheckHead(mapped);
      mapped.by = -0.7;
      CheckHead(mapped);
      Fp8Head biased = head;
      biased.bias = true;
      CheckHead(biased);
      Fp8Head frozen = head;
      frozen.frozen = true;
      CheckHead(frozen);
      mapped.bias = mapped.frozen = true;
      CheckHead(mapped);
    }
  }
}

TEST_CASE("gpu fp8: a head that FP8 products do not take is refused") {
  Problem problem;
  problem.kernel = "linear_cross_entropy_fp8";
  problem.op = &ops::kLinearCrossEntropyFp8;
  problem.attributes = {
      {"classes", std::int64_t{48}}, {"scale", 1.0}, {"chunk", std::int64_t{24}}, {"format", kOne}};
  Tensor labels({{1, 32}, DType::kI32});
  for (std::int64_t t = 0; t < 32; ++t) labels.Set(t, 0);
  problem.inputs = {Uniform({1, 32, 16}, DType::kBF16), Stored({48, 16}, DType::kE4M3, 0, 1),
                    Stored({16, 48}, DType::kE4M3, 1, 1), State(DType::kE4M3, 1), labels};
  problem.input_dtypes = {DType::kBF16, DType::kE4M3, DType::kE4M3, DType::kF32, DType::kI32};
  problem.outputs = {Output::Whole({{1, 32, 16}, DType::kBF16}), Output::Whole({{48, 16}, DType::kF32}),
                     Output::Whole({{1}, DType::kF64})};
  const absl::StatusOr<Outcome> outcome = Launch(problem);
  REQUIRE(!outcome.ok());
  CHECK(Message(outcome.status()).find("multiples of 16, not 32 tokens in chunks of 24") !=
        std::string::npos);
}

}  // namespace engine::gpu_test
