// Included by tests that need a GPU in a CUDA tree: without a usable one the program says why and exits 77,
// which ctest reports as skipped.
#pragma once

#include "common/gpu/device.hpp"
#include "common/testing/skip.hpp"

namespace flash::testing {

inline const bool skips_without_device = skip_program_when(&gpu::why_no_device);

}  // namespace flash::testing
