/* SPDX-License-Identifier: Apache-2.0 */
/* describe.c: prints the server, the models and their statistics for the routes /v2. */
#include "wire/oip/describe.h"

#include "math/plan/results.h"
#include "wire/fields/readers.h"
#include "wire/json/write.h"
#include "wire/models.h"
#include "wire/oip/oip.h"

#include <inttypes.h>

#define PLATFORM "attnd"
#define ANY      ((size_t)0) /* a size that a request chooses */

/* An input or output of a model. */
struct model_tensor {
    const char *name, *datatype;
    bool optional;
    size_t rank, shape[1 + RESULT_AXES_MAX];
};

/* Adds a text as a JSON string, between two texts that are JSON. */
static void print_string(struct buf *body, const char *before, const char *text,
                         const char *after) {
    buf_append_text(body, before);
    wire_json_add_string(body, text);
    buf_append_text(body, after);
}

void wire_oip_print_server(struct buf *body) {
    buf_append_text(body, "{\"name\":\"attnd\",\"version\":\"" ATTND_VERSION
                          "\",\"extensions\":[\"binary_tensor_data\",\"statistics\","
                          "\"model_configuration\",\"model_repository\"]}");
}

/* --- tensors --- */

/* Adds a tensor in the format of the metadata or, when `config`, of the configuration. */
static void print_tensor(const struct model_tensor *tensor, bool config,
                         struct buf *body) {
    buf_append_format(body,
                      config ? "{\"name\":\"%s\",\"data_type\":\"TYPE_%s\",\"dims\":"
                             : "{\"name\":\"%s\",\"datatype\":\"%s\",\"shape\":",
                      tensor->name, tensor->datatype);
    for (size_t i = 0; i < tensor->rank; i++)
        buf_append_format(body, "%c%td", i == 0 ? '[' : ',',
                          tensor->shape[i] == ANY ? -1 : (ptrdiff_t)tensor->shape[i]);
    buf_append_text(body, config && tensor->optional ? "],\"optional\":true}" : "]}");
}

static void print_tensors(const char *key, const struct model_tensor *tensors,
                          size_t count, bool config, struct buf *body) {
    buf_append_format(body, ",\"%s\":[", key);
    for (size_t i = 0; i < count; i++) {
        buf_append_text(body, i > 0 ? "," : "");
        print_tensor(&tensors[i], config, body);
    }
    buf_append_text(body, "]");
}

/* Describes a result, of any sequences. */
static struct model_tensor describe_result(const attn_model_info *info,
                                           const struct result *row) {
    struct model_tensor tensor = {row->name, "FP32", false, 1, {ANY}};

    for (size_t i = 0; i < RESULT_AXES_MAX && row->axes[i] != AXIS_NONE; i++)
        tensor.shape[tensor.rank++] = result_model_axis(info, row->axes[i]);
    return tensor;
}

/* Describes an input of a request. */
static struct model_tensor describe_input(const attn_model_info *info,
                                          const struct wire_field *field) {
    struct model_tensor tensor = {field->name, "FP32", true, 3, {ANY, ANY, ANY}};

    switch (field->id) {
    case WIRE_FIELD_QUERIES:
        tensor.shape[2] = info->width.query;
        tensor.optional = false;
        return tensor;
    case WIRE_FIELD_KEYS:
        tensor.shape[2] = info->width.key;
        tensor.optional =
            info->width.key == info->width.query && !wire_model_needs_keys(info);
        return tensor;
    case WIRE_FIELD_VALUES:
        tensor.shape[2] = info->width.value;
        tensor.optional = info->width.value == info->width.key;
        return tensor;
    case WIRE_FIELD_BIAS:
    case WIRE_FIELD_ATTN_MASK:
        tensor.datatype = field->kind == WIRE_MASK ? "BOOL" : "FP32";
        tensor.rank = 4;
        tensor.shape[3] = ANY;
        return tensor;
    case WIRE_FIELD_HEAD_MASK:
        tensor.rank = 1;
        tensor.shape[0] = info->num_heads;
        return tensor;
    default:
        tensor.datatype = "INT64";
        tensor.rank = field->read == wire_read_positions ? 2 : 1;
        return tensor;
    }
}

static void print_signature(const attn_model_info *info, bool config, struct buf *body) {
    struct model_tensor inputs[WIRE_NUM_FIELDS];
    size_t num_inputs = 0;
    int passes = wire_model_is_cross(info) ? 1 : 2;

    /* Positions come last; there are none where keys are of another stack. */
    for (int pass = 0; pass < passes; pass++) {
        for (size_t i = 0; i < WIRE_NUM_FIELDS; i++) {
            const struct wire_field *field = &wire_fields[i];
            if ((field->requests & WIRE_OIP_INPUT) != 0 &&
                (field->read == wire_read_positions) == (pass == 1))
                inputs[num_inputs++] = describe_input(info, field);
        }
    }
    struct model_tensor outputs[NUM_RESULTS];
    size_t num_outputs = 0;

    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        if ((result_table[id].kinds & RESULT_OIP) != 0)
            outputs[num_outputs++] = describe_result(info, &result_table[id]);
    }
    print_tensors(config ? "input" : "inputs", inputs, num_inputs, config, body);
    print_tensors(config ? "output" : "outputs", outputs, num_outputs, config, body);
}

/* --- models --- */

void wire_oip_print_model(const attn_model_info *info, struct buf *body) {
    print_string(body, "{\"name\":", info->name,
                 ",\"versions\":[\"" WIRE_OIP_VERSION "\"],\"platform\":\"" PLATFORM
                 "\"");
    print_signature(info, false, body);
    buf_append_text(body, "}");
}

void wire_oip_print_ready(const attn_model_info *info, bool ready, struct buf *body) {
    print_string(body, "{\"name\":", info->name,
                 ready ? ",\"ready\":true}" : ",\"ready\":false}");
}

void wire_oip_print_config(const attn_model_info *info, struct buf *body) {
    print_string(body, "{\"name\":", info->name,
                 ",\"platform\":\"" PLATFORM "\",\"backend\":\"" PLATFORM
                 "\",\"version_policy\":{\"latest\":{\"num_versions\":1}},"
                 "\"max_batch_size\":0");
    print_signature(info, true, body);
    buf_append_text(body, "}");
}

static void print_duration(const char *before, const char *name, uint64_t count,
                           uint64_t ns, struct buf *body) {
    buf_append_format(body, "%s\"%s\":{\"count\":%" PRIu64 ",\"ns\":%" PRIu64 "}", before,
                      name, count, ns);
}

/* Adds those numbers of requests that were computed together at least once. */
static void print_batches(const struct wire_oip_batches *batches, struct buf *body) {
    const char *before = "";

    buf_append_text(body, ",\"batch_stats\":[");
    for (size_t i = 0; i < WIRE_OIP_BATCH_MAX; i++) {
        const struct wire_oip_batches *batch = &batches[i];
        uint64_t count = obs_get(&batch->count);
        if (count == 0)
            continue;
        buf_append_format(body, "%s{\"batch_size\":%zu", before, i + 1);
        print_duration(",", "compute_input", count, obs_get(&batch->input_ns), body);
        print_duration(",", "compute_infer", count, obs_get(&batch->infer_ns), body);
        print_duration(",", "compute_output", count, obs_get(&batch->output_ns), body);
        buf_append_text(body, "}");
        before = ",";
    }
    buf_append_text(body, "]");
}

void wire_oip_print_statistics(const attn_model_info *info,
                               const struct wire_oip_statistics *statistics,
                               struct buf *body) {
    static const char *const names[] = {
        "success", "fail", "queue", "compute_input", "compute_infer", "compute_output"};
    uint64_t successes = obs_get(&statistics->num_successes), executions = 0;

    for (size_t i = 0; i < WIRE_OIP_BATCH_MAX; i++)
        executions += obs_get(&statistics->batches[i].count);
    print_string(body, "{\"name\":", info->name, ",\"version\":\"" WIRE_OIP_VERSION "\"");
    buf_append_format(body,
                      ",\"last_inference\":%" PRIu64 ",\"inference_count\":%" PRIu64
                      ",\"execution_count\":%" PRIu64 ",\"inference_stats\":",
                      obs_get(&statistics->last), successes, executions);
    for (size_t i = 0; i < WIRE_NUM_TIMES; i++)
        print_duration(i == 0 ? "{" : ",", names[i],
                       i == WIRE_TIME_FAIL ? obs_get(&statistics->num_failures)
                                           : successes,
                       obs_get(&statistics->ns[i]), body);
    buf_append_text(body, "}");
    print_batches(statistics->batches, body);
    buf_append_text(body, "}");
}

void wire_oip_print_index(const struct wire_oip_listing *listings, size_t count,
                          bool draining, bool ready_only, struct buf *body) {
    const char *before = "{\"name\":";

    buf_append_text(body, "[");
    for (size_t i = 0; i < count; i++) {
        const struct wire_oip_listing *at = &listings[i];
        bool ready = at->info != NULL && !draining;
        if (ready_only && !ready)
            continue;
        print_string(body, before, at->name,
                     ",\"version\":\"" WIRE_OIP_VERSION "\",\"state\":");
        print_string(body,
                     ready ? "\"READY\",\"reason\":" : "\"UNAVAILABLE\",\"reason\":",
                     at->info != NULL && draining ? "draining" : at->reason, "");
        if (at->info != NULL)
            buf_append_format(body, ",\"fingerprint\":\"%s\",\"loaded\":%lld",
                              at->info->fingerprint, at->info->loaded);
        buf_append_text(body, "}");
        before = ",{\"name\":";
    }
    buf_append_text(body, "]");
}
