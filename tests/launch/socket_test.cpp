#include "engine/launch/socket.h"

#include <doctest/doctest.h>

#include <thread>

#include "engine/base/status.h"
#include "engine/launch/message.h"

namespace engine::launch {
namespace {

Clock::time_point In(int milliseconds) { return Clock::now() + std::chrono::milliseconds(milliseconds); }

struct Pair {
  Pair() {
    absl::StatusOr<Descriptor> listener = Listen({"127.0.0.1", 0});
    REQUIRE(listener.ok());
    absl::StatusOr<Descriptor> connected = Connect({"127.0.0.1", PortOf(*listener)}, In(5000));
    REQUIRE(connected.ok());
    CHECK(LocalAddress(*connected) == "127.0.0.1");
    near = *std::move(connected);
    while (!far.open()) far = Accept(*listener);
  }
  Descriptor near, far;
};

std::string Read(FrameStream& stream) {
  for (const Clock::time_point deadline = In(5000); Clock::now() < deadline;) {
    const bool open = stream.Fill();
    const auto frame = stream.Next();
    if (!frame.ok()) return "error: " + Message(frame.status());
    if (*frame) return **frame;
    if (!open) return "closed";
    WaitFor(stream, deadline);
  }
  return "nothing";
}

}  // namespace

TEST_CASE("socket: endpoints") {
  for (const char* good : {"host:1", "10.0.0.1:65535", "[fd00::1]:29500"}) {
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(good);
    REQUIRE(endpoint.ok());
    CHECK(endpoint->ToString() == good);
  }
  for (const char* bad :
       {"", "host", "host:", ":1", "host:0", "host:65536", "host:1x", "fd00::1:29500", "[]:1"}) {
    INFO(std::string(bad));
    CHECK(!ParseEndpoint(bad).ok());
  }
}

TEST_CASE("socket: frames arrive whole and in order, through full buffers") {
  Pair pair;
  FrameStream near(std::move(pair.near));
  FrameStream far(std::move(pair.far));
  const std::string large(kMostFrameBytes, 'x');
  std::thread writer([&] {
    for (const std::string& frame : {std::string("a"), large, std::string(), large, std::string("end")}) {
      near.Queue(frame);
    }
    while (near.has_unsent() && near.Flush()) WaitFor(near, In(100));
  });
  CHECK(Read(far) == "a");
  CHECK(Read(far) == large);
  CHECK(Read(far) == "");
  CHECK(Read(far) == large);
  CHECK(Read(far) == "end");
  writer.join();
  near = FrameStream(Descriptor());
  CHECK(Read(far) == "closed");
  far.Queue("to nobody");  // no SIGPIPE
  far.Flush();
  far.Queue("again");
  far.Flush();
}

TEST_CASE("socket: a frame that is too long is refused before it is taken in") {
  Pair pair;
  FrameStream near(std::move(pair.near));
  FrameStream far(std::move(pair.far), 8);
  near.Queue("12345678");
  near.Queue("123456789");
  near.Flush();
  CHECK(Read(far) == "12345678");
  CHECK(Read(far) == "error: a frame of 9 bytes; 8 is the most");
}

TEST_CASE("socket: what listening and connecting refuse") {
  const absl::StatusOr<Descriptor> first = Listen({"127.0.0.1", 0});
  REQUIRE(first.ok());
  const int port = PortOf(*first);
  CHECK(Message(Listen({"127.0.0.1", port}).status()) ==
        fmt::format("port {} of 127.0.0.1 is taken by another program; give another one", port));
  CHECK(Message(Listen({"192.0.2.1", 0}).status()) ==
        "192.0.2.1 is no address of this machine, and rank 0 runs here: give one that is");
  CHECK(Message(Listen({"no.such.host.invalid", 0}).status()).find("is not known here") != std::string::npos);
  int free_port = 0;
  {
    const absl::StatusOr<Descriptor> gone = Listen({"127.0.0.1", 0});
    free_port = PortOf(*gone);
  }
  const Clock::time_point begin = Clock::now();
  const absl::StatusOr<Descriptor> nobody = Connect({"127.0.0.1", free_port}, In(200));
  CHECK(Message(nobody.status()) ==
        fmt::format("no connection to 127.0.0.1:{}: Connection refused", free_port));
  CHECK(Clock::now() - begin < std::chrono::seconds(2));
}

TEST_CASE("message: what is encoded is decoded, and nothing else") {
  const WireMessage message{MessageKind::kSet, {"key", std::string("\0\xFF value", 8)}};
  const std::string frame = Encode(message);
  const absl::StatusOr<WireMessage> back = Decode(frame);
  REQUIRE(back.ok());
  CHECK(back->kind == message.kind);
  CHECK(back->fields == message.fields);
  for (std::size_t size = 0; size < frame.size(); ++size) CHECK(!Decode(frame.substr(0, size)).ok());
  CHECK(!Decode(frame + "x").ok());
  CHECK(!Decode(Encode({MessageKind::kSet, {"one field"}})).ok());
  CHECK(!Decode(std::string("\x7F")).ok());
  CHECK(NumberOf("12") == 12);
  CHECK(NumberOf("-1") == -1);
  CHECK(NumberOf("1x") == -1);
  CHECK(NumberOf("") == -1);
}

}  // namespace engine::launch
