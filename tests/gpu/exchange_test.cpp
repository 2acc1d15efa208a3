// The kernels around an exchange: boxes against a copy on the host, the log-sum-exp against float64, sums
// against the same sum on the host, bit by bit.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/backend/cuda/kernels/exchange.h"
#include "engine/base/half.h"
#include "tests/gpu/gpu.h"

namespace engine::gpu_test {
namespace {

using backend::Box;

class DeviceBytes {
 public:
  explicit DeviceBytes(const std::vector<std::byte>& host) : bytes_(host.size()) {
    REQUIRE(cudaMalloc(&data_, bytes_) == cudaSuccess);
    REQUIRE(cudaMemcpy(data_, host.data(), bytes_, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  void* data() const { return data_; }
  std::vector<std::byte> Read() const {
    std::vector<std::byte> host(bytes_);
    REQUIRE(cudaMemcpy(host.data(), data_, bytes_, cudaMemcpyDeviceToHost) == cudaSuccess);
    return host;
  }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

void PackNumber(DType dtype, double x, std::byte* to) {
  const auto put = [&](const auto& number) { std::memcpy(to, &number, sizeof(number)); };
  if (dtype == DType::kF64) return put(x);
  const auto narrow = static_cast<float>(x);
  if (dtype == DType::kF32) return put(narrow);
  put(dtype == DType::kF16 ? HalfFromFloat(narrow) : BFloat16FromFloat(narrow));
}
// As the dtype holds it.
double RoundedNumber(DType dtype, double x) {
  if (dtype == DType::kF64) return x;
  const auto narrow = static_cast<float>(x);
  if (dtype == DType::kF32) return narrow;
  return dtype == DType::kF16 ? FloatFromHalf(HalfFromFloat(narrow))
                              : FloatFromBFloat16(BFloat16FromFloat(narrow));
}

struct Summed {
  DType dtype;
  std::int64_t members, index, n;
  std::int64_t shift;  // of all data from a border of 16 bytes, in elements
  bool in_place;
};

void CheckSum(const Summed& s) {
  const auto size = static_cast<std::size_t>(SizeOf(s.dtype));
  const std::size_t shift = static_cast<std::size_t>(s.shift) * size;
  const auto n = static_cast<std::size_t>(s.n);
  const std::size_t slot = (n * size + 255) / 256 * 256;
  std::vector<std::byte> own(shift + n * size);
  std::vector<std::byte> received(shift + slot * static_cast<std::size_t>(s.members), std::byte{0xFF});
  std::vector<std::byte> expected(shift + n * size + 64, std::byte{0xFF});  // nothing behind it is written
  const DeviceBytes out(expected);
  for (std::size_t i = 0; i < n; ++i) {
    double wide = 0;
    float sum = 0;
    std::size_t at = 0;
    for (std::int64_t m = 0; m < s.members; ++m) {
      const double x =
          RoundedNumber(s.dtype, 3 * std::sin(static_cast<double>(i) * 1.7 + static_cast<double>(m) * 2.3));
      wide += x;
      sum += static_cast<float>(x);
      std::byte* const part = m == s.index ? own.data() + shift : received.data() + shift + slot * at++;
      PackNumber(s.dtype, x, part + i * size);
    }
    PackNumber(s.dtype, s.dtype == DType::kF64 ? wide : static_cast<double>(sum),
               expected.data() + shift + i * size);
  }
  std::vector<std::byte> own_and_guard = own;
  own_and_guard.resize(expected.size(), std::byte{0xFF});
  for (std::size_t i = 0; i < shift; ++i) own_and_guard[i] = std::byte{0xFF};
  const DeviceBytes device_own(own_and_guard);
  const DeviceBytes device_received(received);
  const DeviceBytes& target = s.in_place ? device_own : out;
  const auto shifted = [&](const DeviceBytes& bytes) {
    return static_cast<std::byte*>(bytes.data()) + shift;
  };
  CHECK(backend::cuda::SumParts(shifted(device_own), shifted(device_received),
                                static_cast<std::int64_t>(slot), s.members, s.index, s.dtype, s.n,
                                shifted(target), nullptr));
  CHECK((target.Read() == expected));
}

// What `to` holds after the box was copied, by a walk over its elements.
void CopyOnHost(const std::vector<std::byte>& from, const Box& box, std::size_t element_bytes,
                std::vector<std::byte>* to) {
  for (std::int64_t i = 0; i < box.elements(); ++i) {
    std::int64_t rest = i;
    std::int64_t at_from = box.from;
    std::int64_t at_to = box.to;
    for (std::size_t loop = Box::kLoops; loop-- > 0;) {
      at_from += rest % box.size[loop] * box.from_stride[loop];
      at_to += rest % box.size[loop] * box.to_stride[loop];
      rest /= box.size[loop];
    }
    std::memcpy(to->data() + static_cast<std::size_t>(at_to) * element_bytes,
                from.data() + static_cast<std::size_t>(at_from) * element_bytes, element_bytes);
  }
}

void CheckBox(const Extent& from, const Shape& from_shape, const Extent& to, const Shape& to_shape,
              std::size_t element_bytes) {
  std::vector<std::byte> source(static_cast<std::size_t>(from_shape.elements()) * element_bytes);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 37 % 251);
  const std::vector<std::byte> poison(static_cast<std::size_t>(to_shape.elements()) * element_bytes,
                                      std::byte{0xFF});
  const DeviceBytes device_from(source);
  const DeviceBytes device_to(poison);
  std::vector<std::byte> expected = poison;
  for (const Box& box : backend::CommonBoxes(from, from_shape, to, to_shape)) {
    backend::cuda::CopyBox(device_from.data(), device_to.data(), box,
                           static_cast<std::int64_t>(element_bytes), nullptr);
    CopyOnHost(source, box, element_bytes, &expected);
  }
  CHECK((device_to.Read() == expected));
}

}  // namespace

TEST_CASE("exchange: boxes in words of every size") {
  for (const std::size_t element_bytes : {1U, 2U, 4U, 8U}) {
    for (const std::int64_t inner : {64, 24, 5, 1}) {
      INFO(element_bytes << " bytes, inner dim " << inner);
      const Shape whole = {3, 16, 6, inner};
      Extent part = Extent::Whole(whole);
      part.dims[1] = {Interval{4, 4}, Interval{12, 4}};  // a zigzag split of the sequence
      CheckBox(Extent::Whole(whole), whole, part, {3, 8, 6, inner}, element_bytes);
      CheckBox(part, {3, 8, 6, inner}, Extent::Whole(whole), whole, element_bytes);
      Extent heads = Extent::Whole(whole);
      heads.dims[2] = {Interval{1, 3}};
      CheckBox(part, {3, 8, 6, inner}, heads, {3, 16, 3, inner}, element_bytes);
    }
  }
  // More words than one pass of the largest grid takes.
  const Shape large = {1 << 12, 2, 1 << 10};
  Extent half = Extent::Whole(large);
  half.dims[1] = {Interval{1, 1}};
  CheckBox(Extent::Whole(large), large, half, {1 << 12, 1, 1 << 10}, 2);
}

TEST_CASE("exchange: log-sum-exp over members") {
  constexpr std::int64_t kMembers = 3;
  constexpr std::int64_t kCount = 1000;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  std::vector<float> parts(kMembers * kCount);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = 20 * std::sin(static_cast<float>(i));
  for (std::size_t member = 0; member < kMembers; ++member) parts[member * kCount] = kNothing;
  parts[1] = std::numeric_limits<float>::quiet_NaN();
  parts[kCount + 2] = kNothing;
  std::vector<std::byte> bytes(parts.size() * sizeof(float));
  std::memcpy(bytes.data(), parts.data(), bytes.size());
  const DeviceBytes device_parts(bytes);
  const DeviceBytes device_out(std::vector<std::byte>(kCount * sizeof(float), std::byte{0xFF}));
  backend::cuda::CombineLogSumExp(static_cast<const float*>(device_parts.data()), kMembers, kCount,
                                  static_cast<float*>(device_out.data()), nullptr);
  std::vector<float> out(kCount);
  std::memcpy(out.data(), device_out.Read().data(), kCount * sizeof(float));
  CHECK(out[0] == kNothing);
  CHECK(std::isnan(out[1]));
  double worst = 0;
  for (std::size_t i = 2; i < kCount; ++i) {
    double sum = 0;
    for (std::size_t member = 0; member < kMembers; ++member) {
      sum += std::exp(static_cast<double>(parts[member * kCount + i]));
    }
    worst = std::max(worst, std::abs(static_cast<double>(out[i]) - std::log(sum)));
  }
  // Numbers up to 20 with 2⁻²⁴ of relative rounding, in the difference from the largest, in exp, log and the
  // sum: less than eight roundings of 20.
  CHECK(worst <= 8 * 20 * 0x1p-24);
}

TEST_CASE("exchange: sums of parts in order of member") {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
    for (const std::int64_t n : {0, 1, 7, 64, 1001, 40'009}) {
      for (const std::int64_t members : {2, 3, 5}) {
        for (const std::int64_t index : {std::int64_t{0}, members - 1, members / 2}) {
          for (const std::int64_t shift : {0, 1}) {
            INFO(std::string(Name(dtype))
                 << ", " << n << " elements of " << members << ", own " << index << ", shift " << shift);
            CheckSum({dtype, members, index, n, shift, false});
            CheckSum({dtype, members, index, n, shift, true});
          }
        }
      }
    }
  }
  CheckSum({DType::kBF16, 2, 1, 6'000'011, 0, false});  // more than one pass of the largest grid
  CHECK(!backend::cuda::SumParts(nullptr, nullptr, 0, 2, 0, DType::kI32, 0, nullptr, nullptr));
}

}  // namespace engine::gpu_test
