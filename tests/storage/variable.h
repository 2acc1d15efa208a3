// A variable of the environment for as long as this lives.
#pragma once

#include <cstdlib>
#include <string>

namespace engine::storage {

class Variable {
 public:
  // nullptr: it is not set.
  Variable(const char* name, const char* value) : name_(name) {
    const char* before = std::getenv(name);
    was_set_ = before != nullptr;
    if (was_set_) before_ = before;
    Set(value);
  }
  ~Variable() { Set(was_set_ ? before_.c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void Set(const char* value) { value == nullptr ? unsetenv(name_) : setenv(name_, value, 1); }

  const char* name_;
  std::string before_;
  bool was_set_ = false;
};

}  // namespace engine::storage
