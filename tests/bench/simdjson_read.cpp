/* SPDX-License-Identifier: Apache-2.0 */
/* simdjson_read.cpp: times reading float32 rows by attnd and by simdjson (Debian:
 * libsimdjson-dev), in turns, and compares the numbers. It is not part of the build:
 *
 *   g++ -O3 -std=c++17 -Isrc -Iinclude tests/bench/simdjson_read.cpp \
 *       build/src/wire/libwire.a -lsimdjson -o simdjson_read && ./simdjson_read
 */
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <simdjson.h>
#include <string>
#include <vector>

extern "C" {
#include "wire/decimal/read.h"
}

static const size_t rows = 128, width = 768, rounds = 101;

/* Prints the rows. With T double, a float32 is printed as by json.dumps(), with T float as
 * by attnd. */
template <typename T>
static std::string print(const std::vector<float> &numbers, const char *comma) {
    std::string text = "[";
    for (size_t i = 0; i < numbers.size(); i++) {
        char number[64];
        text += i % width > 0 ? comma : i > 0 ? "],[" : "[";
        text.append(number, std::to_chars(number, number + 64, T(numbers[i])).ptr);
    }
    return text + "]]";
}

static void read_with_attnd(const simdjson::padded_string &text, float *out) {
    const char *begin = text.data();
    wire_floats floats = {begin + 1, begin + text.size(), out, out + rows * width, 0};
    for (size_t row = 0; row < rows; row++) {
        floats.at++; /* the opening bracket */
        if (wire_floats_read(&floats) != WIRE_STOP_CLOSED)
            std::exit(1);
        floats.at += 2; /* the closing bracket and the comma */
    }
}

static void read_with_simdjson(const simdjson::padded_string &text, float *out) {
    static simdjson::ondemand::parser parser;
    auto document = parser.iterate(text);
    for (auto row : document.get_array())
        for (auto number : row.get_array())
            *out++ = float(double(number.get_double()));
}

template <typename F> static double time_ns(F run) {
    auto began = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() -
                                                    began)
        .count();
}

static double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

static void compare(const char *name, const std::string &json) {
    simdjson::padded_string text(json);
    std::vector<float> ours(rows * width), theirs(rows * width);
    std::vector<double> our_ns, their_ns, ratios;

    for (size_t i = 0; i < rounds; i++) {
        our_ns.push_back(time_ns([&] { read_with_attnd(text, ours.data()); }));
        their_ns.push_back(time_ns([&] { read_with_simdjson(text, theirs.data()); }));
        ratios.push_back(their_ns.back() / our_ns.back());
    }
    if (std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(float)) != 0)
        std::exit((std::fprintf(stderr, "%s: the numbers differ\n", name), 1));

    double bytes = double(json.size()), numbers = double(rows * width);
    std::printf(
        "%-10s %5.1f bytes each: attnd %5.0f MB/s, %5.2f ns; simdjson (%s) %5.0f "
        "MB/s, %5.2f ns; %.2fx\n",
        name, bytes / numbers, bytes / median(our_ns) * 1e3, median(our_ns) / numbers,
        std::string(simdjson::get_active_implementation()->name()).c_str(),
        bytes / median(their_ns) * 1e3, median(their_ns) / numbers, median(ratios));
}

static std::vector<float> scaled(const std::vector<float> &numbers, float scale) {
    std::vector<float> products;
    for (float number : numbers)
        products.push_back(scale * number);
    return products;
}

int main() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> numbers(rows * width), bytes;

    for (float &number : numbers)
        number = normal(random);
    for (size_t i = 0; i < numbers.size(); i++)
        bytes.push_back(float(random() % 256));

    compare("17 digits", print<double>(numbers, ", "));
    compare("indented", print<double>(numbers, ",\n            "));
    compare("shortest", print<float>(numbers, ","));
    compare("x 0.02", print<double>(scaled(numbers, 0.02F), ", "));
    compare("x 20", print<double>(scaled(numbers, 20), ", "));
    compare("x 1e-6", print<double>(scaled(numbers, 1e-6F), ", "));
    compare("0..255", print<double>(bytes, ", "));
}
