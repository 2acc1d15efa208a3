#include <doctest/doctest.h>

#include <string>

#include "engine/cli/commands.h"
#include "engine/model/reference.h"
#include "engine/recipe/reference.h"
#include "tests/cli/run_command.h"

namespace engine::cli {

TEST_CASE("schema prints the schema, or the reference page") {
  CHECK((RunCommand(AddSchemaCommand, {"schema"}).output == model::RecipeSchema()));
  CHECK((RunCommand(AddSchemaCommand, {"schema", "--study"}).output == model::StudySchema()));
  CHECK(RunCommand(AddSchemaCommand, {"schema", "--study", "--reference"}).exit_code == 2);
  CHECK((RunCommand(AddSchemaCommand, {"schema", "--reference"}).output == recipe::ReferencePage()));
}

}  // namespace engine::cli
