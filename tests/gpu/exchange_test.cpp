// The kernels around an exchange: boxes against a copy on the host, the log-sum-exp against float64.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/backend/cuda/kernels/exchange.h"
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

}  // namespace engine::gpu_test
