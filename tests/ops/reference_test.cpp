// Forward kernels against the formulas of the ops' doc blocks, written the slow way in double.
#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <numbers>

#include "engine/base/philox.h"
#include "engine/graph/alibi.h"
#include "engine/graph/rotary.h"
#include "engine/ops/ops.h"
#include "tests/ops/cases.h"

namespace engine::ops_test {
namespace {

constexpr double kBound = 1e-12;  // a few hundred roundings of 2.2e-16, times values below 10

// Runs the cases of one op in float64 and hands over (case, inputs, outputs).
template <typename Check>
void ForEachCaseOf(const graph::OpDef& op, const Check& check) {
  int cases = 0;
  for (const Case& test : AllCases()) {
    if (test.op != &op) continue;
    CAPTURE(test.label);
    const Tensors inputs = MakeInputs(test, DType::kF64);
    check(test, inputs, RunOp(op, test.attributes, inputs));
    ++cases;
  }
  CHECK(cases > 0);
}

// Half of a word of Philox4x32-7, which is written out once more here.
double HalfWordOf(const std::string& stream, std::array<std::uint64_t, 4> c, std::int64_t word,
                  std::int64_t half) {
  const PhiloxKey key = MakePhiloxKey(kSeed, stream);
  constexpr std::uint64_t kWord = 0xFFFFFFFFU;
  std::uint64_t k0 = key.low;
  std::uint64_t k1 = key.high;
  for (int round = 0; round < 7; ++round) {
    const std::uint64_t a = 0xD2511F53U * c[0];
    const std::uint64_t b = 0xCD9E8D57U * c[2];
    c = {b >> 32 ^ c[1] ^ k0, b & kWord, a >> 32 ^ c[3] ^ k1, a & kWord};
    k0 = (k0 + 0x9E3779B9U) & kWord;
    k1 = (k1 + 0xBB67AE85U) & kWord;
  }
  return static_cast<double>(c[static_cast<size_t>(word)] >> (half * 16) & 0xFFFFU);
}

// As base/dropout_draws.h says.
double DropoutDrawOf(const std::string& stream, std::int64_t index) {
  return HalfWordOf(stream,
                    {static_cast<std::uint64_t>(index / 8), 0, static_cast<std::uint64_t>(kIteration), 0},
                    index % 8 / 2, index % 2);
}

// As base/attention_draws.h says.
double AttentionDrawOf(const std::string& stream, std::int64_t head, std::int64_t query, std::int64_t key) {
  return HalfWordOf(stream,
                    {static_cast<std::uint64_t>(key / 16 * 32 + query % 8 * 4 + key % 8 / 2),
                     static_cast<std::uint64_t>(query / 16), static_cast<std::uint64_t>(head),
                     static_cast<std::uint64_t>(kIteration)},
                    query / 8 % 2 * 2 + key / 8 % 2, key % 2);
}

TEST_CASE("attention") {
  ForEachCaseOf(ops::kAttention, [](const Case& test, const Tensors& in, const Tensors& out) {
    const Shape& q = in[0].type().shape;
    const Shape& k = in[1].type().shape;
    const std::int64_t value_head = in[2].type().shape[3];
    const std::int64_t window = test.attributes.Int("window");
    const bool causal = !test.attributes.Has("mask");
    const double p = test.attributes.Float("dropout");
    const auto is_int = [&](size_t i, int rank) {
      return i < in.size() && in[i].type().dtype == DType::kI32 && in[i].type().shape.rank() == rank;
    };
    const size_t spans = is_int(3, 2) ? 4 : 3;  // behind positions, if any
    const bool documents = is_int(spans, 3);
    const size_t sinks = documents ? spans + 1 : spans;
    const bool has_sinks = sinks < in.size() && in[sinks].type().shape.rank() == 1;
    const size_t biases = has_sinks ? sinks + 1 : sinks;
    const std::int64_t distance = test.attributes.Int("distance", 0);
    const std::int64_t pairs = test.attributes.Int("pairs", 0);
    REQUIRE(in.size() == (distance > 0 || pairs > 0 ? biases + 1 : biases));
    const double cap = test.attributes.Has("softcap") ? test.attributes.Float("softcap") : 0.0;
    const bool alibi = test.attributes.Int("alibi", 0) != 0;
    double worst = 0;
    for (std::int64_t row = 0; row < q[0] * q[1] * q[2]; ++row) {
      const std::int64_t b = row / (q[1] * q[2]);
      const std::int64_t i = row / q[2] % q[1];
      const std::int64_t h = row % q[2];
      const auto key = [&](std::int64_t j) { return (b * k[1] + j) * k[2] + h / (q[2] / k[2]); };
      std::vector<double> weights;
      double sum = has_sinks ? std::exp(in[sinks].Get(h)) : 0.0;
      for (std::int64_t j = 0; j < k[1]; ++j) {
        double score = 0;
        for (std::int64_t e = 0; e < q[3]; ++e)
          score += in[0].Get(row * q[3] + e) * in[1].Get(key(j) * k[3] + e);
        bool seen = !causal || (j <= i && (window == 0 || i - j < window));
        if (documents) {
          const std::int64_t query = 2 * (b * q[1] + i);
          seen = seen && in[spans].Get(query) <= static_cast<double>(j) &&
                 static_cast<double>(j) < in[spans].Get(query + 1);
        }
        score *= test.attributes.Float("scale");
        if (cap > 0) score = cap * std::tanh(score / cap);
        if (alibi) score -= graph::AlibiSlope(h, q[2]) * static_cast<double>(i - j);
        if (distance > 0) {
          const std::int64_t column = j - i < -distance  ? 0
                                      : j - i > distance ? 2 * distance
                                                         : j - i + distance;
          score += in[biases].Get(h * (2 * distance + 1) + column);
        }
        if (pairs > 0) score += in[biases].Get((h * pairs + i) * pairs + j);
        weights.push_back(seen ? std::exp(score) : 0.0);
        sum += weights.back();
      }
      for (std::int64_t e = 0; e < value_head; ++e) {
        double expected = 0;
        for (std::int64_t j = 0; j < k[1]; ++j) {
          const double below = std::round(p * 65536);
          const bool kept = p == 0 || AttentionDrawOf(test.attributes.String("stream"),
                                                      (kFirstSample + b) * q[2] + h, i, j) >= below;
          if (!kept) continue;
          if (sum == 0) continue;
          expected += weights[static_cast<size_t>(j)] / sum / (1 - below / 65536) *
                      in[2].Get(key(j) * value_head + e);
        }
        worst = std::max(worst, std::fabs(expected - out[0].Get(row * value_head + e)));
      }
      if (sum == 0) {
        CHECK(out[1].Get(row) == -std::numeric_limits<double>::infinity());
      } else {
        worst = std::max(worst, std::fabs(std::log(sum) - out[1].Get(row)));
      }
    }
    CHECK(worst <= kBound);
  });
}

TEST_CASE("attention: a query without keys") {
  const Tensors in =
      MakeInputs({&ops::kAttention,
                  "",
                  {{{1, 2, 1, 4}}, {{1, 2, 1, 4}}, {{1, 2, 1, 4}}, {{1, 2}, Input::kPositions}},
                  {}},
                 DType::kF32);
  Tensor positions = in[3];
  positions.Set(0, -1);
  const Tensors out = RunOp(ops::kAttention, {{"scale", 1.0}}, {in[0], in[1], in[2], positions});
  for (int e = 0; e < 4; ++e) CHECK(out[0].Get(e) == 0);
  CHECK(std::isinf(out[1].Get(0)));
  const Tensors grads =
      RunOp(ops::kAttentionGrad, {{"scale", 1.0}}, {in[0], in[1], in[2], positions, out[0], out[1], in[0]});
  for (int e = 0; e < 4; ++e) CHECK(grads[0].Get(e) == 0);
  CHECK(Scale(grads[1]) < 1e3);
}

TEST_CASE("select_token takes one token of each sample, and its gradient puts it back") {
  ForEachCaseOf(ops::kSelectToken, [](const Case& test, const Tensors& in, const Tensors& out) {
    const Shape& x = in[0].type().shape;
    const std::int64_t width = x.elements(2, x.rank());
    const std::int64_t index = test.attributes.Int("index");
    for (std::int64_t i = 0; i < out[0].elements(); ++i)
      CHECK(out[0].Get(i) == in[0].Get((i / width * x[1] + index) * width + i % width));
  });
  ForEachCaseOf(ops::kSelectTokenGrad, [](const Case& test, const Tensors& in, const Tensors& out) {
    const Shape& x = out[0].type().shape;
    const std::int64_t width = x.elements(2, x.rank());
    for (std::int64_t i = 0; i < out[0].elements(); ++i) {
      const bool selected = i / width % x[1] == test.attributes.Int("index");
      CHECK(out[0].Get(i) == (selected ? in[0].Get(i / (width * x[1]) * width + i % width) : 0.0));
    }
  });
  CHECK_FALSE(
      ops::kSelectToken.infer(std::vector<graph::TensorType>{{{2, 4, 6}}}, {{"index", std::int64_t{4}}})
          .ok());
}

TEST_CASE("join puts rows side by side, those of one head beside all heads") {
  ForEachCaseOf(ops::kJoin, [](const Case& test, const Tensors& in, const Tensors& out) {
    const Shape& y = out[0].type().shape;
    const std::int64_t width = y[y.rank() - 1];
    const std::int64_t heads = y[y.rank() - 2];
    for (std::int64_t i = 0; i < out[0].elements(); ++i) {
      std::int64_t e = i % width;
      size_t part = 0;
      for (; e >= in[part].type().shape[y.rank() - 1]; ++part) e -= in[part].type().shape[y.rank() - 1];
      const bool one = in[part].type().shape[y.rank() - 2] == 1;
      const std::int64_t row = one ? i / width / heads : i / width;
      REQUIRE(out[0].Get(i) == in[part].Get(row * in[part].type().shape[y.rank() - 1] + e));
    }
    CHECK(in.size() == test.inputs.size());
  });
}

TEST_CASE("join and attention refuse tensors that do not go together") {
  using Types = std::vector<graph::TensorType>;
  const graph::Attributes second = {{"shared", std::int64_t{2}}};
  const graph::TensorType own = {{2, 4, 3, 5}};
  CHECK(ops::kJoin.infer(Types{own, {{2, 4, 3, 2}}}, {}).ok());
  CHECK(ops::kJoin.infer(Types{own, {{2, 4, 1, 2}}}, second).ok());
  CHECK_FALSE(ops::kJoin.infer(Types{own, {{2, 4, 1, 2}}}, {}).ok());
  CHECK_FALSE(ops::kJoin.infer(Types{own, {{2, 4, 3, 2}}}, second).ok());
  CHECK_FALSE(ops::kJoin.infer(Types{own, {{2, 1, 3, 2}}}, {}).ok());
  CHECK_FALSE(ops::kJoin.infer(Types{own, {{2, 4, 3}}}, {}).ok());
  CHECK_FALSE(ops::kJoin.infer(Types{own, {{2, 4, 3, 2}, DType::kF64}}, {}).ok());
  CHECK_FALSE(ops::kJoin.infer(Types{{{2, 4, 1, 5}}}, {{"shared", std::int64_t{1}}}).ok());
  const graph::Attributes beyond = {{"first", std::int64_t{3}}, {"count", std::int64_t{3}}};
  CHECK_FALSE(ops::kJoinGrad.infer(Types{own}, beyond).ok());
  const graph::TensorType positions = {{2, 4}, DType::kI32};
  CHECK(ops::kAttention.infer(Types{own, own, {{2, 4, 3, 7}}, positions}, {}).ok());
  CHECK_FALSE(ops::kAttention.infer(Types{own, own, {{2, 4, 1, 5}}, positions}, {}).ok());
  CHECK_FALSE(ops::kAttention.infer(Types{own, own, {{2, 3, 3, 5}}, positions}, {}).ok());
}

TEST_CASE("attention refuses a mask that it does not know, and a window without a causal mask") {
  const graph::TensorType q = {{2, 4, 2, 6}};
  const std::vector<graph::TensorType> inputs = {q, q, q, {{2, 4}, DType::kI32}};
  CHECK(ops::kAttention.infer(inputs, {{"mask", std::string("causal")}}).ok());
  CHECK_FALSE(ops::kAttention.infer(inputs, {{"mask", std::string("prefix")}}).ok());
  CHECK_FALSE(
      ops::kAttention.infer(inputs, {{"mask", std::string("none")}, {"window", std::int64_t{2}}}).ok());
}

TEST_CASE("norms") {
  for (const graph::OpDef* op : {&ops::kLayerNorm, &ops::kRmsNorm}) {
    ForEachCaseOf(*op, [&](const Case& test, const Tensors& in, const Tensors& out) {
      const bool layer = op == &ops::kLayerNorm;
      const std::int64_t d = in[1].elements();
      double worst = 0;
      for (std::int64_t row = 0; row < in[0].elements() / d; ++row) {
        double mean = 0;
        double square = 0;
        for (std::int64_t i = 0; layer && i < d; ++i) mean += in[0].Get(row * d + i) / static_cast<double>(d);
        for (std::int64_t i = 0; i < d; ++i) {
          square += std::pow(in[0].Get(row * d + i) - mean, 2) / static_cast<double>(d);
        }
        const double rstd = 1 / std::sqrt(square + test.attributes.Float("epsilon"));
        if (layer) worst = std::max(worst, std::fabs(mean - out[1].Get(row)));
        worst = std::max(worst, std::fabs(rstd - out.back().Get(row)));
        for (std::int64_t i = 0; i < d; ++i) {
          const double gain =
              in[1].Get(i) + (test.attributes.Has("gain_offset") ? test.attributes.Float("gain_offset") : 0);
          const double y = (in[0].Get(row * d + i) - mean) * rstd * gain + (layer ? in[2].Get(i) : 0.0);
          worst = std::max(worst, std::fabs(y - out[0].Get(row * d + i)));
        }
      }
      CHECK(worst <= kBound);
    });
  }
}

TEST_CASE("norms refuse a gain that has not the last dims of x, or that has all of them") {
  const graph::TensorType x = {{2, 4, 3, 5}};
  for (const Shape& gain : {Shape{4}, Shape{3}, Shape{5, 3}, Shape{2, 4, 3, 5}}) {
    CAPTURE(gain.ToString());
    CHECK_FALSE(ops::kRmsNorm.infer(std::vector<graph::TensorType>{x, {gain}}, {}).ok());
    CHECK_FALSE(ops::kLayerNorm.infer(std::vector<graph::TensorType>{x, {gain}, {gain}}, {}).ok());
  }
  CHECK_FALSE(ops::kLayerNorm.infer(std::vector<graph::TensorType>{x, {{3, 5}}, {{5}}}, {}).ok());
  const auto types = ops::kLayerNorm.infer(std::vector<graph::TensorType>{x, {{3, 5}}, {{3, 5}}}, {});
  REQUIRE(types.ok());
  CHECK((*types)[1].shape == Shape{2, 4});
}

TEST_CASE("activations") {
  ForEachCaseOf(ops::kGelu, [](const Case& test, const Tensors& in, const Tensors& out) {
    double worst = 0;
    for (std::int64_t i = 0; i < in[0].elements(); ++i) {
      const double x = in[0].Get(i);
      const double tanh_form = std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x));
      const double inner = test.attributes.Int("tanh") != 0 ? tanh_form : std::erf(x / std::numbers::sqrt2);
      worst = std::max(worst, std::fabs(x / 2 * (1 + inner) - out[0].Get(i)));
    }
    CHECK(worst <= kBound);
  });
  ForEachCaseOf(ops::kSwiglu, [](const Case& test, const Tensors& in, const Tensors& out) {
    const std::int64_t f = test.inputs[0].shape[3];
    double worst = 0;
    for (std::int64_t i = 0; i < out[0].elements(); ++i) {
      const double gate = in[0].Get(i / f * 2 * f + i % f);
      const double up = in[0].Get((i / f * 2 + 1) * f + i % f);
      worst = std::max(worst, std::fabs(gate / (1 + std::exp(-gate)) * up - out[0].Get(i)));
    }
    CHECK(worst <= kBound);
  });
}

// What element e of a head that begins at x becomes at a position: written as the turning of a complex number. The angles'
// frequencies are tested in rotary_test.cpp.
double Turned(const graph::Attributes& attributes, const Tensor& x, std::int64_t first, std::int64_t head,
              std::int64_t e, double position) {
  const std::int64_t width = attributes.Int("width", head);
  if (e >= width) return x.Get(first + e);
  const bool interleaved = attributes.Int("interleaved", 0) != 0;
  const std::int64_t pair = interleaved ? e / 2 : e % (width / 2);
  const std::int64_t low = interleaved ? 2 * pair : pair;
  const std::int64_t high = interleaved ? low + 1 : low + width / 2;
  const graph::RotaryTable table = graph::RotaryTableOf(attributes, head);
  const std::complex<double> number(x.Get(first + low), x.Get(first + high));
  const std::complex<double> turned =
      number * std::polar(table.factor, position * table.frequencies[static_cast<size_t>(pair)]);
  return e == low ? turned.real() : turned.imag();
}

// By the formulas of graph/activation.h.
double ActivationOf(const std::string& kind, double x) {
  const auto sigmoid = [](double z) { return 1 / (1 + std::exp(-z)); };
  if (kind == "relu") return x > 0 ? x : 0.0;
  if (kind == "silu") return x * sigmoid(x);
  if (kind == "quick_gelu") return x * sigmoid(1.702 * x);
  if (kind == "tanh") return 1 - 2 / (std::exp(2 * x) + 1);
  if (kind == "sigmoid") return sigmoid(x);
  if (kind == "gelu_erf") return x / 2 * (1 + std::erf(x / std::numbers::sqrt2));
  REQUIRE(kind == "gelu_tanh");
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

// expected(inputs, i): element i of output 0.
template <typename Expected>
void CheckElements(const graph::OpDef& op, const Expected& expected) {
  ForEachCaseOf(op, [&](const Case& test, const Tensors& in, const Tensors& out) {
    double worst = 0;
    for (std::int64_t i = 0; i < out[0].elements(); ++i)
      worst = std::max(worst, std::fabs(expected(test, in, i) - out[0].Get(i)));
    CHECK(worst <= kBound);
  });
}

TEST_CASE("activations and gates by their kind") {
  CheckElements(ops::kActivation, [](const Case& test, const Tensors& in, std::int64_t i) {
    return ActivationOf(test.attributes.String("kind"), in[0].Get(i));
  });
  CheckElements(ops::kGlu, [](const Case& test, const Tensors& in, std::int64_t i) {
    const std::int64_t f = test.inputs[0].shape[3];
    const double gate = in[0].Get(i / f * 2 * f + i % f);
    return ActivationOf(test.attributes.String("kind"), gate) * in[0].Get((i / f * 2 + 1) * f + i % f);
  });
  const std::vector<graph::TensorType> x = {{{2, 4, 2, 6}}};
  CHECK_FALSE(ops::kActivation.infer(x, {{"kind", std::string("gelu_tanh")}}).ok());  // the op gelu
  CHECK_FALSE(ops::kGlu.infer(x, {{"kind", std::string("silu")}}).ok());              // the op swiglu
  CHECK_FALSE(
      ops::kGlu.infer(std::vector<graph::TensorType>{{{2, 4, 6}}}, {{"kind", std::string("relu")}}).ok());
}

TEST_CASE("products, scales and soft caps") {
  CheckElements(ops::kMultiply,
                [](const Case&, const Tensors& in, std::int64_t i) { return in[0].Get(i) * in[1].Get(i); });
  CheckElements(ops::kScaleRows, [](const Case& test, const Tensors& in, std::int64_t i) {
    return in[0].Get(i) * in[1].Get(i / test.inputs[0].shape[2]);
  });
  CheckElements(ops::kRowDot, [](const Case& test, const Tensors& in, std::int64_t row) {
    const std::int64_t width = test.inputs[0].shape[2];
    double sum = 0;
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) sum += in[0].Get(i) * in[1].Get(i);
    return sum;
  });
  CheckElements(ops::kScale, [](const Case& test, const Tensors& in, std::int64_t i) {
    return test.attributes.Float("by") * in[0].Get(i);
  });
  CheckElements(ops::kSoftcap, [](const Case& test, const Tensors& in, std::int64_t i) {
    const double cap = test.attributes.Float("cap");
    return cap - 2 * cap / (std::exp(2 * in[0].Get(i) / cap) + 1);
  });
  const std::vector<graph::TensorType> unlike = {{{2, 4, 6}}, {{2, 4, 3}}};
  CHECK_FALSE(ops::kMultiply.infer(unlike, {}).ok());
  CHECK_FALSE(ops::kScaleRows.infer(unlike, {}).ok());
  CHECK_FALSE(ops::kRowDot.infer(unlike, {}).ok());
  CHECK_FALSE(ops::kSoftcap.infer(std::vector<graph::TensorType>{{{2, 4}}}, {{"cap", 0.0}}).ok());
}

TEST_CASE("qkv_split unpacks and rotates") {
  ForEachCaseOf(ops::kQkvSplit, [](const Case& test, const Tensors& in, const Tensors& out) {
    const Shape& x = in[0].type().shape;
    const bool rotary = test.attributes.Int("rotary") != 0;
    double worst = 0;
    for (std::int64_t at = 0; at < in[0].elements(); ++at) {
      const std::int64_t e = at % x[4];
      const std::int64_t j = at / x[4] % x[3];
      const std::int64_t group = at / (x[4] * x[3]);  // over tokens and kv heads
      double expected = in[0].Get(at);
      if (rotary && j < x[3] - 1)
        expected = Turned(test.attributes, in[0], at - e, x[4], e, in[1].Get(group / x[2]));
      double actual = 0;
      if (j < x[3] - 2) actual = out[0].Get((group * (x[3] - 2) + j) * x[4] + e);
      if (j >= x[3] - 2) actual = out[static_cast<size_t>(j - (x[3] - 3))].Get(group * x[4] + e);
      worst = std::max(worst, std::fabs(expected - actual));
    }
    CHECK(worst <= kBound);
  });
}

TEST_CASE("rotate turns heads, and rotate_grad turns them back with the same factor") {
  ForEachCaseOf(ops::kRotate, [](const Case& test, const Tensors& in, const Tensors& out) {
    const Shape& x = in[0].type().shape;
    const Tensor back = RunOp(ops::kRotateGrad, test.attributes, {out[0], in[1]})[0];
    const double factor = graph::RotaryTableOf(test.attributes, x[3]).factor;
    const std::int64_t width = test.attributes.Int("width", x[3]);
    double worst = 0;
    for (std::int64_t at = 0; at < in[0].elements(); ++at) {
      const std::int64_t e = at % x[3];
      const double expected = Turned(test.attributes, in[0], at - e, x[3], e, in[1].Get(at / (x[2] * x[3])));
      worst = std::max(worst, std::fabs(expected - out[0].Get(at)));
      const double scale = e < width ? factor * factor : 1.0;
      worst = std::max(worst, std::fabs(scale * in[0].Get(at) - back.Get(at)));
    }
    CHECK(worst <= kBound);
  });
}

TEST_CASE("dropout") {
  ForEachCaseOf(ops::kDropout, [](const Case& test, const Tensors& in, const Tensors& out) {
    const double below = std::round(test.attributes.Float("p") * 65536);
    const double p = below / 65536;
    const std::int64_t sample = in[0].type().shape.elements(1, 3);
    std::int64_t kept = 0;
    double worst = 0;
    for (std::int64_t i = 0; i < in[0].elements(); ++i) {
      const bool keep = DropoutDrawOf(test.attributes.String("stream"), kFirstSample * sample + i) >= below;
      kept += keep ? 1 : 0;
      worst = std::max(worst, std::fabs((keep ? in[0].Get(i) / (1 - p) : 0.0) - out[0].Get(i)));
    }
    CHECK(worst <= kBound);
    const double share = static_cast<double>(kept) / static_cast<double>(in[0].elements());
    const double deviation = std::sqrt(p * (1 - p) / static_cast<double>(in[0].elements()));
    CHECK(std::fabs(share - (1 - p)) < 4 * deviation);
  });
}

TEST_CASE("linear, embedding and their gradients") {
  ForEachCaseOf(ops::kLinear, [](const Case& test, const Tensors& in, const Tensors& out) {
    const Shape& w = in[1].type().shape;
    const std::int64_t contracted =
        w.elements(w.rank() - static_cast<int>(test.attributes.Int("in_dims")), w.rank());
    const std::int64_t columns = in[1].elements() / contracted;
    double worst = 0;
    for (std::int64_t at = 0; at < out[0].elements(); ++at) {
      double sum = in.size() == 3 ? in[2].Get(at % columns) : 0.0;
      for (std::int64_t i = 0; i < contracted; ++i) {
        sum += in[0].Get(at / columns * contracted + i) * in[1].Get(at % columns * contracted + i);
      }
      worst = std::max(worst, std::fabs(sum - out[0].Get(at)));
    }
    CHECK(worst <= kBound);
  });
  ForEachCaseOf(ops::kEmbedding, [](const Case& test, const Tensors& in, const Tensors& out) {
    const std::int64_t d = in[1].type().shape[1];
    const std::int64_t offset = test.attributes.Int("offset", 0);
    double worst = 0;
    for (std::int64_t at = 0; at < out[0].elements(); ++at) {
      const auto row = static_cast<std::int64_t>(in[0].Get(at / d)) + offset;
      worst = std::max(worst, std::fabs(in[1].Get(row * d + at % d) - out[0].Get(at)));
    }
    CHECK(worst == 0);
  });
}

TEST_CASE("cross entropy ignores padding columns and labels below 0") {
  ForEachCaseOf(ops::kCrossEntropy, [](const Case& test, const Tensors& in, const Tensors& out) {
    const Shape& logits = test.inputs[0].shape;
    const std::int64_t v = logits[logits.rank() - 1];
    const std::int64_t classes = test.attributes.Int("classes");
    const double smoothing = test.attributes.Float("smoothing", 0);
    const double z_loss = test.attributes.Float("z_loss", 0);
    double worst = 0;
    double loss = 0;
    for (std::int64_t token = 0; token < in[1].elements(); ++token) {
      double sum = 0;
      for (std::int64_t i = 0; i < classes; ++i) sum += std::exp(in[0].Get(token * v + i));
      worst = std::max(worst, std::fabs(std::log(sum) - out[0].Get(token)));
      const auto label = static_cast<std::int64_t>(in[1].Get(token));
      // −Σ wanted_i · log p_i, the cross entropy with the wanted distribution, and the square of the log-sum.
      double target = 0;
      for (std::int64_t i = 0; i < classes && label >= 0; ++i) {
        const double wanted = (i == label ? 1 - smoothing : 0.0) + smoothing / static_cast<double>(classes);
        target += wanted * in[0].Get(token * v + i);
        loss -= wanted * (in[0].Get(token * v + i) - std::log(sum));
      }
      worst = std::max(worst, std::fabs(target - out[1].Get(token)));
      if (label >= 0) loss += z_loss * std::log(sum) * std::log(sum);
    }
    CHECK(worst <= kBound);
    graph::Attributes of_sum = test.attributes;
    of_sum.Set("scale", 0.3);
    const Tensors total = RunOp(ops::kLossSum, of_sum, {out[0], out[1], in[1]});
    CHECK(total[0].Get(0) == doctest::Approx(loss).epsilon(kBound));
  });
}

}  // namespace
}  // namespace engine::ops_test
