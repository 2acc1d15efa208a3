// `engine doctor --network [RECIPE]`.
#pragma once

#include <string>

#include "engine/recipe/load.h"

namespace engine::cli {

struct NetworkArguments {
  bool wanted = false;
  std::string recipe;  // what is needed of the networks; empty: nobody says
  recipe::LoadOptions load;
  bool json = false;
};

// Prints which of this host's networks NCCL takes, and what is wrong. An exit code (device.h): 0 where nothing is wrong, 1 where the recipe is,
// kNoDevice where the networks are.
int PrintNetworks(const NetworkArguments& arguments);

}  // namespace engine::cli
