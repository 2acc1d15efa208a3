// The little XML that S3 answers with: elements without attributes that matter, text with the five named entities and numeric
// references. It is not validated: what is not found is not there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace engine::storage {

// What stands between <name> and </name>, as it stands there, of each such element in turn; elements of one name do not nest.
std::vector<std::string_view> XmlElements(std::string_view xml, std::string_view name);

// The text of the first such element, references replaced; empty where there is none.
std::string XmlText(std::string_view xml, std::string_view name);

// Text that may stand in an element.
std::string XmlEscape(std::string_view text);

}  // namespace engine::storage
