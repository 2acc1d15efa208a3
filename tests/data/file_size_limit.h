// A disk that is full, as a process sees it.
#pragma once

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstddef>

namespace engine::data {

// While it lives, no file of this process grows beyond so many bytes, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::size_t bytes) : before_(std::signal(SIGXFSZ, SIG_IGN)) {
    REQUIRE(getrlimit(RLIMIT_FSIZE, &limit_) == 0);
    const rlimit small{.rlim_cur = bytes, .rlim_max = limit_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, before_);
  }

 private:
  void (*before_)(int);
  rlimit limit_{};
};

}  // namespace engine::data
