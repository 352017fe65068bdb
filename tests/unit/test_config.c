/* SPDX-License-Identifier: Apache-2.0 */
/* test_config.c: options from every source, and the text of --model. */
#include "config/config.h"
#include "config/options.h"
#include "fail_alloc.h"
#include "models/spec.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define MAX_WORDS 8

static char file_path[] = "/tmp/attnd-config-XXXXXX";

static int make_file(void **state) {
    (void)state;
    int fd = mkstemp(file_path);
    if (fd < 0)
        return -1;
    close(fd);
    return 0;
}

static int remove_file(void **state) {
    (void)state;
    return unlink(file_path);
}

static void write_config(const char *text) {
    FILE *file = fopen(file_path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* Splits at blanks; the list of words ends with NULL. */
static int split_words(char *text, char *words[static MAX_WORDS + 1]) {
    int count = 0;
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) {
        assert_true(count < MAX_WORDS);
        words[count++] = word;
    }
    words[count] = NULL;
    return count;
}

/* Reads flags and variables of serve, given as words between blanks. */
static attn_status read_words(const char *flags, const char *variables,
                              struct config *ret_config, attn_error *ret_error) {
    char flag_text[300], variable_text[300];
    char *argv[MAX_WORDS + 1], *environment[MAX_WORDS + 1];
    snprintf(flag_text, sizeof flag_text, "%s", flags);
    snprintf(variable_text, sizeof variable_text, "%s", variables);
    int argc = split_words(flag_text, argv);
    split_words(variable_text, environment);
    struct config_texts operands = {NULL, 0};
    attn_status status = config_read(&command_infos[COMMAND_SERVE], argc, argv,
                                     environment, ret_config, &operands, ret_error);
    config_texts_deinit(&operands);
    return status;
}

static struct config accept_words(const char *flags, const char *variables) {
    struct config config;
    attn_error error;
    if (read_words(flags, variables, &config, &error) != ATTN_OK)
        fail_msg("%s | %s: %s", flags, variables, error.text);
    return config;
}

static void refuse_words(const char *flags, const char *variables, const char *text) {
    struct config config;
    attn_error error;
    attn_status status = read_words(flags, variables, &config, &error);
    if (status == ATTN_OK || strstr(error.text, text) == NULL)
        fail_msg("%s | %s: '%s' was expected, not '%s'", flags, variables, text,
                 status == ATTN_OK ? "success" : error.text);
}

static void test_defaults_are_those_of_the_table(void **state) {
    (void)state;
    struct config config = accept_words("", "HOME=/ PATH=/bin");
    assert_int_equal(config.listens.count, 1);
    assert_string_equal(config.listens.items[0], "127.0.0.1:8080");
    assert_int_equal(config.max_body, (64 << 20) + (64 << 10));
    assert_int_equal(config.max_reply, (1 << 30) + (64 << 10));
    assert_int_equal(config.grace, 30);
    assert_int_equal(config.log_level, 1);
    assert_false(config.demo);
    assert_null(config.model_dir);
    config_deinit(&config);
}

static void test_flag_beats_environment_beats_file_beats_default(void **state) {
    (void)state;
    char flags[100];
    write_config("{\"workers\": 2, \"queue\": 3, \"grace\": 4, \"demo\": true}");
    snprintf(flags, sizeof flags, "--config %s --workers=9", file_path);
    struct config config = accept_words(flags, "ATTND_WORKERS=7 ATTND_QUEUE=8");
    assert_int_equal(config.compute.workers, 9);
    assert_int_equal(config.queue, 8);
    assert_int_equal(config.grace, 4);
    assert_true(config.demo);
    assert_int_equal(config.idle_timeout, 60);
    assert_int_equal(config.max_queue_delay, 500);
    config_deinit(&config);
}

static void test_models_of_a_higher_source_replace_those_of_a_lower(void **state) {
    (void)state;
    char variables[100];
    write_config("{\"model\": [\"a=1\", \"b=2\"]}");
    snprintf(variables, sizeof variables, "ATTND_CONFIG=%s", file_path);
    struct config config = accept_words("", variables);
    assert_int_equal(config.models.count, 2);
    assert_string_equal(config.models.items[1], "b=2");
    config_deinit(&config);
    config = accept_words("--model c=3", "ATTND_MODEL=d=4;e=5");
    assert_int_equal(config.models.count, 1);
    config_deinit(&config);
    config = accept_words("", "ATTND_MODEL=d=4;e=5");
    assert_int_equal(config.models.count, 2);
    assert_string_equal(config.models.items[1], "e=5");
    config_deinit(&config);
}

static void test_units_of_bytes_are_understood(void **state) {
    (void)state;
    struct config config = accept_words("--max-body 3KiB --max-memory=2GiB", "");
    assert_int_equal(config.max_body, 3072);
    assert_true(config.max_memory == (size_t)2 << 30);
    config_deinit(&config);
}

static void test_every_unknown_or_malformed_option_is_named(void **state) {
    (void)state;
    refuse_words("--wrokers 2", "", "'--wrokers'");
    refuse_words("-x", "", "'-x'");
    refuse_words("--max_body 2", "", "'--max_body'");
    refuse_words("--workers", "", "--workers: needs a value");
    refuse_words("--workers -1", "", "--workers: '-1'");
    refuse_words("--workers 1.5", "", "--workers: '1.5'");
    refuse_words("--workers 257", "", "from 0 to 256");
    refuse_words("--workers 99999999999999999999999", "", "--workers");
    refuse_words("--workers=", "", "--workers: ''");
    refuse_words("--max-body 5KB", "", "--max-body: '5KB'");
    refuse_words("--max-body 99999999999999999GiB", "", "--max-body");
    refuse_words("--demo=maybe", "", "--demo: 'maybe'");
    refuse_words("--log-format xml", "", "text|json");
    refuse_words("--listen=", "", "--listen: must not be empty");
    refuse_words("extra", "", "unexpected argument 'extra'");
    refuse_words("", "ATTND_WORKERS=two", "ATTND_WORKERS: 'two'");
    refuse_words("--config /no/such/file", "",
                 "/no/such/file: No such file or directory");
    refuse_words("--config /", "", "/ is not a regular file");
}

static void refuse_file(const char *text, const char *expected) {
    char flags[100];
    write_config(text);
    snprintf(flags, sizeof flags, "--config %s", file_path);
    refuse_words(flags, "", expected);
}

static void test_every_defect_of_the_file_is_named(void **state) {
    (void)state;
    refuse_file("{\"workers\": 2,}", ":1:");
    refuse_file("[]", "not a JSON object");
    refuse_file("{\"workers\": 2, \"workers\": 3}", "duplicate");
    refuse_file("{\"wrokers\": 2}", "wrokers: unknown option");
    refuse_file("{\"config\": \"x\"}", "config: unknown option");
    refuse_file("{\"workers\": -2}", "workers: '-2'");
    refuse_file("{\"workers\": true}", "workers: wrong type");
    refuse_file("{\"workers\": 2.5}", "workers: wrong type");
    refuse_file("{\"listen\": 8080}", "listen: wrong type");
    refuse_file("{\"model\": [1]}", "model: wrong type");
    refuse_file("{\"queue\": [1]}", "queue: wrong type");
}

static void assert_log_format(const char *flags, const char *variables, int log_format) {
    struct config config;
    attn_error error;
    assert_int_not_equal(read_words(flags, variables, &config, &error), ATTN_OK);
    assert_non_null(strstr(error.text, "--wrokers"));
    assert_int_equal(config.log_format, log_format);
}

static void test_log_format_is_known_in_spite_of_a_defect(void **state) {
    (void)state;
    char flags[100];
    assert_log_format("--wrokers 2", "", 0);
    assert_log_format("--wrokers 2 --log-format json", "", 1);
    assert_log_format("--wrokers 2", "ATTND_QUEUE=0 ATTND_LOG_FORMAT=json", 1);
    assert_log_format("--wrokers --log-format=text", "ATTND_LOG_FORMAT=json", 0);

    write_config("{\"queue\": 0, \"log_format\": \"json\"}");
    snprintf(flags, sizeof flags, "--wrokers 2 --config %s", file_path);
    assert_log_format(flags, "", 1);
}

static void test_empty_variables_and_service_links_are_ignored(void **state) {
    (void)state;
    static const char *const variables[] = {
        "ATTND_MODEL_DIR= ATTND_NO_SUCH_OPTION=",
        "ATTND_SERVICE_HOST=10.0.0.1 ATTND_SERVICE_PORT=80 ATTND_SERVICE_PORT_HTTP=80",
        "ATTND_PORT=tcp://10.0.0.1:80 ATTND_PORT_80_TCP_ADDR=10.0.0.1 "
        "ATTND_PORT_80_TCP_PORT=80",
        "ATTND_CANARY_SERVICE_HOST=10.0.0.1 ATTND_CANARY_SERVICE_PORT=80 "
        "ATTND_CANARY_SERVICE_PORT_HTTP=80",
        "ATTND_CANARY_PORT=udp://10.0.0.1:80 ATTND_CANARY_PORT_80_TCP_PROTO=tcp",
        "ATTND_CANARY_PORT=sctp://10.0.0.1:80 ATTND_PORT_80_SCTP=sctp://10.0.0.1:80",
        "ATTND_A_SERVICE_NAME_OF_FIFTYSEVEN_BYTES_AS_KUBERNETES_ALLOWS_THEM_SERVICE_HOST="
        "10.0.0.1",
    };
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        struct config config = accept_words("", variables[i]);
        assert_null(config.model_dir);
        assert_int_equal(config.ignored_variables.count, 0);
        config_deinit(&config);
    }
}

static void test_unknown_variables_are_named(void **state) {
    (void)state;
    static const char *const names[] = {"ATTND_HELP",  "ATTND_CAUSAL",
                                        "ATTND_PORTS", "ATTND_SERVICE_HOSTS",
                                        "ATTND_PORT",  "ATTND_ADMIN_PORT"};
    char variables[200];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(variables, sizeof variables, "ATTND_QUEUE=5 %s=1", names[i]);
        struct config config = accept_words("", variables);
        assert_int_equal(config.queue, 5);
        assert_int_equal(config.ignored_variables.count, 1);
        assert_string_equal(config.ignored_variables.items[0], names[i]);
        config_deinit(&config);
    }
    refuse_words("", "ATTND_WROKERS=1", "'ATTND_WROKERS'; did you mean ATTND_WORKERS?");
}

static void test_options_of_other_programs_name_what_to_do_instead(void **state) {
    (void)state;
    refuse_words("--port 5", "", "--port is not an option; write --listen 127.0.0.1:");
    refuse_words("--causal", "", "use --model NAME=FILE,causal=true");
    refuse_file("{\"api_key\": true}",
                "api_key is not an option; write it into a file for --api-key-file");
    struct config config = accept_words("", "ATTND_API_KEY=5");
    assert_int_equal(config.ignored_variables.count, 1);
    config_deinit(&config);
}

static void test_every_failing_allocation_is_reported(void **state) {
    (void)state;
    char variables[100];
    json_set_alloc_funcs(malloc, free);
    write_config("{\"model\": [\"a=1\", \"b=2\"], \"workers\": 3}");
    snprintf(variables, sizeof variables, "ATTND_CONFIG=%s ATTND_LISTEN=x:1 ATTND_X=1",
             file_path);
    size_t nth = 1;
    for (;; nth++) {
        struct config config;
        attn_error error;
        fail_alloc_at(nth);
        attn_status status = read_words("--model-dir /tmp", variables, &config, &error);
        bool failed = fail_alloc_stop();
        if (status == ATTN_OK)
            config_deinit(&config);
        if (!failed)
            break;
        assert_int_not_equal(status, ATTN_OK);
    }
    assert_in_range(nth, 8, 1000);
}

static void test_model_specification_is_parsed(void **state) {
    (void)state;
    struct model_spec spec;
    attn_error error;
    assert_int_equal(model_spec_parse("a=/m/x=1.st,num_heads=5,causal=true,prefix=p.,"
                                      "context_length=9,layout=d2l,precision=bf16,"
                                      "rope_theta=5e5,eps=0.25,q=a,k=b,v=c,qkv=d,o=e.0,"
                                      "transposed=true,rope_interleaved=false",
                                      true, &spec, &error),
                     ATTN_OK);
    assert_string_equal(spec.name, "a");
    assert_string_equal(spec.path, "/m/x=1.st");
    assert_int_equal(spec.options.num_heads, 5);
    assert_int_equal(spec.options.context_length, 9);
    assert_string_equal(spec.options.causal, "true");
    assert_string_equal(spec.options.prefix, "p.");
    assert_string_equal(spec.options.layout, "d2l");
    assert_true(spec.options.rope_theta == 500000 && spec.options.eps == 0.25);
    assert_string_equal(spec.options.q, "a");
    assert_string_equal(spec.options.k, "b");
    assert_string_equal(spec.options.v, "c");
    assert_string_equal(spec.options.qkv, "d");
    assert_string_equal(spec.options.o, "e.0");
    assert_string_equal(spec.options.transposed, "true");
    assert_string_equal(spec.options.rope_interleaved, "false");
    assert_string_equal(spec.precision, "bf16");
    model_spec_deinit(&spec);
}

static void test_operand_is_a_specification_without_a_name(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"", "not FILE[,KEY=VALUE]..."},
        {",", "not FILE[,KEY=VALUE]..."},
        {"f,causal=yes", "f,causal=yes: causal 'yes' is not true or false"},
    };
    struct model_spec spec;
    attn_error error;
    assert_int_equal(
        model_spec_parse("/m/x=1.st,num_heads=5,precision=bf16", false, &spec, &error),
        ATTN_OK);
    assert_null(spec.name);
    assert_string_equal(spec.path, "/m/x=1.st");
    assert_int_equal(spec.options.num_heads, 5);
    assert_string_equal(spec.precision, "bf16");
    model_spec_deinit(&spec);

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(model_spec_parse(bad[i][0], false, &spec, &error), ATTN_E_VALUE);
        if (strstr(error.text, bad[i][1]) == NULL)
            fail_msg("%s: %s", bad[i][0], error.text);
    }
}

static void test_list_of_layers_may_have_commas(void **state) {
    static const char *const lists[][2] = {
        {"a=f,layers=0-3,7,pre_norm=true", "0-3,7"},
        {"a=f,pre_norm=true,layers=1,2,3-4", "1,2,3-4"},
        {"a=f,layers=5,pre_norm=true", "5"},
    };
    struct model_spec spec;
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        assert_int_equal(model_spec_parse(lists[i][0], true, &spec, NULL), ATTN_OK);
        assert_string_equal(spec.folder.layers, lists[i][1]);
        assert_string_equal(spec.folder.pre_norm, "true");
        model_spec_deinit(&spec);
    }
}

static void test_malformed_model_specification_is_named(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"", "not NAME=FILE"},
        {"a", "not NAME=FILE"},
        {"=f", "not NAME=FILE"},
        {"a=", "not NAME=FILE"},
        {"a=f,x", "not KEY=VALUE"},
        {"a=f,num_heads=", "not KEY=VALUE"},
        {"a=f,num_heads=0", "at least 1"},
        {"a=f,num_heads=-1", "at least 1"},
        {"a=f,context_length=1x", "at least 1"},
        {"a=f,causal=yes", "true or false"},
        {"a=f,precision=f16", "f32 or bf16"},
        {"a=f,heads=2", "unknown key 'heads'"},
        {"a=f,pre_norm=yes", "pre_norm 'yes' is not true or false"},
        {"a=f,layers=0,,1", "'1' is not KEY=VALUE"},
        {"a=f,layers=0,causal=true,1", "'1' is not KEY=VALUE"},
        {"a=f,num_heads=99999999999999999999999", "at least 1"},
        {"a=f,rope_theta=0", "rope_theta '0' is not a number greater than 0"},
        {"a=f,rope_theta=-5", "greater than 0"},
        {"a=f,eps=nan", "eps 'nan' is not a number greater than 0"},
        {"a=f,eps=inf", "greater than 0"},
        {"a=f,eps=1e-6x", "greater than 0"},
        {"a=f,eps=", "not KEY=VALUE"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct model_spec spec;
        attn_error error;
        assert_int_equal(model_spec_parse(bad[i][0], true, &spec, &error), ATTN_E_VALUE);
        if (strstr(error.text, bad[i][1]) == NULL)
            fail_msg("%s: %s", bad[i][0], error.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_those_of_the_table),
        cmocka_unit_test(test_flag_beats_environment_beats_file_beats_default),
        cmocka_unit_test(test_models_of_a_higher_source_replace_those_of_a_lower),
        cmocka_unit_test(test_units_of_bytes_are_understood),
        cmocka_unit_test(test_every_unknown_or_malformed_option_is_named),
        cmocka_unit_test(test_every_defect_of_the_file_is_named),
        cmocka_unit_test(test_log_format_is_known_in_spite_of_a_defect),
        cmocka_unit_test(test_empty_variables_and_service_links_are_ignored),
        cmocka_unit_test(test_unknown_variables_are_named),
        cmocka_unit_test(test_options_of_other_programs_name_what_to_do_instead),
        cmocka_unit_test(test_every_failing_allocation_is_reported),
        cmocka_unit_test(test_model_specification_is_parsed),
        cmocka_unit_test(test_operand_is_a_specification_without_a_name),
        cmocka_unit_test(test_list_of_layers_may_have_commas),
        cmocka_unit_test(test_malformed_model_specification_is_named),
    };
    return cmocka_run_group_tests_name("config", tests, make_file, remove_file);
}
