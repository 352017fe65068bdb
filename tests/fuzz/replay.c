/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c CORPUS: tries every input of a corpus once, without libFuzzer. corpus.py
 * describes the file. */
#include "fuzz.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* Tries the next input. Returns false when there is none. */
static bool try_next(FILE *corpus) {
    char name[256];
    size_t size;
    if (fscanf(corpus, "%255s %zu", name, &size) != 2)
        return false;

    uint8_t *data = malloc(size); /* of its exact size, for the sanitizers */
    if (data == NULL || fgetc(corpus) != '\n' || fread(data, 1, size, corpus) != size) {
        fprintf(stderr, "replay: %s is cut\n", name);
        exit(1);
    }
    printf("%s\n", name);
    fflush(stdout); /* the last one named is the one that aborts */
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return true;
}

int main(int argc, char **argv) {
    FILE *corpus = argc == 2 ? fopen(argv[1], "rb") : NULL;
    int inputs = 0;
    if (corpus == NULL) {
        fprintf(stderr, "replay: no corpus\n");
        return 1;
    }

    while (try_next(corpus))
        inputs++;
    bool whole = feof(corpus);
    fclose(corpus);
    printf("%d inputs\n", inputs);
    return whole && inputs > 0 ? 0 : 1;
}
