// JSON of which no tree is made: a reader of a known form takes its events and says what it expects. So a text needs no
// more memory than what is kept of it, an integer stays what was written, and a name that stands twice is seen.
#pragma once

#include <absl/status/status.h>
#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace engine::hf {

// Each event that a subclass does not take is an error: "NAME of what it is about: expected WHAT, and it is a list".
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Unexpected("null"); }
  bool boolean(bool /*value*/) override { return Unexpected("a boolean"); }
  bool number_integer(std::int64_t value) override { return Unexpected(std::to_string(value)); }
  bool number_unsigned(std::uint64_t value) override { return Unexpected(std::to_string(value)); }
  bool number_float(double value, const std::string& text) override;
  bool string(std::string& value) override;
  bool binary(nlohmann::json::binary_t& /*value*/) override { return Unexpected("bytes"); }
  bool start_object(std::size_t /*size*/) override { return Unexpected("an object"); }
  bool start_array(std::size_t /*size*/) override { return Unexpected("a list"); }
  bool key(std::string& /*name*/) override { return true; }
  bool end_object() override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::json::exception& error) override;

 protected:
  // What the event at hand should have been: "the shape of tensor "x" must be a list of whole numbers".
  virtual std::string Expected() const = 0;

  // Ends the reading with this error; for `return Fail(…)`.
  template <typename... Args>
  bool Fail(fmt::format_string<Args...> format, Args&&... args) {
    what_ = fmt::format(format, std::forward<Args>(args)...);
    return false;
  }
  bool Unexpected(std::string_view found) { return Fail("{}, and it is {}", Expected(), found); }

 private:
  friend absl::Status ReadJson(std::string_view text, std::string_view name, JsonEvents* events);
  std::string what_;
};

// Gives all of `text` to `events`. InvalidArgument: "NAME: what", of what is not JSON in UTF-8 and of what `events` refuses.
absl::Status ReadJson(std::string_view text, std::string_view name, JsonEvents* events);

}  // namespace engine::hf
