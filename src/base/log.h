/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: one line per event on standard error, for people (text) or machines (JSON).
 *
 *     log_write(LOG_INFO, "listening", LOG_TEXT("url", url), LOG_NUMBER("workers", n));
 *
 * Thread-safe: a line is one write(2). A text is cut after 500 bytes. Bytes outside
 * printable ASCII are escaped, so that no request can forge a line.
 *
 * Logging never waits. A line for which standard error has no room, or that it refuses,
 * is dropped; a warning says how many before the next line that is written. */
#ifndef ATTND_BASE_LOG_H
#define ATTND_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

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

/* The least important level that is written. Any thread may call these. */
enum log_level log_get_level(void);

/* Changes that level for all threads. A line tells so, whatever the level; `cause` is who
 * asked. */
void log_set_level(enum log_level level, const char *cause);

/* Sets LOG_DEBUG or, where it is set, the level of log_init() again. */
void log_toggle_debug(const char *cause);

enum log_format log_get_format(void);

/* Returns whether events of this level are written, for callers whose fields cost
 * time. */
bool log_enabled(enum log_level level);

/* Writes one event; called by log_write(). */
void log_fields(enum log_level level, const char *message, const struct log_field *fields,
                size_t count);

/* Writes one event with at least one field, made by LOG_TEXT or LOG_NUMBER. */
#define log_write(level, message, ...)                                                   \
    log_fields((level), (message), (const struct log_field[]){__VA_ARGS__},              \
               sizeof((const struct log_field[]){__VA_ARGS__}) /                         \
                   sizeof(struct log_field))

/* Writes one event without fields from a signal handler: takes no lock. A line without
 * room is lost and not counted. */
void log_from_handler(enum log_level level, const char *message);

/* Returns how many lines were dropped since the process began. Thread-safe. */
unsigned long long log_num_dropped(void);

/* Says why the process fails, at any level, and waits up to a second for room. As text it
 * is "attnd: REASON", for who has typed the command; as JSON it is one more event. */
void log_failure(const char *reason);

#endif
