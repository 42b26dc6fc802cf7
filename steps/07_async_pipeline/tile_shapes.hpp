// The tile shapes that step 07 is compiled for.
#pragma once

#include <array>
#include <cstddef>

#include "attention.hpp"

namespace flash::step07 {

// For each head dimension the fastest first, by the sweep on an H200. The last of each fits 99 KB, the least
// that any device from sm_80 on offers a block.
constexpr std::array kTileShapes = {TileShape{64, 128, 64, 4, 3}, TileShape{64, 64, 64, 4, 2},
                                    TileShape{128, 128, 64, 4, 2}, TileShape{128, 64, 64, 4, 2}};

// Calls `launch` with `shape`, one of the above, as its template argument.
template <std::size_t I = 0, class Launch>
void with_tile_shape(const TileShape& shape, const Launch& launch) {
    if constexpr (I < kTileShapes.size()) {
        if (shape == kTileShapes[I]) return launch.template operator()<kTileShapes[I]>();
        with_tile_shape<I + 1>(shape, launch);
    }
}

}  // namespace flash::step07
