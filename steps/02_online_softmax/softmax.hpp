// Softmax in one pass over a row: a running maximum and a running sum, and the merging of two such states.
// Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace flash::step02 {

// What is known of the elements seen so far:
//   row_max   m = the largest of them
//   row_sum   l = sum of exp(x - m) over them
// The default is the state of no element, (-inf, 0). Elements that are -inf leave a state as it is. A NaN or
// +inf element makes row_sum NaN for good. An exp(x - m) below the smallest normal fp32 number, 1.18e-38,
// counts as 0.
struct State {
    float row_max = -INFINITY;
    float row_sum = 0;
};

// The state after one more element.
State update(State state, float x);

// The state of the elements of a and b together. Associative and commutative up to rounding; State{} is its
// identity.
State merge(State a, State b);

// ln of the sum of exp(x) over the elements of the state; -inf for the empty state.
float log_sum_exp(State state);

// The state of the row x of n elements: element after element, or by halving the row down to short pieces
// and merging (smaller rounding error on long rows).
State chain(const float* x, std::int64_t n);
State tree(const float* x, std::int64_t n);

// y[i] = exp(x[i]) / sum over j of exp(x[j]): one pass for the state, one to write y. y may be x itself. A
// row of nothing but -inf gives zeros; a NaN or +inf anywhere makes the whole row NaN.
void online_softmax(const float* x, float* y, std::int64_t n);

// The state of a softmax-weighted sum of rows: beside (m, l) it carries
//   acc   = sum of exp(x - m) * value over the elements seen, each value a row of D numbers
// The default of D zeros is the state of no element.
struct RowState {
    explicit RowState(std::int64_t head_dim);
    State state;
    std::vector<float> acc;  // (D)
};

// One more element: a score and its row of D values.
void update(RowState& row, float score, const float* value /* (D) */);

// The state of the elements of a and b together; both need the same D.
RowState merge(const RowState& a, const RowState& b);

// o = sum of softmax(x) * value = acc / row_sum; zeros for the state of no element.
void write_output(const RowState& row, float* o /* (D) */);

// All functions refuse null or misaligned pointers to data with elements, negative sizes, a partial overlap
// of x and y, and two RowStates of different D with std::invalid_argument, before anything is written.

}  // namespace flash::step02
