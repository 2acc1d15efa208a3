// Whole trainings take minutes with sanitizers, which see no other code in them than in the tests of each part: tests of them are skipped there.
#pragma once

namespace engine::hf::testing {

#ifdef ENGINE_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace engine::hf::testing
