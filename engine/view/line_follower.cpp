#include "engine/view/line_follower.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "engine/base/file_io.h"

namespace engine::view {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
constexpr std::size_t kKnownBytes = 256;

// The bytes at `offset`, at most `most`; fewer where the file ends. −1: an error, in errno.
ssize_t ReadSome(int descriptor, char* to, std::size_t most, std::int64_t offset) {
  ssize_t got = 0;
  do {
    got = ::pread(descriptor, to, most, offset);
  } while (got < 0 && errno == EINTR);
  return got;
}

}  // namespace

absl::Status LineFollower::Read(std::int64_t most_bytes, const std::function<void()>& restart,
                                const std::function<void(std::string_view)>& line) {
  ASSIGN_OR_RETURN(const int descriptor, OpenRegular(path_, O_RDONLY));
  const File file(descriptor, path_);
  struct stat facts = {};
  if (::fstat(descriptor, &facts) != 0) return SystemError("read", path_, errno);
  size_ = facts.st_size;
  modified_ = static_cast<double>(facts.st_mtim.tv_sec) + static_cast<double>(facts.st_mtim.tv_nsec) / 1e9;
  if (!StandsAsRead(descriptor)) {
    *this = LineFollower(path_);
    restart();
    return Read(most_bytes, restart, line);
  }
  std::vector<char> block(kBlockBytes);
  for (std::int64_t done = 0; done < most_bytes;) {
    const ssize_t got = ReadSome(descriptor, block.data(), block.size(), offset_);
    if (got < 0) return SystemError("read", path_, errno);
    if (got == 0) break;
    Take({block.data(), static_cast<std::size_t>(got)}, line);
    done += got;
  }
  size_ = std::max(size_, offset_);
  return absl::OkStatus();
}

double LineFollower::share() const {
  return size_ == 0 ? 1 : static_cast<double>(offset_) / static_cast<double>(size_);
}

bool LineFollower::StandsAsRead(int descriptor) const {
  std::string now(last_.size(), '\0');
  const auto from = offset_ - static_cast<std::int64_t>(last_.size());
  const ssize_t got = ReadSome(descriptor, now.data(), now.size(), from);
  return got == static_cast<ssize_t>(now.size()) && now == last_;
}

void LineFollower::Take(std::string_view bytes, const std::function<void(std::string_view)>& line) {
  offset_ += static_cast<std::int64_t>(bytes.size());
  last_ = (last_ + std::string(bytes.substr(bytes.size() - std::min(bytes.size(), kKnownBytes))));
  last_.erase(0, last_.size() - std::min(last_.size(), kKnownBytes));
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    passing_over_ = passing_over_ || line_.size() + part.size() > kMostLineBytes;
    if (!passing_over_) line_ += part;
    if (end == std::string_view::npos) return;
    bytes.remove_prefix(end + 1);
    if (passing_over_) {
      ++long_lines_;
    } else {
      line(line_);
    }
    line_.clear();
    passing_over_ = false;
  }
}

}  // namespace engine::view
