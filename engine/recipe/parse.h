// From a located TOML tree to typed settings: every key known, every value of its field's type and in its
// range.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/document.h"
#include "engine/recipe/fields.h"

namespace engine::recipe {

// The one key outside of the tables.
inline constexpr const char* kExtendsKey = "extends";

struct Setting {
  FieldValue value;
  Provenance provenance;
};

// What one source says, or several merged: later ones override key by key.
struct Settings {
  std::map<std::string, Setting> values;  // by dotted key
  std::set<std::string> broken;  // keys whose value could not be used (reported); may have kExtendsKey
  std::map<std::string, Provenance> headers;  // by table name: where it is opened

  void Override(const Settings& later);
};

struct ExtendsEntry {
  std::string path;
  Mark mark;
};

// The settings of a document; mistakes are added to `diagnostics`. `extends` (null where it is not allowed)
// receives the top-level key of that name.
Settings ParseSettings(const Document& document, Provenance::Origin origin,
                       std::vector<ExtendsEntry>* extends, std::vector<Diagnostic>* diagnostics);

}  // namespace engine::recipe
