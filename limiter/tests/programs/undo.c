/* Preloaded before the limiter: a machine on which patches do not last. Code that is made writable, changed, and
 * made executable again loses the change. UNDO says which changes: "jumps", "half" of the jumps, "all" of them
 * and whatever else is written, or "wrong": the jumps lead elsewhere. The loader's own code is left alone, or with "loader" nothing else is undone. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST (4 * 4096)

static unsigned char before[MOST];
static unsigned char *start, *loader;
static size_t length;
static unsigned count;

static void undo(const char *which) {
    size_t at = 0;
    while (at < length && start[at] == before[at])
        at++;
    if (at == length)
        return;
    /* The far jump is the loader's. */
    if (start[at] == 0xff)
        loader = start;
    if ((start == loader) != !strcmp(which, "loader"))
        return;
    int jump = start[at] == 0xe9;
    if (jump && !strcmp(which, "wrong")) {
        start[at + 1] += 64;
        return;
    }
    if (jump && !strcmp(which, "half") && count++ % 2 == 0)
        return;
    if (start == loader || (jump ? strcmp(which, "wrong") : !strcmp(which, "all")))
        memcpy(start, before, length);
}

int mprotect(void *address, size_t bytes, int protection) {
    const char *which = getenv("UNDO");
    int writable = PROT_READ | PROT_WRITE | PROT_EXEC;
    if (which && start == address && length == bytes && protection == (PROT_READ | PROT_EXEC)) {
        undo(which);
        start = NULL;
    }
    int result = (int)syscall(SYS_mprotect, address, bytes, protection);
    if (which && result == 0 && protection == writable && bytes <= MOST) {
        memcpy(before, address, bytes);
        start = address;
        length = bytes;
    }
    return result;
}
