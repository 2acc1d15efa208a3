#include "engine/checkpoint/index_file.h"

#include <cstdlib>

#include "tests/checkpoint/testing.h"

namespace engine::checkpoint {
namespace {

TEST_CASE("h5py reads every tensor whole from index.h5, from any working folder, and after a move") {
  if (std::system("/usr/bin/python3 -c 'import h5py' 2>/dev/null") != 0) {
    MESSAGE("skipped: Debian's python3-h5py is not installed");
    return;
  }
  const Scratch scratch;
  const std::vector<TensorInfo> tensors = {{"layers.0.weight", {6, 10}, DType::kF32},
                                           {"adam.m/layers.0.weight", {6, 10}, DType::kF64},
                                           {"half", {8}, DType::kF16},
                                           {"brain", {8}, DType::kBF16},
                                           {"scale", {}, DType::kF32},
                                           {"tokens", {4}, DType::kU16}};
  // Element i is the number i, in each dtype.
  std::vector<float> f32(60);
  std::vector<double> f64(60);
  for (int i = 0; i < 60; ++i) f64[i] = f32[i] = static_cast<float>(i);
  const std::vector<std::uint16_t> half = {0x0000, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700};
  const std::vector<std::uint16_t> brain = {0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
  const std::vector<std::uint16_t> tokens = {0, 1, 2, 3};
  std::vector<float> right;  // columns 4..9
  std::vector<float> left;
  for (int i = 0; i < 60; ++i) (i % 10 < 4 ? left : right).push_back(f32[i]);
  absl::StatusOr<Writer> writer = Writer::Begin(scratch.path(), SmallMetadata(1), tensors);
  REQUIRE(writer.ok());
  REQUIRE(writer
              ->WriteShard(0, {{0, {{0, 0}, {6, 4}}, left.data()},
                               {1, {{0, 0}, {2, 10}}, f64.data()},
                               {2, {{0}, {8}}, half.data()},
                               {4, {{}, {}}, &f32[7]},
                               {5, {{0}, {4}}, tokens.data()}})
              .ok());
  REQUIRE(writer
              ->WriteShard(1003, {{0, {{0, 4}, {6, 6}}, right.data()},
                                  {1, {{2, 0}, {4, 10}}, f64.data() + 20},
                                  {3, {{0}, {8}}, brain.data()}})
              .ok());
  REQUIRE(writer->Commit().ok());
  std::filesystem::rename(scratch.path() + "/iteration_0000001", scratch.path() + "/moved");
  WriteText(scratch.path() + "/check.py", R"(
import sys, h5py, numpy as np
f = h5py.File(sys.argv[1], "r")
def same(name, shape, kind):
    d = f[name]
    assert d.dtype == kind, (name, d.dtype)
    assert d.shape == shape, (name, d.shape)
    want = np.arange(int(np.prod(shape))).reshape(shape)
    assert (d[()] == want).all(), (name, d[()])
same("layers.0.weight", (6, 10), "float32")
same("adam.m/layers.0.weight", (6, 10), "float64")
same("half", (8,), "float16")
same("brain", (8,), "float32")
same("tokens", (4,), "uint16")
assert f["scale"][()] == 7 and f["scale"].shape == ()
assert f["layers.0.weight"].is_virtual and f["brain"].attrs["dtype"] == b"bf16"
shard = h5py.File(sys.argv[1].replace("index", "ranks_001/rank_01003"), "r")
piece = shard["layers.0.weight@0,4"]
assert list(piece.attrs["start"]) == [0, 4] and list(piece.attrs["count"]) == [6, 6]
assert piece.attrs["tensor"] == b"layers.0.weight" and piece[0, 0] == 4
)");
  const std::string command =
      "cd / && /usr/bin/python3 " + scratch.path() + "/check.py " + scratch.path() + "/moved/index.h5";
  CHECK(std::system(command.c_str()) == 0);
}

}  // namespace
}  // namespace engine::checkpoint
