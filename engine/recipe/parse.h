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

// The table that makes a file a study (recipe/study.h).
inline constexpr const char* kStudyKey = "study";

struct Setting {
  FieldValue value;
  Provenance provenance;
};

// What one source says, or several merged: later ones override key by key.
struct Settings {
  std::map<std::string, Setting> values;  // by dotted key
  std::set<std::string> broken;  // keys whose value could not be used (reported); may have kExtendsKey
  Node text;                     // the keys of recipe/text.h, by whole name
  std::vector<Diagnostic> text_mistakes;  // of merging them
  // Where each table is opened, by its name; kExtendsKey: where that key stands; "": where the file begins.
  std::map<std::string, Provenance> headers;

  void Override(const Settings& later);
  // Overrides values and text alone, for settings that come from no file (--set): the places of tables stay those of
  // the files.
  void OverrideValues(const Settings& later);
  // Where the files would say a key that none of them says: the table that it belongs to, or the nearest one
  // around it; else the last `extends`; else where the recipe begins. Line 0 where no file was read.
  Provenance PlaceFor(const std::string& key) const;
};

// The entry of that table; null where the document is none of a study.
const Entry* StudyOf(const Node& root);

struct ExtendsEntry {
  std::string path;
  Mark mark;
};

// The settings of a document; mistakes are added to `diagnostics`. `extends` (null where it is not allowed)
// receives the top-level key of that name.
Settings ParseSettings(const Document& document, Provenance::Origin origin,
                       std::vector<ExtendsEntry>* extends, std::vector<Diagnostic>* diagnostics);

}  // namespace engine::recipe
