/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: one line per event on standard error, for people (text) or machines (JSON).
 *
 *     log_write(LOG_INFO, "listening", LOG_TEXT("url", url), LOG_NUMBER("workers", n));
 *
 * Thread-safe: a line is one write(2). A text is cut after 500 bytes. Bytes outside
 * printable ASCII are escaped, so that no request can forge a line.
 *
 * In the journal of systemd a line begins with its level ("<4>"); text has no time then.
 *
 * Logging never waits. A line for which standard error has no room, or that it refuses,
 * is dropped; a warning says how many before the next line that is written. */
#pragma once

#include "base/output.h"
#include <stdatomic.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

enum log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON };

struct log_field {
    const char *key;
    const char *text; /* NULL: the value is `number` */
    long long number;
};

#define LOG_TEXT(key, text)     ((struct log_field){(key), (text), 0})
#define LOG_NUMBER(key, number) ((struct log_field){(key), NULL, (long long)(number)})

/* Call once, before other threads run. The default is text, with LOG_INFO and above. */
void log_init(enum log_format format, enum log_level level);

/* Switches between LOG_DEBUG and the level of log_init(), as the least important level
 * that is written. The change itself is always logged, with `cause`: who asked for it. */
void log_toggle_debug(const char *cause);

/* Returns whether events of this level are written, for callers whose fields cost
 * time. */
bool log_enabled(enum log_level level);

/* Writes one event, whatever its level. */
void log_always(enum log_level level, const char *message, const struct log_field *fields,
                size_t count);

/* Writes one event if its level is enabled; called by log_write(). */
void log_fields(enum log_level level, const char *message, const struct log_field *fields,
                size_t count);

/* Writes one event with at least one field, made by LOG_TEXT or LOG_NUMBER. */
#define log_write(level, message, ...)                                                   \
    log_fields((level), (message), (const struct log_field[]){__VA_ARGS__},              \
               sizeof((const struct log_field[]){__VA_ARGS__}) /                         \
                   sizeof(struct log_field))

/* Counts events that clients can cause in any number, so that one line in a period
 * reports all of them. Zeroed, it has counted nothing. Thread-safe. */
struct log_limit {
    atomic_size_t num_events;     /* not reported yet */
    atomic_int_fast64_t taken_at; /* clock_now_ns; 0: never */
};

/* Counts an event, which another thread may report. */
void log_limit_count(struct log_limit *limit);

/* Counts an event; the rest is as log_limit_take(). */
size_t log_limit_add(struct log_limit *limit, int64_t period);

/* Returns how many events the caller reports now; no other caller gets them. Returns 0
 * when there were none, or when the last report is less than `period` ns ago. */
size_t log_limit_take(struct log_limit *limit, int64_t period);

/* Prints one event with a field, newline included, into `ret_line`, whatever levels are
 * logged. Returns its size. */
size_t log_print(char ret_line[OUTPUT_BYTES_MAX], enum log_level level,
                 const char *message, struct log_field field);

/* Writes one event without fields from a signal handler: takes no lock. A line without
 * room is lost and not counted. */
void log_from_handler(enum log_level level, const char *message);

/* Returns how many lines were dropped since the process began. Thread-safe. */
unsigned long long log_num_dropped(void);

/* Says why the process fails, at any level, and waits up to a second for room. As text it
 * is "attnd: REASON", for the user of the command; as JSON it is one more event. Returns
 * `exit_code`. */
int log_failure(const char *reason, int exit_code);
