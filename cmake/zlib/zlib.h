#pragma once

// What LMS uses of zlib's gzip files, for systems that have the library and not its headers. These
// declarations are part of zlib 1's binary interface (1.2.4 or newer); tests/core compares them
// with zlib.h's own.

#define Z_OK 0
#define Z_ERRNO (-1)

extern "C" {
typedef struct gzFile_s* gzFile;
gzFile gzopen(const char* path, const char* mode);
int gzread(gzFile file, void* to, unsigned length);
int gzwrite(gzFile file, const void* from, unsigned length);
const char* gzerror(gzFile file, int* code);
int gzclose(gzFile file);
}
