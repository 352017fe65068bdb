/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: finds the fields of a native request. */
#include "wire/native/native.h"

bool wire_native_scan(const struct wire_input *input, struct wire_source *ret_source,
                      struct wire_problem *ret_problem) {
    const char *body = input->body;
    unsigned requests = wire_input_requests(input);
    struct wire_cursor cursor = {body, body, body + input->size, ret_problem};
    struct wire_span members[WIRE_NUM_FIELDS];
    struct wire_keys keys = {
        .owner = "a request", .where = "", .given = requests != WIRE_TO_MODEL};

    if (requests == WIRE_TO_GIVEN)
        keys.owner = "a request without a model";
    if (requests == WIRE_TO_STORED)
        keys.owner = "a request for a capture, which has keys and values itself";
    wire_fields_set_keys(requests, WIRE_OPTION | WIRE_LISTS, &keys);
    if (!wire_body_open(&cursor, requests == WIRE_TO_STORED ? "layer" : "queries") ||
        !wire_object_scan(&cursor, NULL, 1, &keys, members) || !wire_body_close(&cursor))
        return false;

    *ret_source = (struct wire_source){
        .input = input, .problem = ret_problem, .text = body, .requests = requests};
    wire_fields_take(members, ret_source);
    return true;
}
