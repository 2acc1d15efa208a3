// Recipes whose model's text is checked too: what recipe/load.h gives, and the steps.
#pragma once

#include <string>

#include "engine/recipe/load.h"
#include "engine/recipe/parse.h"
#include "engine/recipe/study.h"

namespace engine::model {

// recipe::Load and its kin; of a text the graph is built once, so that each mistake is reported where it stands. What
// follows from the steps (model.layers, model.vocab) is known then, and the rules that read it are checked.
recipe::LoadResult Load(const std::string& path, const recipe::LoadOptions& options = {});
recipe::LoadResult Load(const std::string& path, const recipe::LoadOptions& options,
                        const recipe::Settings& overrides);
recipe::LoadResult LoadText(const std::string& text, const std::string& name,
                            const recipe::LoadOptions& options = {});
recipe::LoadResult LoadExtendingText(const std::string& text, const std::string& name,
                                     const recipe::LoadOptions& options = {});
recipe::StudyResult LoadStudy(const std::string& path, const recipe::LoadOptions& options = {});

}  // namespace engine::model
