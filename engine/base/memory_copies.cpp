#include "engine/base/memory_copies.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <span>

#include "engine/base/units.h"

namespace engine {
namespace {

constexpr std::int64_t kPageBytes = 4096;
constexpr int kCopies = 2;

// Fills `out` from a file. False: it has not so many bytes, as when it is made shorter meanwhile, which would end a process that has it
// mapped.
bool ReadFrom(int file, std::int64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = pread(file, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out = out.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
  return true;
}

absl::Status NoMemory(std::int64_t bytes) {
  return ResourceExhausted("copies of the state in the host's memory need {}: {}", FormatBytes(bytes),
                           std::strerror(errno));
}

}  // namespace

// The file's first page; a file that was just made is zeros. The copies lie behind it.
struct MemoryCopies::Header {
  struct Copy {
    std::atomic<std::int32_t> whole;
    std::int32_t note_bytes;
    std::int64_t iteration;
    char note[kMostNote];

    // The header may be one that another process is writing, so its numbers are not trusted.
    bool IsWhole() const {
      return whole.load() != 0 && note_bytes >= 0 && note_bytes <= static_cast<std::int32_t>(kMostNote);
    }
    Kept AsKept() const { return {iteration, std::string(note, static_cast<std::size_t>(note_bytes))}; }
  };
  char tag[kTagBytes];
  Copy copies[kCopies];
};

// The first page as another process may be changing it.
class MemoryCopies::Page {
 public:
  explicit Page(int file) {
    static_assert(sizeof(Header) <= kPageBytes);
    is_there_ = ReadFrom(file, 0, bytes_);
  }
  std::string tag() const { return is_there_ ? std::string(header().tag, kTagBytes) : ""; }
  // Null: it is not whole.
  const Header::Copy* CopyAt(int place) const {
    const Header::Copy& copy = header().copies[place];
    return is_there_ && copy.IsWhole() ? &copy : nullptr;
  }

 private:
  const Header& header() const { return *reinterpret_cast<const Header*>(bytes_.data()); }
  alignas(Header) std::array<std::byte, sizeof(Header)> bytes_{};
  bool is_there_ = false;
};

std::vector<MemoryCopies::Kept> MemoryCopies::In(int file, const std::string& tag) {
  const Page page(file);
  std::vector<Kept> found;
  if (!tag.empty() && page.tag() != tag) return found;
  for (int place = 0; place < kCopies; ++place) {
    if (const Header::Copy* const copy = page.CopyAt(place)) found.push_back(copy->AsKept());
  }
  std::sort(found.begin(), found.end(),
            [](const Kept& a, const Kept& b) { return a.iteration < b.iteration; });
  return found;
}

std::string MemoryCopies::TagIn(int file) { return In(file).empty() ? "" : Page(file).tag(); }

absl::Status MemoryCopies::ReadAt(int file, const std::string& tag, std::int64_t iteration,
                                  std::int64_t offset, std::span<std::byte> out) {
  struct stat found {};
  if (fstat(file, &found) != 0) found.st_size = 0;
  const std::int64_t copy_bytes = (found.st_size - kPageBytes) / kCopies;
  const Page page(file);
  for (int place = 0; place < kCopies && page.tag() == tag; ++place) {
    const Header::Copy* const copy = page.CopyAt(place);
    if (copy == nullptr || copy->iteration != iteration) continue;
    if (offset < 0 || offset > copy_bytes || std::ssize(out) > copy_bytes - offset)
      return DataLoss("bytes {} and {} on of a copy of {}", offset, out.size(), copy_bytes);
    if (ReadFrom(file, kPageBytes + place * copy_bytes + offset, out)) return absl::OkStatus();
  }
  return NotFound("it has no such copy");
}

std::int64_t MemoryCopies::FileBytes(std::int64_t copy_bytes) {
  return kPageBytes + kCopies * RoundUp(copy_bytes, kPageBytes);
}

absl::StatusOr<MemoryCopies> MemoryCopies::Open(int file, const std::string& tag, std::int64_t copy_bytes) {
  ENGINE_CHECK(tag.size() == kTagBytes, "a tag of {} characters", tag.size());
  const std::int64_t bytes = FileBytes(copy_bytes);
  struct stat found {};
  const bool fits = fstat(file, &found) == 0 && found.st_size == bytes;
  if (!fits && (ftruncate(file, 0) != 0 || ftruncate(file, bytes) != 0)) return NoMemory(bytes);
  ASSIGN_OR_RETURN(MemoryCopies copies, Open(file));
  if (copies.tag() != tag) copies.ForgetAllBut(-1);
  std::memcpy(copies.header_->tag, tag.data(), kTagBytes);
  return copies;
}

absl::StatusOr<MemoryCopies> MemoryCopies::Open(int file) {
  struct stat found {};
  if (fstat(file, &found) != 0 || found.st_size < FileBytes(1)) return NotFound("a file without copies");
  void* const memory =
      mmap(nullptr, static_cast<std::size_t>(found.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return NoMemory(found.st_size);
  return MemoryCopies(static_cast<Header*>(memory), (found.st_size - kPageBytes) / kCopies);
}

MemoryCopies::~MemoryCopies() {
  if (header_ != nullptr) munmap(header_, static_cast<std::size_t>(FileBytes(copy_bytes_)));
}

std::string MemoryCopies::tag() const { return {header_->tag, kTagBytes}; }

std::byte* MemoryCopies::MemoryOf(int place) const {
  return reinterpret_cast<std::byte*>(header_) + kPageBytes + place * copy_bytes_;
}

MemoryCopies::Kept MemoryCopies::At(int place) const { return header_->copies[place].AsKept(); }

std::optional<int> MemoryCopies::Find(std::int64_t iteration) const {
  for (int place = 0; place < kCopies; ++place) {
    const Header::Copy& copy = header_->copies[place];
    if (copy.whole.load() != 0 && (iteration < 0 || copy.iteration == iteration)) return place;
  }
  return std::nullopt;
}

void MemoryCopies::ForgetAllBut(std::int64_t iteration) {
  for (Header::Copy& copy : header_->copies) {
    if (copy.iteration != iteration) copy.whole.store(0);
  }
}

int MemoryCopies::Begin(const Kept& kept) {
  ENGINE_CHECK(kept.note.size() <= kMostNote, "a note of {} bytes", kept.note.size());
  Header::Copy* const copies = header_->copies;
  const bool second = copies[0].whole.load() != 0 &&
                      (copies[1].whole.load() == 0 || copies[1].iteration < copies[0].iteration);
  Header::Copy& copy = copies[second ? 1 : 0];
  copy.whole.store(0);
  copy.iteration = kept.iteration;
  copy.note_bytes = static_cast<std::int32_t>(kept.note.size());
  std::memcpy(copy.note, kept.note.data(), kept.note.size());
  return second ? 1 : 0;
}

void MemoryCopies::Finish(int place) { header_->copies[place].whole.store(1); }

}  // namespace engine
