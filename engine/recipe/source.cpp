#include "engine/recipe/source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/recipe/shipped.h"

namespace engine::recipe {
namespace {

namespace fs = std::filesystem;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string ErrorText(int error) { return std::strerror(error); }

absl::StatusOr<std::string> Canonical(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  if (error) return NotFound("cannot read '{}': {}", ShownPath(path), error.message());
  return canonical.string();
}

bool IsInside(const std::string& path, const std::string& root) {
  const fs::path a(path);
  const fs::path b(root);
  return std::mismatch(b.begin(), b.end(), a.begin(), a.end()).first == b.end();
}

absl::Status TooLarge(std::uint64_t bytes) {
  return ResourceExhausted("the file has {} bytes, and a recipe has at most {} ({})",
                           WithThousands(static_cast<std::int64_t>(bytes)), WithThousands(kMaxRecipeBytes),
                           FormatBytes(kMaxRecipeBytes));
}

}  // namespace

Source::Source(std::string name, std::string text, int first_line)
    : name_(std::move(name)), text_(std::move(text)), first_line_(first_line), line_starts_{0} {
  for (std::size_t i = 0; i < text_.size(); ++i) {
    if (text_[i] == '\n') line_starts_.push_back(i + 1);
  }
}

std::string_view Source::WholeLine(int line) const {
  const int index = line - first_line_;
  if (index < 0 || static_cast<std::size_t>(index) >= line_starts_.size()) return {};
  const std::size_t begin = line_starts_[static_cast<std::size_t>(index)];
  const bool last = static_cast<std::size_t>(index) + 1 == line_starts_.size();
  std::size_t end = last ? text_.size() : line_starts_[static_cast<std::size_t>(index) + 1] - 1;
  if (end > begin && text_[end - 1] == '\r') --end;
  return std::string_view(text_).substr(begin, end - begin);
}

std::string Source::Line(int line) const { return std::string(WholeLine(line).substr(0, kMaxShownBytes)); }

Mark Source::MarkOfOffset(std::size_t offset) const {
  const auto after = std::upper_bound(line_starts_.begin(), line_starts_.end(), offset);
  const auto index = static_cast<std::size_t>(after - line_starts_.begin()) - 1;
  return {static_cast<int>(index) + first_line_, static_cast<int>(offset - line_starts_[index]) + 1, 1};
}

Diagnostic Source::Error(const Mark& mark, std::string message, std::string hint) const {
  return {Severity::kError, Span(mark), std::move(message), std::move(hint), Line(mark.line)};
}

absl::StatusOr<std::string> ResolvePath(const std::string& path, const std::string& root) {
  if (path.find('\0') != std::string::npos) return InvalidArgument("a path cannot have a NUL byte");
  if (IsShipped(path)) {  // the installation is trusted as the program is
    ASSIGN_OR_RETURN(const std::string found, FindShipped(path));
    return Canonical(found);
  }
  ASSIGN_OR_RETURN(std::string canonical, Canonical(path));
  if (root.empty()) return canonical;
  ASSIGN_OR_RETURN(const std::string canonical_root, Canonical(root));
  if (!IsInside(canonical, canonical_root)) {
    return InvalidArgument("'{}' is '{}', outside of the root '{}'", ShownPath(path), ShownPath(canonical),
                           ShownPath(canonical_root));
  }
  return canonical;
}

absl::StatusOr<std::string> ReadRecipeFile(const std::string& path, const std::string& shown_path) {
  const std::string shown = ShownPath(shown_path);
  // O_NONBLOCK: opening a named pipe without a writer would wait forever.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return NotFound("cannot read '{}': {}", shown, ErrorText(errno));
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return NotFound("cannot read '{}': {}", shown, ErrorText(errno));
  if (S_ISDIR(info.st_mode)) return InvalidArgument("'{}' is a directory, not a recipe", shown);
  if (!S_ISREG(info.st_mode)) return InvalidArgument("'{}' is not a regular file", shown);
  if (static_cast<std::uint64_t>(info.st_size) > kMaxRecipeBytes) {
    return TooLarge(static_cast<std::uint64_t>(info.st_size));
  }
  // A file may grow, or have no size at all (/proc): there is room for a byte more than it has, and in the end than is allowed.
  constexpr std::size_t kLeastRoom = 4096;
  std::string text(std::max(kLeastRoom, static_cast<std::size_t>(info.st_size) + 1), '\0');
  std::size_t used = 0;
  for (;;) {
    if (used > kMaxRecipeBytes) return TooLarge(used);
    if (used == text.size()) text.resize(std::min(2 * used, kMaxRecipeBytes + 1));
    const ssize_t got = ::read(file.get(), text.data() + used, text.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return NotFound("cannot read '{}': {}", shown, ErrorText(errno));
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  text.resize(used);
  return text;
}

}  // namespace engine::recipe
