// Frequencies of rotary position embedding against published numbers: those that Hugging Face's transformers computes for
// the models' own settings (to 3e-7 in its fp32), and formulas written once more.
#include "engine/graph/rotary.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

namespace engine::graph {
namespace {

// 9 published digits.
doctest::Approx Published(double value) { return doctest::Approx(value).epsilon(5e-9); }

Attributes Yarn(double base, double factor) {
  return {{"base", base}, {"factor", factor}, {"original", 4096.0}, {"scaling", std::string("yarn")}};
}

}  // namespace

TEST_CASE("rotary: Llama 3.1") {
  Attributes attributes = {{"base", 5e5}, {"factor", 8.0}, {"low", 1.0}, {"high", 4.0}, {"original", 8192.0}};
  for (const bool named : {false, true}) {
    if (named) attributes.Set("scaling", std::string("llama3"));
    const RotaryTable table = RotaryTableOf(attributes, 128);
    CHECK(table.half == 64);
    CHECK(table.factor == 1);
    CHECK(table.frequencies[0] == 1);
    CHECK(table.frequencies[20] == Published(.0165604409));
    CHECK(table.frequencies[30] == Published(.00137189368));
    CHECK(table.frequencies[40] == Published(3.42810235e-5));
    CHECK(table.frequencies[63] == Published(3.06892588e-7));
  }
}

TEST_CASE("rotary: yarn, stretched 16 and 32 times") {
  const RotaryTable by_16 = RotaryTableOf(Yarn(1e4, 16), 128);
  CHECK(by_16.factor == doctest::Approx(1.277259).epsilon(4e-7));
  CHECK(by_16.frequencies[20] == Published(.0562341325));  // the last that is not stretched
  CHECK(by_16.frequencies[30] == Published(.00852684377));
  CHECK(by_16.frequencies[63] == Published(7.2173874e-6));
  CHECK(by_16.frequencies[46] ==
        doctest::Approx(std::pow(1e4, -92.0 / 128) / 16));  // the first that is whole
  CHECK(by_16.frequencies[45] > 1.01 * std::pow(1e4, -90.0 / 128) / 16);
  const RotaryTable by_32 = RotaryTableOf(Yarn(1e4, 32), 128);
  CHECK(by_32.factor == doctest::Approx(1.346574).epsilon(4e-7));
  CHECK(by_32.frequencies[30] == Published(.00836656475));
  CHECK(by_32.frequencies[63] == Published(3.6086937e-6));
}

TEST_CASE("rotary: gpt-oss, whose yarn is not rounded") {
  Attributes attributes = Yarn(150000, 32);
  attributes.Set("truncate", std::int64_t{0});
  const RotaryTable table = RotaryTableOf(attributes, 64);
  CHECK(table.half == 32);
  CHECK(table.frequencies[20] == Published(1.81883367e-5));
  CHECK(table.frequencies[31] == Published(3.02351143e-7));
  // Between 8.0928 and 17.3980.
  CHECK(table.frequencies[8] == doctest::Approx(std::pow(150000, -16.0 / 64)).epsilon(1e-12));
  const double slow = (9 - 8.0928) / (17.3980 - 8.0928);
  CHECK(table.frequencies[9] ==
        doctest::Approx(std::pow(150000, -18.0 / 64) * (1 - slow + slow / 32)).epsilon(2e-5));
}

// DeepSeek-V3: the model scales its scores instead.
TEST_CASE("rotary: yarn takes its factor from the attribute") {
  Attributes attributes = Yarn(1e4, 40);
  attributes.Set("attention_factor", 1.0);
  const RotaryTable table = RotaryTableOf(attributes, 64);
  CHECK(table.factor == 1);
  // Bands between 10 and 23 of 64.
  CHECK(table.frequencies[10] == doctest::Approx(std::pow(1e4, -20.0 / 64)).epsilon(1e-12));
  CHECK(table.frequencies[11] < .99 * std::pow(1e4, -22.0 / 64));
  CHECK(table.frequencies[22] > 1.01 * std::pow(1e4, -44.0 / 64) / 40);
  CHECK(table.frequencies[23] == doctest::Approx(std::pow(1e4, -46.0 / 64) / 40).epsilon(1e-12));
}

TEST_CASE("rotary: linear and ntk") {
  const Attributes linear = {{"base", 1e6}, {"factor", 8.0}, {"scaling", std::string("linear")}};
  const RotaryTable gemma = RotaryTableOf(linear, 256);
  CHECK(gemma.factor == 1);
  CHECK(gemma.frequencies[0] == .125);
  CHECK(gemma.frequencies[127] == doctest::Approx(std::pow(1e6, -254.0 / 256) / 8).epsilon(1e-12));
  const Attributes ntk = {{"base", 1e4}, {"factor", 4.0}, {"scaling", std::string("ntk")}};
  const RotaryTable table = RotaryTableOf(ntk, 128);
  CHECK(table.frequencies[0] == 1);
  // What the exponent is for: the slowest pair is stretched by the whole factor, exactly.
  CHECK(table.frequencies[63] == doctest::Approx(std::pow(1e4, -126.0 / 128) / 4).epsilon(1e-12));
  CHECK(table.frequencies[32] ==
        doctest::Approx(std::pow(1e4 * std::pow(4, 128.0 / 126), -.5)).epsilon(1e-12));
}

// Phi-3-mini-128k: original 4096, 32 times as many; transformers' factor is 1.19023807.
TEST_CASE("rotary: longrope") {
  Attributes attributes = {{"base", 1e4},
                           {"factor", 32.0},
                           {"original", 4096.0},
                           {"scaling", std::string("longrope")},
                           {"factors", std::string("1.08,2.5,64")}};
  const RotaryTable table = RotaryTableOf(attributes, 6);
  CHECK(table.factor == Published(1.19023807));
  CHECK(table.frequencies[0] == doctest::Approx(1 / 1.08).epsilon(1e-12));
  CHECK(table.frequencies[1] == doctest::Approx(std::pow(1e4, -1.0 / 3) / 2.5).epsilon(1e-12));
  CHECK(table.frequencies[2] == doctest::Approx(std::pow(1e4, -2.0 / 3) / 64).epsilon(1e-12));
  attributes.Set("factor", 1.0);  // the list for short sequences
  CHECK(RotaryTableOf(attributes, 6).factor == 1);
}

TEST_CASE("rotary: a part of the head, whose frequencies are those of its width") {
  const Attributes attributes = {
      {"base", 1e4}, {"width", std::int64_t{16}}, {"interleaved", std::int64_t{1}}};
  const RotaryTable table = RotaryTableOf(attributes, 64);
  CHECK(table.half == 8);
  CHECK(table.interleaved);
  CHECK(table.frequencies[7] == doctest::Approx(std::pow(1e4, -14.0 / 16)).epsilon(1e-12));
}

TEST_CASE("rotary: attributes that fit nothing are refused") {
  const auto refused = [](const Attributes& attributes) { return Message(CheckRotary(attributes, 8)); };
  CHECK(refused({{"base", 1e4}}).empty());
  CHECK(refused({{"base", 1e4}, {"width", std::int64_t{7}}}) ==
        "rotary width 7 of heads of 8: an even number up to 8 is due");
  CHECK(refused({{"base", 1e4}, {"width", std::int64_t{10}}}) ==
        "rotary width 10 of heads of 8: an even number up to 8 is due");
  CHECK(refused({{"base", 1e4}, {"scaling", std::string("dynamic")}}) ==
        "there is no rotary scaling dynamic");
  CHECK(refused({{"base", 1e4}, {"scaling", std::string("ntk")}, {"width", std::int64_t{2}}}) ==
        "rotary scaling ntk of a width of 2: its exponent is width/(width - 2)");
  const auto listed = [&](const std::string& factors) {
    return refused({{"base", 1e4}, {"scaling", std::string("longrope")}, {"factors", factors}});
  };
  CHECK(listed("1,2,3,4").empty());
  CHECK(listed("1,2,3") == "3 rotary factors for a width of 8, which has 4 pairs");
  for (const std::string list : {"1,2,3,x", "1,2,3,4,", "", "1,2,3,-4", "1;2,3,4"})
    CHECK(listed(list) == "rotary factors \"" + list + "\" are not all numbers above 0");
}

}  // namespace engine::graph
