// Text for whoever started the program.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace engine {

// Prints like fmt::print, but throws nothing where the stream cannot be written, for instance because its
// terminal or its reader has gone: a run goes on. The stream's error flag is set then; main() looks at it in
// the end.
template <typename... Args>
void Print(std::FILE* to, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), to);
}

}  // namespace engine
