/* SPDX-License-Identifier: Apache-2.0 */
/* pace.h: cuts the work on a large request into short pieces. What reads, converts or
 * checks it counts the bytes, and a checkpoint is called between two pieces. A worker can
 * look there for small jobs that wait.
 *
 * A checkpoint may run other requests on the same thread, with arenas and a pace of their
 * own. It must not touch this request. */
#ifndef ATTND_WIRE_PACE_H
#define ATTND_WIRE_PACE_H

#include "base/dtype.h"

#include <stddef.h>

/* A checkpoint comes when so many bytes were counted. Text is counted in steps of at most
 * WIRE_PACE_STEP, and takes about 1 ms for each MiB. */
#define WIRE_PACE_BYTES   ((size_t)512 * 1024)
#define WIRE_PACE_STEP    ((size_t)256 * 1024)
#define WIRE_PACE_NUMBERS (WIRE_PACE_STEP / sizeof(double))

/* Belongs to one request, and to the thread that works on it. */
struct wire_pace {
    void (*checkpoint)(void *context); /* NULL: none */
    void *context;
    size_t bytes; /* counted since the last checkpoint; begins with 0 */
};

/* Counts bytes that were handled. `pace` may be NULL. */
static inline void wire_pace_add(struct wire_pace *pace, size_t bytes) {
    if (pace == NULL)
        return;
    pace->bytes += bytes;
    if (pace->bytes < WIRE_PACE_BYTES)
        return;
    pace->bytes = 0;
    if (pace->checkpoint != NULL)
        pace->checkpoint(pace->context);
}

/* Counts number `i` of a loop over all numbers, at WIRE_PACE_NUMBERS of them at once. */
static inline void wire_pace_add_number(struct wire_pace *pace, size_t i) {
    if ((i + 1) % WIRE_PACE_NUMBERS == 0)
        wire_pace_add(pace, WIRE_PACE_STEP);
}

/* finite_end() and dtype.to_float() in pieces. */
size_t wire_pace_finite_end(struct wire_pace *pace, const float *numbers, size_t count);
void wire_pace_to_float(struct wire_pace *pace, const struct dtype *dtype,
                        const unsigned char *bytes, size_t count, float *ret_values);

#endif
