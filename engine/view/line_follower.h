// The lines of a file that another program appends to, perhaps on another machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace engine::view {

class LineFollower {
 public:
  explicit LineFollower(std::string path) : path_(std::move(path)) {}

  // Reads on from where the last call ended, up to the file's end or some more than `most_bytes`, and passes each whole
  // line on, without its end. A last line without an end waits for it. Where what was read before does not stand there any
  // more, since a run cut the file off and went on, or another file took its place, `restart` is called and reading begins
  // anew. The file is opened at each call, as a network file system shows what is new to whoever opens it. A line of more
  // than kMostLineBytes is passed over. Errors: NotFound; it cannot be read, or is no regular file.
  absl::Status Read(std::int64_t most_bytes, const std::function<void()>& restart,
                    const std::function<void(std::string_view)>& line);

  bool at_end() const { return offset_ >= size_; }      // of the file as the last call saw it
  double share() const;                                 // of its bytes that are read
  double modified_unix_s() const { return modified_; }  // when the file last changed, by its file system
  std::int64_t long_lines() const { return long_lines_; }

  static constexpr std::size_t kMostLineBytes = std::size_t{16} << 20;

 private:
  bool StandsAsRead(int descriptor) const;
  void Take(std::string_view bytes, const std::function<void(std::string_view)>& line);

  std::string path_;
  std::string line_;           // the beginning of a line whose end is not read yet
  bool passing_over_ = false;  // that line is too long
  std::string last_;           // of the bytes before offset_, to know the file by
  std::int64_t offset_ = 0;    // bytes that are read
  std::int64_t size_ = 0;
  double modified_ = 0;
  std::int64_t long_lines_ = 0;
};

}  // namespace engine::view
