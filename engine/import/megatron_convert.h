// From flags to recipe keys, and which flags contradict each other.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/import/megatron_arguments.h"
#include "engine/import/megatron_model_text.h"
#include "engine/recipe/fields.h"

namespace engine::import {

struct MegatronSetting {
  recipe::FieldValue value;
  std::string comment;  // beside it; may be empty
  std::string flag;     // that it comes of, for messages; empty: of several, or a default
};
using MegatronSettings = std::map<std::string, MegatronSetting, std::less<>>;  // by recipe key

// Reports flags that Megatron-LM itself would refuse together, or that would train something else here.
void CheckMegatronRules(const MegatronArguments& arguments);
// Those of them that are about experts and multi-head latent attention.
void CheckMegatronExpertRules(const MegatronArguments& arguments);

// Why a flag has no key, of those whose row of the table does not say it.
struct MegatronRemark {
  std::string text;
  bool warns = false;  // the run is another one without it
};
using MegatronRemarks = std::map<std::string, MegatronRemark, std::less<>>;  // by flag

// All that the command says, and Megatron-LM's defaults where they differ from the recipe's. For arguments
// that passed the rules; values that cannot be read are reported. Adds remarks on flags that have no effect, and to `changes`
// what no key says.
MegatronSettings ConvertMegatron(const MegatronArguments& arguments, MegatronRemarks* remarks,
                                 MegatronModelChanges* changes);

}  // namespace engine::import
