/* SPDX-License-Identifier: Apache-2.0 */
/* rotate.c: cosines and sines of positions, and what is rotated by them. */
#include "math/rows/rotate.h"

#include <math.h>
#include <stdint.h>

void rotate_fill(const struct rotation *rotation, size_t position, double *entry) {
    double *cosines = entry, *sines = entry + rotation->num_pairs;

    for (size_t a = 0; a < rotation->num_pairs; a++) {
        double angle = (double)position * rotation->frequencies[a];
        cosines[a] = cos(angle);
        sines[a] = sin(angle);
    }
}

void rotate_init(struct rotation_angles *angles, const struct rotation *rotation,
                 float *memory) {
    size_t num_pairs = rotation->num_pairs;
    double *doubles = (double *)(void *)memory;

    *angles = (struct rotation_angles){.rotation = rotation,
                                       .position = SIZE_MAX,
                                       .multiple = SIZE_MAX,
                                       .of_multiple = doubles,
                                       .of_rest = doubles + 2 * num_pairs,
                                       .cosines = memory + 8 * num_pairs,
                                       .sines = memory + 9 * num_pairs};
}

void rotate_turn(struct rotation_angles *angles, size_t position) {
    const struct rotation *rotation = angles->rotation;
    size_t num_pairs = rotation->num_pairs, rest = position % ROTATE_STEP;
    const double *of_rest = angles->of_rest;
    const double *restrict base = angles->of_multiple;
    float *restrict cosines = angles->cosines, *restrict sines = angles->sines;
    double magnitude = rotation->magnitude;

    if (position == angles->position)
        return;
    if (position - rest != angles->multiple)
        rotate_fill(rotation, position - rest, angles->of_multiple);
    if (rotation->table != NULL)
        of_rest = rotation->table + rest * 2 * num_pairs;
    else
        rotate_fill(rotation, rest, angles->of_rest);
    angles->multiple = position - rest;
    angles->position = position;

    for (size_t a = 0; a < num_pairs; a++) {
        double c = base[a], s = base[a + num_pairs];
        double rest_c = of_rest[a], rest_s = of_rest[a + num_pairs];
        cosines[a] = (float)((c * rest_c - s * rest_s) * magnitude);
        sines[a] = (float)((s * rest_c + c * rest_s) * magnitude);
    }
}

void rotate_pick(const struct rotation_angles *angles, const unsigned char *axis_of,
                 struct rotation_angles *ret_angles) {
    for (size_t a = 0; a < ret_angles->rotation->num_pairs; a++) {
        ret_angles->cosines[a] = angles[axis_of[a]].cosines[a];
        ret_angles->sines[a] = angles[axis_of[a]].sines[a];
    }
}

void rotate_apply(const struct rotation_angles *angles, float *head) {
    size_t num_pairs = angles->rotation->num_pairs;
    float *restrict first = head, *restrict second = head + num_pairs;
    const float *restrict cosines = angles->cosines, *restrict sines = angles->sines;

    for (size_t a = 0; a < num_pairs; a++) {
        float x = first[a], y = second[a];
        first[a] = x * cosines[a] - y * sines[a];
        second[a] = y * cosines[a] + x * sines[a];
    }
}

void rotate_apply_neighbours(const struct rotation_angles *angles, float *head) {
    for (size_t a = 0; a < angles->rotation->num_pairs; a++, head += 2) {
        float x = head[0], y = head[1], c = angles->cosines[a], s = angles->sines[a];
        head[0] = x * c - y * s;
        head[1] = y * c + x * s;
    }
}
