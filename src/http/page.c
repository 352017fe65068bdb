/* SPDX-License-Identifier: Apache-2.0 */
/* page.c: the page at /, with its style and its script. The binary has them compressed
 * (see src/ui), and inflates them at start for clients that do not accept gzip. */
#include "http/page.h"

#include "http/reply.h"
#include "http/routes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#define ZLIB_CONST /* zlib does not write to what it reads */
#include <zlib.h>

/* A text that ui.S embeds. */
struct page_text {
    uint64_t size;
    char bytes[]; /* [size] */
};

extern const struct page_text attnd_ui_html, attnd_ui_css, attnd_ui_js;

struct page_file {
    const char *path;
    const char *content_type;
    const struct page_text *gzip;
};

static const struct page_file files[PAGE_NUM_FILES] = {
    {"/", "text/html; charset=utf-8", &attnd_ui_html},
    {"/ui.css", "text/css; charset=utf-8", &attnd_ui_css},
    {"/ui.js", "text/javascript; charset=utf-8", &attnd_ui_js},
};

/* The last eight bytes of a gzip file (RFC 1952, section 2.3.1). */
struct page_trailer {
    uint32_t crc, size; /* of the file before it was compressed */
};

/* All replies have these, beside an ETag, whose freshness a browser asks for. The page
 * runs its own script only, and speaks with this server only. It saves pictures as data:
 * URLs, and files as blob: URLs. */
static const struct reply_header headers[] = {
    {MHD_HTTP_HEADER_VARY, MHD_HTTP_HEADER_ACCEPT_ENCODING},
    {MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache"},
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; "
     "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; "
     "form-action 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {NULL, NULL}};

static struct page_trailer read_trailer(const struct page_text *gzip) {
    struct page_trailer trailer;
    memcpy(&trailer, gzip->bytes + gzip->size - sizeof trailer, sizeof trailer);
    return trailer;
}

/* Finds an item of Accept-Encoding (RFC 9110, section 12.5.3). Returns whether there is
 * one; *ret_allowed is then whether its weight is above 0. */
static bool find_coding(const char *accept, const char *coding, bool *ret_allowed) {
    size_t coding_size = strlen(coding);

    for (const char *item = accept; item != NULL; item = strchr(item, ',')) {
        item += strspn(item, ", \t");
        size_t size = strcspn(item, ",");
        size_t name_size = strcspn(item, ",; \t");
        if (name_size != coding_size || strncasecmp(item, coding, coding_size) != 0)
            continue;
        const char *weight = memchr(item, '=', size);
        *ret_allowed = weight == NULL || strtod(weight + 1, NULL) > 0;
        return true;
    }
    return false;
}

static bool accepts_gzip(struct exchange *exchange) {
    const char *accept = MHD_lookup_connection_value(
        exchange->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT_ENCODING);
    bool allowed = false;
    if (accept != NULL && !find_coding(accept, "gzip", &allowed))
        find_coding(accept, "*", &allowed);
    return allowed;
}

/* Whether the client has the file with the ETag of the reply already. */
static bool knows_file(const struct exchange *exchange) {
    const char *known = MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND,
                                                    MHD_HTTP_HEADER_IF_NONE_MATCH);
    return known != NULL &&
           (strcmp(known, "*") == 0 || strstr(known, exchange->reply.etag) != NULL);
}

/* Inflates a gzip file of the binary to `out`, which has room for its `size` bytes. */
static bool inflate_file(const struct page_text *gzip, size_t size, char *out) {
    z_stream stream = {.next_in = (const Bytef *)gzip->bytes,
                       .avail_in = (uInt)gzip->size,
                       .next_out = (Bytef *)out,
                       .avail_out = (uInt)size};

    if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) /* 16: with the header of gzip */
        return false;
    int result = inflate(&stream, Z_FINISH);
    inflateEnd(&stream);
    return result == Z_STREAM_END;
}

bool page_init(struct page *page) {
    for (size_t i = 0; i < PAGE_NUM_FILES; i++) {
        const struct page_trailer trailer = read_trailer(files[i].gzip);
        page->texts[i] = malloc(trailer.size);
        if (page->texts[i] == NULL ||
            !inflate_file(files[i].gzip, trailer.size, page->texts[i]))
            return false;
    }
    return true;
}

void page_deinit(struct page *page) {
    for (size_t i = 0; i < PAGE_NUM_FILES; i++)
        free(page->texts[i]);
}

bool page_handle(struct exchange *exchange, struct wire_problem *ret_problem) {
    const struct page_file *file = files;
    while (strcmp(file->path, exchange->request.route->path) != 0)
        file++;

    if (exchange->options->config->no_ui)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_ROUTE, NULL,
                                "%s is not served, because attnd was started with "
                                "--no-ui; start it without, or use POST /v1/attention",
                                file->path);

    const struct page_trailer trailer = read_trailer(file->gzip);
    bool gzip = accepts_gzip(exchange);
    const char *text = exchange->thread->page->texts[file - files];
    reply_set_constant(exchange, MHD_HTTP_OK, file->content_type,
                       gzip ? file->gzip->bytes : text,
                       gzip ? (size_t)file->gzip->size : trailer.size);
    exchange->reply.headers = headers;
    exchange->reply.encoding = gzip ? "gzip" : NULL;
    snprintf(exchange->reply.etag, sizeof exchange->reply.etag,
             "\"%08" PRIx32 "%08" PRIx32 "%s\"", trailer.size, trailer.crc,
             gzip ? "-gzip" : "");

    /* Its Content-Length is the size of the content that libmicrohttpd leaves out (RFC
     * 9110, section 8.6). */
    if (knows_file(exchange)) {
        exchange->reply.status = MHD_HTTP_NOT_MODIFIED;
        exchange->reply.head.content_type = NULL;
    }
    return true;
}
