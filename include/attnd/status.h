/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: how the functions of libattnd report errors. */
#ifndef ATTND_STATUS_H
#define ATTND_STATUS_H

#define ATTN_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef enum attn_status {
    ATTN_OK = 0,
    ATTN_E_NOMEM,       /* an allocation failed or a memory limit was reached */
    ATTN_E_OVERFLOW,    /* a size is too large to be computed or addressed */
    ATTN_E_SHAPE,       /* sizes disagree with the model or with each other */
    ATTN_E_VALUE,       /* an argument or a stored number is out of its range */
    ATTN_E_FORMAT,      /* a file does not follow its format */
    ATTN_E_UNSUPPORTED, /* well formed, but this build or machine cannot do it */
    ATTN_E_IO,          /* the operating system refused a read or write */
    ATTN_E_STOPPED,     /* the caller has stopped it, see program.h */
    ATTN_E_STATUS_COUNT
} attn_status;

/* An error for people: one line of printable ASCII, terminated, without a newline. It
 * says what is wrong with which value, and then the remedy. The caller provides the
 * memory. */
typedef struct attn_error {
    attn_status status;
    char text[480];
} attn_error;

/* Returns a short English name of `status`, never NULL. It is a constant: do not free it.
 * Thread-safe. */
ATTN_API const char *attn_status_text(attn_status status);

#ifdef __cplusplus
}
#endif

#endif
