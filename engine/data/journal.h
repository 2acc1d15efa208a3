// A file that says how far a piece of work has come, for whoever goes on with it after a crash.
#pragma once

#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/file_io.h"

namespace engine::data {

// Records, one a line: the XXH3-128 of a JSON value in 32 hex digits, a blank, the value.
class Journal {
 public:
  // Opens the file, or makes it. The first line that is not whole, as a crash leaves one, is cut off with all behind it.
  static absl::StatusOr<Journal> Open(const std::string& path);

  // The records that the file had when it was opened.
  const std::vector<nlohmann::ordered_json>& records() const { return records_; }

  // The record is on the disk when this returns. Bytes that are no UTF-8 become U+FFFD.
  absl::Status Append(const nlohmann::ordered_json& record);

 private:
  explicit Journal(File file) : file_(std::move(file)) {}

  File file_;
  std::int64_t bytes_ = 0;
  std::vector<nlohmann::ordered_json> records_;
};

}  // namespace engine::data
