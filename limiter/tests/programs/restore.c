/* Writes the driver's original first instructions back over a function, or over its hook: restore WHEN NAME. */
#include "driver.h"
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>

static void write_code(unsigned char *to, const unsigned char *code, size_t bytes) {
    unsigned char *page = (unsigned char *)((uintptr_t)to & ~(uintptr_t)4095);
    size_t length = (size_t)(to - page) + bytes;
    if (mprotect(page, length, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        exit(94);
    memcpy(to, code, bytes);
    mprotect(page, length, PROT_READ | PROT_EXEC);
}

/* The bytes of the library's file at an address. */
static void in_file(void *address, unsigned char *code, size_t bytes) {
    Dl_info info;
    Elf64_Ehdr head;
    if (!dladdr(address, &info))
        exit(93);
    int file = open(info.dli_fname, O_RDONLY);
    if (pread(file, &head, sizeof head, 0) != sizeof head)
        exit(93);
    size_t at = (size_t)((char *)address - (char *)info.dli_fbase);
    for (int i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr part;
        off_t where = (off_t)(head.e_phoff + (size_t)i * sizeof part);
        if (pread(file, &part, sizeof part, where) != sizeof part)
            exit(93);
        if (part.p_type == PT_LOAD && at >= part.p_vaddr && at < part.p_vaddr + part.p_filesz &&
            pread(file, code, bytes, (off_t)(at - part.p_vaddr + part.p_offset)) == (ssize_t)bytes) {
            close(file);
            return;
        }
    }
    exit(93);
}

static void restore(void *library, const char *name) {
    unsigned char code[16], *function = need(library, name);
    in_file(function, code, sizeof code);
    write_code(function, code, sizeof code);
}

/* The target of a patched function's jump, past a relay. */
static unsigned char *hook_of(unsigned char *function) {
    int32_t distance;
    memcpy(&distance, function + 1, sizeof distance);
    unsigned char *to = function + 5 + distance;
    if (to[0] == 0xff && to[1] == 0x25)
        memcpy(&to, to + 6, sizeof to);
    return to;
}

int main(int argc, char **argv) {
    const char *when = argc > 1 ? argv[1] : "";
    void *library = open_driver(RTLD_NOW);
    struct driver d = driver_of(library);
    CUdevice device;
    CUcontext context;
    if (!strcmp(when, "breakpoint")) {
        /* Like a debugger: changes the first byte, and restores it before any call. */
        unsigned char *function = (unsigned char *)d.mem_alloc, first = *function;
        write_code(function, (const unsigned char[]){0xcc}, 1);
        printf("init=%d ", d.init(0));
        write_code(function, &first, 1);
    } else if (!strcmp(when, "before-init") || !strcmp(when, "before-load")) {
        restore(library, argv[2]);
        if (!strcmp(when, "before-load") && !dlopen("libresolv.so.2", RTLD_NOW))
            return 92;
        printf("init=%d ", d.init(0));
    } else if (!strcmp(when, "hook")) {
        /* xor eax, eax; ret */
        write_code(hook_of(need(library, argv[2])), (const unsigned char[]){0x31, 0xc0, 0xc3}, 3);
        printf("init=%d ", d.init(0));
    } else if (!strcmp(when, "context")) {
        printf("init=%d ", d.init(0));
        restore(library, argv[2]);
    } else if (!strcmp(when, "wait")) {
        /* Nothing that Sluice would learn of happens after it. */
        start_driver(&d);
        restore(library, argv[2]);
        sleep(3);
        printf("init=0 ");
        say_limit(&d);
        return 0;
    } else {
        start_driver(&d);
        if (argc > 2)
            restore(library, argv[2]);
        if (!dlopen("libresolv.so.2", RTLD_NOW))
            return 92;
        printf("init=0 ");
        say_limit(&d);
        return 0;
    }
    fflush(stdout);
    if (d.device_get(&device, 0) == 0 && d.ctx_create(&context, 0, device) == 0)
        say_limit(&d);
    return 0;
}
