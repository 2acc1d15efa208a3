// Errors as values: absl::Status with fmt-style messages, and the two macros that pass them on.
// No exception crosses a folder; whatever a library throws is caught where it is called.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <string>
#include <utility>

namespace engine {

// `Message(s)` is the text of a status as std::string (Debian's absl::string_view is not fmt's).
inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

template <typename... Args>
absl::Status InvalidArgument(fmt::format_string<Args...> format, Args&&... args) {
  return absl::InvalidArgumentError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status NotFound(fmt::format_string<Args...> format, Args&&... args) {
  return absl::NotFoundError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status FailedPrecondition(fmt::format_string<Args...> format, Args&&... args) {
  return absl::FailedPreconditionError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status Unimplemented(fmt::format_string<Args...> format, Args&&... args) {
  return absl::UnimplementedError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status DataLoss(fmt::format_string<Args...> format, Args&&... args) {
  return absl::DataLossError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status Unavailable(fmt::format_string<Args...> format, Args&&... args) {
  return absl::UnavailableError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status ResourceExhausted(fmt::format_string<Args...> format, Args&&... args) {
  return absl::ResourceExhaustedError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status Internal(fmt::format_string<Args...> format, Args&&... args) {
  return absl::InternalError(fmt::format(format, std::forward<Args>(args)...));
}

// The same status with "context: " in front of its message.
inline absl::Status WithContext(const absl::Status& status, const std::string& context) {
  return absl::Status(status.code(), context + ": " + Message(status));
}

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace engine

// An invariant of our own; never reachable from a recipe. ENGINE_CHECK(x > 0, "x is {}", x).
#define ENGINE_CHECK(condition, ...)                                                     \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      ::engine::CheckFailed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
    }                                                                                    \
  } while (false)

#define ENGINE_CONCAT_INNER(a, b) a##b
#define ENGINE_CONCAT(a, b) ENGINE_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                             \
  do {                                                          \
    if (::absl::Status status_ = (expression); !status_.ok()) { \
      return status_;                                           \
    }                                                           \
  } while (false)

#define ASSIGN_OR_RETURN(left, expression) \
  ASSIGN_OR_RETURN_IMPL(ENGINE_CONCAT(status_or_, __LINE__), left, expression)
#define ASSIGN_OR_RETURN_IMPL(temporary, left, expression) \
  auto temporary = (expression);                           \
  if (!temporary.ok()) return temporary.status();          \
  left = std::move(temporary).value()
