// Copies of states that hosts keep for each other.
#include "engine/launch/copy_server.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace engine::launch {
namespace {

constexpr std::int64_t kMostCopyBytes = 1 << 20;
const std::string kTag(MemoryCopies::kTagBytes, 't');

Descriptor NewFile() { return Descriptor(memfd_create("copies", MFD_CLOEXEC)); }

// A whole copy in a file: iteration `iteration`, of which every byte is that number.
int KeepIn(MemoryCopies& copies, std::int64_t iteration) {
  const int place = copies.Begin({iteration, fmt::format("note {}", iteration)});
  std::memset(copies.MemoryOf(place), static_cast<int>(iteration),
              static_cast<std::size_t>(copies.copy_bytes()));
  copies.Finish(place);
  return place;
}

MemoryCopies OpenCopies(const Descriptor& file, std::int64_t bytes = 5000) {
  absl::StatusOr<MemoryCopies> copies = MemoryCopies::Open(file.number(), kTag, bytes);
  REQUIRE(copies.ok());
  return *std::move(copies);
}

struct Hosts {
  explicit Hosts(std::int64_t most_ranks = 2) {
    absl::StatusOr<std::unique_ptr<CopyServer>> started =
        CopyServer::Start("token", most_ranks, kMostCopyBytes);
    REQUIRE(started.ok());
    server = *std::move(started);
    endpoint.port = server->port();
  }
  CopyClient Client() const {
    absl::StatusOr<CopyClient> client = CopyClient::Connect(endpoint, "token", 7);
    REQUIRE_MESSAGE(client.ok(), Message(client.status()));
    return *std::move(client);
  }

  absl::StatusOr<Link> OpenByHand(std::chrono::milliseconds patience) const {
    absl::StatusOr<Descriptor> socket = Connect(endpoint, Clock::now() + patience);
    REQUIRE(socket.ok());
    return OpenLink(*std::move(socket), "token", Member{}, patience);
  }

  std::unique_ptr<CopyServer> server;
  Endpoint endpoint{"127.0.0.1", 0};
};

std::vector<std::int64_t> IterationsOf(CopyClient& client, std::int64_t rank, const std::string& tag = kTag) {
  const absl::StatusOr<std::vector<MemoryCopies::Kept>> found = client.List(rank, tag);
  REQUIRE_MESSAGE(found.ok(), Message(found.status()));
  std::vector<std::int64_t> iterations;
  for (const MemoryCopies::Kept& kept : *found) {
    CHECK(kept.note == fmt::format("note {}", kept.iteration));
    iterations.push_back(kept.iteration);
  }
  return iterations;
}

using Found = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("copies on another host: the newest two of a rank are kept, and come back to the bit") {
  Hosts hosts;
  const Descriptor own = NewFile();
  MemoryCopies copies = OpenCopies(own, 300'000);
  CopyClient client = hosts.Client();
  CHECK(IterationsOf(client, 7).empty());
  for (const std::int64_t iteration : {3, 4, 5}) {
    const absl::Status stored = client.Store(7, copies, KeepIn(copies, iteration));
    REQUIRE_MESSAGE(stored.ok(), Message(stored));
  }
  CHECK(IterationsOf(client, 7) == Found{4, 5});
  CHECK(IterationsOf(client, 6).empty());
  CHECK(IterationsOf(client, 7, std::string(MemoryCopies::kTagBytes, 'u')).empty());

  const Descriptor other = NewFile();  // of the rank's next process, on another host
  CopyClient again = hosts.Client();
  REQUIRE(again.Fetch(7, kTag, 4, other.number()).ok());
  const MemoryCopies fetched = OpenCopies(other, 300'000);
  const std::optional<int> place = fetched.Find(4);
  REQUIRE(place);
  CHECK(fetched.At(*place).note == "note 4");
  const std::string bytes(reinterpret_cast<const char*>(fetched.MemoryOf(*place)),
                          static_cast<std::size_t>(fetched.copy_bytes()));
  CHECK(bytes == std::string(bytes.size(), 4));

  CHECK(!again.Fetch(7, kTag, 3, other.number()).ok());  // it made place
  hosts.server->Forget();
  CHECK(IterationsOf(again, 7).empty());
}

TEST_CASE("copies on another host: a host gives out those of its own ranks, and takes none for them") {
  Hosts hosts;
  const Descriptor first = NewFile();
  const Descriptor second = NewFile();
  hosts.server->SetOwn(4, {first.number(), second.number()});
  MemoryCopies copies = OpenCopies(second);
  KeepIn(copies, 8);
  CopyClient client = hosts.Client();
  CHECK(IterationsOf(client, 4).empty());
  CHECK(IterationsOf(client, 5) == Found{8});
  CHECK(IterationsOf(client, 6).empty());
  const Descriptor file = NewFile();
  CHECK(client.Fetch(5, kTag, 8, file.number()).ok());
  CHECK(MemoryCopies::In(file.number(), kTag).size() == 1);
  const absl::Status refused = client.Store(5, copies, 0);
  CHECK(absl::IsResourceExhausted(refused));
}

TEST_CASE(
    "copies on another host: any part of any copy is given out, also of a place that the host had before") {
  Hosts hosts;
  const std::string new_tag(MemoryCopies::kTagBytes, 'u');
  std::vector<Descriptor> given_up;
  given_up.push_back(NewFile());
  given_up.push_back(NewFile());  // without a copy
  {
    MemoryCopies first = OpenCopies(given_up[0], 40'000'000);  // more than one question brings
    const int place = KeepIn(first, 8);
    first.MemoryOf(place)[39'000'000] = std::byte{77};
    hosts.server->SetOwn(4, {given_up[0].number(), given_up[1].number()});
    const Descriptor others = NewFile();
    MemoryCopies of_other = OpenCopies(others);
    REQUIRE(hosts.Client().Store(0, of_other, KeepIn(of_other, 7)).ok());
  }
  hosts.server->SetAside(4, std::move(given_up));
  const Descriptor own = NewFile();
  hosts.server->SetOwn(0, {own.number()});
  {
    absl::StatusOr<MemoryCopies> now = MemoryCopies::Open(own.number(), new_tag, 100);
    REQUIRE(now.ok());
    KeepIn(*now, 9);
  }
  CopyClient client = hosts.Client();
  CHECK(IterationsOf(client, 4).empty());  // no rank of now
  const auto all = [&] {
    const absl::StatusOr<std::vector<CopyClient::Held>> held = client.ListAll();
    REQUIRE_MESSAGE(held.ok(), Message(held.status()));
    std::vector<std::string> lines;
    for (const CopyClient::Held& copy : *held)
      lines.push_back(fmt::format("{} {} {} {}", copy.rank, copy.iteration, copy.tag[0], copy.note));
    return lines;
  };
  CHECK(all() == std::vector<std::string>{"0 9 u note 9", "4 8 t note 8", "0 7 t note 7"});
  std::vector<std::byte> bytes(37'000'000);
  const CopyClient::Held eighth{.rank = 4, .iteration = 8, .tag = kTag, .note = ""};
  const absl::Status read = client.Read(eighth, 2'500'000, bytes);
  REQUIRE_MESSAGE(read.ok(), Message(read));
  CHECK(bytes.front() == std::byte{8});
  CHECK(bytes[36'500'000] == std::byte{77});
  CHECK(bytes.back() == std::byte{8});
  CHECK(Message(client.Read(eighth, 4'000'000, bytes)).starts_with("refused: bytes "));
  for (const CopyClient::Held& none :
       {CopyClient::Held{.rank = 5, .iteration = 8, .tag = kTag, .note = ""},
        CopyClient::Held{.rank = 4, .iteration = 7, .tag = kTag, .note = ""},
        CopyClient::Held{.rank = 4, .iteration = 8, .tag = new_tag, .note = ""}})
    CHECK(Message(client.Read(none, 0, bytes)) == "refused: it has no such copy");
  REQUIRE(client.ForgetOthers(new_tag).ok());
  CHECK(all() == std::vector<std::string>{"0 9 u note 9"});
  REQUIRE(client.ForgetOthers(kTag).ok());
  CHECK(all().empty());
}

TEST_CASE("copies on another host: strangers, too many ranks, too large ones and altered bytes are refused") {
  Hosts hosts(/*most_ranks=*/1);
  CHECK(absl::IsFailedPrecondition(CopyClient::Connect(hosts.endpoint, "other", 7).status()));
  const Descriptor own = NewFile();
  MemoryCopies copies = OpenCopies(own);
  const int place = KeepIn(copies, 1);
  CHECK(hosts.Client().Store(0, copies, place).ok());
  CHECK(Message(hosts.Client().Store(1, copies, place)) ==
        "refused: it keeps copies of as many ranks as it may");
  const Descriptor large = NewFile();
  MemoryCopies too_large = OpenCopies(large, kMostCopyBytes + 1);
  const absl::Status refused = hosts.Client().Store(0, too_large, KeepIn(too_large, 2));
  CHECK(Message(refused) == "refused: a copy of 1.00 MiB of which it may have 1.00 MiB");

  // By hand: half of the bytes, then others than the hash is of.
  const std::chrono::seconds patience(5);
  const absl::StatusOr<Link> link = hosts.OpenByHand(patience);
  REQUIRE(link.ok());
  REQUIRE(link->Send({MessageKind::kStoreCopy, {"0", kTag, "9", "4096", "note 9"}}, patience).ok());
  REQUIRE(link->Receive(patience).ok());
  std::vector<std::byte> altered(4096 + 4 + 1 + 4 + 32);
  REQUIRE(link->SendBytes(std::span(altered).first(2048), patience).ok());
  REQUIRE(link->SendBytes(std::span(altered).first(2048), patience).ok());
  const absl::StatusOr<WireMessage> answer = link->Receive(patience);
  if (answer.ok()) CHECK(answer->kind == MessageKind::kRefused);
  CopyClient client = hosts.Client();
  CHECK(IterationsOf(client, 0).empty());  // of another size than the one before, and not whole
}

TEST_CASE("copies on another host: a copy that its rank writes over while it is sent does not count") {
  Hosts hosts;
  const Descriptor own = NewFile();
  hosts.server->SetOwn(0, {own.number()});
  MemoryCopies copies = OpenCopies(own, 64 << 20);  // more than sockets buffer
  KeepIn(copies, 1);
  const std::chrono::seconds patience(10);
  const absl::StatusOr<Link> link = hosts.OpenByHand(patience);
  REQUIRE(link.ok());
  REQUIRE(link->Send({MessageKind::kFetchCopy, {"0", kTag, "1"}}, patience).ok());
  REQUIRE(link->Receive(patience).ok());
  KeepIn(copies, 2);
  KeepIn(copies, 3);
  std::vector<std::byte> bytes(static_cast<std::size_t>(copies.copy_bytes()));
  // Bytes that changed between their hash and their sending are noticed as well.
  const absl::Status came = link->ReceiveBytes(bytes, patience);
  if (!came.ok()) {
    CHECK(absl::IsDataLoss(came));
    return;
  }
  const absl::StatusOr<WireMessage> verdict = link->Receive(patience);
  REQUIRE(verdict.ok());
  CHECK(verdict->kind == MessageKind::kGoodbye);
}

}  // namespace engine::launch
