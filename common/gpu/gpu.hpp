// For kernel sources: launch(), dynamic_smem() and the PTX wrappers, whichever back end the tree is built
// for.
#pragma once

#include "common/gpu/device.hpp"
#include "common/gpu/ptx.hpp"

#if defined(FLASH_STEPS_CUDA)
#include "common/gpu/launch_cuda.hpp"
#else
#include "common/simt/gpu.hpp"
#endif
