// Q, K and V of one layer of a sentence model on a paragraph of real text: tests/fixtures/README.md says
// which.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flash::testing {

struct RealModel {
    int heads = 0, tokens = 0, head_dim = 0;
    std::vector<float> values;  // (Q K V, heads, tokens, head_dim), each exact in fp16

    // An element by its place; places beyond the model's sizes begin again at 0.
    float value(int tensor, int h, int n, int d) const {
        const auto row = (static_cast<std::int64_t>(tensor) * heads + h % heads) * tokens + n % tokens;
        return values[static_cast<std::size_t>(row * head_dim + d % head_dim)];
    }
};

// Reads the fixture once; throws std::runtime_error naming the file when it cannot.
const RealModel& real_model();
RealModel load_real_model(const std::string& path);

}  // namespace flash::testing
