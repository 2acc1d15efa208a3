#include "engine/data/index_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>

#include "engine/base/file_io.h"
#include "engine/base/hash.h"
#include "engine/base/host_name.h"
#include "engine/base/status.h"
#include "engine/data/mapped_file.h"

namespace engine::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOrderMagic("ENGINE INDEX 1\0\0", 16);
constexpr std::size_t kHashDigits = 32;
constexpr std::size_t kNumbers = 9;
constexpr std::size_t kArrays = 3;
constexpr std::size_t kBody = 16 + 2 * kHashDigits;  // where the hashed rest begins
constexpr std::size_t kHeader = kBody + (kNumbers + kArrays) * sizeof(std::int64_t);
constexpr std::int64_t kWorthAFile = 1 << 20;  // bytes

constexpr std::size_t Padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

// The contents of a file.
struct Content {
  std::array<std::int64_t, kNumbers> numbers = {};
  std::array<std::span<const std::byte>, kArrays> arrays;
  std::shared_ptr<const void> owner;  // of the arrays
};

absl::Status Write(const Content& content, const std::string& key, const File& file) {
  std::array<std::int64_t, kNumbers + kArrays> numbers = {};
  std::copy(content.numbers.begin(), content.numbers.end(), numbers.begin());
  for (std::size_t a = 0; a < kArrays; ++a)
    numbers[kNumbers + a] = static_cast<std::int64_t>(content.arrays[a].size());
  constexpr std::array<char, 8> kPadding = {};
  const auto each = [&](const auto& take) {  // of the hashed rest
    take(numbers.data(), sizeof numbers);
    for (const std::span<const std::byte> array : content.arrays) {
      take(array.data(), array.size());
      take(kPadding.data(), Padded(array.size()) - array.size());
    }
  };
  Hasher hasher;
  each([&](const void* data, std::size_t bytes) { hasher.Update(data, bytes); });
  absl::Status status;
  std::int64_t at = 0;
  const auto write = [&](const void* data, std::size_t bytes) {
    if (status.ok()) status = file.WriteAt(data, static_cast<std::int64_t>(bytes), at);
    at += static_cast<std::int64_t>(bytes);
  };
  write(kOrderMagic.data(), kOrderMagic.size());
  write(key.data(), kHashDigits);
  write(hasher.HexDigest().data(), kHashDigits);
  each(write);
  if (status.ok()) status = file.Sync();  // some file systems say only then that they are full
  return status;
}

// nullopt: not there, or not whole, or of something else.
std::optional<Content> Map(const std::string& path, const std::string& key) {
  absl::StatusOr<MappedFile> opened = MappedFile::Open(path);
  if (!opened.ok()) return std::nullopt;
  const auto file = std::make_shared<const MappedFile>(*std::move(opened));
  const std::span<const std::byte> bytes = file->bytes();
  if (bytes.size() < kHeader || std::memcmp(bytes.data(), kOrderMagic.data(), kOrderMagic.size()) != 0 ||
      std::memcmp(bytes.data() + kOrderMagic.size(), key.data(), kHashDigits) != 0) {
    return std::nullopt;
  }
  Hasher hasher;
  hasher.Update(bytes.data() + kBody, bytes.size() - kBody);
  if (std::memcmp(bytes.data() + kOrderMagic.size() + kHashDigits, hasher.HexDigest().data(), kHashDigits) !=
      0)
    return std::nullopt;
  // The rest is as it was written: its hash says so.
  std::array<std::int64_t, kNumbers + kArrays> numbers;
  std::memcpy(numbers.data(), bytes.data() + kBody, sizeof numbers);
  Content content;
  std::copy_n(numbers.begin(), kNumbers, content.numbers.begin());
  std::size_t at = kHeader;
  for (std::size_t a = 0; a < kArrays; ++a) {
    const auto size = static_cast<std::size_t>(numbers[kNumbers + a]);
    content.arrays[a] = bytes.subspan(at, size);
    at += Padded(size);
  }
  content.owner = file;
  return content;
}

// How the names begin under which processes of this host write the file of that path; their number follows. No two hosts write one file.
std::string WrittenBeginning(const std::string& path) { return fmt::format("{}.{}.", path, HostName()); }

// Called with the lock, so that no living process of this host writes such a file.
void RemoveLeftovers(const std::string& path) {
  const std::string beginning = WrittenBeginning(path);
  std::error_code error;
  for (fs::directory_iterator it(fs::path(path).parent_path(), error);
       !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string found = it->path().string();
    const bool is_one = found.starts_with(beginning) &&
                        found.find_first_not_of("0123456789", beginning.size()) == std::string::npos;
    if (is_one) unlink(found.c_str());
  }
}

// Puts the content at the path, or takes what lies there by then: another host may have made it meanwhile. Both come from the file.
absl::StatusOr<Content> Keep(const Content& content, const std::string& key, const std::string& path) {
  const std::string written = WrittenBeginning(path) + std::to_string(getpid());
  const int descriptor = open(written.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return SystemError("create", written, errno);
  absl::Status status = Write(content, key, File(descriptor, written));
  std::optional<Content> kept = Map(path, key);
  if (status.ok() && !kept && rename(written.c_str(), path.c_str()) != 0)
    status = SystemError("rename", written, errno);
  unlink(written.c_str());
  if (!kept && status.ok()) kept = Map(path, key);  // mapped, its pages are those of all processes
  if (kept) return *std::move(kept);
  RETURN_IF_ERROR(status);
  return DataLoss("{} is not as it was written", path);
}

// A file that one process at a time has locked; others wait.
class Lock {
 public:
  static absl::StatusOr<Lock> Take(const std::string& path) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return SystemError("create", path, errno);
    while (flock(file, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      close(file);
      return SystemError("lock", path, error);
    }
    return Lock(file);
  }
  Lock(Lock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Lock& operator=(Lock&&) = delete;
  ~Lock() {
    if (file_ >= 0) close(file_);
  }

 private:
  explicit Lock(int file) : file_(file) {}
  int file_;
};

// The content of KEY.index in the folder, which is built and written where it is not there.
absl::StatusOr<Content> OpenContent(const std::string& folder, const std::string& key,
                                    const std::function<absl::StatusOr<Content>()>& build,
                                    std::string* note) {
  const std::string path = (fs::path(folder) / (key + ".index")).string();
  if (std::optional<Content> content = Map(path, key)) return *std::move(content);
  std::error_code error;
  fs::create_directories(folder, error);
  const absl::StatusOr<Lock> lock =
      Lock::Take(path + ".lock");  // which stays, so that all lock the same file
  if (lock.ok()) {                 // another process may have made it meanwhile
    if (std::optional<Content> content = Map(path, key)) return *std::move(content);
    RemoveLeftovers(path);
  }
  ASSIGN_OR_RETURN(Content built, build());
  absl::StatusOr<Content> kept = lock.ok() ? Keep(built, key, path) : lock.status();
  if (kept.ok()) return kept;
  *note =
      fmt::format("orders of samples are not kept: {}; each process builds its own", Message(kept.status()));
  return built;
}

template <typename T>
std::span<const T> As(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

Content ContentOf(const SampleIndex& index) {
  Content content;
  content.numbers = {index.packed ? 1 : 0, index.sequence_length, index.tokens_per_epoch,
                     index.epochs,         index.facts.pieces,    index.facts.cut,
                     index.facts.dropped,  index.facts.tokens,    0};
  content.arrays[0] = std::as_bytes(index.shuffle);
  content.arrays[1] = index.packed ? std::as_bytes(index.pieces) : std::as_bytes(index.documents);
  content.arrays[2] = index.packed ? std::as_bytes(index.packs) : std::as_bytes(index.starts);
  content.owner = index.owner;
  return content;
}

SampleIndex SampleIndexOf(const Content& content) {
  SampleIndex index;
  const auto& n = content.numbers;
  index.packed = n[0] != 0;
  index.sequence_length = n[1];
  index.tokens_per_epoch = n[2];
  index.epochs = n[3];
  index.facts = {.pieces = n[4], .cut = n[5], .dropped = n[6], .tokens = n[7]};
  index.shuffle = As<std::uint32_t>(content.arrays[0]);
  if (index.packed) {
    index.pieces = As<PackedPiece>(content.arrays[1]);
    index.packs = As<std::uint32_t>(content.arrays[2]);
  } else {
    index.documents = As<std::int32_t>(content.arrays[1]);
    index.starts = As<SampleStart>(content.arrays[2]);
  }
  index.owner = content.owner;
  return index;
}

std::span<const std::int32_t> InRange(std::span<const std::int32_t> lengths, const SequenceRange& range) {
  return lengths.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
}

// A bound from below, known without building.
bool IsWorthAFile(std::span<const std::int32_t> lengths, const SampleIndexOptions& options) {
  const std::span<const std::int32_t> part = InRange(lengths, options.range);
  const std::int64_t tokens = std::accumulate(part.begin(), part.end(), std::int64_t{0});
  const std::int64_t an_epoch = tokens / (options.sequence_length + 1);
  const std::int64_t samples = std::max(options.num_samples.value_or(0), an_epoch);
  return samples * 12 + options.range.size() * 4 >= kWorthAFile;
}

}  // namespace

absl::StatusOr<SampleIndex> OpenSampleIndex(const std::string& folder, std::span<const std::int32_t> lengths,
                                            const SampleIndexOptions& options, std::string* note) {
  if (folder.empty() || options.sequence_length < 1 || !IsWorthAFile(lengths, options))
    return BuildSampleIndex(lengths, options);
  Hasher hasher;
  const std::span<const std::int32_t> part = InRange(lengths, options.range);
  hasher.Update(part.data(), part.size_bytes());
  hasher.Update(fmt::format("{} {} {} {} {} {} {} {}", options.range.begin, options.range.end,
                            options.sequence_length, options.packs, options.drops_long,
                            options.num_samples.value_or(-1), options.epochs, options.seed));
  const auto build = [&]() -> absl::StatusOr<Content> {
    ASSIGN_OR_RETURN(const SampleIndex index, BuildSampleIndex(lengths, options));
    return ContentOf(index);
  };
  ASSIGN_OR_RETURN(const Content content, OpenContent(folder, hasher.HexDigest(), build, note));
  return SampleIndexOf(content);
}

}  // namespace engine::data
