/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz.h: what libFuzzer calls, and replay.c with the kept corpus. */
#ifndef ATTND_TESTS_FUZZ_H
#define ATTND_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Tries one input; aborts when the program does what it must not. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
