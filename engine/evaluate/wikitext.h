// WikiText's files are tokens apart by blanks, with signs such as " @-@ " in them. Models are to be asked of the text that
// these stand for.
#pragma once

#include <string>
#include <string_view>

namespace engine::evaluate {

// The text without the marks of WikiText's tokenisation, as Megatron-LM (tasks/zeroshot_gpt/detokenizer.py at core_v0.8.0)
// and lm-evaluation-harness (tasks/wikitext/preprocess_wikitext.py) make it: the same replacements in the same order.
std::string DetokenizeWikitext(std::string_view text);

}  // namespace engine::evaluate
