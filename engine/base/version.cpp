#include "engine/base/version.h"

namespace engine {
namespace {

std::string& Commit() {
  static std::string commit;
  return commit;
}

}  // namespace

void SetCommit(const std::string& commit) { Commit() = commit; }

std::string Version() { return Commit().empty() ? kVersion : std::string(kVersion) + "+" + Commit(); }

}  // namespace engine
