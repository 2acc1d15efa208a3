// Stands in for a libcudnn.so.9 before the first that will do.
#include <cstddef>

extern "C" std::size_t cudnnGetVersion() { return 91300; }
