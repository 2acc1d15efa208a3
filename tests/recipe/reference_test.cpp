#include "engine/recipe/reference.h"

#include <doctest/doctest.h>

#include <string>

#include "engine/recipe/fields.h"
#include "tests/recipe/test_files.h"

namespace engine::recipe {

TEST_CASE(
    "docs/recipe-reference.md is what the table says (engine schema --reference > "
    "docs/recipe-reference.md)") {
  CHECK((ReadText(std::string(ENGINE_SOURCE_DIR) + "/docs/recipe-reference.md") == ReferencePage()));
}

TEST_CASE("every field has its row") {
  const std::string page = ReferencePage();
  for (const Field& field : Fields()) {
    CAPTURE(field.key);
    CHECK(page.find("| `" + field.name() + "` | " + field.type_name() + " |") != std::string::npos);
    CHECK(page.find(field.doc) != std::string::npos);
  }
}

}  // namespace engine::recipe
