#include "engine/executor/memory_checkpoint.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/plan/snapshot.h"

namespace engine::executor {
namespace {

constexpr std::int64_t kPageBytes = 4096;
constexpr std::size_t kTagBytes = 32;
constexpr int kCopies = 2;

}  // namespace

// The file's first page; a file that was just made is zeros. The copies lie behind it.
struct MemoryCheckpoint::Header {
  struct Copy {
    std::atomic<std::int32_t> whole;
    std::int32_t note_bytes;
    std::int64_t iteration;
    char note[kMostNote];

    Kept AsKept() const { return {iteration, std::string(note, static_cast<std::size_t>(note_bytes))}; }
  };
  char tag[kTagBytes];
  Copy copies[kCopies];
};

namespace {

// A file's first bytes; null where it has not so many.
class MappedPage {
 public:
  explicit MappedPage(int file) {
    struct stat found {};
    if (fstat(file, &found) != 0 || found.st_size < kPageBytes) return;
    memory_ = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, file, 0);
  }
  ~MappedPage() {
    if (memory_ != MAP_FAILED) munmap(memory_, kPageBytes);
  }
  MappedPage(const MappedPage&) = delete;
  MappedPage& operator=(const MappedPage&) = delete;
  const void* get() const { return memory_ == MAP_FAILED ? nullptr : memory_; }

 private:
  void* memory_ = MAP_FAILED;
};

}  // namespace

std::vector<MemoryCheckpoint::Kept> MemoryCheckpoint::In(int file, const std::string& tag) {
  static_assert(sizeof(Header) <= kPageBytes);
  const MappedPage page(file);
  std::vector<Kept> found;
  if (page.get() == nullptr) return found;
  const auto& header = *static_cast<const Header*>(page.get());
  if (!tag.empty() && std::string_view(header.tag, kTagBytes) != tag) return found;
  for (const Header::Copy& copy : header.copies) {
    if (copy.whole.load() != 0) found.push_back(copy.AsKept());
  }
  std::sort(found.begin(), found.end(),
            [](const Kept& a, const Kept& b) { return a.iteration < b.iteration; });
  return found;
}

MemoryCheckpoint::MemoryCheckpoint(backend::Backend& backend, const std::vector<StatePart>& parts)
    : backend_(backend), parts_(parts) {
  for (const StatePart& part : parts_) copy_bytes_ += RoundUp(part.copy.bytes, plan::kSnapshotAlignment);
  copy_bytes_ = RoundUp(copy_bytes_, kPageBytes);
}

MemoryCheckpoint::~MemoryCheckpoint() {
  if (whole_.valid()) whole_.wait();
  if (header_ != nullptr) munmap(header_, static_cast<std::size_t>(bytes()));
}

std::int64_t MemoryCheckpoint::bytes() const { return kPageBytes + kCopies * copy_bytes_; }

absl::Status MemoryCheckpoint::Open(int file, const std::string& tag, std::int64_t keep) {
  ENGINE_CHECK(tag.size() == kTagBytes, "a tag of {} characters", tag.size());
  constexpr const char* kWhat = "copies of the state in the host's memory";
  struct stat found {};
  const bool fits = fstat(file, &found) == 0 && found.st_size == bytes();
  if (!fits && (ftruncate(file, 0) != 0 || ftruncate(file, bytes()) != 0))
    return ResourceExhausted("{} need {}: {}", kWhat, FormatBytes(bytes()), std::strerror(errno));
  void* const memory =
      mmap(nullptr, static_cast<std::size_t>(bytes()), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED)
    return ResourceExhausted("{} need {}: {}", kWhat, FormatBytes(bytes()), std::strerror(errno));
  header_ = static_cast<Header*>(memory);
  const bool same = std::string_view(header_->tag, kTagBytes) == tag;
  for (Header::Copy& copy : header_->copies) {
    if (!same || copy.iteration != keep) copy.whole.store(0);
  }
  std::memcpy(header_->tag, tag.data(), kTagBytes);
  return backend_.PinSnapshot(MemoryOf(0), kCopies * copy_bytes_);
}

std::byte* MemoryCheckpoint::MemoryOf(int slot) const {
  return reinterpret_cast<std::byte*>(header_) + kPageBytes + slot * copy_bytes_;
}

std::vector<backend::SnapshotCopy> MemoryCheckpoint::CopiesOf(int slot, bool at_once) const {
  std::vector<backend::SnapshotCopy> copies;
  std::byte* memory = MemoryOf(slot);
  for (const StatePart& part : parts_) {
    if (part.at_once == at_once)
      copies.push_back({.host = memory, .arena = part.copy.arena, .bytes = part.copy.bytes});
    memory += RoundUp(part.copy.bytes, plan::kSnapshotAlignment);
  }
  return copies;
}

absl::Status MemoryCheckpoint::Begin(const Kept& kept) {
  ENGINE_CHECK(kept.note.size() <= kMostNote, "a note of {} bytes", kept.note.size());
  if (whole_.valid()) RETURN_IF_ERROR(whole_.get());
  const Header::Copy* const copies = header_->copies;
  const bool second = copies[0].whole.load() != 0 &&
                      (copies[1].whole.load() == 0 || copies[1].iteration < copies[0].iteration);
  Header::Copy& copy = header_->copies[second ? 1 : 0];
  copy.whole.store(0);
  copy.iteration = kept.iteration;
  copy.note_bytes = static_cast<std::int32_t>(kept.note.size());
  std::memcpy(copy.note, kept.note.data(), kept.note.size());
  RETURN_IF_ERROR(backend_.BeginSnapshot(CopiesOf(second ? 1 : 0, true), CopiesOf(second ? 1 : 0, false)));
  whole_ = std::async(std::launch::async, [this, &copy]() -> absl::Status {
    RETURN_IF_ERROR(backend_.FinishSnapshot());
    copy.whole.store(1);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status MemoryCheckpoint::Restore() {
  for (int slot = 0; slot < kCopies; ++slot) {
    if (header_->copies[slot].whole.load() == 0) continue;
    for (const bool at_once : {true, false}) {
      for (const backend::SnapshotCopy& copy : CopiesOf(slot, at_once))
        RETURN_IF_ERROR(backend_.Upload(const_cast<std::byte*>(copy.arena), copy.host, copy.bytes));
    }
    return absl::OkStatus();
  }
  return Internal("there is no copy of the state in the host's memory");
}

}  // namespace engine::executor
