/* Preloaded into a program: tells which private tables of functions it gets from libcuda and libnvidia-ml, which library
 * asks for each, what is in them, and which of these functions are called. See `cargo xtask export-tables`.
 *
 *   EXPORT_TABLES_OUT      a file that lines are added to; without it they go to the error output
 *   EXPORT_TABLES_PATCHED  a file with the names of functions that Sluice patches, one a line
 *   EXPORT_TABLES_COUNT    1: each private function begins with a breakpoint until its first call
 *
 * Each line begins with the process's id and what it tells of:
 *   table ID of LIBRARY, asked for by FILE+OFFSET: N bytes, or "its size is not told"
 *   slot ID NUMBER: LIBRARY+OFFSET, the names under which it is exported, whether it is patched, its first bytes
 *   first ID NUMBER: the first call, and its first arguments; of each number that leads to the function
 *   name FUNCTION asked for by FILE: what is looked up by its name in libnvidia-ml
 *
 * The CUDA runtime refuses copies of tables (error 103, "integrity checks failed"). So the tables stay as they are, and the
 * functions that no name leads to get breakpoints, which go at the first call. A function that the library calls itself
 * counts, too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define TABLES 128
#define SLOTS 512
#define STUBS (TABLES * 64)
#define PATCHED 2048

typedef int get_table(const void **table, const unsigned char *id);
typedef void *look_up(void *library, const char *name);

struct table {
    unsigned char id[16];
    const void *real;
};

struct stub {
    struct table *table;
    unsigned slot;
    unsigned char *function, first;
    int called;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct table tables[TABLES];
static struct stub stubs[STUBS];
static unsigned table_count, stub_count;
static const char *patched[PATCHED];
static unsigned patched_count;
static __thread int inside;

static look_up *real_look_up(void) {
    static look_up *found;
    if (!found)
        found = (look_up *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!found)
        found = (look_up *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    return found;
}

static void say(const char *format, ...) {
    char line[1024];
    int length = snprintf(line, sizeof line, "%d ", (int)getpid());
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    const char *path = getenv("EXPORT_TABLES_OUT");
    int out = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : 2;
    if (write(out, line, length) < 0)
        _exit(125);
    if (path)
        close(out);
}

static const char *base_name(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path ? path : "?";
}

static const char *written(const unsigned char *id) {
    static __thread char text[40];
    char *at = text;
    for (int i = 0; i < 16; i++)
        at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", id[i]);
    return text;
}

/* How much of this can be read. */
static size_t readable(const void *from, void *into, size_t length) {
    size_t read = 0;
    while (read < length) {
        size_t page = 4096 - ((uintptr_t)from + read) % 4096;
        size_t piece = page < length - read ? page : length - read;
        struct iovec here = {(char *)into + read, piece}, there = {(char *)from + read, piece};
        if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != (ssize_t)piece)
            break;
        read += piece;
    }
    return read;
}

struct search {
    uintptr_t address;
    const char *file;
    uintptr_t base;
};

static int holds(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *search = data;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && part->p_flags & PF_X && search->address - start < part->p_memsz) {
            search->file = info->dlpi_name;
            search->base = info->dlpi_addr;
            return 1;
        }
    }
    return 0;
}

/* The file whose code an address is in; NULL: it is no code of the driver. */
static const char *code_of(uintptr_t address, uintptr_t *base) {
    struct search search = {address, NULL, 0};
    dl_iterate_phdr(holds, &search);
    *base = search.base;
    const char *name = base_name(search.file);
    return search.file && (!strncmp(name, "libcuda.so", 10) || !strncmp(name, "libnvidia", 9)) ? name : NULL;
}

static void read_patched(void) {
    const char *path = getenv("EXPORT_TABLES_PATCHED");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[256];
    while (file && patched_count < PATCHED && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        patched[patched_count++] = strdup(line);
    }
    if (file)
        fclose(file);
}

/* The first name of a patched function at this address, if there is one. */
static const char *patched_at(void *library, uintptr_t address) {
    for (unsigned i = 0; i < patched_count; i++) {
        void *function = real_look_up()(library, patched[i]);
        if (function && (uintptr_t)function == address)
            return patched[i];
    }
    return NULL;
}

/* Where code leads that begins with a jump, or itself. */
static uintptr_t led_to(uintptr_t address) {
    unsigned char code[16];
    for (int jumps = 0; jumps < 4 && readable((void *)address, code, sizeof code) == sizeof code; jumps++) {
        int start = !memcmp(code, "\xf3\x0f\x1e\xfa", 4) ? 4 : 0;
        int32_t distance;
        if (code[start] == 0xe9) {
            memcpy(&distance, code + start + 1, 4);
            address += start + 5 + distance;
        } else if (code[start] == 0xff && code[start + 1] == 0x25) {
            memcpy(&distance, code + start + 2, 4);
            if (readable((void *)(address + start + 6 + distance), &address, sizeof address) != sizeof address)
                return 0;
        } else {
            return address;
        }
    }
    return address;
}

static void tell_slot(void *library, const unsigned char *id, unsigned slot, uintptr_t address) {
    uintptr_t base, target;
    const char *file = code_of(address, &base);
    char bytes[24], text[64] = "", more[256] = "";
    Dl_info info;
    const char *name = patched_at(library, address);
    const char *exported =
        dladdr((void *)address, &info) && (uintptr_t)info.dli_saddr == address ? info.dli_sname : NULL;
    size_t length = readable((void *)address, bytes, sizeof bytes);
    for (size_t i = 0; i < length; i++)
        sprintf(text + 2 * i, "%02x", (unsigned char)bytes[i]);
    if (!exported && !name && (target = led_to(address)) && target != address) {
        const char *patched_there = patched_at(library, target);
        const char *other = dladdr((void *)target, &info) && (uintptr_t)info.dli_saddr == target ? info.dli_sname : NULL;
        const char *where = code_of(target, &base);
        snprintf(more, sizeof more, ", jumps to %s+%#lx%s%s%s", where ? where : "other code", target - base, other ? " " : "",
                 other ? other : "", patched_there ? " patched" : "");
        code_of(address, &base);
    }
    say("slot %s %u: %s+%#lx, %s%s, %s%s, code %s", written(id), slot, file, address - base,
        exported ? "exported as " : "not exported", exported ? exported : "", name ? "PATCHED as " : "not patched",
        name ? name : more, text);
}

/* A breakpoint: its first byte comes back, and the function begins anew. */
static void trapped(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    unsigned char *function = (unsigned char *)registers[REG_RIP] - 1;
    unsigned count = __atomic_load_n(&stub_count, __ATOMIC_ACQUIRE);
    int known = 0;
    (void)info;
    for (unsigned i = 0; i < count; i++) {
        struct stub *stub = &stubs[i];
        if (stub->function != function)
            continue;
        known = 1;
        __atomic_store_n(function, stub->first, __ATOMIC_SEQ_CST);
        if (!__atomic_exchange_n(&stub->called, 1, __ATOMIC_SEQ_CST))
            say("first %s %u: %#llx %#llx %#llx %#llx", written(stub->table->id), stub->slot, registers[REG_RDI],
                registers[REG_RSI], registers[REG_RDX], registers[REG_RCX]);
    }
    if (known) {
        registers[REG_RIP] = (greg_t)function;
    } else {
        signal(number, SIG_DFL);
        raise(number);
    }
}

/* Has the first call of a function told, if it can be overwritten. One that has a name is called by others, too. */
static void watch(struct table *table, unsigned slot, uintptr_t address) {
    static int ready;
    Dl_info info;
    unsigned char first;
    if (stub_count == STUBS || (dladdr((void *)address, &info) && (uintptr_t)info.dli_saddr == address))
        return;
    if (!ready) {
        struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
        ready = sigaction(SIGTRAP, &action, NULL) == 0;
    }
    first = *(unsigned char *)address;
    for (unsigned i = 0; i < stub_count; i++)
        if (stubs[i].function == (unsigned char *)address)
            first = stubs[i].first;
    if (!ready || mprotect((void *)(address & ~4095ul), 4096, PROT_READ | PROT_WRITE | PROT_EXEC)) {
        say("slot %s %u: calls of it are not told", written(table->id), slot);
        return;
    }
    stubs[stub_count] = (struct stub){table, slot, (unsigned char *)address, first, 0};
    __atomic_store_n(&stub_count, stub_count + 1, __ATOMIC_RELEASE);
    __atomic_store_n((unsigned char *)address, 0xcc, __ATOMIC_SEQ_CST);
}

/* A thread that keeps signals away would end the process at a breakpoint: libcuda has such threads. */
typedef int set_mask(int how, const sigset_t *set, sigset_t *old);

static int mask(const char *name, int how, const sigset_t *set, sigset_t *old) {
    set_mask *real = (set_mask *)real_look_up()(RTLD_NEXT, name);
    sigset_t without;
    if (set && how != SIG_UNBLOCK) {
        without = *set;
        sigdelset(&without, SIGTRAP);
        set = &without;
    }
    return real(how, set, old);
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
    return mask("pthread_sigmask", how, set, old);
}

int sigprocmask(int how, const sigset_t *set, sigset_t *old) {
    return mask("sigprocmask", how, set, old);
}

static void tell_table(void *library, const char *name, const unsigned char *id, const void *real, void *caller) {
    for (unsigned i = 0; i < table_count; i++)
        if (tables[i].real == real && !memcmp(tables[i].id, id, 16))
            return;
    if (table_count == TABLES)
        return;
    struct table *table = &tables[table_count++];
    memcpy(table->id, id, 16);
    table->real = real;

    uint64_t words[SLOTS] = {0};
    size_t count = readable(real, words, sizeof words) / 8;
    int sized = count > 0 && words[0] >= 8 && words[0] <= sizeof words && words[0] % 8 == 0;
    size_t end = sized && words[0] / 8 < count ? words[0] / 8 : count;
    Dl_info info = {0};
    int known = dladdr(caller, &info);
    say("table %s of %s, asked for by %s+%#lx: %s %lu", written(id), name, known ? base_name(info.dli_fname) : "?",
        (uintptr_t)caller - (uintptr_t)info.dli_fbase, sized ? "bytes" : "its size is not told, the first word is",
        (unsigned long)words[0]);
    const char *counts = getenv("EXPORT_TABLES_COUNT");
    int is_watched = counts && *counts == '1';
    size_t last = 0, others = 0;
    for (size_t slot = sized; slot < end; slot++) {
        uintptr_t base;
        const char *file = code_of(words[slot], &base);
        /* A table whose size is not told ends, as far as can be seen, before eight words that are no functions. */
        if (!file && ++others == 8 && !sized)
            break;
        if (!file) {
            if (words[slot])
                say("slot %s %zu: no code of the driver: %#lx", written(id), slot, words[slot]);
            continue;
        }
        last = slot;
        others = 0;
        tell_slot(library, id, slot, words[slot]);
        if (is_watched)
            watch(table, slot, words[slot]);
    }
    say("end %s: the last function is %zu", written(id), last);
}

static int got(void *library, const char *name, get_table *real, const void **table, const unsigned char *id, void *caller) {
    int result = real(table, id);
    if (inside)
        return result;
    inside = 1;
    pthread_mutex_lock(&lock);
    if (result == 0 && table && *table)
        tell_table(library, name, id, *table, caller);
    else
        say("table %s of %s, asked for by %s: refused, %d", id ? written(id) : "?", name, "a library", result);
    pthread_mutex_unlock(&lock);
    inside = 0;
    return result;
}

static void *library_of(const char *name) {
    return dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
}

#define CUDA "libcuda.so.1"
#define NVML "libnvidia-ml.so.1"

int cuGetExportTable(const void **table, const unsigned char *id) {
    void *library = library_of(CUDA);
    get_table *real = library ? (get_table *)real_look_up()(library, "cuGetExportTable") : NULL;
    return real ? got(library, CUDA, real, table, id, __builtin_return_address(0)) : 999;
}

int nvmlInternalGetExportTable(const void **table, const unsigned char *id) {
    void *library = library_of(NVML);
    get_table *real = library ? (get_table *)real_look_up()(library, "nvmlInternalGetExportTable") : NULL;
    return real ? got(library, NVML, real, table, id, __builtin_return_address(0)) : 999;
}

/* What the CUDA runtime looks functions up by leads to the functions above, too. */
typedef int get_address(const char *name, void **function, int version, uint64_t flags, void *status);
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, void *status);

static int found(const char *by, const char *name, void **function, int version, uint64_t flags, void *status) {
    void *library = library_of(CUDA);
    get_address *real = library ? (get_address *)real_look_up()(library, by) : NULL;
    if (!real)
        return 999;
    int result = real(name, function, version, flags, status);
    if (result == 0 && name && function && *function) {
        if (!strcmp(name, "cuGetExportTable"))
            *function = (void *)cuGetExportTable;
        else if (!strcmp(name, "cuGetProcAddress"))
            *function = *function == real_look_up()(library, "cuGetProcAddress") ? (void *)cuGetProcAddress
                                                                                : (void *)cuGetProcAddress_v2;
    }
    return result;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return found("cuGetProcAddress", name, function, version, flags, NULL);
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, void *status) {
    return found("cuGetProcAddress_v2", name, function, version, flags, status);
}

void *dlsym(void *library, const char *name) {
    /* The loader goes by the address of the caller. With -O2 this is a jump, and leaves it as it is. */
    if (library == RTLD_NEXT)
        return real_look_up()(library, name);
    void *function = real_look_up()(library, name);
    if (!function || inside)
        return function;
    if (!strncmp(name, "nvml", 4) && getenv("EXPORT_TABLES_NAMES")) {
        Dl_info info;
        inside = 1;
        say("name %s asked for by %s", name,
            dladdr(__builtin_return_address(0), &info) ? base_name(info.dli_fname) : "?");
        inside = 0;
    }
    if (!strcmp(name, "cuGetExportTable"))
        return (void *)cuGetExportTable;
    if (!strcmp(name, "nvmlInternalGetExportTable"))
        return (void *)nvmlInternalGetExportTable;
    if (!strcmp(name, "cuGetProcAddress"))
        return (void *)cuGetProcAddress;
    if (!strcmp(name, "cuGetProcAddress_v2"))
        return (void *)cuGetProcAddress_v2;
    return function;
}

__attribute__((constructor)) static void begin(void) {
    read_patched();
}
