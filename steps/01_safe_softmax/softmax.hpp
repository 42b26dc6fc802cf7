// Softmax of one row: y[i] = exp(x[i]) / (exp(x[0]) + ... + exp(x[n-1])).
#pragma once

#include <cstdint>

namespace flash::step01 {

// Both functions take a row x of n elements and write n elements to y; T is float or fp16. y may be x itself;
// any other overlap, a null or misaligned pointer to a row with elements, and n < 0 are refused with
// std::invalid_argument before anything is written. n = 0 does nothing.

// The formula as it stands, every operation rounded to T. Wrong (NaN or zeros) as soon as one exp(x[i]), or
// their sum, passes the largest number of T: from x[i] = 11.09375 on in fp16, 88.72284 in fp32.
template <class T> void naive_softmax(const T* x, T* y, std::int64_t n);

// The same function computed as exp(x[i] - max x) / sum, in three passes over x; only y is rounded to T.
//   - x[i] = -inf is a masked element: y[i] = 0, and a row of nothing else is all zeros.
//   - A NaN or +inf anywhere in the row makes the whole row NaN.
//   - exp(x[i] - max x) below the smallest normal fp32 number, 1.18e-38, counts as 0.
template <class T> void safe_softmax(const T* x, T* y, std::int64_t n);

}  // namespace flash::step01
