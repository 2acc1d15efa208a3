// What all parts of a study's file are read with (private to this folder).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/document.h"
#include "engine/recipe/parse.h"
#include "engine/recipe/source.h"

namespace engine::recipe {

// Turns nodes of a study's document into settings of a recipe, reports what is wrong at its place, and knows
// whether anything was.
class StudyReader {
 public:
  // Both outlive the reader.
  StudyReader(const Document& document, std::vector<Diagnostic>* diagnostics)
      : source_(document.source), diagnostics_(*diagnostics), before_(diagnostics->size()) {}

  // Whether anything was reported since the reader is there.
  bool broken() const { return diagnostics_.size() > before_; }

  void Error(const Mark& mark, std::string message, std::string hint = "");
  // `what` it is: a key or a section. `table`: the one it stands in; empty for the file itself.
  void Unknown(const Entry& entry, const char* what, const std::string& table,
               const std::vector<std::string>& known);

  // What the keys of `table` set. It counts as set on top of the base, so that a mistake that both make is
  // the variant's. nullopt (reported): something in it is not lawful.
  std::optional<Settings> Checked(const Node& table);
  // The same for a recipe in which the keys, one below the other, lead to `leaf`. `key_mark`: of the
  // last key.
  std::optional<Settings> SettingsOf(const std::vector<std::string>& keys, const Mark& key_mark,
                                     const Node& leaf);

 private:
  SourcePtr source_;
  std::vector<Diagnostic>& diagnostics_;
  std::size_t before_;
};

}  // namespace engine::recipe
