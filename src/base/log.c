/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4096
#define VALUE_MAX                                                                        \
    500 /* characters of one text that are written, so that a line closes                \
         */

static enum log_format log_format = LOG_FORMAT_TEXT; /* set once, before threads */
static enum log_level log_level = LOG_INFO;

static const char *const level_names[] = {"debug", "info", "warn", "error"};

struct line {
    char text[LINE_MAX_BYTES];
    size_t size;
};

static void add_char(struct line *line, char c) {
    if (line->size < sizeof line->text - 2) /* room for "}\n" */
        line->text[line->size++] = c;
}

static void add(struct line *line, const char *text) {
    for (; *text != '\0'; text++)
        add_char(line, *text);
}

/* Adds text from anywhere; readable by JSON parsers and safe on a terminal. */
static void add_escaped(struct line *line, const char *text) {
    for (size_t i = 0; *text != '\0' && i < VALUE_MAX; i++, text++) {
        unsigned char c = (unsigned char)*text;
        char escape[8];
        if (c == '"' || c == '\\') {
            add_char(line, '\\');
            add_char(line, *text);
        } else if (c >= ' ' && c <= '~') {
            add_char(line, *text);
        } else {
            snprintf(escape, sizeof escape, "\\u%04x", c);
            add(line, escape);
        }
    }
}

static void add_quoted(struct line *line, const char *text) {
    add_char(line, '"');
    add_escaped(line, text);
    add_char(line, '"');
}

static void add_value(struct line *line, const struct log_field *field, bool quote) {
    char number[24];
    snprintf(number, sizeof number, "%lld", field->number);
    if (field->text == NULL)
        add(line, number);
    else if (quote || strpbrk(field->text, " \"\\=") != NULL)
        add_quoted(line, field->text);
    else
        add_escaped(line, field->text);
}

static void add_time(struct line *line) {
    struct timespec now;
    struct tm utc;
    char text[40];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t size = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + size, sizeof text - size, ".%03ldZ", now.tv_nsec / 1000000);
    add(line, text);
}

/* What is written around the parts of a line. */
static const struct punctuation {
    const char *before_time, *before_level, *before_message, *before_key, *before_value;
    const char *end;
    bool quotes; /* around all texts */
} punctuations[] = {
    [LOG_FORMAT_TEXT] = {"", " ", " ", " ", "=", "", false},
    [LOG_FORMAT_JSON] = {"{\"time\":\"", "\",\"level\":\"", "\",\"message\":", ",", ":",
                         "}", true},
};

static void add_event(struct line *line, enum log_level level, const char *message,
                      const struct log_field *fields, size_t count) {
    const struct punctuation *around = &punctuations[log_format];

    add(line, around->before_time);
    add_time(line);
    add(line, around->before_level);
    add(line, level_names[level]);
    add(line, around->before_message);
    (around->quotes ? add_quoted : add_escaped)(line, message);

    for (size_t i = 0; i < count; i++) {
        add(line, around->before_key);
        (around->quotes ? add_quoted : add)(line, fields[i].key);
        add(line, around->before_value);
        add_value(line, &fields[i], around->quotes);
    }
    /* There is always room for the end, see add_char(). */
    line->size = (size_t)(stpcpy(line->text + line->size, around->end) - line->text);
}

void log_init(enum log_format format, enum log_level level) {
    log_format = format;
    log_level = level;
}

bool log_enabled(enum log_level level) {
    return level >= log_level;
}

void log_fields(enum log_level level, const char *message, const struct log_field *fields,
                size_t count) {
    if (!log_enabled(level))
        return;
    struct line line = {.size = 0};
    add_event(&line, level, message, fields, count);
    line.text[line.size++] = '\n';
    /* Nobody is left to be told when even this fails. */
    ssize_t written = write(STDERR_FILENO, line.text, line.size);
    (void)written;
}
