#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""print_powers.py [FILE]: prints print_powers.h, the powers of ten of print.c; or checks that FILE
has that text.

A float32 is c * 2^q with q in -149..104. Printing it needs 10^-k with k = floor(log10(2^q)), or
floor(log10(3/4 * 2^q)) where the float below is closer. All such k are found here as well.
Everything is exact: integers and fractions."""
import sys
from fractions import Fraction


def floor_log(base, value):
    """Returns the largest e with base^e <= value."""
    e = 0
    while Fraction(base) ** (e + 1) <= value:
        e += 1
    while Fraction(base) ** e > value:
        e -= 1
    return e


def entry(exponent):
    """Returns 10^exponent, scaled to 2^63 <= g < 2^64 and rounded up (floor + 1, as in the paper)."""
    power = Fraction(10) ** exponent
    return int(power * Fraction(2) ** (63 - floor_log(2, power))) + 1


spans = [floor_log(10, share * Fraction(2) ** q) for q in range(-149, 105)
         for share in (Fraction(1), Fraction(3, 4))]
min_power, max_power = -max(spans), -min(spans)
header = f"""/* SPDX-License-Identifier: Apache-2.0 */
/* print_powers.h: powers of ten to 64 bits, for printing; made by print_powers.py. */
#ifndef ATTND_WIRE_DECIMAL_PRINT_POWERS_H
#define ATTND_WIRE_DECIMAL_PRINT_POWERS_H

#include <stdint.h>

#define PRINT_POWERS_MIN ({min_power})
#define PRINT_POWERS_MAX {max_power}

/* 10^e * 2^(63 - floor(log2(10^e))), rounded up, for e from PRINT_POWERS_MIN on. */
static const uint64_t print_powers[PRINT_POWERS_MAX - PRINT_POWERS_MIN + 1] = {{
"""
for e in range(min_power, max_power + 1):
    header += f"    UINT64_C(0x{entry(e):016x}), /* {e} */\n"
header += "};\n\n#endif\n"

if len(sys.argv) == 1:
    print(header, end="")
elif open(sys.argv[1]).read() != header:
    sys.exit(f"{sys.argv[1]} is not what print_powers.py makes")
