#include "engine/hf/weights.h"
