#include "common/testing/real_model.hpp"

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "common/types.hpp"

namespace flash::testing {

// The file is NumPy's format, version 1.0: magic, header length, a header in Python syntax, little-endian
// fp16.
RealModel load_real_model(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const auto refuse = [&path](const char* why) { throw std::runtime_error(path + ": " + why); };
    if (!file || bytes.size() < 10 || bytes.compare(0, 6, "\x93NUMPY") != 0)
        refuse("not a readable .npy file");
    const std::size_t header_size =
        static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
    const std::string header = bytes.substr(10, header_size);
    if (header.find("'<f2'") == std::string::npos ||
        header.find("'fortran_order': False") == std::string::npos)
        refuse("the fixture must hold fp16 numbers in C order");

    RealModel model;
    int tensors = 0;
    const auto shape = header.find("'shape': (");
    if (shape == std::string::npos ||
        std::sscanf(header.c_str() + shape, "'shape': (%d, %d, %d, %d)", &tensors, &model.heads,
                    &model.tokens, &model.head_dim) != 4 ||
        tensors != 3)
        refuse("the fixture must have the shape (3, heads, tokens, head_dim)");

    const std::size_t count = 3u * static_cast<std::size_t>(model.heads) *
                              static_cast<std::size_t>(model.tokens) *
                              static_cast<std::size_t>(model.head_dim);
    if (bytes.size() != 10 + header_size + 2 * count) refuse("the file's size does not fit its shape");
    model.values.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + 10 + header_size + 2 * i, sizeof(bits));
        model.values.push_back(float_from_fp16_bits(bits));
    }
    return model;
}

const RealModel& real_model() {
    static const RealModel model = load_real_model(FLASH_STEPS_ROOT_DIR "/tests/fixtures/minilm_qkv.npy");
    return model;
}

}  // namespace flash::testing
