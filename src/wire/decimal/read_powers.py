#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""read_powers.py: prints read_powers.c."""

MIN, MAX = -57, 38


def leading_64_bits(power):
    """Returns the first 64 bits of 10**power, cut off."""
    if power >= 0:
        value = 10 ** power
        return value << 64 >> value.bit_length()
    divisor = 10 ** -power
    bits = (1 << divisor.bit_length() + 64) // divisor
    return bits >> bits.bit_length() - 64


print("""/* SPDX-License-Identifier: Apache-2.0 */
/* read_powers.c: printed by read_powers.py; not to be edited. */
#include "wire/decimal/read_powers.h"

/* clang-format off */
const uint64_t wire_read_powers[WIRE_READ_POWERS_MAX - WIRE_READ_POWERS_MIN + 1] = {""")
for power in range(MIN, MAX + 1):
    print(f"    0x{leading_64_bits(power):016X}, /* {power} */")
print("};")
