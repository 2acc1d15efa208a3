#include "engine/checkpoint/hdf5_library.h"

#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "engine/base/status.h"

namespace engine::checkpoint {
namespace {

std::mutex& GlobalLock() {
  static std::mutex lock;
  return lock;
}

// A 16-bit little-endian float: sign, `exponent_bits`, the rest mantissa.
Hid SmallFloat(std::size_t exponent_bits, std::size_t exponent_bias) {
  const std::size_t mantissa_bits = 15 - exponent_bits;
  Hid type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits);
  H5Tset_precision(type.get(), 16);
  H5Tset_size(type.get(), 2);
  H5Tset_ebias(type.get(), exponent_bias);
  return type;
}

}  // namespace

// The system is asked, as an allocation that nothing is written to may be optimized away.
absl::Status ExpectMemoryForHdf5() {
  constexpr std::size_t kBytes = std::size_t{128} << 20;
  void* const room = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return ResourceExhausted("not enough memory");
  munmap(room, kBytes);
  return absl::OkStatus();
}

Hdf5Session::Hdf5Session() : lock_(GlobalLock()) {
  H5Eget_auto2(H5E_DEFAULT, &printer_, &printer_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Session::~Hdf5Session() { H5Eset_auto2(H5E_DEFAULT, printer_, printer_data_); }

Hid FileType(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return Hid(H5Tcopy(H5T_IEEE_F64LE), H5Tclose);
    case DType::kF32:
      return Hid(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    case DType::kBF16:
      return SmallFloat(8, 127);
    case DType::kF16:
      return SmallFloat(5, 15);
    case DType::kI64:
      return Hid(H5Tcopy(H5T_STD_I64LE), H5Tclose);
    case DType::kI32:
      return Hid(H5Tcopy(H5T_STD_I32LE), H5Tclose);
    case DType::kU16:
      return Hid(H5Tcopy(H5T_STD_U16LE), H5Tclose);
    case DType::kU8:
      return Hid(H5Tcopy(H5T_STD_U8LE), H5Tclose);
    case DType::kE4M3:
    case DType::kE5M2:
      break;  // never stored: made from wider weights on the device
  }
  return {};
}

Hid SpaceOf(const Shape& shape) {
  if (shape.rank() == 0) return Hid(H5Screate(H5S_SCALAR), H5Sclose);
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  return Hid(H5Screate_simple(shape.rank(), dims.data(), nullptr), H5Sclose);
}

Hid LinksWithGroups() {
  Hid properties(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(properties.get(), 1);
  return properties;
}

Hid DatasetProperties() {
  Hid properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(properties.get(), false);
  return properties;
}

Hid CreateHdf5File(const File& memory) {
  constexpr hsize_t kPageBytes = 4096;
  Hid access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_fapl_sec2(access.get());
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  H5Pset_alignment(access.get(), kPageBytes, kPageBytes);
  Hid file(H5Fcreate(memory.path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose);
  unlink(memory.path().c_str());
  return file;
}

bool PutAttribute(const Hid& object, const char* name, const std::string& text) {
  const Hid type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), text.size());
  const Hid space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hid attribute(H5Acreate2(object.get(), name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
                      H5Aclose);
  return attribute.ok() && H5Awrite(attribute.get(), type.get(), text.data()) >= 0;
}

bool PutAttribute(const Hid& object, const char* name, const Shape& numbers) {
  if (numbers.rank() == 0) return true;
  const Hid space = SpaceOf(Shape({numbers.rank()}));
  const std::vector<std::int64_t> values(numbers.begin(), numbers.end());
  const Hid attribute(H5Acreate2(object.get(), name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                      H5Aclose);
  return attribute.ok() && H5Awrite(attribute.get(), H5T_NATIVE_INT64, values.data()) >= 0;
}

}  // namespace engine::checkpoint
