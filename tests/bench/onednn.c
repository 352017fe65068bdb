/* SPDX-License-Identifier: Apache-2.0 */
/* onednn.c: one projection by oneDNN, y = x W^T + b. peers.py builds and loads this file.
 *
 * W is [width, width], [out, in]; it is reordered once into the layout that oneDNN
 * prefers. x and W are float32 or bf16; y and b are always float32. A process has one
 * product, on OMP_NUM_THREADS threads. */
#include <oneapi/dnnl/dnnl.h>

#if DNNL_VERSION_MAJOR != 2
#error "this is for oneDNN 2, Debian 12's; version 3 has another interface"
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum onednn_rows { ROWS_F32, ROWS_BF16, ROWS_F32_TO_BF16 };

dnnl_status_t onednn_create(size_t rows, size_t width, const float *weights,
                            const float *bias, const float *inputs, float *outputs,
                            enum onednn_rows kind);
dnnl_status_t onednn_run(void);
const char *onednn_detail(void);

static dnnl_engine_t engine;
static dnnl_stream_t stream;
static dnnl_primitive_t product;
static dnnl_primitive_t conversion; /* of the rows in each run, or NULL */
static dnnl_exec_arg_t product_args[4], conversion_args[2];
static char detail[200];

#define TRY(call)                                                                        \
    do {                                                                                 \
        dnnl_status_t status_ = (call);                                                  \
        if (status_ != dnnl_success)                                                     \
            return status_;                                                              \
    } while (false)

/* Creates a matrix in memory of the caller, or of oneDNN if `data` is NULL. */
static dnnl_status_t create_memory(const dnnl_memory_desc_t *layout, const float *data,
                                   dnnl_memory_t *ret_memory) {
    union {
        const float *borrowed;
        void *handle;
    } memory = {data};
    return dnnl_memory_create(ret_memory, layout, engine,
                              data != NULL ? memory.handle : DNNL_MEMORY_ALLOCATE);
}

static dnnl_status_t describe(dnnl_memory_desc_t *ret_layout, size_t rows, size_t columns,
                              dnnl_data_type_t type, dnnl_format_tag_t tag) {
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    return dnnl_memory_desc_init_by_tag(ret_layout, 2, dims, type, tag);
}

/* Creates `ret_to` in `layout`, and prepares the reorder of `from` to it. */
static dnnl_status_t create_reorder(dnnl_memory_t from, const dnnl_memory_desc_t *layout,
                                    dnnl_memory_t *ret_to,
                                    dnnl_primitive_t *ret_reorder) {
    const dnnl_memory_desc_t *source;
    dnnl_primitive_desc_t plan;

    TRY(create_memory(layout, NULL, ret_to));
    TRY(dnnl_memory_get_memory_desc(from, &source));
    TRY(dnnl_reorder_primitive_desc_create(&plan, source, engine, layout, engine, NULL));
    dnnl_status_t status = dnnl_primitive_create(ret_reorder, plan);
    dnnl_primitive_desc_destroy(plan);
    return status;
}

static dnnl_status_t reorder(dnnl_primitive_t primitive, dnnl_memory_t from,
                             dnnl_memory_t to) {
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    TRY(dnnl_primitive_execute(primitive, stream, 2, args));
    return dnnl_stream_wait(stream);
}

/* Chooses the kernel. `ret_layout` is the layout of weights that it needs. */
static dnnl_status_t create_product(size_t rows, size_t width, dnnl_data_type_t type,
                                    dnnl_memory_desc_t *ret_layout) {
    dnnl_memory_desc_t x, w, b, y;
    dnnl_matmul_desc_t operation;
    dnnl_primitive_desc_t plan;

    TRY(describe(&x, rows, width, type, dnnl_ab));
    TRY(describe(&w, width, width, type, dnnl_format_tag_any));
    TRY(describe(&b, 1, width, dnnl_f32, dnnl_ab));
    TRY(describe(&y, rows, width, dnnl_f32, dnnl_ab));
    TRY(dnnl_matmul_desc_init(&operation, &x, &w, &b, &y));
    TRY(dnnl_primitive_desc_create(&plan, &operation, NULL, engine, NULL));
    *ret_layout = *dnnl_primitive_desc_query_md(plan, dnnl_query_weights_md, 0);

    const char *kernel = "";
    dnnl_primitive_desc_query(plan, dnnl_query_impl_info_str, 0, &kernel);
    snprintf(detail, sizeof detail, "oneDNN %d.%d.%d, %s", dnnl_version()->major,
             dnnl_version()->minor, dnnl_version()->patch, kernel);

    dnnl_status_t status = dnnl_primitive_create(&product, plan);
    dnnl_primitive_desc_destroy(plan);
    return status;
}

/* Prepares the rows for the product: in place, or converted, now or in each run. */
static dnnl_status_t create_rows(size_t rows, size_t width, const float *inputs,
                                 enum onednn_rows kind, dnnl_memory_t *ret_x) {
    dnnl_memory_desc_t plain, converted;
    dnnl_memory_t given;

    TRY(describe(&plain, rows, width, dnnl_f32, dnnl_ab));
    TRY(create_memory(&plain, inputs, &given));
    if (kind == ROWS_F32) {
        *ret_x = given;
        return dnnl_success;
    }

    TRY(describe(&converted, rows, width, dnnl_bf16, dnnl_ab));
    TRY(create_reorder(given, &converted, ret_x, &conversion));
    TRY(reorder(conversion, given, *ret_x));
    conversion_args[0] = (dnnl_exec_arg_t){DNNL_ARG_FROM, given};
    conversion_args[1] = (dnnl_exec_arg_t){DNNL_ARG_TO, *ret_x};
    if (kind == ROWS_BF16)
        conversion = NULL;
    return dnnl_success;
}

/* Prepares the product. `inputs` and `outputs`, both [rows, width], are borrowed;
 * `weights` and `bias` may be. All must live until the last run. Nothing is released
 * before the process ends. Returns the status of oneDNN: dnnl_unimplemented if the CPU
 * lacks the type. */
dnnl_status_t onednn_create(size_t rows, size_t width, const float *weights,
                            const float *bias, const float *inputs, float *outputs,
                            enum onednn_rows kind) {
    dnnl_memory_desc_t layout, transposed, vector, plain;
    dnnl_memory_t x, given, w, b, y;
    dnnl_primitive_t pack;

    TRY(dnnl_engine_create(&engine, dnnl_cpu, 0));
    TRY(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    TRY(create_product(rows, width, kind == ROWS_F32 ? dnnl_f32 : dnnl_bf16, &layout));
    TRY(create_rows(rows, width, inputs, kind, &x));

    /* [out, in], seen as [in, out] */
    TRY(describe(&transposed, width, width, dnnl_f32, dnnl_ba));
    TRY(create_memory(&transposed, weights, &given));
    TRY(create_reorder(given, &layout, &w, &pack));
    TRY(reorder(pack, given, w));

    TRY(describe(&vector, 1, width, dnnl_f32, dnnl_ab));
    TRY(create_memory(&vector, bias, &b));
    TRY(describe(&plain, rows, width, dnnl_f32, dnnl_ab));
    TRY(create_memory(&plain, outputs, &y));

    product_args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, x};
    product_args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, w};
    product_args[2] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, b};
    product_args[3] = (dnnl_exec_arg_t){DNNL_ARG_DST, y};
    return dnnl_success;
}

/* Computes the outputs once. */
dnnl_status_t onednn_run(void) {
    if (conversion != NULL)
        TRY(dnnl_primitive_execute(conversion, stream, 2, conversion_args));
    TRY(dnnl_primitive_execute(product, stream, 4, product_args));
    return dnnl_stream_wait(stream);
}

/* Returns version and kernel, e.g. "oneDNN 2.6.3, brg:avx512_core". The string is
 * static. */
const char *onednn_detail(void) {
    return detail;
}
