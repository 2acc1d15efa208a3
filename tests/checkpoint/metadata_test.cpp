#include "engine/checkpoint/metadata.h"

#include "tests/checkpoint/testing.h"

namespace engine::checkpoint {
namespace {

absl::Status CheckNames(std::initializer_list<const char*> names) {
  std::vector<TensorInfo> tensors;
  for (const char* name : names) tensors.push_back({name, {2}, DType::kF32});
  return ValidateTensors(tensors);
}

TEST_CASE("tensor names") {
  CHECK(ValidateTensors(SmallModel()).ok());
  CHECK(CheckNames({"a/b", "a/c", "ab", "a.b"}).ok());
  CHECK(Contains(CheckNames({"w", "v", "w"}), "tensor w is named twice"));
  CHECK(Contains(CheckNames({"a/b/c", "a.x", "a"}), "tensor a cannot also be the folder of tensor a/b/c"));
  for (const char* bad : {"", "a b", "a%d", "a@0", "a\"", "a\\", "a\n", "ü"})
    CHECK_FALSE(CheckNames({bad}).ok());
  for (const char* bad : {"/a", "a/", "a//b", "../a", "a/./b", ".", ".."}) {
    CHECK(Contains(CheckNames({bad}), "has an empty, \".\" or \"..\" part"));
  }
}

TEST_CASE("shapes") {
  CHECK(Contains(ValidateTensors({{"w", {4, 0}, DType::kF32}}), "tensor w: a dim of [4, 0] has no elements"));
  CHECK(Contains(ValidateTensors({{"w", {-4}, DType::kF32}}), "no elements"));
  const std::int64_t large = std::int64_t{1} << 31;
  CHECK(Contains(ValidateTensors({{"w", {large, large}, DType::kU8}}), "is too large"));
  CHECK(Contains(ValidateTensors({{"w", {large, large, large}, DType::kF32}}), "is too large"));
  CHECK(ValidateTensors({{"w", {large, large / 2}, DType::kU8}}).ok());
  Shape deep;
  for (int i = 0; i < 33; ++i) deep.push_back(1);
  CHECK(Contains(ValidateTensors({{"w", deep, DType::kF32}}), "33 dims; at most 32 are possible"));
}

TEST_CASE("counts") {
  Metadata metadata = SmallMetadata(-1);
  CHECK(Contains(ValidateMetadata(metadata), "iteration -1"));
  metadata = SmallMetadata(1);
  metadata.mesh["tp"] = 0;
  CHECK(Contains(ValidateMetadata(metadata), "mesh axis tp has size 0"));
}

}  // namespace
}  // namespace engine::checkpoint
