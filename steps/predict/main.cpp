// predict: asks the questions of the lessons' Predict sections, takes the reader's numbers and shows the
// right ones beside them.
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "questions.hpp"

namespace flash::predict {
namespace {

constexpr const char* kHelp =
    "predict asks the Predict questions of the lessons, takes your numbers and shows the right ones.\n"
    "\n"
    "  predict                 every step\n"
    "  predict --step 05       one step; may be repeated\n"
    "  predict --answers       asks nothing, shows all answers\n"
    "\n"
    "Numbers may be written 12, 98,304, 1/2048 or 6.4e9. An empty line skips a number, q ends.\n";

// "1. How many bytes" as "How many bytes"; nothing for a line that begins no item of a numbered list.
std::optional<std::string> numbered_item(const std::string& line) {
    const auto digits = line.find_first_not_of("0123456789");
    if (digits == 0 || digits == std::string::npos || line.compare(digits, 2, ". ") != 0) return std::nullopt;
    return line.substr(digits + 2);
}

// The lesson's title, and its questions by their number.
struct Lesson {
    std::string title, path;
    std::vector<std::string> questions;
};

Lesson read_lesson(const std::string& step) {
    const std::filesystem::path steps = std::filesystem::path(FLASH_STEPS_ROOT_DIR) / "steps";
    for (const auto& entry : std::filesystem::directory_iterator(steps)) {
        if (entry.path().filename().string().substr(0, 3) != step + "_") continue;
        Lesson lesson;
        lesson.path = (entry.path() / "README.md").string();
        std::ifstream file(lesson.path);
        bool in_section = false;
        for (std::string line; std::getline(file, line);) {
            if (line.rfind("# ", 0) == 0 && lesson.title.empty()) lesson.title = line.substr(2);
            if (line.rfind("<details>", 0) == 0 || (in_section && line.rfind("## ", 0) == 0)) break;
            if (line == "## Predict") {
                in_section = true;
            } else if (const auto question = numbered_item(line); in_section && question) {
                lesson.questions.push_back(*question);
            } else if (in_section && !lesson.questions.empty() && !line.empty()) {
                lesson.questions.back() += " " + line.substr(line.find_first_not_of(' '));
            }
        }
        if (lesson.questions.empty())
            throw std::runtime_error(lesson.path + " has no questions under '## Predict'");
        return lesson;
    }
    throw std::runtime_error("there is no step " + step + " in " + steps.string());
}

// 98304 as 98,304; 11.09375 in the digits wanted.
std::string shown(double value, int digits) {
    char text[64];
    if (digits > 0) {
        std::snprintf(text, sizeof text, "%.*g", digits, value);
        return text;
    }
    std::snprintf(text, sizeof text, "%.0f", value);
    std::string whole = text;
    for (auto place = static_cast<std::ptrdiff_t>(whole.size()) - 3; place > 0; place -= 3)
        if (whole[static_cast<std::size_t>(place) - 1] != '-')
            whole.insert(static_cast<std::size_t>(place), ",");
    return whole;
}

std::optional<double> plain_number(const std::string& text) {
    const auto first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
    std::string digits;
    for (std::size_t i = first; i <= last && last != std::string::npos; ++i)
        if (text[i] != ',' && text[i] != '_') digits += text[i];
    if (digits.size() > 1 && digits[0] == '+' && digits[1] != '-')
        digits.erase(0, 1);  // from_chars takes none
    double value = 0;
    const char* const end = digits.data() + digits.size();
    const auto parsed = std::from_chars(digits.data(), end, value);
    if (digits.empty() || parsed.ec != std::errc{} || parsed.ptr != end || !std::isfinite(value))
        return std::nullopt;
    return value;
}

// 12, 98,304, 6.4e9 or 1/2048.
std::optional<double> number_in(const std::string& text) {
    const auto slash = text.find('/');
    if (slash == std::string::npos) return plain_number(text);
    const auto above = plain_number(text.substr(0, slash)), below = plain_number(text.substr(slash + 1));
    if (!above || !below || *below == 0) return std::nullopt;
    return *above / *below;
}

struct Terminal {
    const bool is_live = isatty(STDOUT_FILENO) != 0;
    const bool is_coloured = is_live && !set_in_environment("NO_COLOR") && !is_dumb();

    std::string bold(const std::string& text) const {
        return is_coloured ? "\033[1m" + text + "\033[0m" : text;
    }
    // Some counts take seconds; the line goes away when the number is there.
    void begin_counting() const {
        if (is_live) std::cout << "   counting ..." << std::flush;
    }
    void end_counting() const {
        if (is_live) std::cout << "\r               \r";
    }

  private:
    static bool set_in_environment(const char* name) {
        const char* value = std::getenv(name);
        return value != nullptr && *value != '\0';
    }
    static bool is_dumb() {
        const char* term = std::getenv("TERM");
        return term != nullptr && std::string(term) == "dumb";
    }
};

struct Score {
    int asked = 0, near = 0;
};

// What the reader says; nothing for a number that is skipped. `open` becomes false at the end of the input.
std::optional<double> ask(const std::string& name, bool& open) {
    while (open) {
        std::cout << "   " << name << "? " << std::flush;
        std::string line;
        const bool is_over = !std::getline(std::cin, line);
        if (!line.empty() && line.back() == '\r') line.pop_back();
        if (is_over || line == "q") {
            open = false;
            std::cout << "\n";
            break;
        }
        if (line.find_first_not_of(" \t") == std::string::npos) break;
        if (const auto value = number_in(line)) return value;
        std::cout << "   '" << line << "' is not a number; write 12, 98,304, 1/2048 or 6.4e9\n";
    }
    return std::nullopt;
}

void show(const Number& number, std::optional<double> guess, const Terminal& terminal, Score& score) {
    double right = 0;
    terminal.begin_counting();
    try {
        right = number.answer();
    } catch (const NothingCounted&) {
        terminal.end_counting();
        std::cout << "   " << number.name << ": not known to this build, which counts nothing "
                  << "(-DFLASH_STEPS_BACKEND=emulator does)\n";
        return;
    }
    terminal.end_counting();
    std::cout << "   " << number.name << ": " << terminal.bold(shown(right, number.digits)) << " ("
              << number.source << ")";
    if (guess) {
        ++score.asked;
        if (right == 0) {
            score.near += *guess == 0;
            std::cout << "; you said " << shown(*guess, 9);
        } else {
            const double ratio = *guess / right;
            score.near += std::abs(ratio - 1) <= 0.05;
            std::cout << "; you said " << shown(*guess, 9) << ", ratio " << shown(ratio, 3);
        }
    }
    std::cout << "\n";
}

int run(const std::vector<std::string>& steps, bool answers_only) {
    std::vector<Question> questions = questions_01_to_03();
    for (const auto& more : {questions_04_and_05(), questions_06_to_08(), questions_09()})
        questions.insert(questions.end(), more.begin(), more.end());
    for (const auto& step : steps) {
        bool known = false;
        for (const auto& question : questions) known |= question.step == step;
        if (!known) {
            std::fprintf(stderr, "there are no questions for step %s; steps with questions are %s to %s\n",
                         step.c_str(), questions.front().step, questions.back().step);
            return 2;
        }
    }

    const Terminal terminal;
    Score score;
    Lesson lesson;
    std::string current;
    bool open = true;
    for (const auto& question : questions) {
        bool wanted = steps.empty();
        for (const auto& step : steps) wanted |= question.step == step;
        if (!wanted) continue;
        if (question.step != current) {
            current = question.step;
            lesson = read_lesson(current);
            std::cout << terminal.bold(lesson.title) << "\n" << lesson.path << "\n\n";
        }
        std::cout << question.number << ". "
                  << lesson.questions.at(static_cast<std::size_t>(question.number) - 1) << "\n";
        for (const auto& number : question.numbers) {
            const auto guess = answers_only ? std::nullopt : ask(number.name, open);
            if (!open) {
                std::cout << "Stopped. With --answers predict shows the rest.\n";
                return 0;
            }
            show(number, guess, terminal, score);
        }
        std::cout << "\n";
    }
    if (score.asked > 0)
        std::cout << "Within 5 %: " << score.near << " of " << score.asked << ". The lessons say why.\n";
    return 0;
}

}  // namespace
}  // namespace flash::predict

int main(int argc, char** argv) {
    std::vector<std::string> steps;
    bool answers_only = false;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (argument == "--help" || argument == "-h") {
            std::cout << flash::predict::kHelp;
            return 0;
        }
        if (argument == "--answers") {
            answers_only = true;
        } else if (argument == "--step" && i + 1 < argc) {
            steps.emplace_back(argv[++i]);
            if (steps.back().size() == 1) steps.back().insert(0, "0");
        } else {
            std::fprintf(stderr, "predict does not know '%s'%s\n\n%s", argument.c_str(),
                         argument == "--step" ? " without a number" : "", flash::predict::kHelp);
            return 2;
        }
    }
    try {
        const int status = flash::predict::run(steps, answers_only);
        if (!std::cout.flush()) throw std::runtime_error("cannot write to standard output");
        return status;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "predict: %s\n", error.what());
        return 1;
    }
}
