/* Preloaded into a program: tells which private tables of functions it gets from libcuda and libnvidia-ml, which library
 * asks for each, what is in them, and which of these functions are called. See ../export-tables.sh.
 *
 *   EXPORT_TABLES_OUT      a file that lines are added to; without it they go to the error output
 *   EXPORT_TABLES_PATCHED  a file with the names of functions that Sluice patches, one a line
 *   EXPORT_TABLES_COUNT    1: the program gets copies of the tables, whose functions are counted
 *
 * Each line begins with the process's id and what it tells of:
 *   table ID of LIBRARY, asked for by FILE+OFFSET: N bytes, or "its size is not told"
 *   slot ID NUMBER: LIBRARY+OFFSET, the names under which it is exported, whether it is patched, its first bytes
 *   first ID NUMBER: the first call, and its first arguments
 *   calls ID NUMBER: how many, at the end of the process
 *   name FUNCTION asked for by FILE: what is looked up by its name in libnvidia-ml
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
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
    const void *real, *given;
};

struct stub {
    struct table *table;
    unsigned slot;
    unsigned long calls;
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

/* What each stub calls before it goes on to the function, with its arguments. */
HIDDEN __attribute__((used)) void export_tables_called(struct stub *stub, const uint64_t *arguments) {
    if (__atomic_fetch_add(&stub->calls, 1, __ATOMIC_RELAXED) == 0)
        say("first %s %u: %#lx %#lx %#lx %#lx", written(stub->table->id), stub->slot, arguments[0], arguments[1],
            arguments[2], arguments[3]);
}

/* On the stack: the stub, the function, the caller's address. All that may hold arguments is kept. */
__asm__(".text\n"
        ".hidden export_tables_entry\n"
        ".globl export_tables_entry\n"
        ".type export_tables_entry,@function\n"
        "export_tables_entry:\n"
        "endbr64\n"
        "push %rbp\n"
        "mov %rsp,%rbp\n"
        "push %rax\n push %r10\n push %r11\n push %r9\n push %r8\n push %rcx\n push %rdx\n push %rsi\n push %rdi\n"
        "mov %rsp,%rsi\n"
        "sub $136,%rsp\n"
        "and $-16,%rsp\n"
        "movups %xmm0,(%rsp)\n movups %xmm1,16(%rsp)\n movups %xmm2,32(%rsp)\n movups %xmm3,48(%rsp)\n"
        "movups %xmm4,64(%rsp)\n movups %xmm5,80(%rsp)\n movups %xmm6,96(%rsp)\n movups %xmm7,112(%rsp)\n"
        "mov 8(%rbp),%rdi\n"
        "call export_tables_called\n"
        "movups (%rsp),%xmm0\n movups 16(%rsp),%xmm1\n movups 32(%rsp),%xmm2\n movups 48(%rsp),%xmm3\n"
        "movups 64(%rsp),%xmm4\n movups 80(%rsp),%xmm5\n movups 96(%rsp),%xmm6\n movups 112(%rsp),%xmm7\n"
        "lea -72(%rbp),%rsp\n"
        "pop %rdi\n pop %rsi\n pop %rdx\n pop %rcx\n pop %r8\n pop %r9\n pop %r11\n pop %r10\n pop %rax\n"
        "pop %rbp\n"
        "lea 8(%rsp),%rsp\n"
        "ret\n"
        ".size export_tables_entry,.-export_tables_entry\n");
HIDDEN extern char export_tables_entry[];

/* Code that counts a call and goes on to `function`; the function itself if there is no room. */
static void *stub_for(struct table *table, unsigned slot, void *function) {
    static unsigned char *code;
    static size_t used;
    const size_t length = 48, size = STUBS * length;
    if (!code) {
        code = mmap(NULL, size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (code == MAP_FAILED)
            code = NULL;
    }
    if (!code || used + length > size || stub_count == STUBS)
        return function;
    struct stub *stub = &stubs[stub_count++];
    *stub = (struct stub){table, slot, 0};
    /* endbr64; three times mov of an address into r11, which holds nothing at a call; two are pushed, and one is jumped to. */
    unsigned char *at = code + used;
    unsigned char text[] = {0xf3, 0x0f, 0x1e, 0xfa,
                            0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0x53,
                            0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0x53,
                            0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3};
    _Static_assert(sizeof text == 41, "the addresses are at 6, 18 and 30");
    void *entry = export_tables_entry;
    memcpy(text + 6, &function, 8);
    memcpy(text + 18, &stub, 8);
    memcpy(text + 30, &entry, 8);
    memcpy(at, text, sizeof text);
    used += length;
    return at;
}

static const void *tell_table(void *library, const char *name, const unsigned char *id, const void *real, void *caller) {
    struct table *table = NULL;
    for (unsigned i = 0; i < table_count; i++)
        if (tables[i].real == real && !memcmp(tables[i].id, id, 16))
            table = &tables[i];
    if (table || table_count == TABLES)
        return table ? table->given : real;
    table = &tables[table_count++];
    memcpy(table->id, id, 16);
    table->real = table->given = real;

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
    int is_copied = counts && *counts == '1';
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
        if (is_copied)
            words[slot] = (uint64_t)stub_for(table, slot, (void *)words[slot]);
    }
    say("end %s: the last function is %zu", written(id), last);
    if (is_copied) {
        void *copy = malloc(count * 8);
        if (copy)
            table->given = memcpy(copy, words, count * 8);
    }
    return table->given;
}

static int got(void *library, const char *name, get_table *real, const void **table, const unsigned char *id, void *caller) {
    int result = real(table, id);
    if (inside)
        return result;
    inside = 1;
    pthread_mutex_lock(&lock);
    if (result == 0 && table && *table)
        *table = tell_table(library, name, id, *table, caller);
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

__attribute__((destructor)) static void end(void) {
    for (unsigned i = 0; i < stub_count; i++)
        if (stubs[i].calls)
            say("calls %s %u: %lu", written(stubs[i].table->id), stubs[i].slot, stubs[i].calls);
}
