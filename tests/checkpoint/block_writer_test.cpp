#include "engine/checkpoint/block_writer.h"

#include <signal.h>
#include <sys/resource.h>

#include <cmath>

#include "engine/base/half.h"
#include "engine/base/hash.h"
#include "tests/checkpoint/testing.h"

namespace engine::checkpoint {
namespace {

constexpr std::int64_t kBlock = BlockWriter::kBlockBytes;

std::string Bytes(std::int64_t count) {
  std::string bytes(static_cast<std::size_t>(count), '\0');
  const PhiloxKey key = MakePhiloxKey(1, "bytes");
  for (std::size_t i = 0; i < bytes.size(); i += 64)
    bytes[i] = static_cast<char>(PhiloxWord(key, i));  // enough that no block is like another
  return bytes;
}

void CheckFile(const std::string& folder, const std::string& content, std::int64_t expected,
               std::int64_t at_a_time) {
  INFO(content.size() << " bytes, expected " << expected << ", in parts of " << at_a_time);
  const std::string path = folder + "/file";
  auto writer = BlockWriter::Create(path, expected);
  REQUIRE_MESSAGE(writer.ok(), Message(writer.status()));
  for (std::size_t at = 0; at < content.size(); at += static_cast<std::size_t>(at_a_time)) {
    const std::string part = content.substr(at, static_cast<std::size_t>(at_a_time));
    REQUIRE(writer->Append(part.data(), static_cast<std::int64_t>(part.size())).ok());
  }
  CHECK(writer->bytes() == static_cast<std::int64_t>(content.size()));
  REQUIRE(writer->Finish().ok());
  CHECK(writer->Checksum() == HashHex(content));
  CHECK(ReadText(path) == content);
}

}  // namespace

TEST_CASE("blocks: a file of any size is written as it was appended, past the page cache or through it") {
  const Scratch scratch;
  for (const std::string& folder : {scratch.path(), std::string("/dev/shm")}) {
    for (const std::int64_t bytes :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{4095}, std::int64_t{4096}})
      CheckFile(folder, Bytes(bytes), bytes, 1000);
    for (const std::int64_t bytes : {kBlock - 1, kBlock, kBlock + 1, 5 * kBlock + 4097})
      CheckFile(folder, Bytes(bytes), bytes, 3'000'001);
    CheckFile(folder, Bytes(20'000), 5000, 20'000);  // more than was expected: several small blocks
    CheckFile(folder, Bytes(5000), 20'000, 5000);    // and fewer
  }
  std::filesystem::remove("/dev/shm/file");
}

TEST_CASE("blocks: numbers of 16 bits are widened, from any address") {
  const Scratch scratch;
  constexpr std::size_t kNumbers = 70'001;  // more than are widened at once
  std::vector<std::byte> narrow(1 + 2 * kNumbers);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::string wide;
    for (std::size_t i = 0; i < kNumbers; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      std::memcpy(narrow.data() + 1 + 2 * i, &bits, sizeof(bits));
      const float value = dtype == DType::kBF16 ? FloatFromBFloat16(bits) : FloatFromHalf(bits);
      wide.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    auto writer = BlockWriter::Create(scratch.path() + "/file", 100);
    REQUIRE(writer.ok());
    REQUIRE(writer->AppendWidened(narrow.data() + 1, dtype, kNumbers).ok());
    REQUIRE(writer->Finish().ok());
    const std::string written = ReadText(scratch.path() + "/file");
    REQUIRE(written.size() == wide.size());
    std::size_t others = 0;
    for (std::size_t i = 0; i < kNumbers; ++i) {
      float is = 0;
      float should = 0;
      std::memcpy(&is, written.data() + 4 * i, 4);
      std::memcpy(&should, wide.data() + 4 * i, 4);
      others += !(is == should || (std::isnan(is) && std::isnan(should)));
    }
    CHECK(others == 0);
    CHECK(writer->Checksum() == HashHex(written));
  }
}

TEST_CASE("blocks: what a thread cannot write is the error of the whole, with the path") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/file";
  auto* const before = signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small{static_cast<rlim_t>(2 * kBlock), limit.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  absl::Status status;
  {
    auto writer = BlockWriter::Create(path, kBlock);
    REQUIRE(writer.ok());
    const std::string block = Bytes(kBlock);
    for (int i = 0; i < 20 && status.ok(); ++i) status = writer->Append(block.data(), kBlock);
    if (status.ok()) status = writer->Finish();
  }
  setrlimit(RLIMIT_FSIZE, &limit);
  signal(SIGXFSZ, before);
  CHECK(Contains(status, "write"));
  CHECK(Contains(status, path));
}

}  // namespace engine::checkpoint
