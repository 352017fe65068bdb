/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c FOLDER: tries every file of a corpus once, without libFuzzer. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#define FILE_MAX (1 << 20) /* bytes */

static void try_file(const char *folder, const char *name, uint8_t *data) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    size_t size = fread(data, 1, FILE_MAX, file);
    fclose(file);
    printf("%s\n", path);
    fflush(stdout); /* the last one named is the one that aborts */
    LLVMFuzzerTestOneInput(data, size);
}

int main(int argc, char **argv) {
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    uint8_t *data = malloc(FILE_MAX);
    int files = 0;
    if (folder == NULL || data == NULL) {
        fprintf(stderr, "replay: no folder\n");
        return 1;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (entry->d_name[0] == '.')
            continue;
        try_file(argv[1], entry->d_name, data);
        files++;
    }
    closedir(folder);
    free(data);
    printf("%d files\n", files);
    return files > 0 ? 0 : 1;
}
