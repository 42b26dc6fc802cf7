// CUDA's vector types for the emulator. A copy of one is a single access of its full width and alignment, as
// on a GPU: the packed member makes the compiler load and store it whole, where the emulator's hooks can see
// it.
#pragma once

namespace flash::simt {

template <class T> struct alignas(2 * sizeof(T)) Vector2 {
    typedef T Packed __attribute__((vector_size(2 * sizeof(T))));
    union {
        struct {
            T x, y;
        };
        Packed packed;
    };
    Vector2() = default;
    Vector2(T x_, T y_) : packed{x_, y_} {}
    Vector2(const Vector2& other) : packed(other.packed) {}
    Vector2& operator=(const Vector2& other) {
        packed = other.packed;
        return *this;
    }
};

template <class T> struct alignas(4 * sizeof(T)) Vector4 {
    typedef T Packed __attribute__((vector_size(4 * sizeof(T))));
    union {
        struct {
            T x, y, z, w;
        };
        Packed packed;
    };
    Vector4() = default;
    Vector4(T x_, T y_, T z_, T w_) : packed{x_, y_, z_, w_} {}
    Vector4(const Vector4& other) : packed(other.packed) {}
    Vector4& operator=(const Vector4& other) {
        packed = other.packed;
        return *this;
    }
};

}  // namespace flash::simt

using uint4 = flash::simt::Vector4<unsigned>;
using float2 = flash::simt::Vector2<float>;
using float4 = flash::simt::Vector4<float>;

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
