/* SPDX-License-Identifier: Apache-2.0 */
/* pass.c: converts, norms or copies rows, strip by strip. */
#include "math/run/pass.h"

#include "base/size.h"

#include <string.h>

static void pass_strip(void *data, size_t index, size_t thread) {
    const struct row_pass *p = data;
    size_t first = index * p->strip_rows,
           count = size_min(p->rows - first, p->strip_rows);
    const float *from = p->from + first * p->width;
    float *to = p->to + first * p->to_ld;

    (void)thread;
    if (p->kernels != NULL && p->kernels->split != NULL)
        p->kernels->split(from, p->width, count, p->width, p->depth.items, p->depth.count,
                          &p->range, to, p->to_ld);
    else if (p->kernels != NULL)
        p->kernels->convert_bf16(from, p->width, count, p->width, to, p->to_ld);
    else if (p->norm.weight == NULL)
        memcpy(to, from, count * p->width * sizeof *to);
    for (size_t r = 0; p->norm.weight != NULL && r < count; r++)
        norm_row(&p->norm, from + r * p->width, to + r * p->to_ld);
}

void run_pass(const struct run *run, double flops, struct row_pass *pass) {
    pass->strip_rows = run->model->engine.kernels->strip_rows;
    share_tasks(run->request->parallel, flops * (double)pass->rows * (double)pass->width,
                (pass->rows - 1) / pass->strip_rows + 1, pass_strip, pass);
}
