/* SPDX-License-Identifier: Apache-2.0 */
/* log.c: builds a line in a fixed buffer and writes it at once, or drops it.
 *
 * No thread waits for the reader of the log: a line that standard error does not take is
 * counted instead, and the next line that it takes is preceded by the count. `log_lock`
 * guards what is below it. It is held for two system calls that do not block, and no
 * other lock is taken or held then. */
#include "base/log.h"

#include "base/clock.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES_MAX OUTPUT_BYTES_MAX
/* How much of one text is written, so that the line has room for what follows. */
#define TEXT_BYTES_MAX 500
/* A full pipe delays the end of the process this long at most. */
#define FAILURE_WAIT_MS 1000
/* Seconds of the clock at the ends of what has a year of four digits. */
#define YEAR_0            (-62167219200LL)
#define YEAR_9999_END     253402300799LL
#define DAYS_OF_400_YEARS 146097LL /* then the calendar repeats */

/* Set once, before there are threads. */
static enum log_format log_format = LOG_FORMAT_TEXT;
static enum log_level first_level = LOG_INFO;
static int log_fd = STDERR_FILENO;
static bool to_journal; /* of systemd, which has the time, and reads a level */

static atomic_int log_level = LOG_INFO; /* enum log_level; guards nothing else */

static atomic_ullong num_dropped_ever; /* lines */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long long num_dropped; /* since a line was last written */
static bool line_is_cut;               /* the last one written lacks its end */

static const char *const level_names[] = {"debug", "info", "warn", "error"};
static const char *const level_marks[] = {"<7>", "<6>", "<4>", "<3>"}; /* of syslog */

struct log_line {
    char text[LINE_BYTES_MAX];
    size_t size;
};

static void add_char(struct log_line *line, char c) {
    if (line->size < sizeof line->text - 2) /* room for "}\n" */
        line->text[line->size++] = c;
}

static void add_text(struct log_line *line, const char *text) {
    for (; *text != '\0'; text++)
        add_char(line, *text);
}

/* Adds text of any origin, so that JSON parsers can read it and terminals are safe. */
static void add_escaped(struct log_line *line, const char *text) {
    for (size_t i = 0; *text != '\0' && i < TEXT_BYTES_MAX; i++, text++) {
        unsigned char c = (unsigned char)*text;
        char escape[8];
        if (c == '"' || c == '\\') {
            add_char(line, '\\');
            add_char(line, *text);
        } else if (c >= ' ' && c <= '~') {
            add_char(line, *text);
        } else {
            snprintf(escape, sizeof escape, "\\u%04x", c);
            add_text(line, escape);
        }
    }
}

static void add_quoted(struct log_line *line, const char *text) {
    add_char(line, '"');
    add_escaped(line, text);
    add_char(line, '"');
}

static void add_value(struct log_line *line, const struct log_field *field, bool quote) {
    char number[24];

    snprintf(number, sizeof number, "%lld", field->number);
    if (field->text == NULL)
        add_text(line, number);
    else if (quote || strpbrk(field->text, " \"\\=") != NULL)
        add_quoted(line, field->text);
    else
        add_escaped(line, field->text);
}

/* Adds the last `width` digits of a number, and what follows them. */
static void add_digits(struct log_line *line, long long number, int width, char after) {
    char digits[8];
    for (int i = width; i-- > 0; number /= 10)
        digits[i] = (char)('0' + number % 10);
    for (int i = 0; i < width; i++)
        add_char(line, digits[i]);
    add_char(line, after);
}

static long long days_of_month(int month, int year) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return days[month - 1] + (month == 2 && is_leap);
}

/* Adds the time in UTC, of a clock that may stand at any year; one beyond 9999 is 9999.
 * gmtime_r() takes a lock, so signal handlers may not call it. */
static void add_time(struct log_line *line) {
    struct timespec now;
    int month = 1;

    clock_gettime(CLOCK_REALTIME, &now);
    long long since = now.tv_sec < YEAR_9999_END ? now.tv_sec : YEAR_9999_END;
    since = since < YEAR_0 ? 0 : since - YEAR_0;
    long long days = since / 86400, seconds = since % 86400;
    int year = (int)(days / DAYS_OF_400_YEARS) * 400;
    days %= DAYS_OF_400_YEARS;
    while (days >= days_of_month(month, year)) {
        days -= days_of_month(month, year);
        month = month % 12 + 1;
        year += month == 1;
    }

    add_digits(line, year, 4, '-');
    add_digits(line, month, 2, '-');
    add_digits(line, days + 1, 2, 'T');
    add_digits(line, seconds / 3600, 2, ':');
    add_digits(line, seconds / 60 % 60, 2, ':');
    add_digits(line, seconds % 60, 2, '.');
    add_digits(line, now.tv_nsec / 1000000, 3, 'Z');
}

/* A format writes these before and after the time, the level and so on. */
static const struct log_marks {
    const char *before_time, *before_level, *before_message, *before_key, *before_value;
    const char *end;
    bool quotes; /* around all texts */
} log_marks_of[] = {
    [LOG_FORMAT_TEXT] = {"", " ", " ", " ", "=", "", false},
    [LOG_FORMAT_JSON] = {"{\"time\":\"", "\",\"level\":\"", "\",\"message\":", ",", ":",
                         "}", true},
};

static void add_event(struct log_line *line, enum log_level level, const char *message,
                      const struct log_field *fields, size_t count) {
    const struct log_marks *marks = &log_marks_of[log_format];

    if (!to_journal || log_format == LOG_FORMAT_JSON) {
        add_text(line, marks->before_time);
        add_time(line);
        add_text(line, marks->before_level);
    }
    add_text(line, level_names[level]);
    add_text(line, marks->before_message);
    (marks->quotes ? add_quoted : add_escaped)(line, message);

    for (size_t i = 0; i < count; i++) {
        add_text(line, marks->before_key);
        (marks->quotes ? add_quoted : add_text)(line, fields[i].key);
        add_text(line, marks->before_value);
        add_value(line, &fields[i], marks->quotes);
    }
    /* There is always room for the end, see add_char(). */
    line->size = (size_t)(stpcpy(line->text + line->size, marks->end) - line->text);
}

static void make_line(struct log_line *line, enum log_level level, const char *message,
                      const struct log_field *fields, size_t count) {
    line->size = 0;
    if (to_journal)
        add_text(line, level_marks[level]);
    add_event(line, level, message, fields, count);
    line->text[line->size++] = '\n';
}

/* Returns whether the whole line was written. */
static bool write_line_locked(const struct log_line *line) {
    if (line_is_cut && output_write(log_fd, "\n", 1) == 1)
        line_is_cut = false;

    if (line_is_cut)
        return false;

    ssize_t written = output_write(log_fd, line->text, line->size);
    line_is_cut = written > 0 && written < (ssize_t)line->size;
    return written == (ssize_t)line->size;
}

/* Reports how many lines were dropped; returns whether that was written. */
static bool report_dropped_locked(void) {
    const struct log_field dropped = LOG_NUMBER("dropped", num_dropped);
    struct log_line line;

    make_line(&line, LOG_WARN, "log lines were dropped", &dropped, 1);
    if (!write_line_locked(&line))
        return false;
    num_dropped = 0;
    return true;
}

/* Returns whether standard error is the stream that systemd has named. */
static bool is_journal_stream(void) {
    const char *named = getenv("JOURNAL_STREAM");
    char stream[64];
    struct stat file;

    if (named == NULL || fstat(STDERR_FILENO, &file) != 0)
        return false;
    snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)file.st_dev,
             (uintmax_t)file.st_ino);
    return strcmp(named, stream) == 0;
}

void log_init(enum log_format format, enum log_level level) {
    log_format = format;
    first_level = level;
    atomic_store(&log_level, (int)level);
    to_journal = is_journal_stream();
    log_fd = output_open(STDERR_FILENO);
}

bool log_enabled(enum log_level level) {
    return (int)level >= atomic_load_explicit(&log_level, memory_order_relaxed);
}

/* Writes the line, or counts it as dropped. */
static void write_line(const struct log_line *line) {
    pthread_mutex_lock(&log_lock);
    bool is_written =
        (num_dropped == 0 || report_dropped_locked()) && write_line_locked(line);
    num_dropped += !is_written;
    num_dropped_ever += !is_written;
    pthread_mutex_unlock(&log_lock);
}

unsigned long long log_num_dropped(void) {
    return atomic_load(&num_dropped_ever);
}

void log_always(enum log_level level, const char *message, const struct log_field *fields,
                size_t count) {
    struct log_line line;
    make_line(&line, level, message, fields, count);
    write_line(&line);
}

void log_fields(enum log_level level, const char *message, const struct log_field *fields,
                size_t count) {
    if (log_enabled(level))
        log_always(level, message, fields, count);
}

size_t log_print(char ret_line[OUTPUT_BYTES_MAX], enum log_level level,
                 const char *message, struct log_field field) {
    struct log_line line = {.size = 0};

    add_event(&line, level, message, &field, 1);
    line.text[line.size++] = '\n';
    memcpy(ret_line, line.text, line.size);
    return line.size;
}

void log_from_handler(enum log_level level, const char *message) {
    struct log_line line;

    if (!log_enabled(level))
        return;
    make_line(&line, level, message, NULL, 0);
    ssize_t written = output_write(log_fd, line.text, line.size);
    (void)written; /* the count of dropped lines needs the lock */
}

void log_toggle_debug(const char *cause) {
    enum log_level level = log_enabled(LOG_DEBUG) ? first_level : LOG_DEBUG;
    const struct log_field fields[] = {LOG_TEXT("level", level_names[level]),
                                       LOG_TEXT("cause", cause)};

    if (atomic_exchange(&log_level, (int)level) != (int)level)
        log_always(LOG_INFO, "log level changed", fields, 2);
}

void log_limit_count(struct log_limit *limit) {
    atomic_fetch_add(&limit->num_events, 1);
}

size_t log_limit_take(struct log_limit *limit, int64_t period) {
    if (atomic_load_explicit(&limit->num_events, memory_order_relaxed) == 0)
        return 0;

    /* The thread that moves `taken_at` writes the line. */
    int64_t now = clock_now_ns();
    int64_t last = atomic_load(&limit->taken_at);
    if ((last != 0 && now - last < period) ||
        !atomic_compare_exchange_strong(&limit->taken_at, &last, now))
        return 0;
    return atomic_exchange(&limit->num_events, 0);
}

size_t log_limit_add(struct log_limit *limit, int64_t period) {
    log_limit_count(limit);
    return log_limit_take(limit, period);
}

int log_failure(const char *reason, int exit_code) {
    const struct log_field field = LOG_TEXT("reason", reason);
    struct log_line line = {.size = 0};

    if (log_format == LOG_FORMAT_JSON) {
        make_line(&line, LOG_ERROR, "failed", &field, 1);
    } else {
        add_text(&line, to_journal ? "<3>attnd: " : "attnd: ");
        add_text(&line, reason);
        line.text[line.size++] = '\n';
    }

    struct pollfd room = {.fd = log_fd, .events = POLLOUT};
    poll(&room, 1, FAILURE_WAIT_MS);
    write_line(&line);
    return exit_code;
}
