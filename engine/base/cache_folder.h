// The folder in which files are kept between runs that can be made again.
#pragma once

#include <string>

namespace engine {

// $ENGINE_CACHE, else $XDG_CACHE_HOME/engine, else $HOME/.cache/engine; empty where there is none of them. It need not be there.
std::string CacheFolder();

}  // namespace engine
