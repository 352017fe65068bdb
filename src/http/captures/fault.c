/* SPDX-License-Identifier: Apache-2.0 */
/* http/captures/fault.c: says what is wrong with a capture, and what to do. */
#include "base/size.h"
#include "captures/put.h"
#include "http/captures/captures.h"

#define FORM "docs/protocol.md says what a capture has, and Captured.save() writes it"

bool captures_are_on(const struct exchange *exchange, struct wire_problem *ret_problem) {
    if (exchange->options->captures != NULL)
        return true;
    return wire_problem_set(ret_problem, WIRE_E_CAPTURES_OFF, NULL,
                            "this server keeps no captures; start attnd with "
                            "--capture-memory 4GiB, or send the tensors to "
                            "POST /v1/attention/dot-product");
}

/* Faults whose sentence has no numbers. */
static const struct {
    enum wire_error error;
    bool of_field; /* the sentence begins with it */
    const char *detail;
} sentences[CAPTURE_NUM_ERRORS] = {
    [CAPTURE_E_UNKNOWN] =
        {WIRE_E_UNKNOWN_KEY, true,
         "is neither a tensor nor an option of a layer; remove it: " FORM},
    [CAPTURE_E_MISSING] = {WIRE_E_MISSING_KEY, true, "is missing; " FORM},
    [CAPTURE_E_OPTION] =
        {WIRE_E_WRONG_TYPE, true,
         "in __metadata__ is not the JSON that it should be, or "
         "out of range: scale and softcap up to 3e38, scale not 0; " FORM},
    [CAPTURE_E_TYPE] = {WIRE_E_WRONG_DTYPE, true,
                        "has a type that it cannot have; send F32, BF16, "
                        "F16 or F64, and positions as I64 or I32"},
    [CAPTURE_E_RANK] = {WIRE_E_WRONG_RANK, true,
                        "has too few dimensions, or too many; a capture "
                        "has one sequence: [tokens, heads, head size]"},
    [CAPTURE_E_SHAPE] = {WIRE_E_SHAPE_MISMATCH, true,
                         "has sizes that do not fit the other tensors of "
                         "its layer, or a size of 0; " FORM},
    [CAPTURE_E_BUSY] = {WIRE_E_TOO_MANY_REQUESTS, false,
                        "another PUT of yours, or of this name, is in progress; retry "
                        "when it has ended"},
    [CAPTURE_E_EXISTS] = {WIRE_E_CAPTURE_EXISTS, false,
                          "the name has other bytes already; DELETE that capture first, "
                          "or choose another name, such as the SHA-256 of the file"},
    [CAPTURE_E_HASH] = {WIRE_E_BAD_CAPTURE_NAME, false,
                        "a name of 64 hexadecimal digits must be the SHA-256 of the file "
                        "in lower case, and that is another one; choose another name"},
    [CAPTURE_E_YIELDED] = {WIRE_E_CAPTURES_FULL, false,
                           "the room of this file went to another holder, who has less; "
                           "delete captures of yours, or send fewer layers"},
    [CAPTURE_E_REMOVED] = {WIRE_E_UNAUTHORIZED, false,
                           "the key was removed from this server; ask its operator for "
                           "one"},
};

static void word_limits(const struct capture_fault *fault,
                        struct wire_problem *ret_problem) {
    if (fault->error == CAPTURE_E_TOO_LARGE)
        wire_problem_set(ret_problem, WIRE_E_CAPTURE_TOO_LARGE, NULL,
                         "the capture needs %zu bytes, more than the %zu that one holder "
                         "may have, half of --capture-memory; keep fewer layers, or "
                         "start attnd with a larger --capture-memory",
                         fault->wanted, fault->limit / 2);
    else
        wire_problem_set(
            ret_problem, WIRE_E_CAPTURES_FULL, NULL,
            "there is no room for %zu bytes now: of %zu all captures have "
            "%zu, and yours %zu of at most %zu, in at most %d captures; what "
            "others have is in use, or no more than you would have; send "
            "fewer layers, or retry when captures have expired",
            fault->wanted, fault->limit, fault->used, fault->own, fault->limit / 2,
            CAPTURES_OF_HOLDER);
}

void captures_word_fault(const struct exchange *exchange,
                         const struct capture_fault *fault,
                         struct wire_problem *ret_problem) {
    captures_count_refusal(exchange->options->captures, fault->error);
    enum wire_error error = sentences[fault->error].error;
    const char *detail = sentences[fault->error].detail;

    if (detail != NULL && sentences[fault->error].of_field)
        wire_problem_set(ret_problem, error, fault->field, "'%.64s' %s", fault->field,
                         detail);
    else if (detail != NULL)
        wire_problem_set(ret_problem, error, NULL, "%s", detail);
    else if (fault->error == CAPTURE_E_FORMAT)
        wire_problem_set(ret_problem, WIRE_E_MALFORMED_SAFETENSORS, fault->field,
                         "the file is not valid safetensors: %s; write it with a "
                         "safetensors library",
                         fault->reason.text);
    else if (fault->error == CAPTURE_E_NUMBER)
        wire_problem_set(ret_problem, WIRE_E_OUT_OF_RANGE, fault->field,
                         "number %zu of tensor '%.64s' is not finite, or a position "
                         "outside 0..%d; only a bias may have -inf",
                         fault->index, fault->field, ATTN_POSITION_MAX);
    else if (fault->error == CAPTURE_E_TOO_LARGE || fault->error == CAPTURE_E_FULL)
        word_limits(fault, ret_problem);
    else if (fault->error == CAPTURE_E_TIMEOUT)
        wire_problem_set(ret_problem, WIRE_E_REQUEST_TIMEOUT, NULL,
                         "the file took longer than %d s; send it faster, or keep fewer "
                         "layers",
                         CAPTURES_PUT_SECONDS);
    else
        wire_problem_set_no_memory(ret_problem);
}
