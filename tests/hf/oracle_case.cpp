#include "tests/hf/oracle_case.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>

namespace engine::hf::testing {
namespace {

std::uint64_t Fnv1a64(const std::string& text) {
  std::uint64_t value = 0xCBF29CE484222325;
  for (const char byte : text) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  return value;
}

std::uint64_t SplitMix64(std::uint64_t x) {
  std::uint64_t z = x + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

float RoundToBfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000U);
}

// `about`: [shape, offset, scale].
OracleTensor TensorOf(const std::string& key, const nlohmann::json& about) {
  OracleTensor tensor;
  for (const nlohmann::json& size : about[0]) tensor.shape.push_back(size.get<std::int64_t>());
  const double offset = about[1], scale = about[2];
  const std::uint64_t first = Fnv1a64(key);
  for (std::int64_t i = 0; i < tensor.shape.elements(); ++i) {
    const std::uint64_t z = SplitMix64(first + static_cast<std::uint64_t>(i));
    const double unit = static_cast<double>(z >> 40) / (1 << 23) - 1;
    tensor.values.push_back(RoundToBfloat16(static_cast<float>(offset + scale * unit)));
  }
  return tensor;
}

}  // namespace

OracleFile::OracleFile() {
  std::ifstream in(ENGINE_SOURCE_DIR "/tests/oracles/hf_families.json");
  REQUIRE(in.good());
  file_ = nlohmann::json::parse(in);
}

std::vector<std::string> OracleFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : file_["cases"].items()) names.push_back(name);
  return names;
}

OracleTensors OracleFile::Tensors(const std::string& name) const {
  const nlohmann::json& model = file_["cases"][name];
  OracleTensors tensors;
  for (const auto& [tensor, about] : model["tensors"].items()) {
    tensors[tensor] = TensorOf(model["salt"].get<std::string>() + "/" + tensor, about);
  }
  return tensors;
}

double OracleFile::Error(const std::string& name, const std::vector<float>& logits) const {
  const nlohmann::json& expected = file_["cases"][name]["logits"];
  const size_t classes = expected[0][0].size();
  REQUIRE(logits.size() == static_cast<size_t>(samples() * sequence()) * classes);
  double largest = 0, error = 0;
  for (size_t sample = 0; sample < expected.size(); ++sample) {
    for (size_t place = 0; place < file_["positions"].size(); ++place) {
      const auto column = file_["positions"][place].get<size_t>();
      const float* row = logits.data() + (sample * static_cast<size_t>(sequence()) + column) * classes;
      for (size_t k = 0; k < classes; ++k) {
        const double value = expected[sample][place][k];
        largest = std::max(largest, std::abs(value));
        const double off = std::abs(value - static_cast<double>(row[k]));
        error = std::isnan(off) ? HUGE_VAL : std::max(error, off);
      }
    }
  }
  return error / largest;
}

void WriteModel(const std::string& folder, const nlohmann::json& config, const OracleTensors& tensors,
                bool bfloat16) {
  std::ofstream(folder + "/config.json") << config.dump(2) << '\n';
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    for (const float value : tensor.values) {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      for (int byte = bfloat16 ? 2 : 0; byte < 4; ++byte) data += static_cast<char>(bits >> (8 * byte));
    }
    nlohmann::json shape = nlohmann::json::array();
    for (int dim = 0; dim < tensor.shape.rank(); ++dim) shape.push_back(tensor.shape[dim]);
    header[name] = {
        {"dtype", bfloat16 ? "BF16" : "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::ofstream out(folder + "/model.safetensors", std::ios::binary);
  for (int byte = 0; byte < 8; ++byte) out << static_cast<char>(text.size() >> (8 * byte));
  out << text << data;
  REQUIRE(out.good());
}

}  // namespace engine::hf::testing
