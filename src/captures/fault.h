/* SPDX-License-Identifier: Apache-2.0 */
/* fault.h: why a capture is not kept. The protocol words it. */
#pragma once

#include <attnd/status.h>
#include <stdbool.h>
#include <stddef.h>

enum capture_error {
    CAPTURE_E_FORMAT,    /* not safetensors: `reason` says why */
    CAPTURE_E_UNKNOWN,   /* `field` is neither tensor nor option of a layer */
    CAPTURE_E_MISSING,   /* `field` is required */
    CAPTURE_E_OPTION,    /* the text of option `field` is not what it should be */
    CAPTURE_E_TYPE,      /* tensor `field` has a type that it cannot have */
    CAPTURE_E_RANK,      /* tensor `field` has too few axes, or too many */
    CAPTURE_E_SHAPE,     /* `field` does not fit the other tensors of its layer */
    CAPTURE_E_NUMBER,    /* a number of `field` is out of range: that at `index` */
    CAPTURE_E_TOO_LARGE, /* it can never fit */
    CAPTURE_E_FULL,      /* it does not fit now */
    CAPTURE_E_BUSY,      /* the holder has a PUT in progress */
    CAPTURE_E_YIELDED,   /* its room went to a holder that has less */
    CAPTURE_E_TIMEOUT,   /* it took CAPTURES_PUT_SECONDS */
    CAPTURE_E_EXISTS,    /* the name has other bytes */
    CAPTURE_E_HASH,      /* the name is a hash, but of other bytes */
    CAPTURE_E_REMOVED,   /* the holder's key was removed meanwhile */
    CAPTURE_E_NO_MEMORY, /* malloc() failed */
    CAPTURE_NUM_ERRORS
};

struct capture_fault {
    enum capture_error error;
    char field[72];    /* of tensor or option; "" for none */
    size_t index;      /* of a number, in the order of the file */
    attn_error reason; /* its text is one line */
    /* With CAPTURE_E_TOO_LARGE and CAPTURE_E_FULL: bytes that were asked for, and those
     * of the holder, of all captures, and at most. */
    size_t wanted, own, used, limit;
};

/* Sets the error and the field, which may be NULL. Returns false. */
bool capture_fail(struct capture_fault *fault, enum capture_error error,
                  const char *field);
