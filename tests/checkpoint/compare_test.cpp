#include "engine/checkpoint/compare.h"

#include <cstddef>
#include <cstring>
#include <map>
#include <utility>

#include "tests/checkpoint/testing.h"

namespace engine::checkpoint {
namespace {

struct Tensor {
  TensorInfo info;
  std::vector<char> bytes;
};

template <typename T>
Tensor TensorOf(const std::string& name, const Shape& shape, DType dtype, const std::vector<T>& values) {
  Tensor tensor{{name, shape, dtype}, std::vector<char>(values.size() * sizeof(T))};
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

// A checkpoint of these, whole or cut in two along the last dim, each half by a rank of its own.
Reader Written(const std::string& root, std::int64_t iteration, const std::vector<Tensor>& tensors,
               bool is_cut) {
  std::vector<TensorInfo> infos;
  for (const Tensor& tensor : tensors) infos.push_back(tensor.info);
  absl::StatusOr<Writer> writer = Writer::Begin(root, SmallMetadata(iteration), infos);
  REQUIRE_MESSAGE(writer.ok(), Message(writer.status()));
  for (int rank = 0; rank < 2; ++rank) {
    Shard shard;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& tensor = tensors[i];
      Box box = WholeBox(tensor.info.shape);
      const int last = box.count.rank() - 1;
      const bool cut = is_cut && last >= 0 && box.count[last] % 2 == 0;
      if (!cut && rank == 1) continue;
      const std::int64_t row = last < 0 ? 1 : box.count[last];
      const std::int64_t part = cut ? row / 2 : row;
      if (cut) {
        box.count[last] = part;
        box.start[last] = rank * part;
      }
      const std::int64_t size = SizeOf(tensor.info.dtype);
      std::vector<char> bytes;
      for (std::int64_t r = 0; r < tensor.info.shape.elements() / row; ++r) {
        const char* begin = tensor.bytes.data() + (r * row + (cut ? rank * part : 0)) * size;
        bytes.insert(bytes.end(), begin, begin + part * size);
      }
      shard.memory.push_back(std::move(bytes));
      shard.pieces.push_back({static_cast<int>(i), box, shard.memory.back().data()});
    }
    const absl::Status written = writer->WriteShard(rank, shard.pieces);
    REQUIRE_MESSAGE(written.ok(), Message(written));
  }
  REQUIRE(writer->Commit().ok());
  absl::StatusOr<Reader> reader = Reader::Open(IterationPath(root, iteration));
  REQUIRE_MESSAGE(reader.ok(), Message(reader.status()));
  return *std::move(reader);
}

Differences Compared(const Reader& a, const Reader& b) {
  const absl::StatusOr<Differences> differences = Compare(a, b);
  REQUIRE_MESSAGE(differences.ok(), Message(differences.status()));
  return *differences;
}

}  // namespace

TEST_CASE(
    "two checkpoints of one iteration are equal in whatever layout, and in whatever type of the same "
    "numbers") {
  const Scratch a, b;
  const std::vector<float> values = {1, -2, 3, 4, 5, 6, 7, 8};
  const std::vector<std::int64_t> steps = {3};
  const Reader whole =
      Written(a.path(), 3,
              {TensorOf("w", {2, 4}, DType::kF32, values), TensorOf("adam.m/w", {2, 4}, DType::kF32, values),
               TensorOf("steps", {1}, DType::kI64, steps)},
              false);
  const std::vector<double> wide(values.begin(), values.end());
  const Reader cut =
      Written(b.path(), 3,
              {TensorOf("steps", {1}, DType::kI64, steps), TensorOf("adam.m/w", {2, 4}, DType::kF64, wide),
               TensorOf("w", {2, 4}, DType::kF32, values)},
              true);
  const Differences differences = Compared(whole, cut);
  CHECK(differences.empty());
  CHECK(differences.equal == 3);
  CHECK(ToText(differences, false) == "\n3 tensors have the same numbers\n");
}

TEST_CASE("two checkpoints are compared by where they stand and tensor by tensor") {
  const Scratch folder;
  const std::vector<float> values = {1, -2, 3, 4};
  const std::vector<float> moved = {1, -2, 5, 4};
  const std::vector<std::int64_t> three = {3};
  const std::vector<std::int64_t> twelve = {12};
  const Reader a =
      Written(folder.path(), 3,
              {TensorOf("same", {4}, DType::kF32, values), TensorOf("w", {2, 2}, DType::kF32, values),
               TensorOf("turned", {4, 1}, DType::kF32, values), TensorOf("gone", {4}, DType::kF32, values),
               TensorOf("steps", {1}, DType::kI64, three)},
              false);
  const Reader b =
      Written(folder.path(), 12,
              {TensorOf("new", {2, 2}, DType::kF32, values), TensorOf("same", {4}, DType::kF32, values),
               TensorOf("w", {2, 2}, DType::kF32, moved), TensorOf("turned", {1, 4}, DType::kF32, values),
               TensorOf("steps", {1}, DType::kI64, twelve)},
              true);
  const Differences differences = Compared(a, b);
  CHECK(!differences.empty());
  CHECK(differences.equal == 1);
  std::map<std::string, std::string> metadata;
  for (const Differences::Entry& entry : differences.metadata) metadata[entry.name] = entry.a + " " + entry.b;
  CHECK(metadata == std::map<std::string, std::string>{
                        {"iteration", "3 12"}, {"consumed samples", "48 192"}, {"optimizer steps", "3 12"}});
  std::map<std::string, std::string> whats;
  for (const TensorDifference& tensor : differences.tensors) whats[tensor.name] = tensor.what;
  CHECK(whats == std::map<std::string, std::string>{{"w", ""},
                                                    {"turned", "[4, 1] and [1, 4]"},
                                                    {"gone", "only in a, [4]"},
                                                    {"steps", "other bytes of i64"},
                                                    {"new", "only in b, [2, 2]"}});
  const std::string text = ToText(differences, false);
  CHECK(text.find("\ncheckpoint\n  iteration: 3 → 12\n") != std::string::npos);
  CHECK(text.find("  w: 2 of 4, 1 of 4 numbers\n") != std::string::npos);
  CHECK(ToText(differences, true).find("| `w` | 2 of 4, 1 of 4 numbers |\n") != std::string::npos);
  const nlohmann::json json = ToJson(differences);
  CHECK(json["metadata"].size() == 3);
  CHECK(json["tensors"].size() == 5);
  CHECK(json["equal_tensors"] == 1);
}

TEST_CASE("the largest number is that of the whole tensor, also of pieces that are equal") {
  const std::vector<float> equal = {8, -9}, a = {1, 2}, b = {1, 3};
  TensorDifference difference{.name = "x", .what = "", .elements = 4};
  const auto add = [&](const std::vector<float>& of_a, const std::vector<float>& of_b) {
    AddDifferences(DType::kF32, reinterpret_cast<const std::byte*>(of_a.data()), DType::kF32,
                   reinterpret_cast<const std::byte*>(of_b.data()), 2, &difference);
  };
  add(equal, equal);
  add(a, b);
  CHECK(difference.of == 9);
  CHECK(difference.differ == 1);
  CHECK(difference.largest == 1);
}

TEST_CASE("a tensor larger than what is read at once is compared to its last number") {
  const Scratch a, b;
  constexpr std::int64_t kRow = (std::int64_t{1} << 22) + 5;
  std::vector<char> bytes(static_cast<std::size_t>(2 * kRow * 2));
  const TensorInfo info = {"w", {2, kRow}, DType::kBF16};
  const Reader first = Written(a.path(), 1, {{info, bytes}}, false);
  bytes[bytes.size() - 1] = 0x40;  // 2 in the last number
  const Reader second = Written(b.path(), 1, {{info, bytes}}, false);
  const Differences differences = Compared(first, second);
  REQUIRE(differences.tensors.size() == 1);
  CHECK(differences.tensors[0].differ == 1);
  CHECK(differences.tensors[0].largest == 2);
}

}  // namespace engine::checkpoint
