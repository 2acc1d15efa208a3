// Host functions in several instruction sets, of which the program picks one when it starts.
#pragma once

// Before a function's declaration: a body for each of them. What it is to inline must be always_inline.
// Sanitized builds have one body: what picks runs before the sanitizers' libraries are loaded, and would call them.
#if defined(__x86_64__) && !defined(ENGINE_SANITIZED)
#define ENGINE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ENGINE_CLONES
#endif
