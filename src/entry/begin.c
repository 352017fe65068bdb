/* SPDX-License-Identifier: Apache-2.0 */
/* begin.c: what the readers need of the process and of the thread. */
#include "entry/begin.h"

#include "base/error.h"
#include "safetensors/parse.h"

#include <pthread.h>

static locale_t c_locale;

static void init_once(void) {
    parse_json_init();
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

attn_status entry_begin(locale_t *ret_before, attn_error *ret_error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, init_once);
    if (c_locale == (locale_t)0)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    *ret_before = uselocale(c_locale);
    return ATTN_OK;
}

void entry_end(locale_t before) {
    uselocale(before);
}
