/* SPDX-License-Identifier: Apache-2.0 */
/* rotate.h: rotary positions (Su et al. 2021). Pair a of a head is its numbers a and
 * a + num_pairs.
 *
 * A position is the sum of a multiple of ROTATE_STEP and a rest. Cosine and sine of its
 * angle follow from the two, in float64, and are rounded once. So rows of one call
 * share most of what is expensive, and bits depend on the position alone. */
#pragma once

#include <stddef.h>

#define ROTATE_STEP 64

/* The angle of pair a at position p is p times frequency a. */
struct rotation {
    const double *frequencies; /* [num_pairs] */
    size_t num_pairs;
    double magnitude; /* of cosines and sines */
    /* [ROTATE_STEP, 2, num_pairs] cosines and sines of the first positions, as
     * rotate_fill() writes them; NULL: they are computed when they are needed. */
    const double *table;
};

/* Writes entry `position` of a table, [2, num_pairs]. */
void rotate_fill(const struct rotation *rotation, size_t position, double *entry);

/* Floats of memory that angles need. */
#define ROTATE_FLOATS(num_pairs) (10 * (num_pairs))

/* The angles of one position, by which one thread rotates. */
struct rotation_angles {
    const struct rotation *rotation;
    size_t position, multiple; /* of which there are the numbers below, or SIZE_MAX */
    double *of_multiple;       /* [2, num_pairs] */
    double *of_rest;           /* [2, num_pairs], without a table */
    float *cosines, *sines;    /* [num_pairs] of the position */
};

/* Prepares angles in `memory`, ROTATE_FLOATS() aligned for double, which the caller owns.
 * They borrow the rotation. */
void rotate_init(struct rotation_angles *angles, const struct rotation *rotation,
                 float *memory);

/* Turns the angles to a position. */
void rotate_turn(struct rotation_angles *angles, size_t position);

/* Takes each pair's cosine and sine from the angles of its axis: axis_of[a] is the index
 * of those in `angles` that pair a has in *ret_angles, which are only to be applied. */
void rotate_pick(const struct rotation_angles *angles, const unsigned char *axis_of,
                 struct rotation_angles *ret_angles);

/* Rotates the first 2 * num_pairs numbers of a head by the angles. */
void rotate_apply(const struct rotation_angles *angles, float *head);

/* Rotates as above, where pair a is numbers 2a and 2a + 1. */
void rotate_apply_neighbours(const struct rotation_angles *angles, float *head);
