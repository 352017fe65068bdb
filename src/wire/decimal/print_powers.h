/* SPDX-License-Identifier: Apache-2.0 */
/* print_powers.h: powers of ten to 64 bits, for printing; made by print_powers.py. */
#ifndef ATTND_WIRE_DECIMAL_PRINT_POWERS_H
#define ATTND_WIRE_DECIMAL_PRINT_POWERS_H

#include <stdint.h>

#define PRINT_POWERS_MIN (-31)
#define PRINT_POWERS_MAX 45

/* 10^e * 2^(63 - floor(log2(10^e))), rounded up, for e from PRINT_POWERS_MIN on. */
static const uint64_t print_powers[PRINT_POWERS_MAX - PRINT_POWERS_MIN + 1] = {
    UINT64_C(0x81ceb32c4b43fcf5), /* -31 */
    UINT64_C(0xa2425ff75e14fc32), /* -30 */
    UINT64_C(0xcad2f7f5359a3b3f), /* -29 */
    UINT64_C(0xfd87b5f28300ca0e), /* -28 */
    UINT64_C(0x9e74d1b791e07e49), /* -27 */
    UINT64_C(0xc612062576589ddb), /* -26 */
    UINT64_C(0xf79687aed3eec552), /* -25 */
    UINT64_C(0x9abe14cd44753b53), /* -24 */
    UINT64_C(0xc16d9a0095928a28), /* -23 */
    UINT64_C(0xf1c90080baf72cb2), /* -22 */
    UINT64_C(0x971da05074da7bef), /* -21 */
    UINT64_C(0xbce5086492111aeb), /* -20 */
    UINT64_C(0xec1e4a7db69561a6), /* -19 */
    UINT64_C(0x9392ee8e921d5d08), /* -18 */
    UINT64_C(0xb877aa3236a4b44a), /* -17 */
    UINT64_C(0xe69594bec44de15c), /* -16 */
    UINT64_C(0x901d7cf73ab0acda), /* -15 */
    UINT64_C(0xb424dc35095cd810), /* -14 */
    UINT64_C(0xe12e13424bb40e14), /* -13 */
    UINT64_C(0x8cbccc096f5088cc), /* -12 */
    UINT64_C(0xafebff0bcb24aaff), /* -11 */
    UINT64_C(0xdbe6fecebdedd5bf), /* -10 */
    UINT64_C(0x89705f4136b4a598), /* -9 */
    UINT64_C(0xabcc77118461cefd), /* -8 */
    UINT64_C(0xd6bf94d5e57a42bd), /* -7 */
    UINT64_C(0x8637bd05af6c69b6), /* -6 */
    UINT64_C(0xa7c5ac471b478424), /* -5 */
    UINT64_C(0xd1b71758e219652c), /* -4 */
    UINT64_C(0x83126e978d4fdf3c), /* -3 */
    UINT64_C(0xa3d70a3d70a3d70b), /* -2 */
    UINT64_C(0xcccccccccccccccd), /* -1 */
    UINT64_C(0x8000000000000001), /* 0 */
    UINT64_C(0xa000000000000001), /* 1 */
    UINT64_C(0xc800000000000001), /* 2 */
    UINT64_C(0xfa00000000000001), /* 3 */
    UINT64_C(0x9c40000000000001), /* 4 */
    UINT64_C(0xc350000000000001), /* 5 */
    UINT64_C(0xf424000000000001), /* 6 */
    UINT64_C(0x9896800000000001), /* 7 */
    UINT64_C(0xbebc200000000001), /* 8 */
    UINT64_C(0xee6b280000000001), /* 9 */
    UINT64_C(0x9502f90000000001), /* 10 */
    UINT64_C(0xba43b74000000001), /* 11 */
    UINT64_C(0xe8d4a51000000001), /* 12 */
    UINT64_C(0x9184e72a00000001), /* 13 */
    UINT64_C(0xb5e620f480000001), /* 14 */
    UINT64_C(0xe35fa931a0000001), /* 15 */
    UINT64_C(0x8e1bc9bf04000001), /* 16 */
    UINT64_C(0xb1a2bc2ec5000001), /* 17 */
    UINT64_C(0xde0b6b3a76400001), /* 18 */
    UINT64_C(0x8ac7230489e80001), /* 19 */
    UINT64_C(0xad78ebc5ac620001), /* 20 */
    UINT64_C(0xd8d726b7177a8001), /* 21 */
    UINT64_C(0x878678326eac9001), /* 22 */
    UINT64_C(0xa968163f0a57b401), /* 23 */
    UINT64_C(0xd3c21bcecceda101), /* 24 */
    UINT64_C(0x84595161401484a1), /* 25 */
    UINT64_C(0xa56fa5b99019a5c9), /* 26 */
    UINT64_C(0xcecb8f27f4200f3b), /* 27 */
    UINT64_C(0x813f3978f8940985), /* 28 */
    UINT64_C(0xa18f07d736b90be6), /* 29 */
    UINT64_C(0xc9f2c9cd04674edf), /* 30 */
    UINT64_C(0xfc6f7c4045812297), /* 31 */
    UINT64_C(0x9dc5ada82b70b59e), /* 32 */
    UINT64_C(0xc5371912364ce306), /* 33 */
    UINT64_C(0xf684df56c3e01bc7), /* 34 */
    UINT64_C(0x9a130b963a6c115d), /* 35 */
    UINT64_C(0xc097ce7bc90715b4), /* 36 */
    UINT64_C(0xf0bdc21abb48db21), /* 37 */
    UINT64_C(0x96769950b50d88f5), /* 38 */
    UINT64_C(0xbc143fa4e250eb32), /* 39 */
    UINT64_C(0xeb194f8e1ae525fe), /* 40 */
    UINT64_C(0x92efd1b8d0cf37bf), /* 41 */
    UINT64_C(0xb7abc627050305ae), /* 42 */
    UINT64_C(0xe596b7b0c643c71a), /* 43 */
    UINT64_C(0x8f7e32ce7bea5c70), /* 44 */
    UINT64_C(0xb35dbf821ae4f38c), /* 45 */
};

#endif
