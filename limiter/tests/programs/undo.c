/* Preloaded before the limiter: a machine on which patches do not last. Code that is made writable, changed, and
 * made executable again loses the change. UNDO selects the changes: "jumps", "half" of the jumps (those at every
 * other sixteen bytes, where no function at the beginning of a page is), "all" of them and all other changes, or
 * "wrong": the jumps lead elsewhere. The loader's own code is left alone, or with "loader" nothing else is undone.
 * Only this is known about a patch engine: its jumps are near or far ones. */
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 512
/* An engine does not write more than this to code. */
#define MOST (PAGES * PAGE)
#define NEAR 5
#define FAR 14

/* Pages that are writable, with their previous contents. */
static struct {
    unsigned char *start, before[PAGE];
} pages[PAGES];

static int page_of(unsigned char *start) {
    int at = 0;
    while (at < PAGES && pages[at].start != start)
        at++;
    return at;
}

static size_t jump_at(const unsigned char *code) {
    return code[0] == 0xe9 ? NEAR : code[0] == 0xff && code[1] == 0x25 ? FAR : 0;
}

static void undo(const char *which, unsigned char *start, const unsigned char *before) {
    int loader = ((uintptr_t)_r_debug.r_brk & -PAGE) == (uintptr_t)start;
    if (loader != !strcmp(which, "loader"))
        return;
    for (size_t at = 0; at < PAGE;) {
        if (start[at] == before[at]) {
            at++;
            continue;
        }
        size_t jump = at + 2 <= PAGE ? jump_at(start + at) : 0;
        /* Half of a jump, at the end of a page, is left alone. */
        if (at + jump > PAGE)
            return;
        size_t length = jump ? jump : 1;
        if (jump && !strcmp(which, "wrong"))
            start[at + (jump == NEAR ? 1 : 6)] += 64;
        else if (jump && !strcmp(which, "half") && (uintptr_t)(start + at) / 16 % 2 == 0)
            ;
        else if (loader || (jump ? strcmp(which, "wrong") : !strcmp(which, "all")))
            memcpy(start + at, before + at, length);
        at += length;
    }
}

int mprotect(void *address, size_t bytes, int protection) {
    const char *which = getenv("UNDO");
    int writable = PROT_READ | PROT_WRITE | PROT_EXEC, code = PROT_READ | PROT_EXEC;
    unsigned char *end = (unsigned char *)address + bytes;
    int looks = which && bytes <= MOST;
    for (unsigned char *start = address; looks && protection == code && start < end; start += PAGE) {
        int at = page_of(start);
        if (at < PAGES) {
            undo(which, start, pages[at].before);
            pages[at].start = NULL;
        }
    }
    int result = (int)syscall(SYS_mprotect, address, bytes, protection);
    for (unsigned char *start = address; looks && result == 0 && protection == writable && start < end; start += PAGE) {
        int at = page_of(start) < PAGES ? PAGES : page_of(NULL);
        if (at < PAGES) {
            memcpy(pages[at].before, start, PAGE);
            pages[at].start = start;
        }
    }
    return result;
}
