/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_oip_binary.c: a line that is the value of Inference-Header-Content-Length, then a
 * body of JSON and binary data. */
#include "oip_one.h"
#include "wire/oip/oip.h"

#define VALUE_MAX 64 /* bytes */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char value[VALUE_MAX + 1];
    const uint8_t *end = size > 0 ? memchr(data, '\n', size) : NULL;
    size_t length = end != NULL ? (size_t)(end - data) : 0, json_size;
    struct wire_problem problem;

    if (end == NULL || length > VALUE_MAX)
        return 0;
    memcpy(value, data, length);
    value[length] = '\0';

    size -= length + 1;
    if (wire_oip_json_size(value, size, &json_size, &problem)) {
        fuzz_check(json_size > 0 && json_size <= size, "a header over the body");
        oip_try(end + 1, size, json_size);
    } else {
        fuzz_check_problem(&problem, &wire_oip_error_format);
    }
    return 0;
}
