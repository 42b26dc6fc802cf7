// Step 04: attention as three kernels with S and P in global memory, the whole contract of
// common/attention.hpp, any head dimension up to 256.
//
// Memory: S (fp32) and P (T) of B * Hq * Nq * Nk elements each. Without a workspace of the caller's, the
// function allocates one for as many (batch, head) slices as kWorkspaceLimit holds, at least one, and works
// through the slices in chunks of that many. A single slice is never split: N = 65,536 needs 24 GiB with
// 2-byte elements.
#pragma once

#include <cstdint>

#include "common/attention.hpp"

namespace flash::step04 {

inline constexpr std::int64_t kWorkspaceLimit = std::int64_t{8} << 30;  // bytes

// Bytes of S and P for one (batch, head) slice: Nq * Nk * (4 + sizeof(T)). Throws std::invalid_argument for a
// shape that attention_forward would refuse; so does workspace_bytes.
template <class T> std::int64_t slice_workspace_bytes(const Shape& shape);

// Bytes that attention_forward(args) allocates: whole slices, within kWorkspaceLimit unless one slice is
// larger.
template <class T> std::int64_t workspace_bytes(const Shape& shape);

// args: the contract's device pointers. Throws std::invalid_argument for arguments that break the contract,
// before anything is launched.
template <class T> void attention_forward(const ForwardArgs<T>& args);

// The same, in a workspace of the caller's: 4-byte aligned device memory that overlaps no tensor and stays
// untouched until the stream is done. Refused when it overlaps a tensor or not even one slice fits.
template <class T> void attention_forward(const ForwardArgs<T>& args, void* workspace, std::int64_t bytes);

}  // namespace flash::step04
