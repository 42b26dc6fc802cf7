// What the lessons' drawings show, read off the code: fragments from the instructions themselves, places in
// shared memory from the swizzle, loaded tiles from the emulator's counters, running states from step 02.
#pragma once

#include <string>

namespace flash::diagrams {

// Lines of `picture,row,column,a,b` below a header; plots/pictures_lessons.py says what a and b are.
std::string all_lines();

}  // namespace flash::diagrams
