#include "engine/metrics/event_file.h"

#include "tests/metrics/sinks_testing.h"

namespace engine::metrics::testing {

TEST_CASE("checksums of TFRecord's framing") {
  // RFC 3720, B.4: the CRC-32C of 32 bytes of zeros is 0x8a9136aa.
  const std::uint32_t crc = 0x8a9136aa;
  CHECK(MaskedCrc32c(std::string(32, '\0')) == (crc >> 15 | crc << 17) + 0xa282ead8);
}

TEST_CASE("events are byte by byte those that protoc makes (tests/oracles/sink_formats.py)") {
  using Settings = std::vector<std::pair<std::string, Setting>>;
  const std::vector<std::string> golden = HexLines("events.hex");
  const Settings settings = {
      {"model.layers", std::int64_t{12}}, {"fp8", true}, {"kind", std::string("sgd")}, {"lr", 0.5}};
  const std::vector<std::pair<std::string, double>> loss = {{"lm loss", 0.5}};
  const std::vector<std::pair<std::string, double>> two = {{"a", -0.0}, {"b", 0.1}};
  const std::vector<float> spread = {0.5F, -0.25F, 0.5F, 3.0F, 0.53125F, -1e3F, 0.0F, 0x1p-60F};
  const std::vector<float> one = {0.25F};
  std::vector<std::pair<std::string, Histogram>> histograms = {{"weights/a", {}}, {"b", {}}};
  histograms[0].second.Add(spread);
  histograms[1].second.Add(one);
  const std::vector<std::string> tags = {"lm loss"};
  const std::vector<std::string> events = {VersionEvent(1),
                                           SessionStartEvent(1.5, 51),
                                           ScalarsEvent(1, 100, loss),
                                           ScalarsEvent(2, 3'000'000'000, two),
                                           HistogramsEvent(2, 7, histograms),
                                           TextEvent(1, 50, "recipe", "| a | \303\244 |\n"),
                                           ExperimentEvent(1, settings, tags),
                                           HyperParametersEvent(1, Settings{settings[0]}),
                                           HyperParametersEvent(1, Settings{settings[1]}),
                                           HyperParametersEvent(1, Settings{settings[2]}),
                                           HyperParametersEvent(1, Settings{settings[3]}),
                                           SessionEndEvent(1, false)};
  REQUIRE(events.size() == golden.size());
  for (std::size_t e = 0; e < events.size(); ++e) {
    INFO("event " << e);
    CHECK(ToHex(events[e]) == ToHex(golden[e]));
  }
}

}  // namespace engine::metrics::testing
