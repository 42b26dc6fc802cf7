// The numbers behind the Predict questions of the lessons. A question's words stand in the lesson alone; here
// is what computes its answers: the steps' own functions and the emulator's counters.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace flash::predict {

// One number that a question asks for.
struct Number {
    std::string name;                // what the reader is asked for: "blocks"
    std::function<double()> answer;  // throws NothingCounted where this build cannot know
    const char* source;              // "counted by the emulator", "computed by step 01"
    int digits = 0;                  // significant digits in which it is shown; 0: all of a whole number
};

struct Question {
    const char* step;  // "05"
    int number;        // in the lesson, from 1
    std::vector<Number> numbers;
};

// This build has no counters: it runs on a GPU, or under AddressSanitizer.
struct NothingCounted {};

std::vector<Question> questions_01_to_03();
std::vector<Question> questions_04_and_05();
std::vector<Question> questions_06_to_08();
std::vector<Question> questions_09();

}  // namespace flash::predict
