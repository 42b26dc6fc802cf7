// Lets doctest print the vectors of a failed comparison; on its own it shows {?}.
#pragma once

#include <cstddef>
#include <sstream>
#include <vector>

#include "doctest/doctest.h"

namespace doctest {

template <class T> struct StringMaker<std::vector<T>> {
    static String convert(const std::vector<T>& values) {
        constexpr std::size_t kShown = 16;
        std::ostringstream text;
        text.precision(9);
        text << "{";
        for (std::size_t i = 0; i < values.size() && i < kShown; ++i)
            text << (i == 0 ? "" : ", ") << values[i];
        if (values.size() > kShown) text << ", ... " << values.size() << " in all";
        text << "}";
        return text.str().c_str();
    }
};

}  // namespace doctest
