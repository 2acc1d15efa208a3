#include "engine/launch/copy_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "engine/base/status.h"
#include "engine/base/units.h"

namespace engine::launch {
namespace {

constexpr auto kPatience = std::chrono::seconds(10);           // with an end that takes or gives nothing
constexpr std::size_t kMostReadBytes = std::size_t{16} << 20;  // with one question
constexpr std::size_t kMostPeers = 1024;                       // connections at once

std::span<std::byte> BytesOf(const MemoryCopies& copies, int place) {
  return {copies.MemoryOf(place), static_cast<std::size_t>(copies.copy_bytes())};
}

}  // namespace

absl::StatusOr<std::unique_ptr<CopyServer>> CopyServer::Start(const std::string& token,
                                                              std::int64_t most_ranks,
                                                              std::int64_t most_bytes) {
  absl::StatusOr<Descriptor> listener = Listen({"::", 0});  // of IPv4, too
  if (!listener.ok()) listener = Listen({"0.0.0.0", 0});
  RETURN_IF_ERROR(listener.status());
  Descriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return std::unique_ptr<CopyServer>(
      new CopyServer(*std::move(listener), std::move(wake), token, most_ranks, most_bytes));
}

CopyServer::CopyServer(Descriptor listener, Descriptor wake, std::string token, std::int64_t most_ranks,
                       std::int64_t most_bytes)
    : listener_(std::move(listener)),
      wake_(std::move(wake)),
      token_(std::move(token)),
      most_ranks_(static_cast<std::size_t>(most_ranks)),
      most_bytes_(most_bytes),
      thread_([this] { Accept(); }) {}

CopyServer::~CopyServer() {
  const std::uint64_t one = 1;
  (void)!write(wake_.number(), &one, sizeof(one));
  thread_.join();
  for (Peer& peer : peers_) shutdown(peer.link.socket().number(), SHUT_RDWR);
  for (Peer& peer : peers_) peer.thread.join();
}

void CopyServer::SetOwn(std::int64_t first_rank, std::vector<int> files) {
  const std::lock_guard<std::mutex> lock(mutex_);
  first_own_ = first_rank;
  own_ = std::move(files);
}

void CopyServer::SetAside(std::int64_t first_rank, std::vector<Descriptor> files) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto keep = [&](std::int64_t rank, std::shared_ptr<File> file) {
    if (!MemoryCopies::In(file->descriptor.number()).empty()) aside_.push_back({rank, std::move(file)});
  };
  own_.clear();
  for (Descriptor& file : files) {
    auto kept = std::make_shared<File>();
    kept->descriptor = std::move(file);
    keep(first_rank++, std::move(kept));
  }
  for (auto& [rank, file] : others_) keep(rank, std::move(file));
  others_.clear();
}

void CopyServer::Forget() {
  const std::lock_guard<std::mutex> lock(mutex_);
  others_.clear();
  aside_.clear();
}

// Each has a lock of its own, as nobody writes there but ranks.
std::vector<CopyServer::RankFile> CopyServer::OwnFiles() const {
  std::vector<RankFile> files;
  for (std::size_t i = 0; i < own_.size(); ++i) {
    files.push_back({first_own_ + static_cast<std::int64_t>(i), std::make_shared<File>()});
    files.back().file->descriptor = Descriptor(dup(own_[i]));
  }
  return files;
}

std::vector<CopyServer::RankFile> CopyServer::AllFiles() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<RankFile> files = OwnFiles();
  for (const auto& [rank, file] : others_) files.push_back({rank, file});
  files.insert(files.end(), aside_.begin(), aside_.end());
  return files;
}

void CopyServer::ForgetOthers(const std::string& tag) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto is_other = [&](const File& file) {
    const std::string found = MemoryCopies::TagIn(file.descriptor.number());
    return !found.empty() && found != tag;
  };
  for (const RankFile& own : OwnFiles()) {
    if (is_other(*own.file)) (void)!ftruncate(own.file->descriptor.number(), 0);
  }
  std::erase_if(others_, [&](const auto& other) { return is_other(*other.second); });
  aside_.clear();
}

void CopyServer::Accept() {
  for (;;) {
    std::array<pollfd, 2> waiting = {{{listener_.number(), POLLIN, 0}, {wake_.number(), POLLIN, 0}}};
    poll(waiting.data(), waiting.size(), -1);
    if (waiting[1].revents != 0) return;
    std::erase_if(peers_, [](Peer& peer) {
      if (peer.gone) peer.thread.join();
      return peer.gone.load();
    });
    Descriptor socket = launch::Accept(listener_);
    if (!socket.open() || peers_.size() == kMostPeers) continue;
    Peer& peer = peers_.emplace_back(std::move(socket));
    peer.thread = std::thread([this, &peer] {
      Serve(peer.link).IgnoreError();  // the other end has heard what it can
      shutdown(peer.link.socket().number(), SHUT_RDWR);
      peer.gone = true;
    });
  }
}

absl::Status CopyServer::Serve(const Link& link) {
  RETURN_IF_ERROR(AdmitLink(link, token_, kPatience));
  for (;;) {
    ASSIGN_OR_RETURN(const WireMessage asked, link.Receive(std::nullopt));
    RETURN_IF_ERROR(Answer(link, asked));
  }
}

absl::Status CopyServer::Answer(const Link& link, const WireMessage& asked) {
  switch (asked.kind) {
    case MessageKind::kStoreCopy:
      return Take(link, asked);
    case MessageKind::kListCopies: {
      std::vector<std::string> found;
      WithFile(NumberOf(asked.fields[0]), [&](int file) {
        for (const MemoryCopies::Kept& kept : MemoryCopies::In(file, asked.fields[1]))
          found.push_back(Encode({MessageKind::kCopy, {std::to_string(kept.iteration), kept.note, ""}}));
      });
      found.resize(2);
      return link.Send({MessageKind::kCopies, found}, kPatience);
    }
    case MessageKind::kFetchCopy:
      return Give(link, asked);
    case MessageKind::kReadCopy:
      return GiveBytes(link, asked);
    case MessageKind::kListAll:
      return ListAll(link);
    case MessageKind::kForgetOthers:
      ForgetOthers(asked.fields[0]);
      return link.Send({MessageKind::kReady, {}}, kPatience);
    default:
      return DataLoss("a message that no rank sends here");
  }
}

absl::Status CopyServer::Take(const Link& link, const WireMessage& asked) {
  const std::int64_t bytes = NumberOf(asked.fields[3]);
  const auto refuse = [&](const std::string& why) -> absl::Status {
    RETURN_IF_ERROR(link.Send({MessageKind::kRefused, {why}}, kPatience));
    return ResourceExhausted("{}", why);
  };
  if (asked.fields[1].size() != MemoryCopies::kTagBytes || asked.fields[4].size() > MemoryCopies::kMostNote)
    return DataLoss("a copy with another tag, or note, than copies have");
  if (bytes <= 0 || bytes > most_bytes_)
    return refuse(
        fmt::format("a copy of {} of which it may have {}", FormatBytes(bytes), FormatBytes(most_bytes_)));
  const std::shared_ptr<File> file = FileFor(NumberOf(asked.fields[0]));
  if (file == nullptr) return refuse("it keeps copies of as many ranks as it may");
  const std::lock_guard<std::mutex> lock(file->in_use);
  absl::StatusOr<MemoryCopies> copies = MemoryCopies::Open(file->descriptor.number(), asked.fields[1], bytes);
  if (!copies.ok()) return refuse(Message(copies.status()));
  const int place = copies->Begin({NumberOf(asked.fields[2]), asked.fields[4]});
  RETURN_IF_ERROR(link.Send({MessageKind::kReady, {}}, kPatience));
  const absl::Status came = link.ReceiveBytes(BytesOf(*copies, place), kPatience);
  if (absl::IsDataLoss(came)) return refuse(Message(came));
  RETURN_IF_ERROR(came);
  copies->Finish(place);
  return link.Send({MessageKind::kReady, {}}, kPatience);
}

absl::Status CopyServer::Give(const Link& link, const WireMessage& asked) {
  const std::int64_t iteration = NumberOf(asked.fields[2]);
  absl::Status given = NotFound("it has no such copy");
  WithFile(NumberOf(asked.fields[0]), [&](int file) {
    const absl::StatusOr<MemoryCopies> copies = MemoryCopies::Open(file);
    if (!copies.ok() || copies->tag() != asked.fields[1]) return;
    const std::optional<int> place = copies->Find(iteration);
    if (!place) return;
    given = link.Send(
        {MessageKind::kCopy,
         {std::to_string(iteration), copies->At(*place).note, std::to_string(copies->copy_bytes())}},
        kPatience);
    if (given.ok()) given = link.SendBytes(BytesOf(*copies, *place), kPatience);
    // Its rank may have begun another one in its place meanwhile.
    const bool same = copies->Find(iteration) == place;
    if (given.ok()) given = link.Send({same ? MessageKind::kReady : MessageKind::kGoodbye, {}}, kPatience);
  });
  if (absl::IsNotFound(given)) return link.Send({MessageKind::kRefused, {Message(given)}}, kPatience);
  return given;
}

absl::Status CopyServer::GiveBytes(const Link& link, const WireMessage& asked) {
  const std::int64_t count = NumberOf(asked.fields[4]);
  if (count < 0 || static_cast<std::size_t>(count) > kMostReadBytes)
    return DataLoss("{} bytes of a copy at once", count);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  absl::Status read = NotFound("it has no such copy");
  for (const RankFile& of : AllFiles()) {
    if (of.rank != NumberOf(asked.fields[0])) continue;
    const std::lock_guard<std::mutex> lock(of.file->in_use);
    read = MemoryCopies::ReadAt(of.file->descriptor.number(), asked.fields[1], NumberOf(asked.fields[2]),
                                NumberOf(asked.fields[3]), bytes);
    if (!absl::IsNotFound(read)) break;
  }
  if (!read.ok()) return link.Send({MessageKind::kRefused, {Message(read)}}, kPatience);
  RETURN_IF_ERROR(link.Send({MessageKind::kReady, {}}, kPatience));
  return link.SendBytes(bytes, kPatience);
}

absl::Status CopyServer::ListAll(const Link& link) {
  std::string text;
  for (const RankFile& of : AllFiles()) {
    const std::lock_guard<std::mutex> lock(of.file->in_use);
    const int file = of.file->descriptor.number();
    const std::string tag = MemoryCopies::TagIn(file);
    for (const MemoryCopies::Kept& kept : MemoryCopies::In(file, tag))
      text += fmt::format("{} {} {} {}\n", of.rank, kept.iteration, tag, kept.note);
  }
  return link.Send({MessageKind::kAllCopies, {text}}, kPatience);
}

std::shared_ptr<CopyServer::File> CopyServer::FileFor(std::int64_t rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = others_.find(rank);
  if (found != others_.end()) return found->second;
  const bool own = rank >= first_own_ && rank < first_own_ + static_cast<std::int64_t>(own_.size());
  if (rank < 0 || own || others_.size() >= most_ranks_) return nullptr;
  auto file = std::make_shared<File>();
  file->descriptor = Descriptor(memfd_create("engine state of another host", MFD_CLOEXEC));
  if (!file->descriptor.open()) return nullptr;
  return others_[rank] = std::move(file);
}

template <typename Use>
void CopyServer::WithFile(std::int64_t rank, const Use& use) {
  std::shared_ptr<File> file;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::int64_t own = rank - first_own_;
    if (own >= 0 && own < static_cast<std::int64_t>(own_.size())) {
      file = OwnFiles()[static_cast<std::size_t>(own)].file;
    } else if (const auto found = others_.find(rank); found != others_.end()) {
      file = found->second;
    }
  }
  if (file == nullptr) return;
  const std::lock_guard<std::mutex> lock(file->in_use);
  use(file->descriptor.number());
}

absl::StatusOr<CopyClient> CopyClient::Connect(const Endpoint& server, const std::string& token,
                                               std::int64_t rank) {
  const Member self{
      .rank = rank, .world = 0, .build = "", .plan_hash = "", .device = "", .process = ProcessName()};
  ASSIGN_OR_RETURN(Descriptor socket, launch::Connect(server, Clock::now() + kPatience));
  ASSIGN_OR_RETURN(Link link, OpenLink(std::move(socket), token, self, kPatience));
  return CopyClient(std::move(link));
}

absl::StatusOr<WireMessage> CopyClient::Receive(MessageKind expected) {
  ASSIGN_OR_RETURN(WireMessage message, link_.Receive(kPatience));
  if (message.kind == MessageKind::kRefused) return ResourceExhausted("refused: {}", message.fields[0]);
  if (message.kind != expected) return DataLoss("an answer to another question");
  return message;
}

absl::Status CopyClient::Store(std::int64_t rank, const MemoryCopies& copies, int place) {
  const MemoryCopies::Kept kept = copies.At(place);
  RETURN_IF_ERROR(link_.Send({MessageKind::kStoreCopy,
                              {std::to_string(rank), copies.tag(), std::to_string(kept.iteration),
                               std::to_string(copies.copy_bytes()), kept.note}},
                             kPatience));
  RETURN_IF_ERROR(Receive(MessageKind::kReady).status());
  RETURN_IF_ERROR(link_.SendBytes(BytesOf(copies, place), kPatience));
  return Receive(MessageKind::kReady).status();
}

absl::StatusOr<std::vector<MemoryCopies::Kept>> CopyClient::List(std::int64_t rank, const std::string& tag) {
  RETURN_IF_ERROR(link_.Send({MessageKind::kListCopies, {std::to_string(rank), tag}}, kPatience));
  ASSIGN_OR_RETURN(const WireMessage answer, Receive(MessageKind::kCopies));
  std::vector<MemoryCopies::Kept> found;
  for (const std::string& text : answer.fields) {
    if (text.empty()) continue;
    ASSIGN_OR_RETURN(const WireMessage copy, Decode(text));
    if (copy.kind != MessageKind::kCopy) return DataLoss("an answer to another question");
    found.push_back({NumberOf(copy.fields[0]), copy.fields[1]});
  }
  return found;
}

absl::StatusOr<std::vector<CopyClient::Held>> CopyClient::ListAll() {
  RETURN_IF_ERROR(link_.Send({MessageKind::kListAll, {}}, kPatience));
  ASSIGN_OR_RETURN(const WireMessage answer, Receive(MessageKind::kAllCopies));
  std::vector<Held> copies;
  std::istringstream lines(answer.fields[0]);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Held copy;
    if (!(words >> copy.rank >> copy.iteration >> copy.tag))
      return DataLoss("a list of copies has: {}", line);
    words.ignore();
    std::getline(words, copy.note);
    copies.push_back(std::move(copy));
  }
  return copies;
}

absl::Status CopyClient::Read(const Held& copy, std::int64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const std::span<std::byte> part = out.first(std::min(out.size(), kMostReadBytes));
    RETURN_IF_ERROR(link_.Send({MessageKind::kReadCopy,
                                {std::to_string(copy.rank), copy.tag, std::to_string(copy.iteration),
                                 std::to_string(offset), std::to_string(part.size())}},
                               kPatience));
    RETURN_IF_ERROR(Receive(MessageKind::kReady).status());
    RETURN_IF_ERROR(link_.ReceiveBytes(part, kPatience));
    out = out.subspan(part.size());
    offset += static_cast<std::int64_t>(part.size());
  }
  return absl::OkStatus();
}

absl::Status CopyClient::ForgetOthers(const std::string& tag) {
  RETURN_IF_ERROR(link_.Send({MessageKind::kForgetOthers, {tag}}, kPatience));
  return Receive(MessageKind::kReady).status();
}

absl::Status CopyClient::Fetch(std::int64_t rank, const std::string& tag, std::int64_t iteration, int file) {
  RETURN_IF_ERROR(link_.Send(
      {MessageKind::kFetchCopy, {std::to_string(rank), tag, std::to_string(iteration)}}, kPatience));
  ASSIGN_OR_RETURN(const WireMessage copy, Receive(MessageKind::kCopy));
  ASSIGN_OR_RETURN(MemoryCopies copies, MemoryCopies::Open(file, tag, NumberOf(copy.fields[2])));
  const int place = copies.Begin({NumberOf(copy.fields[0]), copy.fields[1]});
  RETURN_IF_ERROR(link_.ReceiveBytes(BytesOf(copies, place), kPatience));
  RETURN_IF_ERROR(Receive(MessageKind::kReady).status());
  copies.Finish(place);
  return absl::OkStatus();
}

}  // namespace engine::launch
