#include "engine/base/status.h"

#include <cstdio>
#include <cstdlib>

namespace engine {

void CheckFailed(const char* file, int line, const char* condition, const std::string& detail) {
  std::fprintf(stderr, "%s:%d: broken invariant of the engine: %s: %s\n", file, line, condition,
               detail.c_str());
  std::abort();
}

}  // namespace engine
