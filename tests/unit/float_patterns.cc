// SPDX-License-Identifier: Apache-2.0
// float_patterns.cc: prints every one of the 2^32 float32 patterns, and checks the text.
//
//     meson test -C build --suite exhaustive
//
// strtof() must read the text back to the same bits. Its digits and exponent must be those
// of std::to_chars(), which finds the shortest and closest decimal by another method (Ryu).
// test_wire_float.c checks the form of the text. This takes minutes on all cores. It is C++
// only for std::to_chars().
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

extern "C" {
#include "wire/decimal/print.h"
}

namespace {

constexpr uint64_t kPatterns = uint64_t(1) << 32;
constexpr uint64_t kBlock = uint64_t(1) << 22; // patterns that a thread checks at a time

std::atomic<uint64_t> next_pattern;
std::atomic<uint64_t> num_finite, num_wrong;

struct Decimal {
    int64_t digits; // without zeros at the end
    int power;
};

// Splits a JSON number, or what std::to_chars() prints; terminated.
Decimal take_apart(const char *text) {
    Decimal decimal = {0, 0};
    bool past_point = false;
    for (text += *text == '-'; *text != '\0' && *text != 'e'; text++) {
        if (*text == '.') {
            past_point = true;
            continue;
        }
        decimal.digits = decimal.digits * 10 + (*text - '0');
        decimal.power -= past_point;
    }
    if (*text == 'e')
        decimal.power += std::atoi(text + 1);
    while (decimal.digits != 0 && decimal.digits % 10 == 0) {
        decimal.digits /= 10;
        decimal.power++;
    }
    return decimal;
}

bool is_right(float value) {
    char text[WIRE_FLOAT_PRINT_ROOM + 1], other[32];
    size_t length = wire_float_print(value, text);
    if (length > WIRE_FLOAT_PRINT_MAX)
        return false;
    text[length] = '\0';
    *std::to_chars(other, other + sizeof other - 1, value, std::chars_format::scientific)
         .ptr = '\0';
    float read = std::strtof(text, nullptr);
    Decimal ours = take_apart(text), theirs = take_apart(other);
    if (std::memcmp(&read, &value, sizeof value) == 0 && ours.digits == theirs.digits &&
        (ours.power == theirs.power || ours.digits == 0))
        return true;
    std::printf("%a printed as %s, by std::to_chars as %s\n", double(value), text, other);
    return false;
}

// Sixteen numbers together are printed by other code (decimal/print_avx2.c), which must
// give the same text.
bool is_batch_right(const float *values) {
    char texts[512], one[WIRE_FLOAT_PRINT_ROOM];
    const char *at = texts;
    wire_floats_print(values, 16, texts);
    for (int i = 0; i < 16; i++) {
        size_t length = wire_float_print(values[i], one);
        if (std::memcmp(at, one, length) != 0 || at[length] != ',') {
            std::printf("%a printed as %.16s\n", double(values[i]), at);
            return false;
        }
        at += length + 1;
    }
    return true;
}

void check_blocks() {
    uint64_t start;
    while ((start = next_pattern.fetch_add(kBlock)) < kPatterns) {
        uint64_t finite = 0, wrong = 0;
        float batch[16];
        for (uint64_t pattern = start; pattern < start + kBlock; pattern++) {
            uint32_t bits = uint32_t(pattern);
            float value;
            std::memcpy(&value, &bits, sizeof value);
            if (!std::isfinite(value))
                continue;
            finite++;
            wrong += !is_right(value);
            batch[finite % 16] = value; // finite patterns come in blocks of 2^23
            wrong += finite % 16 == 0 && !is_batch_right(batch);
        }
        num_finite += finite;
        num_wrong += wrong;
    }
}

} // namespace

int main() {
    std::vector<std::thread> threads(std::max(1u, std::thread::hardware_concurrency()));
    for (std::thread &thread : threads)
        thread = std::thread(check_blocks);
    for (std::thread &thread : threads)
        thread.join();
    std::printf("%llu finite patterns, %llu wrong\n",
                static_cast<unsigned long long>(num_finite),
                static_cast<unsigned long long>(num_wrong));
    // All but those with the exponent 255, of either sign: infinities and NaN.
    return num_wrong == 0 && num_finite == kPatterns - (uint64_t(1) << 24) ? 0 : 1;
}
