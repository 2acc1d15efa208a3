#include "engine/backend/cpu/world.h"

#include <cstring>

namespace engine::backend::cpu {
namespace {

absl::Status Aborted() { return absl::AbortedError("another rank failed"); }

}  // namespace

absl::Status Meeting::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (aborted_) return Aborted();
  const std::int64_t generation = generation_;
  if (++waiting_ == shown_.size()) {
    waiting_ = 0;
    ++generation_;
    all_here_.notify_all();
    return absl::OkStatus();
  }
  all_here_.wait(lock, [&] { return aborted_ || generation_ != generation; });
  return generation_ != generation ? absl::OkStatus() : Aborted();
}

void Meeting::Abort() {
  const std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  all_here_.notify_all();
}

std::int64_t Mailbox::Post(const std::byte* data, std::int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  offers_.push_back({data, bytes});
  changed_.notify_all();
  return forgotten_ + static_cast<std::int64_t>(offers_.size());
}

absl::Status Mailbox::WaitTaken(std::int64_t ticket) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_taken = [&] { return forgotten_ + static_cast<std::int64_t>(taken_) >= ticket; };
  changed_.wait(lock, [&] { return aborted_ || is_taken(); });
  return is_taken() ? absl::OkStatus() : Aborted();
}

absl::Status Mailbox::Take(std::byte* data, std::int64_t bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return aborted_ || taken_ < offers_.size(); });
  if (aborted_) return Aborted();  // what was offered may be written again: its sender no longer waits
  const Offer offer = offers_[taken_];
  if (offer.bytes != bytes) return Internal("{} bytes were sent where {} are expected", offer.bytes, bytes);
  lock.unlock();
  std::memcpy(data, offer.data,
              static_cast<size_t>(bytes));  // the sender keeps the bytes until they are taken
  lock.lock();
  if (++taken_ == offers_.size()) {
    forgotten_ += static_cast<std::int64_t>(taken_);
    taken_ = 0;
    offers_.clear();
  }
  changed_.notify_all();
  return absl::OkStatus();
}

void Mailbox::Abort() {
  const std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

Meeting* World::MeetingOf(const std::vector<std::int64_t>& ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Meeting>& meeting = meetings_[ranks];
  if (meeting == nullptr) {
    meeting = std::make_unique<Meeting>(static_cast<std::int64_t>(ranks.size()));
    if (aborted_) meeting->Abort();
  }
  return meeting.get();
}

Mailbox* World::MailboxOf(std::int64_t from, std::int64_t to, std::int32_t channel) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Mailbox>& mailbox = mailboxes_[{from, to, channel}];
  if (mailbox == nullptr) {
    mailbox = std::make_unique<Mailbox>();
    if (aborted_) mailbox->Abort();
  }
  return mailbox.get();
}

void World::Abort() {
  const std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  for (const auto& [ranks, meeting] : meetings_) meeting->Abort();
  for (const auto& [key, mailbox] : mailboxes_) mailbox->Abort();
}

absl::StatusOr<std::int64_t> CpuCommunicator::Send(std::int64_t peer, std::int32_t channel,
                                                   const std::byte* data, std::int64_t bytes,
                                                   std::int32_t stream, std::int64_t there) {
  (void)stream;
  (void)there;
  return world_.MailboxOf(rank_, peer, channel)->Post(data, bytes);
}

absl::Status CpuCommunicator::WaitSent(std::int64_t peer, std::int32_t channel, std::int64_t ticket) {
  return world_.MailboxOf(rank_, peer, channel)->WaitTaken(ticket);
}

absl::Status CpuCommunicator::Receive(std::int64_t peer, std::int32_t channel, std::byte* data,
                                      std::int64_t bytes, std::int32_t stream) {
  (void)stream;
  return world_.MailboxOf(peer, rank_, channel)->Take(data, bytes);
}

}  // namespace engine::backend::cpu
