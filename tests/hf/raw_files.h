// Files of tensors written byte by byte, as a test of a reader needs them.
#pragma once

#include <absl/status/status.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/status.h"
#include "tests/data/temp_dir.h"

namespace engine::hf {

// A file of this header, with the length that `claimed` says or its own.
inline std::string RawFile(std::string_view header, std::string_view data, std::int64_t claimed = -1) {
  const std::uint64_t length = claimed < 0 ? header.size() : static_cast<std::uint64_t>(claimed);
  std::string file;
  for (int byte = 0; byte < 8; ++byte) file += static_cast<char>(length >> (8 * byte) & 0xFF);
  return file.append(header).append(data);
}

// That a status is an error that has this in its message.
inline bool Says(const absl::Status& status, std::string_view part) {
  INFO("status: " << Message(status));
  INFO("expected: " << std::string(part));
  CHECK(!status.ok());
  const bool says = Message(status).find(part) != std::string::npos;
  CHECK(says);
  return says;
}

}  // namespace engine::hf
