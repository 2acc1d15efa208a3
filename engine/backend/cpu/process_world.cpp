#include "engine/backend/cpu/process_world.h"

#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <csignal>
#include <exception>
#include <new>
#include <system_error>
#include <utility>

namespace engine::backend::cpu {
namespace {

using std::chrono::milliseconds;

// Gloo closes every connection when one of its waits times out, so none may: the watcher ends them.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);
constexpr milliseconds kWatchPeriod(100);
constexpr std::uint64_t kWatchTag = ~std::uint64_t{0};

// Without the "[file:line] " that Gloo puts in front.
std::string What(const std::exception& error) {
  const std::string text = error.what();
  const size_t end = text.find("] ");
  return text.starts_with("[") && end != std::string::npos ? text.substr(end + 2) : text;
}

// Runs `body`, which calls Gloo; what that throws becomes an error.
template <typename Body>
absl::Status Catch(const std::string& context, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("{}: not enough memory", context);
  } catch (const std::system_error& error) {
    // Gloo starts a thread; std::thread reports a limit on threads by this code.
    if (error.code() == std::errc::resource_unavailable_try_again)
      return ResourceExhausted("{}: no more threads can be started", context);
    return Unavailable("{}: {}", context, What(error));
  } catch (const std::exception& error) {
    return Unavailable("{}: {}", context, What(error));
  }
}

std::string AddressKey(std::int64_t rank) { return fmt::format("cpu/addresses/{}", rank); }

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessWorld>> ProcessWorld::Connect(const ProcessWorldOptions& options,
                                                                    Store* store) {
  ENGINE_CHECK(options.rank >= 0 && options.rank < options.ranks, "rank {} of {}", options.rank,
               options.ranks);
  std::signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<ProcessWorld> world(new ProcessWorld(options.rank, options.ranks));
  RETURN_IF_ERROR(world->ConnectPeers(options, store));
  world->watcher_ = std::thread(&ProcessWorld::Watch, world.get());
  return world;
}

ProcessWorld::ProcessWorld(std::int64_t rank, std::int64_t ranks)
    : rank_(rank), lost_(static_cast<size_t>(ranks)), watches_(static_cast<size_t>(ranks)) {}

ProcessWorld::~ProcessWorld() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    closed_.notify_all();
  }
  if (watcher_.joinable()) watcher_.join();
}

// Every pair of ranks has an address of its own on both sides. Each rank publishes its own ones, in order of
// peer; both ends of a pair connect in order of the other rank, so the smallest pair left can always go on.
absl::Status ProcessWorld::ConnectPeers(const ProcessWorldOptions& options, Store* store) {
  const auto peers = static_cast<std::int64_t>(watches_.size());
  std::string mine;
  RETURN_IF_ERROR(Catch(fmt::format("rank {} cannot listen on {}", rank_, options.address), [&] {
    device_ = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(options.address.c_str()));
    context_ = device_->createContext(static_cast<int>(rank_), static_cast<int>(peers));
    context_->setTimeout(options.connect_timeout / 5);  // Gloo waits five times as long for a connection
    for (std::int64_t peer = 0; peer < peers; ++peer) {
      if (peer == rank_) continue;
      const std::vector<char> address = context_->createPair(static_cast<int>(peer))->address().bytes();
      mine.append(address.data(), address.size());
    }
    return absl::OkStatus();
  }));
  const size_t bytes = peers == 1 ? 0 : mine.size() / static_cast<size_t>(peers - 1);
  RETURN_IF_ERROR(store->Set(AddressKey(rank_), mine));
  for (std::int64_t peer = 0; peer < peers; ++peer) {
    if (peer == rank_) continue;
    ASSIGN_OR_RETURN(const std::string theirs, store->Get(AddressKey(peer)));
    if (theirs.size() != mine.size()) {
      return Internal("rank {} published {} bytes of addresses where rank {} has {}", peer, theirs.size(),
                      rank_, mine.size());
    }
    const size_t place = static_cast<size_t>(rank_ < peer ? rank_ : rank_ - 1);
    const char* address = theirs.data() + place * bytes;
    RETURN_IF_ERROR(Catch(fmt::format("rank {} cannot connect to rank {}", rank_, peer), [&] {
      context_->getPair(static_cast<int>(peer))->connect({address, address + bytes});
      auto& watch = watches_[static_cast<size_t>(peer)];
      watch = context_->createUnboundBuffer(nullptr, 0);
      watch->recv(static_cast<int>(peer), kWatchTag);
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

void ProcessWorld::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closed_.wait_for(lock, kWatchPeriod, [&] { return closing_; })) {
    lock.unlock();
    for (size_t peer = 0; peer < watches_.size(); ++peer) {
      if (watches_[peer] == nullptr) continue;
      try {
        watches_[peer]->abortWaitRecv();  // so that the wait returns at once
        watches_[peer]->waitRecv(kForever);
      } catch (const std::exception& error) {
        Lose(static_cast<std::int64_t>(peer), What(error));
        watches_[peer].reset();
      }
    }
    lock.lock();
  }
}

absl::Status ProcessWorld::Failure(std::int64_t peer) const {
  return aborted_.ok() ? lost_[static_cast<size_t>(peer)] : aborted_;
}

void ProcessWorld::Lose(std::int64_t peer, const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  absl::Status& lost = lost_[static_cast<size_t>(peer)];
  if (lost.ok()) lost = Unavailable("rank {} was lost: {}", peer, why);
  for (Parcel* parcel : waiting_) {
    if (parcel->peer_ != peer) continue;
    parcel->buffer_->abortWaitSend();
    parcel->buffer_->abortWaitRecv();
  }
}

void ProcessWorld::Abort(absl::Status reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!aborted_.ok()) return;
  aborted_ = std::move(reason);
  for (Parcel* parcel : waiting_) {
    parcel->buffer_->abortWaitSend();
    parcel->buffer_->abortWaitRecv();
  }
}

Parcel::Parcel(ProcessWorld* world, std::int64_t peer, void* data, std::int64_t bytes)
    : world_(*world),
      peer_(peer),
      buffer_(world->context_->createUnboundBuffer(data, static_cast<size_t>(bytes))) {}

Parcel::~Parcel() = default;

// Calls Gloo; an exception means that the peer is lost.
template <typename Call>
absl::Status Parcel::Start(const Call& call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    world_.Lose(peer_, What(error));
  }
  const std::lock_guard<std::mutex> lock(world_.mutex_);
  return world_.Failure(peer_);
}

template <typename Call>
absl::Status Parcel::Wait(const Call& call) {
  {
    const std::lock_guard<std::mutex> lock(world_.mutex_);
    RETURN_IF_ERROR(world_.Failure(peer_));
    world_.waiting_.insert(this);  // what fails from now on ends the wait
  }
  bool done = false;
  Start([&] { done = call(); }).IgnoreError();  // told below, like what others found out
  const std::lock_guard<std::mutex> lock(world_.mutex_);
  world_.waiting_.erase(this);
  return done ? absl::OkStatus() : world_.Failure(peer_);
}

absl::Status Parcel::Send(std::uint64_t tag) {
  return Start([&] { buffer_->send(static_cast<int>(peer_), tag); });
}

absl::Status Parcel::Receive(std::uint64_t tag) {
  return Start([&] { buffer_->recv(static_cast<int>(peer_), tag); });
}

absl::Status Parcel::WaitSent() {
  return Wait([&] { return buffer_->waitSend(kForever); });
}

absl::Status Parcel::WaitReceived() {
  return Wait([&] { return buffer_->waitRecv(kForever); });
}

}  // namespace engine::backend::cpu
