// Where what can be made again is kept between runs.
#pragma once

#include <string>

namespace engine {

// $ENGINE_CACHE, else $XDG_CACHE_HOME/engine, else $HOME/.cache/engine; empty where there is none of them. It need not be there.
std::string CacheFolder();

}  // namespace engine
