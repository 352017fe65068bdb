/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: the table of options of attnd. Each help text appears in attnd --help,
 * wrapped, and in the man page. */
#include "config/options.h"

#include <stdint.h>

static const char *const log_formats[] = {"text", "json", NULL};
static const char *const model_controls[] = {"none", "explicit", NULL};
static const char *const log_levels[] = {"debug", "info", "warn", "error", NULL};

#define OPTION(text, type, member) OPTION_OF(struct config, text, type, member)

static const struct option own_options[] = {
    {OPTION("model", TEXTS, models), .metavar = "NAME=FILE[,KEY=VALUE]...",
     .help =
         "Load a layer from a safetensors file and serve it as NAME. Keys: num_heads, "
         "causal, context_length, layout, prefix, precision, rope_theta, "
         "rope_interleaved, eps, and names of tensors: q, k, v, qkv, o, transposed; they "
         "override the metadata in the file. Or load the layers of a folder of Hugging "
         "Face, as NAME.0 and others. Keys: layers, layer, causal, pre_norm, prefix, "
         "context_length, precision. May be repeated; in the environment, separate "
         "models by ';'."},
    {OPTION("model-dir", TEXT, model_dir), .metavar = "DIR",
     .help =
         "Load every *.safetensors file in DIR, under its name without the suffix, and "
         "every folder with a config.json. Hidden ones are left out."},
    {OPTION("skip-bad-models", FLAG, skip_bad_models),
     .help = "Leave out files of --model-dir that cannot be loaded, with a warning for "
             "each. Without it, one such file stops the start."},
    {OPTION("demo", FLAG, demo),
     .help = "Load the built-in models 'journey', 'd2l', 'patterns' and 'stacked'."},
    {OPTION("model-control", CHOICE, model_control), .value = "none",
     .metavar = "none|explicit", .choices = model_controls,
     .help = "Whether clients may load and unload models by "
             "POST /v2/repository/models/NAME/load and unload. With explicit they may, "
             "and only those that --model or --model-dir names. All models are loaded "
             "at start in either case."},
    {OPTION("listen", TEXTS, listens), .value = "127.0.0.1:8080",
     .metavar = "HOST:PORT|unix:PATH[,KEY=VALUE]...",
     .help = "Address to serve on, with IPv6 addresses in brackets. "
             "Port 0 chooses a free port and prints it. An address that other machines "
             "reach needs --api-key-file or --insecure-listen. A Unix socket is for "
             "programs of this machine, without TLS. Keys: mode (0660), group. "
             "May be repeated; in the environment, separate addresses by ';'."},
    {OPTION("insecure-listen", FLAG, insecure_listen),
     .help = "Let everyone who reaches --listen use the server without a key, because "
             "the network lets in nobody else."},
    {OPTION("admin-listen", TEXT, admin_listen),
     .metavar = "HOST:PORT|unix:PATH[,KEY=VALUE]...",
     .help = "Serve health, readiness and metrics here too, on a thread of its own, "
             "without keys or TLS. --listen then has no metrics."},
    {OPTION("api-key-file", TEXT, api_key_file), .metavar = "FILE",
     .help = "Refuse requests without one of the keys in FILE with 401, but for health "
             "and the files of the page. It has one NAME:KEY a line, KEY of 16 to 256 "
             "visible ASCII characters, and lines that begin with '#'. "
             "SIGHUP reads it again."},
    {OPTION("tls-cert", TEXT, tls_cert), .metavar = "FILE",
     .help = "Speak TLS 1.2 and 1.3 at --listen, with the chain of certificates in this "
             "PEM file, the server's own first. SIGHUP reads it again, with --tls-key."},
    {OPTION("tls-key", TEXT, tls_key), .metavar = "FILE",
     .help = "PEM file of the private key of --tls-cert, without a password."},
    {OPTION("http-threads", COUNT, http_threads), .max = 64, .metavar = "N",
     .help = "Threads that receive requests and send replies, of each --listen. "
             "0 means one for every 8 CPUs, at least 1."},
    {OPTION("queue", COUNT, queue), .value = "1024", .min = 1, .max = 1000000,
     .metavar = "N",
     .help = "Requests that may wait for a worker; further ones are refused with 503."},
    {OPTION("max-queue-delay", COUNT, max_queue_delay), .value = "500", .max = 3600000,
     .metavar = "MS",
     .help =
         "Longest time that a request may have to wait for a worker, in milliseconds, "
         "as estimated from what waits before it. A request that would wait longer is "
         "refused with 503. How long the request itself takes does not matter."},
    {OPTION("default-timeout", COUNT, default_timeout), .max = 86400000, .metavar = "MS",
     .help = "How long a request that states no timeout of its own may wait and be "
             "computed, in milliseconds. After that it is dropped, and the reply is 504. "
             "0 means no limit."},
    {OPTION("max-connections", COUNT, max_connections), .max = 1000000, .metavar = "N",
     .help =
         "Connections open at one time, an equal part of them for each HTTP thread. "
         "Beyond that, one that is idle or slow is closed for each new one, or one of "
         "the client that has most. They hold at most a quarter of --max-memory. 0 means "
         "4096, or as many as that quarter and the limit of open files allow."},
    {OPTION("max-per-client", COUNT, max_per_client), .max = 1000000, .metavar = "N",
     .help =
         "Requests that one client may have in progress; further ones are refused "
         "with 429. Those of health do not count. A client is an IPv4 address, an IPv6 "
         "network of 64 bits, or at a Unix socket a user. 0 means no limit."},
    {OPTION("max-per-key", COUNT, max_per_key), .max = 1000000, .metavar = "N",
     .help = "Requests that all keys of one name in --api-key-file may have in progress; "
             "further ones are refused with 429. 0 means no limit."},
    {OPTION("trusted-proxy", TEXTS, trusted_proxies),
     .metavar = "ADDRESS[/BITS]|unix:UID",
     .help = "A proxy whose X-Forwarded-For names the client, or a range of them. At a "
             "Unix socket it is known by the number of its user. May be repeated; in the "
             "environment, separate ranges by ';'."},
    {OPTION("cors-origin", TEXTS, cors_origins), .metavar = "ORIGIN",
     .help = "Accept requests of web pages of this origin, such as https://example.org; "
             "those of other pages than the server's own are refused with 403. "
             "May be repeated; in the environment, separate origins by ';'."},
    {OPTION("max-body", BYTES, max_body), .value = "65600KiB", .min = 1,
     .max = SIZE_MAX / 4, .metavar = "BYTES",
     .help =
         "Largest request body; a larger one is refused with 413. The default has room "
         "for 64 MiB of numbers and 64 KiB of what is around them."},
    {OPTION("max-reply", BYTES, max_reply), .value = "1048640KiB", .min = 1,
     .max = SIZE_MAX / 4, .metavar = "BYTES",
     .help = "Largest reply. A request whose reply could be larger is refused with 413 "
             "before it is computed. The default has room for 1 GiB of numbers and "
             "64 KiB of what is around them."},
    {OPTION("max-memory", BYTES, max_memory), .max = SIZE_MAX / 4, .metavar = "BYTES",
     .help =
         "Memory that requests and idle workers together may hold; workers keep an "
         "eighth of it, or 64 MiB each if that is less. A request that could never fit "
         "the rest is refused with 413, one that does not fit now with 503. "
         "0 means half of the memory that this process may use, without "
         "--capture-memory."},
    {OPTION("capture-memory", BYTES, capture_memory), .value = "0", .max = SIZE_MAX / 4,
     .metavar = "BYTES",
     .help = "Memory for captures that clients put with PUT /v1/captures/NAME and ask by "
             "name afterwards, on top of --max-memory and the models. One key's name, or "
             "without keys one client, may have half of it; what is more replaces its "
             "oldest. A restart loses them. 0 means that none are kept."},
    {OPTION("capture-ttl", COUNT, capture_ttl), .value = "3600", .min = 1, .max = 86400,
     .metavar = "SECONDS",
     .help = "How long a capture is kept after the last request for its attention. "
             "A client may ask for less."},
    {OPTION("header-timeout", COUNT, header_timeout), .value = "10", .min = 1,
     .max = 86400, .metavar = "SECONDS",
     .help = "Time for the headers of a request; a later one is refused with 408. "
             "Bodies and replies get as long before --min-rate counts."},
    {OPTION("min-rate", BYTES, min_rate), .value = "4KiB", .min = 1, .max = SIZE_MAX / 4,
     .metavar = "BYTES",
     .help = "Bytes per second at which bodies must arrive, and replies must be read. "
             "A slower body is refused with 408, and a slower reader is cut off."},
    {OPTION("idle-timeout", COUNT, idle_timeout), .value = "60", .min = 1, .max = 86400,
     .metavar = "SECONDS", .help = "Close a connection after this time without traffic."},
    {OPTION("no-ui", FLAG, no_ui),
     .help =
         "Do not serve the page at /, which draws the attention weights in a browser."},
    {OPTION("grace", COUNT, grace), .value = "30", .max = 86400, .metavar = "SECONDS",
     .help = "Time to finish accepted requests after SIGTERM or SIGINT. A second signal "
             "ends attnd at once, with status 1."},
    {OPTION("readiness-delay", COUNT, readiness_delay), .value = "0", .max = 3600,
     .metavar = "SECONDS",
     .help = "How long attnd still accepts connections after SIGTERM or SIGINT, while "
             "GET /v2/health/ready gets 503 already; --grace begins after that. Give a "
             "proxy time for two checks."},
    {OPTION("log-format", CHOICE, log_format), .value = "text", .metavar = "text|json",
     .choices = log_formats,
     .help = "Format of log lines on standard error. With json, every line is a JSON "
             "object, also the one that says why attnd could not start, unless json is "
             "set in a file that cannot be read. Commands other than serve print plain "
             "text."},
    {OPTION("log-level", CHOICE, log_level), .value = "info",
     .metavar = "debug|info|warn|error", .choices = log_levels,
     .help = "Least important event to log; debug logs every request. SIGUSR1 changes to "
             "debug and back."},
    {OPTION("access-log", FLAG, access_log),
     .help = "Log every request at level info: its id, route, model, client, status and "
             "sizes, and the time of each stage in microseconds."},
    {OPTION("config", TEXT, file), .metavar = "FILE",
     .help = "Read options from a JSON object, with '_' for '-' in their names."},
    {OPTION("check-config", FLAG, check_config),
     .help = "Check every option and load every model, then exit. Nothing listens, so "
             "this can run beside an attnd that serves; whether the address is free, the "
             "start says.",
     .command_line_only = true},
    {OPTION("version", FLAG, version),
     .help = "Print the version, which ends in the commit, and exit.",
     .command_line_only = true, .letter = 'V'},
    {OPTION("help", FLAG, help), .help = "Print this help and exit.",
     .command_line_only = true, .letter = 'h'},
};

const struct option_set config_options = {
    .program = "attnd",
    .own = own_options,
    .num_own = sizeof own_options / sizeof own_options[0],
    .shared = compute_options,
    .num_shared = COMPUTE_NUM_OPTIONS,
};

/* Options that people try, from other programs, each with what to do instead. */
static const struct {
    const char *name, *instead;
} foreign_options[] = {
    {"port", "write --listen 127.0.0.1:PORT"},
    {"host", "write --listen HOST:PORT"},
    {"bind", "write --listen HOST:PORT"},
    {"address", "write --listen HOST:PORT"},
    {"api-key", "write it into a file for --api-key-file"},
    {"verbose", "write --log-level debug"},
    {"causal", "for a causal model use --model NAME=FILE,causal=true"},
};

const char *option_find_foreign(const char *name, char separator) {
    for (size_t i = 0; i < sizeof foreign_options / sizeof foreign_options[0]; i++) {
        if (option_has_name(foreign_options[i].name, name, separator))
            return foreign_options[i].instead;
    }
    return NULL;
}
