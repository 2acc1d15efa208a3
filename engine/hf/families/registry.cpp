#include "engine/hf/families/families.h"

namespace engine::hf {

const std::vector<Family>& Families() {
  static const std::vector<Family> families = {
#define FAMILY(name) name##Family(),
#include "engine/hf/families/families.list"
#undef FAMILY
  };
  return families;
}

}  // namespace engine::hf
