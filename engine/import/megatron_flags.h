// The flags of Megatron-LM's training scripts that the importer knows: what each becomes in a recipe, why it
// has no counterpart, or why a run with it cannot be imported. Source: Megatron-LM's arguments.py as of
// August 2026; names that older releases had are rows of their own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace engine::import {

struct MegatronFlag {
  enum class Values { kNone, kOne, kMany } values = Values::kNone;
  enum class Fate {
    kDirect,  // its value is that of the recipe key `text`
    kRead,    // megatron_convert.cpp makes recipe keys of it, as `text` says
    kNote,    // it changes no training, or nothing that a recipe could say: a comment, with `text` as the
              // reason
    kWarned,  // leaving it out changes how long the run is or what it evaluates, but not how a step trains: a
              // comment with `text`, and a warning
    kRefused,  // it would train something else: an error, with `text` as the reason
  } fate = Fate::kRead;
  const char* name = "";
  const char* text = "";
  const char* hint = "";  // of an error: how to say what is meant; may be empty
};

const std::vector<MegatronFlag>& MegatronFlags();

// The flag of this name, or the only one that begins with it, as argparse has it. Null: there is none, and
// `*problem` says so.
const MegatronFlag* FindMegatronFlag(std::string_view name, std::string* problem, std::string* hint);

// All rows, as a Markdown table.
std::string MegatronFlagTable();

}  // namespace engine::import
