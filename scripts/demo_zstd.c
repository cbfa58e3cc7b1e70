/* Packs and unpacks a file with the library that the demo has just compiled. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

int main(int count, char **arguments)
{
    FILE *file = count == 2 ? fopen(arguments[1], "rb") : NULL;
    if (!file || fseek(file, 0, SEEK_END))
        return 2;
    size_t size = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(size), *again = malloc(size);
    size_t bound = ZSTD_compressBound(size);
    char *packed = malloc(bound);
    if (!text || !again || !packed || fread(text, 1, size, file) != size)
        return 2;
    fclose(file);
    size_t length = ZSTD_compress(packed, bound, text, size, 3);
    if (ZSTD_isError(length) || ZSTD_decompress(again, size, packed, length) != size)
        return 1;
    if (memcmp(text, again, size))
        return 1;
    printf("zstd %s packs %zu bytes into %zu and back\n", ZSTD_versionString(), size, length);
    return 0;
}
