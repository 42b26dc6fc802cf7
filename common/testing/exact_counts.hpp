// Which build the exact counts of plain loads and stores are stated for: g++ with optimisation. The emulator
// sees what the compiler leaves of the source, and compilers join and split accesses differently.
#pragma once

#include <cstdio>

#include "common/simt/counters.hpp"

namespace flash::testing {

// False, with the reason printed, in any other build.
inline bool counts_are_exact() {
    const char* why = "";
    if (!simt::hooks_enabled()) why = "this build counts no memory accesses";
#if defined(__clang__) || !defined(__OPTIMIZE__)
    if (*why == '\0') why = "exact counts of plain loads and stores are stated for g++ with optimisation";
#endif
    if (*why != '\0') std::printf("SKIP: %s\n", why);
    return *why == '\0';
}

}  // namespace flash::testing
