#include "engine/base/host_name.h"

#include <doctest/doctest.h>
#include <sys/utsname.h>

namespace engine {

TEST_CASE("the host's name is the one that the kernel says") {
  utsname system{};
  REQUIRE(uname(&system) == 0);
  CHECK(HostName() == system.nodename);
  CHECK_FALSE(HostName().empty());
}

}  // namespace engine
