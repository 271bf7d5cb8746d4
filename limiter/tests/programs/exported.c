/* Exported memory stays charged while anything refers to it, in this process or in one of another session. */
#include "any.h"
#include <sys/socket.h>
#include <sys/wait.h>

typedef unsigned long long handle_t;

#define PHYSICAL (128 * MIB)
#define PLAIN (64 * MIB)

static int line;

/* Sends the other side 64 bytes and, optionally, a descriptor. */
static void tell(const char *bytes, int file) {
    char space[CMSG_SPACE(sizeof file)] = {0}, text[64] = {0};
    struct iovec part = {text, sizeof text};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    if (bytes)
        memcpy(text, bytes, sizeof text);
    if (file >= 0) {
        header.msg_control = space;
        header.msg_controllen = sizeof space;
        struct cmsghdr *control = CMSG_FIRSTHDR(&header);
        *control = (struct cmsghdr){CMSG_LEN(sizeof file), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(control), &file, sizeof file);
    }
    if (sendmsg(line, &header, 0) < 0)
        exit(90);
}

static int hear(char *bytes) {
    char space[CMSG_SPACE(sizeof(int))] = {0}, text[64];
    struct iovec part = {text, sizeof text};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    int file = -1;
    if (recvmsg(line, &header, MSG_WAITALL) != sizeof text)
        exit(91);
    if (bytes)
        memcpy(bytes, text, sizeof text);
    if (CMSG_FIRSTHDR(&header))
        memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof file);
    return file;
}

/* Creates memory, and leaves a descriptor of it. */
static int descriptor(void) {
    struct props shared = on_device(0);
    handle_t made;
    int file;
    shared.handle_types = 1;
    must("cuMemCreate", &made, PHYSICAL, &shared, 0ull);
    must("cuMemExportToShareableHandle", &file, made, 1, 0ull);
    must("cuMemRelease", made);
    return file;
}

static handle_t imported(int file) {
    handle_t found;
    must("cuMemImportFromShareableHandle", &found, (void *)(intptr_t)file, 1);
    close(file);
    return found;
}

static void alone(size_t all) {
    CUdeviceptr at;
    int file = descriptor();
    is_left(all - PHYSICAL);
    int copy = dup(file);
    close(file);
    is_left(all - PHYSICAL);
    close(copy);
    is_left(all);

    /* Imported by its own exporter. */
    handle_t again = imported(descriptor());
    is_left(all - PHYSICAL);
    must("cuMemAddressReserve", &at, PHYSICAL, (size_t)0, (CUdeviceptr)0, 0ull);
    must("cuMemMap", at, PHYSICAL, (size_t)0, again, 0ull);
    must("cuMemRelease", again);
    is_left(all - PHYSICAL);
    must("cuMemUnmap", at, PHYSICAL);
    is_left(all);

    /* As many as fit, and no more; the driver's own part does not change. */
    int files[64], many = 0;
    struct props shared = on_device(0);
    handle_t made;
    shared.handle_types = 1;
    for (; call("cuMemCreate", &made, PHYSICAL, &shared, 0ull) == 0; many++) {
        must("cuMemExportToShareableHandle", &files[many], made, 1, 0ull);
        must("cuMemRelease", made);
    }
    if ((size_t)many != all / PHYSICAL)
        exit(70);
    usleep(1200000);
    is_left(all - (size_t)many * PHYSICAL);
    while (many > 0)
        close(files[--many]);
    is_left(all);
}

static void importer(size_t all) {
    char handle[64];
    CUdeviceptr opened;
    handle_t held = imported(hear(NULL));
    is_left(all);
    tell(NULL, -1);
    hear(NULL);
    must("cuMemRelease", held);
    tell(NULL, -1);

    hear(handle);
    struct ipc {
        char bytes[64];
    } ipc;
    memcpy(&ipc, handle, sizeof ipc);
    must("cuIpcOpenMemHandle_v2", &opened, ipc, 1);
    is_left(all);
    tell(NULL, -1);
    hear(NULL);
    must("cuIpcCloseMemHandle", opened);
    tell(NULL, -1);

    /* The importer owns what its exporter leaves behind. */
    held = imported(hear(NULL));
    hear(handle);
    memcpy(&ipc, handle, sizeof ipc);
    must("cuIpcOpenMemHandle_v2", &opened, ipc, 1);
    is_left(all);
    tell(NULL, -1);
    char end;
    if (read(line, &end, 1) != 0)
        exit(71);
    double since = now();
    while (left() != all - PHYSICAL - PLAIN && now() - since < 20)
        usleep(10000);
    is_left(all - PHYSICAL - PLAIN);
    usleep(1200000);
    is_left(all - PHYSICAL - PLAIN);
    must("cuMemRelease", held);
    is_left(all - PLAIN);
    must("cuIpcCloseMemHandle", opened);
    is_left(all);
}

static void exporter(size_t all) {
    char handle[64];
    CUdeviceptr plain;
    int file = descriptor();
    tell(NULL, file);
    close(file);
    hear(NULL);
    is_left(all - PHYSICAL);
    tell(NULL, -1);
    hear(NULL);
    is_left(all);

    must("cuMemAlloc_v2", &plain, PLAIN);
    must("cuIpcGetMemHandle", handle, plain);
    tell(handle, -1);
    hear(NULL);
    must("cuMemFree_v2", plain);
    is_left(all - PLAIN);
    usleep(1200000);
    is_left(all - PLAIN);
    tell(NULL, -1);
    hear(NULL);
    is_left(all);
    /* No process has it open. */
    must("cuMemAlloc_v2", &plain, PLAIN);
    must("cuIpcGetMemHandle", handle, plain);
    must("cuMemFree_v2", plain);
    is_left(all);

    file = descriptor();
    tell(NULL, file);
    must("cuMemAlloc_v2", &plain, PLAIN);
    must("cuIpcGetMemHandle", handle, plain);
    tell(handle, -1);
    hear(NULL);
    exit(0);
}

int main(int count, char **arguments) {
    int pair[2], status = 0;
    pid_t child = -1;
    if (count > 1) {
        line = atoi(arguments[1]);
    } else {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
            return 89;
        child = fork();
        line = pair[child == 0];
        close(pair[child != 0]);
        if (child == 0) {
            /* In a session of its own. */
            char number[16];
            snprintf(number, sizeof number, "%d", line);
            setenv("SLUICE_SESSION_DIR", getenv("OTHER_SESSION"), 1);
            execl(arguments[0], arguments[0], number, (char *)0);
            return 88;
        }
    }
    library = open_driver(RTLD_NOW);
    struct driver d = driver_of(library);
    start_driver(&d);
    size_t all = left();
    if (count > 1)
        exporter(all);
    alone(all);
    importer(all);
    if (waitpid(child, &status, 0) != child || status != 0)
        return 3;
    printf("left=%zu\n", left() / MIB);
    return 0;
}
