#include "engine/storage/block_reader.h"

#include <doctest/doctest.h>

#include <thread>

#include "engine/base/philox.h"
#include "engine/base/status.h"
#include "tests/storage/object_server.h"

namespace engine::storage {
namespace {

constexpr std::int64_t kSize = (std::int64_t{3} << 20) + 17;

const std::string& Content() {
  static const std::string bytes = SomeBytes(kSize);
  return bytes;
}

BlockReader OpenReader(ObjectServer& server) {
  server.Put("bucket/blocks", Content());
  absl::StatusOr<std::shared_ptr<const Object>> object = Open("s3://bucket/blocks");
  REQUIRE_MESSAGE(object.ok(), Message(object.status()));
  server.Requests();
  return BlockReader(*std::move(object));
}

bool IsRight(const BlockReader& reader, std::int64_t bytes, std::int64_t offset) {
  std::string data(static_cast<std::size_t>(bytes), '\0');
  const absl::Status status = reader.Read(data.data(), bytes, offset);
  return status.ok() &&
         data == Content().substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
}

}  // namespace

TEST_CASE("blocks give the bytes of the object, wherever") {
  ObjectServer& server = TheServer();
  const BlockReader reader = OpenReader(server);
  CHECK(IsRight(reader, kSize, 0));
  CHECK(server.Requests().size() == 1);
  for (std::uint32_t i = 0; i < 200; ++i) {
    const auto draws = Philox4x32(MakePhiloxKey(7, "ranges"), i, 0);
    const std::int64_t offset = draws[0] % kSize;
    const std::int64_t bytes = draws[1] % std::min<std::int64_t>(100'000, kSize - offset + 1);
    CAPTURE(offset);
    CAPTURE(bytes);
    CHECK(IsRight(reader, bytes, offset));
  }
  CHECK(IsRight(reader, 0, kSize));
  CHECK(server.Requests().empty());
  char byte = 0;
  CHECK(absl::IsDataLoss(reader.Read(&byte, 1, kSize)));
  CHECK(absl::IsDataLoss(reader.Read(&byte, 1, -1)));
}

TEST_CASE("many threads, and requests of which several are under way") {
  ObjectServer& server = TheServer();
  const BlockReader reader = OpenReader(server);
  server.Command({{"most_busy", true}});
  server.Command({{"set", {{"delay", 0.02}}}});
  for (std::int64_t at = 0; at < kSize; at += 100'000) reader.Prefetch(10, at);
  std::vector<std::thread> threads;
  std::vector<char> right(8);
  for (std::size_t t = 0; t < right.size(); ++t) {
    threads.emplace_back([&, t] {
      right[t] = 1;
      for (std::uint32_t i = 0; i < 30; ++i) {
        const auto draws = Philox4x32(MakePhiloxKey(t, "threads"), i, 0);
        const std::int64_t offset = draws[0] % (kSize - 50'000);
        if (!IsRight(reader, draws[1] % 50'000, offset)) right[t] = 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  server.Command({{"set", {{"delay", 0}}}});
  CHECK(std::count(right.begin(), right.end(), 1) == 8);
  CHECK(server.Command({{"most_busy", true}}) > 4);
}

TEST_CASE("what was fetched beforehand is not waited for") {
  ObjectServer& server = TheServer();
  const BlockReader reader = OpenReader(server);
  reader.Prefetch(kSize + 5, 0);  // beyond the end: left out
  reader.Prefetch(1, kSize + 5);
  CHECK(IsRight(reader, 1000, 70'000));
  CHECK(IsRight(reader, kSize, 0));
  CHECK(server.Requests().size() == 1);
}

TEST_CASE("an error is told, and does not stay") {
  ObjectServer& server = TheServer();
  const BlockReader reader = OpenReader(server);
  server.Inject({{"do", "status"}, {"status", 503}, {"times", 3}});
  char byte = 0;
  const absl::Status status = reader.Read(&byte, 1, 0);
  CHECK(Message(status).find("503 InternalError: as the test asks for (3 attempts)") != std::string::npos);
  CHECK(reader.Read(&byte, 1, 0).ok());
  server.Put("bucket/blocks", Content() + "x");
  CHECK(absl::IsDataLoss(reader.Read(&byte, 1, kSize - 1)));
}

TEST_CASE("a stream has the object from its beginning to its end") {
  ObjectServer& server = TheServer();
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{32} << 10, std::size_t{kSize}}) {
    server.Put("bucket/streamed", Content().substr(0, bytes));
    absl::StatusOr<std::shared_ptr<const Object>> object = Open("s3://bucket/streamed");
    REQUIRE(object.ok());
    Stream stream(*std::move(object));
    std::string all;
    std::string some(100'000, '\0');
    absl::StatusOr<std::size_t> got;
    while ((got = stream.Read(some.data(), some.size())).ok() && *got > 0) all += some.substr(0, *got);
    CHECK(got.ok());
    CHECK(all == Content().substr(0, bytes));
    CHECK(stream.at() == static_cast<std::int64_t>(bytes));
  }
}

}  // namespace engine::storage
