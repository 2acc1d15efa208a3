// The variants that a study's file names (private to this folder).
#pragma once

#include <string>
#include <vector>

#include "engine/recipe/document.h"
#include "engine/recipe/parse.h"
#include "engine/recipe/source.h"
#include "engine/recipe/study_reader.h"

namespace engine::recipe {

// A variant before its recipe is resolved: what it sets on top of the base.
struct NamedSettings {
  std::string name;  // of a folder
  Settings settings;
  Mark mark;
};

struct StudyVariants {
  std::vector<NamedSettings> list;  // in the file's order
  bool adds_base = false;           // the base is a variant too, whether or not it is named
  bool skips_base = false;          // one that changes nothing is left out: the base stands for it
};

// One of the sections [variants.NAME], [grid] and [one_at_a_time], which is a table.
StudyVariants ParseStudyVariants(const Entry& section, StudyReader* reader);

}  // namespace engine::recipe
