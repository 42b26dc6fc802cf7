// What one core of this machine can do at most, measured: the figures that CPU steps are compared with.
// Measure in the run, and near the moment, of what is compared: clocks move.
#pragma once

#include <optional>

namespace flash::bench {

// fp32 GFLOP/s of one thread in a loop of independent multiply-adds, the best of the instruction sets and of
// some 30 ms of short attempts. A multiply-add counts as two.
double measured_fma_peak_gflops();

// fp32 GFLOP/s of one thread in BLAS's matrix product of 1024 x 1024 matrices, the best of five; nothing when
// the build found no BLAS. Limits OpenBLAS and MKL to one thread.
std::optional<double> measured_sgemm_gflops();

}  // namespace flash::bench
