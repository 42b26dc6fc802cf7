// A test program without what it needs: main() says so and exits 77 before any test.
#include <doctest/doctest.h>

#include "common/testing/skip.hpp"

static const bool kSkips =
    flash::testing::skip_program_when([] { return std::string("there is no device here"); });

TEST_CASE("never reached") {
    CHECK_FALSE(kSkips);
}
