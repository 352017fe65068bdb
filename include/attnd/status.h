/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: how every function of libattnd says that it failed. */
#ifndef ATTND_STATUS_H
#define ATTND_STATUS_H

#define ATTND_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef enum attnd_status {
    ATTND_OK = 0,
    ATTND_E_NOMEM,       /* an allocation failed or a memory limit was reached */
    ATTND_E_OVERFLOW,    /* a size is too large to be computed or addressed */
    ATTND_E_SHAPE,       /* sizes disagree with the model or with each other */
    ATTND_E_VALUE,       /* an argument or a stored number is out of its range */
    ATTND_E_FORMAT,      /* a file does not follow its format */
    ATTND_E_UNSUPPORTED, /* well formed, but this build or machine cannot do it */
    ATTND_E_IO,          /* the operating system refused a read or write */
    ATTND_E_STATUS_COUNT
} attnd_status;

/* What went wrong, for a person: one line, no newline at its end, always terminated. */
typedef struct attnd_error {
    attnd_status status;
    char text[480];
} attnd_error;

/* Returns a short constant English name of `status`, never NULL. Thread-safe. */
ATTND_API const char *attnd_status_text(attnd_status status);

#ifdef __cplusplus
}
#endif

#endif
