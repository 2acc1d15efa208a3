// The table of fields as a page for people.
#pragma once

#include <string>

namespace engine::recipe {

// Markdown, ending in a newline: the content of docs/recipe-reference.md.
std::string ReferencePage();

}  // namespace engine::recipe
