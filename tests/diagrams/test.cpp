// The committed drawings show what the code does.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "diagrams.hpp"

namespace {

std::string committed() {
    std::ifstream file(FLASH_STEPS_DIAGRAMS);
    REQUIRE_MESSAGE(file.is_open(), FLASH_STEPS_DIAGRAMS);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

TEST_CASE("plots/diagrams.csv is what lesson_diagrams writes") {
    const std::string now = flash::diagrams::all_lines(), then = committed();
    std::istringstream a(now), b(then);
    std::string left, right;
    while (std::getline(a, left) && std::getline(b, right)) CHECK(left == right);
    CHECK(std::count(now.begin(), now.end(), '\n') == std::count(then.begin(), then.end(), '\n'));
}
