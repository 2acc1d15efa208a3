// libFuzzer on the recipe parser: any text is either refused with located errors, or it is a recipe that
// prints as TOML and loads as the same recipe again. Built with ENGINE_FUZZ only (docs/ci.md).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "engine/recipe/codes.h"
#include "engine/recipe/load.h"
#include "engine/recipe/print.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using engine::recipe::LoadText;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const engine::recipe::LoadResult first = LoadText(text, "fuzz.toml");
  for (const engine::Diagnostic& diagnostic : first.diagnostics) {
    Require(!engine::Format(diagnostic).empty() && !diagnostic.message.empty());
    Require(engine::recipe::FindCode(diagnostic.code) != nullptr);
  }
  if (text.find('\n') == std::string::npos) {  // as an argument of --set
    Require(!LoadText("", "fuzz.toml", {.sets = {text}, .root = ""}).ok());
  }
  if (!first.ok()) return 0;
  const engine::recipe::LoadResult again = LoadText(engine::recipe::ToToml(first.recipe), "printed.toml");
  Require(again.ok() && engine::recipe::Diff(first.recipe, again.recipe).empty());
  return 0;
}
