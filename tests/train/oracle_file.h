// The results of an oracle (tests/oracles/decoder.h5 and texts.h5; torch_decoder.py and torch_texts.py describe them).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace engine::train::testing {

// One model's group. A name that is not there ends the test program with HDF5's own trace.
class OracleGroup {
 public:
  OracleGroup(const std::string& path, const std::string& group);
  ~OracleGroup();
  OracleGroup(const OracleGroup&) = delete;
  OracleGroup& operator=(const OracleGroup&) = delete;

  // Whole datasets, row-major, by their path in the group; numbers are converted.
  std::vector<float> Floats(const std::string& dataset) const;
  std::vector<double> Doubles(const std::string& dataset) const;
  std::vector<std::int32_t> Integers(const std::string& dataset) const;
  std::vector<std::string> NamesIn(const std::string& subgroup) const;  // of datasets, sorted

  // Attributes: of the group, or ("loss", "float32_max_error") of what lies in it. Booleans are 0 and 1.
  double Number(const std::string& attribute) const { return Number(".", attribute); }
  double Number(const std::string& object, const std::string& attribute) const;
  std::string Text(const std::string& attribute) const;

 private:
  std::int64_t file_ = -1;
  std::int64_t group_ = -1;
};

}  // namespace engine::train::testing
