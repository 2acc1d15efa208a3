// What the checkpoint tests share: a scratch folder, a small model whose content is a function, cuts of it.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "engine/base/status.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/write.h"

namespace engine::checkpoint {

class Scratch {
 public:
  Scratch() {
    std::string name = std::filesystem::temp_directory_path() / "checkpoint_test_XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Scratch() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string ReadText(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

inline bool Contains(const absl::Status& status, const std::string& part) {
  INFO("status: " << Message(status));
  CHECK(Message(status).find(part) != std::string::npos);
  return !status.ok();
}

// Byte `index` of a tensor's content at an iteration.
inline char ContentByte(PhiloxKey key, std::int64_t index, std::int64_t iteration) {
  return static_cast<char>(
      PhiloxWord(key, static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(iteration)));
}

// The box's elements, row-major. Floats may be NaNs: content is compared as bytes.
inline std::vector<char> Content(const TensorInfo& tensor, const Box& box, std::int64_t iteration) {
  const PhiloxKey key = MakePhiloxKey(7, tensor.name);
  const std::int64_t size = SizeOf(tensor.dtype);
  std::vector<char> bytes;
  for (std::int64_t flat = 0; flat < box.count.elements(); ++flat) {
    std::int64_t rest = flat;
    std::int64_t logical = 0;
    std::int64_t stride = 1;
    for (int dim = tensor.shape.rank() - 1; dim >= 0; --dim) {
      logical += (box.start[dim] + rest % box.count[dim]) * stride;
      rest /= box.count[dim];
      stride *= tensor.shape[dim];
    }
    for (std::int64_t i = 0; i < size; ++i) bytes.push_back(ContentByte(key, logical * size + i, iteration));
  }
  return bytes;
}

inline std::vector<TensorInfo> SmallModel() {
  return {{"embedding.word.weight", {37, 24}, DType::kF32},
          {"layers.0.attention.qkv.weight", {24, 72}, DType::kBF16},
          {"layers.0.norm.weight", {24}, DType::kF32},
          {"adam.m/layers.0.norm.weight", {24}, DType::kF64},
          {"experts.weight", {3, 5, 7, 2}, DType::kF16},
          {"loss_scale", {}, DType::kF32},
          {"steps", {1}, DType::kI64}};
}

inline Metadata SmallMetadata(std::int64_t iteration) {
  Metadata metadata;
  metadata.iteration = iteration;
  metadata.consumed_samples = iteration * 16;
  metadata.seed = 1234;
  metadata.optimizer_steps = iteration;
  metadata.plan_hash = "0123456789abcdef";
  metadata.recipe_toml = "[training]\nseed = 1234 # \"quoted\" ü\n";
  metadata.engine_version = "0.1.0";
  metadata.mesh = {{"dp", 2}, {"tp", 2}, {"pp", 1}, {"cp", 1}, {"ep", 1}};
  return metadata;
}

using Random = std::mt19937_64;
inline std::int64_t Draw(Random& random, std::int64_t from, std::int64_t to) {  // both included
  return std::uniform_int_distribution<std::int64_t>(from, to)(random);
}

// The shape cut into boxes by `cuts` random planes, each through one of the boxes so far.
inline std::vector<Box> RandomCut(const Shape& shape, int cuts, Random& random) {
  std::vector<Box> boxes = {WholeBox(shape)};
  for (int i = 0; i < cuts && shape.rank() > 0; ++i) {
    const std::size_t which =
        static_cast<std::size_t>(Draw(random, 0, static_cast<std::int64_t>(boxes.size()) - 1));
    const int dim = static_cast<int>(Draw(random, 0, shape.rank() - 1));
    Box right = boxes[which];
    if (right.count[dim] < 2) continue;
    const std::int64_t at = Draw(random, 1, right.count[dim] - 1);
    boxes[which].count[dim] = at;
    right.start[dim] += at;
    right.count[dim] -= at;
    boxes.push_back(right);
  }
  return boxes;
}

inline Box RandomBox(const Shape& shape, Random& random) {
  Box box;
  for (std::int64_t size : shape) {
    const std::int64_t start = Draw(random, 0, size - 1);
    box.start.push_back(start);
    box.count.push_back(Draw(random, 1, size - start));
  }
  return box;
}

// A rank's pieces with their memory.
struct Shard {
  std::vector<PieceToWrite> pieces;
  std::vector<std::vector<char>> memory;

  void Add(const std::vector<TensorInfo>& tensors, int tensor, const Box& box, std::int64_t iteration) {
    memory.push_back(Content(tensors[tensor], box, iteration));
    pieces.push_back({tensor, box, memory.back().data()});
  }
};

// Every tensor cut at random and dealt to the ranks at random.
inline std::vector<Shard> DealShards(const std::vector<TensorInfo>& tensors, int ranks,
                                     std::int64_t iteration, Random& random) {
  std::vector<Shard> shards(static_cast<std::size_t>(ranks));
  for (int tensor = 0; tensor < static_cast<int>(tensors.size()); ++tensor) {
    for (const Box& box : RandomCut(tensors[tensor].shape, 5, random)) {
      shards[static_cast<std::size_t>(Draw(random, 0, ranks - 1))].Add(tensors, tensor, box, iteration);
    }
  }
  return shards;
}

inline absl::Status WriteSmall(const std::string& root, std::int64_t iteration, int ranks, Random& random) {
  const std::vector<TensorInfo> tensors = SmallModel();
  ASSIGN_OR_RETURN(Writer writer, Writer::Begin(root, SmallMetadata(iteration), tensors));
  const std::vector<Shard> shards = DealShards(tensors, ranks, iteration, random);
  for (int rank = 0; rank < ranks; ++rank) {
    RETURN_IF_ERROR(writer.WriteShard(rank, shards[static_cast<std::size_t>(rank)].pieces));
  }
  return writer.Commit();
}

inline void CheckWholeContent(const Reader& reader) {
  for (const TensorInfo& tensor : reader.tensors()) {
    const Box whole = WholeBox(tensor.shape);
    const std::vector<char> expected = Content(tensor, whole, reader.metadata().iteration);
    std::vector<char> actual(expected.size());
    const absl::Status status = reader.Read(tensor.name, whole, actual.data());
    INFO(tensor.name << " " << Message(status));
    CHECK(status.ok());
    CHECK(actual == expected);
  }
}

}  // namespace engine::checkpoint
