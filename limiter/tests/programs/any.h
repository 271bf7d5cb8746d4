/* Any function of the driver by its name, for programs that use many functions once each. Arguments need the widths
 * of the driver's parameters: (size_t)1, not 1, for a size_t. */
#ifndef ANY_H
#define ANY_H

#include "driver.h"

static void *library;

#define call(name, ...) (((CUresult(*)())need(library, name))(__VA_ARGS__))
#define must(name, ...) ok_(call(name, __VA_ARGS__), name)

/* Ends the program unless a call had the expected result. */
static inline void expect_(CUresult result, CUresult expected, const char *what, int line) {
    if (result != expected) {
        fprintf(stderr, "line %d: %s: CUresult %d instead of %d\n", line, what, result, expected);
        exit(96);
    }
}
#define expect(expected, name, ...) expect_(call(name, __VA_ARGS__), expected, name, __LINE__)

#define OUT_OF_MEMORY 2

/* The memory that the session leaves free, by cuMemGetInfo. */
static inline size_t left(void) {
    size_t free = 0, total = 0;
    must("cuMemGetInfo_v2", &free, &total);
    return free;
}

/* Ends the program unless the expected amount is free. */
static inline void is_left_(size_t expected, int line) {
    size_t now = left();
    if (now != expected) {
        fprintf(stderr, "line %d: %zu MiB free instead of %zu MiB\n", line, now / MIB, expected / MIB);
        exit(95);
    }
}
#define is_left(expected) is_left_(expected, __LINE__)

/* CUmemAllocationProp and, in its beginning, CUmemPoolProps. */
struct props {
    int type, handle_types;
    struct {
        int type, id;
    } location;
    void *security;
    unsigned char rest[64];
};

static inline struct props on_device(int device) {
    struct props props = {.type = 1, .location = {.type = 1, .id = device}};
    return props;
}

#endif
