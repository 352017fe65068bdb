/* SPDX-License-Identifier: Apache-2.0 */
/* new_file.h: a folder of its own for tests that create a file. */
#ifndef ATTND_TESTS_NEW_FILE_H
#define ATTND_TESTS_NEW_FILE_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/attnd-unit-XXXXXX";
static char path[64], part[72]; /* the file, and what it is called until it is whole */

/* Group set-up and teardown of cmocka; the tests remove the file. */
static int make_folder(void **state) {
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/new.safetensors", folder);
    snprintf(part, sizeof part, "%s.part", path);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static bool exists(const char *name) {
    struct stat status;
    return lstat(name, &status) == 0;
}

#endif
