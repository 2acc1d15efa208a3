#include "tests/train/oracle_file.h"

#include <doctest/doctest.h>
#include <hdf5.h>

#include <algorithm>

namespace engine::train::testing {
namespace {

template <typename T>
std::vector<T> ReadAll(hid_t group, const std::string& name, hid_t type) {
  const hid_t dataset = H5Dopen2(group, name.c_str(), H5P_DEFAULT);
  REQUIRE_MESSAGE(dataset >= 0, name);
  const hid_t space = H5Dget_space(dataset);
  std::vector<T> values(static_cast<size_t>(H5Sget_simple_extent_npoints(space)));
  REQUIRE(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  H5Sclose(space);
  H5Dclose(dataset);
  return values;
}

}  // namespace

OracleGroup::OracleGroup(const std::string& path, const std::string& group)
    : file_(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)) {
  REQUIRE_MESSAGE(file_ >= 0, path);
  group_ = H5Gopen2(file_, group.c_str(), H5P_DEFAULT);
  REQUIRE_MESSAGE(group_ >= 0, group);
}

OracleGroup::~OracleGroup() {
  H5Gclose(group_);
  H5Fclose(file_);
}

std::vector<float> OracleGroup::Floats(const std::string& dataset) const {
  return ReadAll<float>(group_, dataset, H5T_NATIVE_FLOAT);
}

std::vector<double> OracleGroup::Doubles(const std::string& dataset) const {
  return ReadAll<double>(group_, dataset, H5T_NATIVE_DOUBLE);
}

std::vector<std::int32_t> OracleGroup::Integers(const std::string& dataset) const {
  return ReadAll<std::int32_t>(group_, dataset, H5T_NATIVE_INT32);
}

std::vector<std::string> OracleGroup::NamesIn(const std::string& subgroup) const {
  std::vector<std::string> names;
  const auto visit = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
  };
  REQUIRE(H5Literate_by_name(group_, subgroup.c_str(), H5_INDEX_NAME, H5_ITER_INC, nullptr, visit, &names,
                             H5P_DEFAULT) >= 0);
  std::sort(names.begin(), names.end());
  return names;
}

double OracleGroup::Number(const std::string& object, const std::string& attribute) const {
  const hid_t id = H5Aopen_by_name(group_, object.c_str(), attribute.c_str(), H5P_DEFAULT, H5P_DEFAULT);
  REQUIRE_MESSAGE(id >= 0, attribute);
  const hid_t type = H5Aget_type(id);
  double value = 0;
  if (H5Tget_class(type) == H5T_ENUM) {  // h5py's boolean: an enumeration of int8
    signed char flag = 0;
    REQUIRE(H5Aread(id, type, &flag) >= 0);
    value = flag;
  } else {
    REQUIRE(H5Aread(id, H5T_NATIVE_DOUBLE, &value) >= 0);
  }
  H5Tclose(type);
  H5Aclose(id);
  return value;
}

std::string OracleGroup::Text(const std::string& attribute) const {
  const hid_t id = H5Aopen(group_, attribute.c_str(), H5P_DEFAULT);
  REQUIRE_MESSAGE(id >= 0, attribute);
  const hid_t type = H5Aget_type(id);
  char* text = nullptr;
  REQUIRE(H5Tis_variable_str(type) > 0);
  REQUIRE(H5Aread(id, type, &text) >= 0);
  const std::string result = text;
  H5free_memory(text);
  H5Tclose(type);
  H5Aclose(id);
  return result;
}

}  // namespace engine::train::testing
