#include "engine/hf/safetensors_writer.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/hf/raw_files.h"

namespace engine::hf {
namespace {

using data::ReadFile;
using data::TempDir;
using data::WriteFile;

// Byte i of a tensor's data.
std::byte WrittenByte(const TensorDeclaration& tensor, std::int64_t i) {
  return static_cast<std::byte>(tensor.name.size() * 31 + static_cast<std::size_t>(tensor.name.back()) +
                                static_cast<std::size_t>(i * 7 + (i >> 8)));
}

absl::Status FillWritten(const TensorDeclaration& tensor, std::int64_t row, std::int64_t rows,
                         std::span<std::byte> out) {
  const std::int64_t row_bytes = tensor.bytes() / tensor.rows();
  CHECK(static_cast<std::int64_t>(out.size()) == rows * row_bytes);
  for (std::int64_t i = 0; i < rows * row_bytes; ++i) {
    out[static_cast<std::size_t>(i)] = WrittenByte(tensor, row * row_bytes + i);
  }
  return absl::OkStatus();
}

absl::Status Fails(const TensorDeclaration& /*tensor*/, std::int64_t /*row*/, std::int64_t /*rows*/,
                   std::span<std::byte> /*out*/) {
  return absl::DataLossError("no rows");
}

TEST_CASE("a file is written byte for byte as the format's reference does") {
  const TempDir dir;
  const absl::Status status =
      WriteSafetensors(dir / "x",
                       {{"b", StoredType::kBF16, Shape{2, 1}},
                        {"a\"\n\u00e9", StoredType::kBF16, Shape{1}},
                        {"wide", StoredType::kF32, Shape{}},
                        {"none", StoredType::kI64, Shape{3, 0}},
                        {"e4", StoredType::kF8E4M3, Shape{3}}},
                       kPtMetadata, [](const TensorDeclaration& tensor, auto, auto, auto out) {
                         std::fill(out.begin(), out.end(), std::byte(tensor.name[0]));
                         return absl::OkStatus();
                       });
  REQUIRE_MESSAGE(status.ok(), Message(status));
  std::string header =
      R"({"__metadata__":{"format":"pt"},"none":{"dtype":"I64","shape":[3,0],"data_offsets":[0,0]},)"
      R"("wide":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      "\"a\\\"\\n\u00e9\":"
      R"({"dtype":"BF16","shape":[1],"data_offsets":[4,6]},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[6,10]},)"
      R"("e4":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[10,13]}})";
  while (header.size() % 8 != 0) header += ' ';
  CHECK(ReadFile(dir / "x") == RawFile(header, "wwwwaabbbbeee"));
  CHECK(dir.entries() == 1);

  REQUIRE(WriteSafetensors(dir / "x", {}, {}, Fails).ok());
  CHECK(ReadFile(dir / "x") == RawFile("{}      ", ""));
}

TEST_CASE("tensors of many blocks and of long rows come back") {
  const TempDir dir;
  const std::vector<TensorDeclaration> tensors = {{"long", StoredType::kU8, Shape{3, 20'000'001}},
                                                  {"many", StoredType::kBF16, Shape{7'000'003, 3}},
                                                  {"line", StoredType::kF16, Shape{5}},
                                                  {"one", StoredType::kF32, Shape{}},
                                                  {"small", StoredType::kU8, Shape{7, 11}}};
  std::int64_t largest = 0;
  const FillRows fill = [&](const TensorDeclaration& tensor, std::int64_t row, std::int64_t rows,
                            std::span<std::byte> out) {
    largest = std::max(largest, static_cast<std::int64_t>(out.size()));
    return FillWritten(tensor, row, rows, out);
  };
  REQUIRE(WriteSafetensors(dir / "x", tensors, kPtMetadata, fill).ok());
  CHECK(largest == 20'000'001);
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(dir / "x");
  REQUIRE_MESSAGE(file.ok(), Message(file.status()));
  CHECK(file->tensors().size() == tensors.size());
  for (const TensorDeclaration& tensor : tensors) {
    CAPTURE(tensor.name);
    const StoredTensor* stored = file->Find(tensor.name);
    REQUIRE(stored != nullptr);
    CHECK(stored->type == tensor.type);
    CHECK(stored->shape == tensor.shape);
    const std::span<const std::byte> data = file->DataOf(*stored);
    REQUIRE(static_cast<std::int64_t>(data.size()) == tensor.bytes());
    CHECK(reinterpret_cast<std::uintptr_t>(data.data()) % static_cast<unsigned>(BitsOf(tensor.type) / 8) ==
          0);
    std::int64_t differ = 0;
    for (std::int64_t i = 0; i < tensor.bytes(); ++i)
      differ += data[static_cast<std::size_t>(i)] != WrittenByte(tensor, i);
    CHECK(differ == 0);
  }
}

TEST_CASE("what can't be a file is refused, and what stood there stays") {
  const TempDir dir;
  WriteFile(dir / "x", "before");
  const auto refused = [&](std::vector<TensorDeclaration> tensors, const char* why,
                           const std::map<std::string, std::string>& metadata = kPtMetadata) {
    const absl::Status status = WriteSafetensors(dir / "x", std::move(tensors), metadata, Fails);
    Says(status, why);
    CHECK(ReadFile(dir / "x") == "before");
    CHECK(dir.entries() == 1);
  };
  const StoredType type = StoredType::kF32;
  refused({{"a", type, Shape{1}}, {"b", type, Shape{1}}, {"a", type, Shape{2}}},
          "tensor \"a\" is there twice");
  refused({{"a", type, Shape{1}}, {"a", StoredType::kI64, Shape{1}}}, "tensor \"a\" is there twice");
  refused({{"\xFF", type, Shape{1}}}, "is not in UTF-8");
  refused({}, "is not in UTF-8", {{"format", "\xC0"}});
  refused({{std::string("a\0", 2), type, Shape{1}}}, "is no name of a tensor");
  refused({{"__metadata__", type, Shape{1}}}, "is no name of a tensor");
  refused({{"a", StoredType::kF4, Shape{2}}}, "types of less than a byte are not written");
  refused({{"a", type, Shape{std::int64_t{1} << 40, std::int64_t{1} << 40}}}, "is no size of a file");
  refused({{"a", type, Shape{std::int64_t{1} << 40, std::int64_t{1} << 40, 0}}}, "is no size of a file");
  refused({{"a", type, Shape{std::int64_t{1} << 60}}, {"b", type, Shape{std::int64_t{1} << 60}}},
          "more than 2^63 bytes");
  refused({{std::string(100'000'001, 'a'), type, Shape{1}}}, "tensors with a header of");
  refused({{"a", type, Shape{1}}}, "no rows");
  refused({{"a", type, Shape{std::int64_t{1} << 60}}}, "make room for");
  CHECK(absl::IsNotFound(WriteSafetensors(dir / "no/x", {}, {}, Fails)));
  std::filesystem::create_directory(dir / "folder");
  Says(WriteSafetensors(dir / "folder", {}, {}, Fails), "is a folder, not a regular file");
}

}  // namespace
}  // namespace engine::hf
