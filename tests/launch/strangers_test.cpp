// Who is not of the run: wrong tokens, floods of connections, what speaks another language.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/launch/rendezvous.h"
#include "tests/launch/by_hand.h"
#include "tests/launch/rendezvous_world.h"

namespace engine::launch {
namespace {

// Opens connections as fast as it can for as long as it lives, and keeps the newest.
class Flood {
 public:
  explicit Flood(const Endpoint& server) : thread_([this, port = server.port] { Run(port); }) {
    while (count_ < 300) std::this_thread::yield();
  }
  ~Flood() {
    stopping_ = true;
    thread_.join();
  }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

 private:
  void Run(int port) {
    constexpr int kMost = 400'000;  // some 20 s
    constexpr std::size_t kKept = 150;
    std::vector<Descriptor> kept(kKept);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < kMost && !stopping_; ++i, ++count_) {
      Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      const linger reset{1, 0};  // leaves no port behind in TIME_WAIT
      setsockopt(socket.number(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
      (void)!connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
      kept[static_cast<std::size_t>(i) % kKept] = std::move(socket);
    }
  }

  std::atomic<bool> stopping_ = false;
  std::atomic<int> count_ = 0;
  std::thread thread_;
};

}  // namespace

TEST_CASE("rendezvous: a wrong token is told so, and the ranks that are here go on") {
  const std::string refused =
      "refused: token: --token-file, or ENGINE_TOKEN, must be the same on all hosts of a run";
  World world(2, {.join_timeout = std::chrono::seconds(20)});
  world.Join({MemberOf(1, 2)}, "tokem");
  CHECK(world.ErrorOf(0) == world.At(1) + refused);
  world.Join({MemberOf(1, 2)}, "tok");
  CHECK(world.ErrorOf(1) == world.At(1) + refused);
  world.clients.clear();
  world.JoinAll();
}

TEST_CASE("rendezvous: where a rank is missing and somebody came with another token, the reason says so") {
  for (const bool refuses : {true, false}) {
    World world(2, {.join_timeout = std::chrono::seconds(1)});
    if (refuses) world.Join({MemberOf(1, 2)}, "tokem");
    world.Join({MemberOf(0, 2)});
    const std::string reason = world.ErrorOf(refuses ? 1 : 0);
    CHECK_MESSAGE(
        reason.ends_with("rank 1 did not come within 1 s" +
                         std::string(refuses ? "; somebody came with another token, and was refused: "
                                               "--token-file, or ENGINE_TOKEN, must be the same on "
                                               "all hosts of a run"
                                             : "")),
        reason);
  }
}

TEST_CASE("rendezvous: strangers delay nobody") {
  World world(2);
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 240; ++i) {  // more than are kept at a time
    strangers.push_back(*Connect(world.endpoint, Clock::now() + std::chrono::seconds(5)));
    // Nothing; garbage; the length of a frame that is too long; half a frame.
    const std::string_view texts[] = {
        "", "GET / HTTP/1.1\r\n\r\n", "\xFF\xFF\xFF\xFF", {"\x10\0\0\0\x01", 5}};
    const std::string_view text = texts[i % 4];
    send(strangers.back().number(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  const Clock::time_point begin = Clock::now();
  world.JoinAll();
  CHECK(Clock::now() - begin < std::chrono::seconds(2));
  // The garbage is hung up on, and the oldest that said nothing.
  const auto hung_up = [&](std::size_t i) {
    char bytes[256];
    ssize_t got = 0;
    do got = recv(strangers[i].number(), bytes, sizeof(bytes), MSG_DONTWAIT);
    while (got > 0);  // the challenge
    return got == 0 || errno == ECONNRESET;
  };
  const auto soon = [&](std::size_t i) {
    for (int tries = 0; tries < 1000 && !hung_up(i); ++tries) std::this_thread::sleep_for(Milliseconds(5));
    return hung_up(i);
  };
  CHECK(!hung_up(236));  // so soon: after 5 s those are that say nothing
  CHECK(soon(237));
  CHECK(soon(238));
  CHECK(soon(0));
  world.OnAll([](Client& client, std::int64_t) { CHECK(client.Barrier("b").ok()); });
}

TEST_CASE("rendezvous: a flood of strangers keeps no run from starting") {
  for (int start = 0; start < 6; ++start) {
    World world(4, {.join_timeout = std::chrono::seconds(60)});
    const Flood flood(world.endpoint);
    world.JoinAll();
    world.OnAll([](Client& client, std::int64_t) { CHECK(client.Barrier("b").ok()); });
    world.CheckAborts(0);
  }
}

TEST_CASE("rendezvous: where a rank is missing beside a flood, the reason says so") {
  World world(2, {.join_timeout = std::chrono::seconds(3)});
  const Flood flood(world.endpoint);
  world.Join({MemberOf(0, 2)});
  CHECK_MESSAGE(world.ErrorOf(0).find("crowd the port") != std::string::npos, world.ErrorOf(0));
}

TEST_CASE("rendezvous: a wrong token is refused in a flood of strangers, too") {
  for (int start = 0; start < 6; ++start) {
    World world(2, {.join_timeout = std::chrono::seconds(20)});
    const Flood flood(world.endpoint);
    world.Join({MemberOf(1, 2)}, "tokem");
    CHECK(world.ErrorOf(0).starts_with(world.At(1) + "refused: token"));
  }
}

TEST_CASE("rendezvous: a rank whose connection is closed unheard tries again, in time") {
  absl::StatusOr<Descriptor> listener = Listen({"127.0.0.1", 0});
  const Endpoint endpoint{"127.0.0.1", PortOf(*listener)};
  std::atomic<int> aborts = 0;
  Joined joined = absl::UnknownError("");
  const auto join = [&](Milliseconds timeout) {
    joined = Client::Join(endpoint, "token", MemberOf(0, 1), {.join_timeout = timeout},
                          [&](const absl::Status&) { ++aborts; });
  };
  std::thread rank([&] { join(std::chrono::seconds(60)); });
  for (int closed = 0; closed < 3; ++closed) AcceptNext(*listener);
  {
    FrameStream late = AcceptNext(*listener);
    Challenge(late);  // and its hello is not answered
  }
  const std::unique_ptr<Server> server = Server::Start(*std::move(listener), "token", MemberOf(0, 1), {});
  rank.join();
  REQUIRE_MESSAGE(joined.ok(), Message(joined.status()));
  CHECK((*joined)->Barrier("b").ok());
  joined = absl::UnknownError("");

  absl::StatusOr<Descriptor> closing = Listen({"127.0.0.1", 0});
  const Endpoint crowded{"127.0.0.1", PortOf(*closing)};
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) Accept(*closing);
  });
  joined =
      Client::Join(crowded, "token", MemberOf(1, 2), {.join_timeout = kFast}, [](const absl::Status&) {});
  done = true;
  other.join();
  const std::string why = Message(joined.status());
  CHECK_MESSAGE(why.find(": the connection was closed before the run began; ") != std::string::npos, why);
  CHECK_MESSAGE(why.ends_with(" failed before: strangers may crowd the port"), why);
  CHECK(aborts == 0);
}

TEST_CASE("rendezvous: what was recorded of a member opens no other connection, and shows no token") {
  const std::string token = "a token that is not to be seen";
  absl::StatusOr<Descriptor> listener = Listen({"127.0.0.1", 0});
  const Endpoint endpoint{"127.0.0.1", PortOf(*listener)};
  const std::unique_ptr<Server> server =
      Server::Start(*std::move(listener), token, MemberOf(0, 2),
                    {.join_timeout = std::chrono::seconds(60), .linger = Milliseconds(0)});
  // Somebody on the way passes on what both say, and keeps the hello.
  absl::StatusOr<Descriptor> middle = Listen({"127.0.0.1", 0});
  Joined joined = absl::UnknownError("");
  std::thread rank([&, port = PortOf(*middle)] {
    joined = Client::Join({"127.0.0.1", port}, token, MemberOf(1, 2), {}, [](const absl::Status&) {});
  });
  FrameStream to_member = AcceptNext(*middle);
  FrameStream to_server(*Connect(endpoint, Clock::now() + std::chrono::seconds(10)));
  const WireMessage challenge = Receive(to_server);
  Transmit(to_member, challenge.kind, challenge.fields);
  const WireMessage hello = Receive(to_member);
  CHECK(hello.kind == MessageKind::kHello);
  CHECK(Encode(hello).find(token) == std::string::npos);

  FrameStream again(*Connect(endpoint, Clock::now() + std::chrono::seconds(10)));
  CHECK(Receive(again).fields[1] != challenge.fields[1]);
  Transmit(again, hello.kind, hello.fields);
  const WireMessage answer = Receive(again);
  CHECK(answer.kind == MessageKind::kRefused);
  CHECK(answer.fields == std::vector<std::string>{"token"});
  // Where it belongs, it is right, unless a field of it is another one.
  FrameStream changed(*Connect(endpoint, Clock::now() + std::chrono::seconds(10)));
  std::vector<std::string> altered = HelloTo(Receive(changed), token, {"1", "2", "b1", "p1", "d", "x"});
  altered[2] = "0";
  Transmit(changed, MessageKind::kHello, altered);
  CHECK(Receive(changed).kind == MessageKind::kRefused);
  Transmit(to_server, hello.kind, hello.fields);
  const WireMessage welcome = Receive(to_server);
  CHECK(welcome.kind == MessageKind::kWelcome);
  Transmit(to_member, MessageKind::kWelcome, welcome.fields);
  Transmit(to_member, MessageKind::kAbort, {"enough"});
  rank.join();
  CHECK(Message(joined.status()).ends_with(": enough"));
}

TEST_CASE(
    "rendezvous: what does not know the token is told no reason, and ends nothing with words of its own") {
  absl::StatusOr<Descriptor> listener = Listen({"127.0.0.1", 0});
  const Endpoint endpoint{"127.0.0.1", PortOf(*listener)};
  const auto join = [&](const std::function<void(FrameStream&)>& as_server) {
    Joined joined = absl::UnknownError("");
    std::thread rank(
        [&] { joined = Client::Join(endpoint, "token", MemberOf(1, 2), {}, [](const absl::Status&) {}); });
    FrameStream stream = AcceptNext(*listener);
    as_server(stream);
    rank.join();
    return Message(joined.status());
  };
  const std::string at = fmt::format("rank 1 at {}: ", endpoint.ToString());
  CHECK(join([](FrameStream& stream) { Welcome(stream, "tokem", Challenge(stream)); }) ==
        at + "what listens there does not know the token of this run");
  CHECK(join([](FrameStream& stream) { Transmit(stream, MessageKind::kAbort, {"lies"}); }) ==
        at + "what listens there is no run of this program");
  CHECK(join([](FrameStream& stream) {
          Challenge(stream);
          Transmit(stream, MessageKind::kRefused, {"lies"});
        }) == at + "refused: token: --token-file, or ENGINE_TOKEN, must be the same on all hosts of a run");
  CHECK(join([](FrameStream& stream) {
          Transmit(stream, MessageKind::kChallenge, {"engine rendezvous 999", "nonce"});
        }) == at + "what listens there is another version of this program, or none");
  bool reported = true;
  std::thread failure(
      [&] { reported = Client::ReportFailure(endpoint, "token", MemberOf(1, 2), {}, "failed: a secret"); });
  FrameStream stream = AcceptNext(*listener);
  Welcome(stream, "tokem", Challenge(stream));
  failure.join();
  CHECK(!reported);
  while (stream.Fill()) WaitFor(stream, Clock::now() + Milliseconds(10));
  const absl::StatusOr<std::optional<std::string>> rest = stream.Next();
  CHECK((rest.ok() && !rest->has_value()));
}

TEST_CASE("rendezvous: what is no server") {
  absl::StatusOr<Descriptor> listener = Listen({"127.0.0.1", 0});
  const Endpoint endpoint{"127.0.0.1", PortOf(*listener)};
  std::thread other([&] {
    Descriptor socket;
    while (!socket.open()) socket = Accept(*listener);
    send(socket.number(), "HTTP/1.1 400 Bad Request\r\n", 26, MSG_NOSIGNAL);
    std::this_thread::sleep_for(Milliseconds(100));
  });
  const Joined joined = Client::Join(endpoint, "token", MemberOf(1, 2), {}, [](const absl::Status&) {});
  other.join();
  CHECK(Message(joined.status()) ==
        fmt::format("rank 1 at {}: what listens there is no run of this program", endpoint.ToString()));
  listener->Close();
  const Joined nobody =
      Client::Join(endpoint, "token", MemberOf(1, 2), {.join_timeout = kFast}, [](const absl::Status&) {});
  CHECK(Message(nobody.status()) == fmt::format("rank 1 waited 0.4 s for rank 0: no connection to {}: "
                                                "Connection refused",
                                                endpoint.ToString()));
}

}  // namespace engine::launch
