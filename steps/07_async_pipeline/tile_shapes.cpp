#include "tile_shapes.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/argument_checks.hpp"

namespace flash::step07 {

TileShape chosen_tile_shape(int head_dim, std::size_t shared_available) {
    detail::check_shape({.head_dim = head_dim}, {"step 07", kTileShapes.back().head_dim, 8});
    std::size_t smallest = SIZE_MAX;
    for (const TileShape& shape : kTileShapes) {
        if (shape.head_dim < head_dim) continue;
        if (shape.shared_bytes() <= shared_available) return shape;
        smallest = std::min(smallest, shape.shared_bytes());
    }
    detail::refuse("a tile for head_dim " + std::to_string(head_dim) + " wants " + std::to_string(smallest) +
                   " bytes of shared memory per block; this device has " + std::to_string(shared_available));
}

}  // namespace flash::step07
