// A reason not to run a test program at all, found before its first test.
#pragma once

#include <string>

namespace flash::testing {

// main() calls `why` first: unless it returns an empty text, the program prints it and exits 77.
bool skip_program_when(std::string (*why)());

}  // namespace flash::testing
