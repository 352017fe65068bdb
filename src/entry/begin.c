/* SPDX-License-Identifier: Apache-2.0 */
/* begin.c: what the readers need of the process and of the thread. */
#include "entry/begin.h"

#include "base/error.h"
#include "wire/init.h"

#include <pthread.h>

static attn_status init_status;
static locale_t c_locale;

static void init_once(void) {
    init_status = wire_init();
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0)
        init_status = ATTN_E_NOMEM;
}

attn_status entry_begin(locale_t *ret_before, attn_error *ret_error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, init_once);
    if (init_status != ATTN_OK)
        return error_set(ret_error, init_status, "out of memory");
    *ret_before = uselocale(c_locale);
    return ATTN_OK;
}

void entry_end(locale_t before) {
    uselocale(before);
}
