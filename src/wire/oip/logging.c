/* SPDX-License-Identifier: Apache-2.0 */
/* logging.c: reads and prints the settings of the log. */
#include "wire/oip/logging.h"

#include "wire/json/list.h"
#include "wire/json/object.h"
#include "wire/json/write.h"

#include <stdint.h>
#include <string.h>

/* The first four are switches, each at the place of its level. */
enum { SETTING_FILE = LOG_ERROR + 1, SETTING_FORMAT, NUM_SETTINGS };

static const struct wire_keys setting_keys = {
    .owner = "the log",
    .count = NUM_SETTINGS,
    .names = {[LOG_DEBUG] = "log_verbose_level",
              [LOG_INFO] = "log_info",
              [LOG_WARN] = "log_warning",
              [LOG_ERROR] = "log_error",
              [SETTING_FILE] = "log_file",
              [SETTING_FORMAT] = "log_format"},
};

static const char *const format_words[] = {"text", "json"};

attn_status wire_oip_print_logging(const struct wire_oip_logging *logging,
                                   struct buf *body) {
    static const char *const bools[] = {"false", "true"};
    enum log_level level = logging->level;

    return wire_json_add_format(body,
                                "{\"log_file\":\"\",\"log_info\":%s,\"log_warning\":%s,"
                                "\"log_error\":true,\"log_verbose_level\":%d,"
                                "\"log_format\":\"%s\"}",
                                bools[level <= LOG_INFO], bools[level <= LOG_WARN],
                                level == LOG_DEBUG, format_words[logging->format]);
}

/* Reads log_verbose_level, of which attnd has only one. */
static bool read_verbose_level(const struct wire_cursor *cursor,
                               const struct wire_span *span, bool *ret_on) {
    struct wire_place place = {.field = setting_keys.names[LOG_DEBUG]};
    struct wire_cursor there = wire_cursor_at(cursor, span);
    struct wire_span text;
    size_t number;

    if (!wire_uint_read(&there, &place, 0, &number, &text))
        return false;
    if (number > UINT32_MAX)
        return wire_refuse_uint_range(&there, &place, &text,
                                      "it is 0 for none, or a level", UINT32_MAX);
    *ret_on = number > 0;
    return true;
}

/* Changes *level as the switches in `members` ask for: one that is on turns on all more
 * important levels, and one that is off turns off all less important ones. */
static bool read_switches(const struct wire_cursor *cursor,
                          const struct wire_span *members, enum log_level *level) {
    int lowest_on = LOG_ERROR, highest_off = -1;

    for (int i = LOG_ERROR; i >= LOG_DEBUG; i--) {
        const char *name = setting_keys.names[i];
        bool on = false;
        if (members[i].start == NULL)
            continue;
        if (!(i == LOG_DEBUG ? read_verbose_level(cursor, &members[i], &on)
                             : wire_bool_read(cursor, &members[i], name, &on)))
            return false;
        if (on)
            lowest_on = i;
        else if (highest_off < 0)
            highest_off = i;
    }

    if (highest_off >= lowest_on)
        return wire_problem_set(cursor->problem, WIRE_E_FIXED_SETTING,
                                setting_keys.names[highest_off],
                                "%s cannot be off here: errors are always logged, and a "
                                "level that is logged includes all more important ones",
                                setting_keys.names[highest_off]);
    if ((int)*level <= highest_off)
        *level = (enum log_level)(highest_off + 1);
    if ((int)*level > lowest_on)
        *level = (enum log_level)lowest_on;
    return true;
}

/* Checks that a setting which is fixed at start has the value that it has already. */
static bool check_fixed(const struct wire_cursor *cursor, const struct wire_span *span,
                        const char *name, const char *value, const char *remedy) {
    char word[WIRE_WORD_MAX + 1];

    if (span->start == NULL)
        return true;
    if (!wire_word_read(cursor, span, name, word))
        return false;
    if (strcmp(word, value) == 0)
        return true;
    return wire_problem_set(cursor->problem, WIRE_E_FIXED_SETTING, name,
                            "%s is '%s' and cannot be '%.60s'; %s", name, value, word,
                            remedy);
}

bool wire_oip_read_logging(const char *text, size_t size,
                           struct wire_oip_logging *logging,
                           struct wire_problem *ret_problem) {
    struct wire_cursor cursor = {text, text, text + size, ret_problem, NULL};
    struct wire_span members[NUM_SETTINGS];

    return wire_body_open(&cursor, "log_verbose_level") &&
           wire_object_scan(&cursor, NULL, 1, &setting_keys, members) &&
           wire_body_close(&cursor) &&
           check_fixed(&cursor, &members[SETTING_FILE], "log_file", "",
                       "the log goes to standard error, which you can redirect") &&
           check_fixed(&cursor, &members[SETTING_FORMAT], "log_format",
                       format_words[logging->format], "start attnd with --log-format") &&
           read_switches(&cursor, members, &logging->level);
}
