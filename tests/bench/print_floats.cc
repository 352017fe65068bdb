// SPDX-License-Identifier: Apache-2.0
// print_floats.cc: times printing a float32 by attnd, by its plain twin and by
// std::to_chars(), in nanoseconds.
//
//     ninja -C build tests/print_floats && build/tests/print_floats
//
// All three print the same numbers in turns in one run; the median of the turns is shown.
// It needs a C++17 compiler and is not installed.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

extern "C" {
#include "float_text_plain.h"
}

using Numbers = std::vector<float>;
using Print = size_t (*)(float value, char *text);

static size_t print_to_chars(float value, char *text) {
    return static_cast<size_t>(std::to_chars(text, text + 32, value).ptr - text);
}

// Prints rows of numbers, as a reply does.
static double nanoseconds_in_rows(const Numbers &numbers) {
    const size_t width = 500;
    static char text[width * 20 + 64];
    auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i + width <= numbers.size(); i += width)
        wire_floats_print(numbers.data() + i, width, text);
    std::chrono::duration<double, std::nano> took =
        std::chrono::steady_clock::now() - start;
    return took.count() / static_cast<double>(numbers.size() / width * width);
}

static double nanoseconds(Print print, const Numbers &numbers) {
    static char text[1 << 20];
    size_t used = 0;
    auto start = std::chrono::steady_clock::now();
    for (float value : numbers) {
        used += print(value, text + used) + 1;
        if (used > sizeof text - 64)
            used = 0;
    }
    std::chrono::duration<double, std::nano> took =
        std::chrono::steady_clock::now() - start;
    return took.count() / static_cast<double>(numbers.size());
}

static void compare(const char *name, const Numbers &numbers) {
    const int turns = 21;
    const Print printers[] = {wire_float_print, print_to_chars, float_text_plain};
    Numbers few(numbers.begin(),
                numbers.begin() + static_cast<long>(numbers.size() / 50));
    std::vector<double> times[4];

    for (int turn = 0; turn < turns; turn++) {
        times[0].push_back(nanoseconds_in_rows(numbers));
        for (int i = 0; i < 3; i++) // the plain twin is slow
            times[i + 1].push_back(nanoseconds(printers[i], i < 2 ? numbers : few));
    }

    std::printf("%-24s", name);
    for (auto &one_way : times) {
        std::sort(one_way.begin(), one_way.end());
        std::printf(" %8.1f", one_way[turns / 2]);
    }
    std::printf("\n");
}

static Numbers make(std::function<float(std::mt19937_64 &)> next) {
    std::mt19937_64 random(20);
    Numbers numbers(500000);
    for (float &value : numbers)
        value = next(random);
    return numbers;
}

static float from_bits(std::mt19937_64 &random) {
    for (;;) {
        uint32_t bits = static_cast<uint32_t>(random());
        float value;
        std::memcpy(&value, &bits, sizeof value);
        if (std::isfinite(value))
            return value;
    }
}

int main() {
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform;

    std::printf("%-24s %8s %8s %8s %8s  (ns)\n", "numbers", "attnd", "singly", "to_chars",
                "plain");
    compare("normal (outputs)", make([&](auto &random) { return normal(random); }));
    compare("softmax of 512 (weights)",
            make([&](auto &random) { return std::exp(normal(random)) / 845.0f; }));
    compare("uniform 0..1", make([&](auto &random) { return uniform(random); }));
    compare("two decimals", make([&](auto &random) {
                return std::round(normal(random) * 100.0f) / 100.0f;
            }));
    compare("random bits", make(from_bits));
    return 0;
}
