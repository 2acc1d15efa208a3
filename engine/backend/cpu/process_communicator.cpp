#include "engine/backend/cpu/process_communicator.h"

#include <cstring>
#include <string>

#include "engine/backend/cpu/conversion.h"
#include "engine/base/hash.h"

namespace engine::backend::cpu {
namespace {

using plan::Collective;

// The top byte of a tag says what it is for.
constexpr std::uint64_t kSizeTag = std::uint64_t{1} << 56;     // + channel
constexpr std::uint64_t kContentTag = std::uint64_t{2} << 56;  // + channel
constexpr std::uint64_t kGroupTag = std::uint64_t{3} << 56;    // + hash of the group

std::uint64_t TagOf(const std::vector<std::int64_t>& group) {
  std::string text;
  for (std::int64_t rank : group) text += fmt::format("{} ", rank);
  return kGroupTag | std::stoull(HashHex(text).substr(0, 14), nullptr, 16);
}

// The exchanges of one step of a collective: all are started before the first is waited for.
class Exchange {
 public:
  Exchange(ProcessWorld* world, std::uint64_t tag) : world_(*world), tag_(tag) {}

  // Nothing is exchanged where there are no elements: both sides know that.
  template <typename T>
  absl::Status Send(std::int64_t peer, const T* from, std::int64_t elements) {
    if (elements == 0) return absl::OkStatus();
    return Add(&sent_, peer, const_cast<T*>(from), elements)->Send(tag_);
  }
  template <typename T>
  absl::Status Receive(std::int64_t peer, T* to, std::int64_t elements) {
    if (elements == 0) return absl::OkStatus();
    return Add(&received_, peer, to, elements)->Receive(tag_);
  }
  absl::Status WaitReceived() {
    for (const auto& parcel : received_) RETURN_IF_ERROR(parcel->WaitReceived());
    return absl::OkStatus();
  }
  absl::Status WaitSent() {
    for (const auto& parcel : sent_) RETURN_IF_ERROR(parcel->WaitSent());
    return absl::OkStatus();
  }

 private:
  using Parcels = std::vector<std::unique_ptr<Parcel>>;

  template <typename T>
  Parcel* Add(Parcels* parcels, std::int64_t peer, T* data, std::int64_t elements) {
    const auto bytes = elements * static_cast<std::int64_t>(sizeof(T));
    parcels->push_back(std::make_unique<Parcel>(&world_, peer, data, bytes));
    return parcels->back().get();
  }

  ProcessWorld& world_;
  const std::uint64_t tag_;
  Parcels sent_, received_;
};

// Cuts room into pieces. Without memory it only counts.
class Pieces {
 public:
  explicit Pieces(std::byte* memory) : memory_(memory) {}

  template <typename T>
  T* Take(std::int64_t elements) {
    T* piece = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (static_cast<size_t>(elements) * sizeof(T) + 63) / 64 * 64;
    return piece;
  }
  size_t used() const { return used_; }

 private:
  std::byte* memory_;
  size_t used_ = 0;
};

class ProcessCollective : public Launch {
 protected:
  ProcessCollective(CollectiveArgs args, ProcessWorld* world, std::vector<std::byte>* room)
      : args_(std::move(args)), world_(world), tag_(TagOf(args_.group)), room_(*room) {}

  void Reserve(size_t bytes) {
    if (room_.size() < bytes) room_.resize(bytes);
  }
  Exchange NewExchange() const { return Exchange(world_, tag_); }
  size_t members() const { return args_.group.size(); }
  size_t self() const { return static_cast<size_t>(args_.index); }

  const CollectiveArgs args_;
  ProcessWorld* const world_;
  const std::uint64_t tag_;
  std::vector<std::byte>& room_;
};

std::int64_t Elements(const std::vector<RunCopy>& runs) {
  std::int64_t elements = 0;
  for (const RunCopy& run : runs) elements += run.length;
  return elements;
}

// Each member's input may give elements to each member's output.
template <typename T>
class ProcessConversion final : public ProcessCollective {
 public:
  ProcessConversion(CollectiveArgs args, std::vector<std::vector<RunCopy>> runs, ProcessWorld* world,
                    std::vector<std::byte>* room)
      : ProcessCollective(std::move(args), world, room), gets_(std::move(runs)) {
    for (size_t member = 0; member < members(); ++member) {
      gives_.push_back(CommonRuns(args_.input.extent, args_.input.shape, args_.member_outputs[member],
                                  args_.output.shape));
      std::int64_t at = 0;  // both sides pack the runs in the order in which they work them out
      for (RunCopy& run : gives_.back()) {
        run.to = at;
        at += run.length;
      }
      if (member == self()) continue;
      at = 0;
      for (RunCopy& run : gets_[member]) {
        run.from = at;
        at += run.length;
      }
    }
    Pieces count(nullptr);
    Cut(&count);
    Reserve(count.used());
  }

  absl::Status Run(const KernelContext&) override {
    Pieces pieces(room_.data());
    const auto [given, got] = Cut(&pieces);
    Exchange exchange = NewExchange();
    for (size_t member = 0; member < members(); ++member) {
      if (member == self()) continue;
      RETURN_IF_ERROR(exchange.Receive(args_.group[member], got[member], Elements(gets_[member])));
    }
    for (size_t member = 0; member < members(); ++member) {
      if (member == self()) continue;
      TakeRuns(args_.input.as<T>(), gives_[member], given[member], /*add=*/false,
               args_.instruction->reduction());
      RETURN_IF_ERROR(exchange.Send<T>(args_.group[member], given[member], Elements(gives_[member])));
    }
    RETURN_IF_ERROR(exchange.WaitReceived());
    for (size_t member = 0; member < members(); ++member) {
      TakeRuns<T>(member == self() ? args_.input.as<T>() : got[member], gets_[member], args_.output.as<T>(),
                  member > 0 && Sums(*args_.instruction), args_.instruction->reduction());
    }
    return exchange.WaitSent();
  }

 private:
  // Where what each member is given, and what it gives, lies.
  std::pair<std::vector<T*>, std::vector<T*>> Cut(Pieces* pieces) const {
    std::pair<std::vector<T*>, std::vector<T*>> cut;
    for (size_t member = 0; member < members(); ++member) {
      cut.first.push_back(pieces->Take<T>(member == self() ? 0 : Elements(gives_[member])));
      cut.second.push_back(pieces->Take<T>(member == self() ? 0 : Elements(gets_[member])));
    }
    return cut;
  }

  // By member. What goes over the wire is packed: `to` of a run that is given and `from` of one that is got
  // count packed elements.
  std::vector<std::vector<RunCopy>> gives_, gets_;
};

// A buffer of which every member holds all, cut into one part per member: members exchange parts, add up
// their own ones and gather the sums. In place where input and output are one.
template <typename T>
class ByParts final : public ProcessCollective {
 public:
  ByParts(CollectiveArgs args, ProcessWorld* world, std::vector<std::byte>* room)
      : ProcessCollective(std::move(args), world, room) {
    Pieces count(nullptr);
    for (size_t member = 0; member < members(); ++member) count.Take<T>(Length(self()));
    Reserve(count.used());
  }

  absl::Status Run(const KernelContext&) override {
    const Collective collective = args_.instruction->collective();
    if (collective != Collective::kAllGather) RETURN_IF_ERROR(SumPart());
    return collective == Collective::kReduceScatter ? absl::OkStatus() : GatherParts();
  }

 private:
  std::int64_t Begin(size_t member) const {
    return PartBegin(args_.input.shape.elements(), static_cast<std::int64_t>(member),
                     static_cast<std::int64_t>(members()));
  }
  std::int64_t Length(size_t member) const { return Begin(member + 1) - Begin(member); }

  absl::Status SumPart() {
    Pieces pieces(room_.data());
    Exchange exchange = NewExchange();
    std::vector<const T*> parts(members(), args_.input.as<T>() + Begin(self()));
    for (size_t member = 0; member < members(); ++member) {
      if (member == self()) continue;
      T* part = pieces.Take<T>(Length(self()));
      parts[member] = part;
      RETURN_IF_ERROR(exchange.Receive(args_.group[member], part, Length(self())));
    }
    for (size_t member = 0; member < members(); ++member) {
      if (member == self()) continue;
      RETURN_IF_ERROR(
          exchange.Send(args_.group[member], args_.input.as<T>() + Begin(member), Length(member)));
    }
    RETURN_IF_ERROR(exchange.WaitReceived());
    SumInOrder<T>(parts, args_.output.as<T>() + Begin(self()), Length(self()),
                  args_.instruction->reduction());
    return exchange.WaitSent();  // their parts of my buffer are written next
  }

  absl::Status GatherParts() {
    Exchange exchange = NewExchange();
    for (size_t member = 0; member < members(); ++member) {
      if (member == self()) continue;
      T* output = args_.output.as<T>();
      RETURN_IF_ERROR(exchange.Receive(args_.group[member], output + Begin(member), Length(member)));
      RETURN_IF_ERROR(exchange.Send(args_.group[member], output + Begin(self()), Length(self())));
    }
    RETURN_IF_ERROR(exchange.WaitReceived());
    return exchange.WaitSent();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Launch>> ProcessCommunicator::Prepare(CollectiveArgs args) {
  if (args.instruction->collective() == Collective::kSlice)
    return PrepareSlice(std::move(args), world_.rank());
  ENGINE_CHECK(!args.instruction->LeavesAddition(), "{}: processes push nothing", args.instruction->name);
  return ForElementType(args, [&]<typename T>() -> absl::StatusOr<std::unique_ptr<Launch>> {
    if (args.instruction->IsBucketExchange())
      return std::make_unique<ByParts<T>>(std::move(args), &world_, &room_);
    ASSIGN_OR_RETURN(std::vector<std::vector<RunCopy>> runs, RunsOf(args, world_.rank()));
    if (args.instruction->collective() ==
        Collective::kAllReduce) {  // every member holds, and needs, all of it
      return std::make_unique<ByParts<T>>(std::move(args), &world_, &room_);
    }
    return std::make_unique<ProcessConversion<T>>(std::move(args), std::move(runs), &world_, &room_);
  });
}

ProcessCommunicator::Offer::Offer(ProcessWorld* world, std::int64_t peer, const std::byte* data,
                                  std::int64_t count)
    : bytes(count),
      size(world, peer, &bytes, sizeof(bytes)),
      content(world, peer, const_cast<std::byte*>(data), count) {}

absl::StatusOr<std::int64_t> ProcessCommunicator::Send(std::int64_t peer, std::int32_t channel,
                                                       const std::byte* data, std::int64_t bytes,
                                                       std::int32_t stream, std::int64_t there) {
  (void)stream;
  (void)there;
  auto offer = std::make_unique<Offer>(&world_, peer, data, bytes);
  RETURN_IF_ERROR(offer->size.Send(kSizeTag + static_cast<std::uint32_t>(channel)));
  RETURN_IF_ERROR(offer->content.Send(kContentTag + static_cast<std::uint32_t>(channel)));
  Outbox& outbox = outboxes_[{peer, channel}];
  outbox.offers.push_back(std::move(offer));
  return ++outbox.last_ticket;
}

absl::Status ProcessCommunicator::WaitSent(std::int64_t peer, std::int32_t channel, std::int64_t ticket) {
  Outbox& outbox = outboxes_[{peer, channel}];
  while (outbox.last_ticket - static_cast<std::int64_t>(outbox.offers.size()) < ticket) {
    RETURN_IF_ERROR(outbox.offers.front()->size.WaitSent());
    RETURN_IF_ERROR(outbox.offers.front()->content.WaitSent());
    outbox.offers.pop_front();
  }
  return absl::OkStatus();
}

absl::Status ProcessCommunicator::Receive(std::int64_t peer, std::int32_t channel, std::byte* data,
                                          std::int64_t bytes, std::int32_t stream) {
  (void)stream;
  std::int64_t sent = 0;
  Parcel size(&world_, peer, &sent, sizeof(sent));
  RETURN_IF_ERROR(size.Receive(kSizeTag + static_cast<std::uint32_t>(channel)));
  RETURN_IF_ERROR(size.WaitReceived());
  if (sent != bytes) return Internal("{} bytes were sent where {} are expected", sent, bytes);
  Parcel content(&world_, peer, data, bytes);
  RETURN_IF_ERROR(content.Receive(kContentTag + static_cast<std::uint32_t>(channel)));
  return content.WaitReceived();
}

}  // namespace engine::backend::cpu
