#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""powers.py: prints powers.c."""

MIN, MAX = -57, 45


def leading_64_bits(power):
    """Returns the first 64 bits of 10**power, cut off."""
    if power >= 0:
        value = 10 ** power
        return value << 64 >> value.bit_length()
    divisor = 10 ** -power
    bits = (1 << divisor.bit_length() + 64) // divisor
    return bits >> bits.bit_length() - 64


print("""/* SPDX-License-Identifier: Apache-2.0 */
/* powers.c: printed by powers.py; not to be edited. */
#include "wire/decimal/powers.h"

/* clang-format off */
const uint64_t wire_powers[WIRE_POWERS_MAX - WIRE_POWERS_MIN + 1] = {""")
for power in range(MIN, MAX + 1):
    print(f"    0x{leading_64_bits(power):016X}, /* {power} */")
print("};")
