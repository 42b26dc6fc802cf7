#include "common/bench/results.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace flash::bench {

namespace {

std::string digits(double value, int significant) {
    std::array<char, 64> text{};
    const auto end =
        std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, significant);
    return {text.data(), end.ptr};
}

std::string quoted(const std::string& field) {
    if (field.find_first_of(",\"\r\n") == std::string::npos) return field;
    std::string out = "\"";
    for (const char c : field) {
        if (c == '"') out += '"';
        out += c == '\n' || c == '\r' ? ' ' : c;
    }
    return out + "\"";
}

// Counts keep all of their digits.
bool is_count(double value) {
    return value == std::floor(value) && std::abs(value) < 1e15;
}

}  // namespace

std::string format_number(double value) {
    return digits(value, is_count(value) ? 15 : 6);
}

std::string readable(double value, const std::string& unit) {
    if (unit == "bytes") {
        constexpr std::array<const char*, 5> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
        std::size_t power = 0;
        while (value >= 1024 && power + 1 < kUnits.size()) {
            value /= 1024;
            ++power;
        }
        return digits(value, 4) + " " + kUnits[power];
    }
    const std::string number = is_count(value) || value >= 1000 ? format_number(value) : digits(value, 3);
    return number + (unit.empty() ? "" : " " + unit);
}

std::string describe(const Shape& shape, const Mask& mask) {
    const auto pair = [](int a, int b, const char* between) {
        return std::to_string(a) + (a == b ? "" : between + std::to_string(b));
    };
    std::string text = "B" + std::to_string(shape.batch) + " H" + pair(shape.heads_q, shape.heads_kv, "/") +
                       " N" + pair(shape.len_q, shape.len_kv, "x") + " D" + std::to_string(shape.head_dim);
    if (mask.is_causal) {
        text += " causal";
        if (mask.diagonal != 0) text += (mask.diagonal > 0 ? "+" : "") + std::to_string(mask.diagonal);
    }
    return text;
}

std::string csv_row(const std::string& step, const Case& what, const Metric& metric,
                    const Environment& environment) {
    const Shape& s = what.shape;
    std::string row = quoted(step);
    const auto add = [&row](const std::string& field) { row += "," + quoted(field); };
    for (const auto& field : {what.variant, what.backend, what.op, what.dtype}) add(field);
    for (const int size : {s.batch, s.heads_q, s.heads_kv, s.len_q, s.len_kv, s.head_dim}) {
        add(std::to_string(size));
    }
    add(what.mask.is_causal ? "causal" : "none");
    add(what.mask.is_causal ? std::to_string(what.mask.diagonal) : "");
    add(metric.name);
    add(metric.unit);
    for (const double number : {metric.value.median, metric.value.p10, metric.value.p90}) {
        add(format_number(number));
    }
    add(std::to_string(metric.value.reps));
    const Environment& e = environment;
    for (const auto& field : {e.machine, e.device, e.compiler, e.flags, e.commit, e.date}) add(field);
    return row;
}

ResultsFile::ResultsFile(const std::string& path) : path_(path) {
    if (path_.empty()) return;
    std::error_code ignored;
    const std::string named = "'" + path_ + "'";
    if (std::filesystem::exists(path_, ignored) && !std::filesystem::is_regular_file(path_, ignored))
        throw std::runtime_error(named + " is no file that results can be appended to");
    if (!std::filesystem::exists(path_, ignored) || std::filesystem::file_size(path_, ignored) == 0) {
        append(std::string(kColumns));
        return;
    }
    std::ifstream file(path_);
    std::string first;
    if (!std::getline(file, first) && !file.eof())
        throw std::runtime_error("cannot read results in " + named);
    if (first != kColumns)
        throw std::runtime_error(named + " is no results file: its first line is not the header of one");
    file.clear();
    file.seekg(-1, std::ios::end);
    if (file.get() != '\n')
        throw std::runtime_error(named + " ends within a line; complete or remove that line first");
}

void ResultsFile::append(const std::string& row) const {
    if (path_.empty()) return;
    std::ofstream file(path_, std::ios::app);
    file << row << '\n';
    file.flush();
    if (!file) throw std::runtime_error("cannot write results to '" + path_ + "'");
}

}  // namespace flash::bench
