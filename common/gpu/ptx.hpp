// One PTX instruction per typed function, for whichever back end the tree is built for.
#pragma once

#if defined(FLASH_STEPS_CUDA)
#include "common/gpu/ptx_cuda.hpp"
#else
#include "common/simt/ptx.hpp"
#endif
