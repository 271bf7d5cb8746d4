/* Memory of another process of the same session. Both have a context; shared memory is charged once, to its
 * exporter, whatever the importer does with it. */
#include "any.h"
#include <sys/socket.h>
#include <sys/wait.h>

typedef unsigned long long handle_t;

struct ipc_handle {
    char reserved[64];
};
struct pool_pointer {
    char reserved[64];
};
typedef void *CUmemoryPool;

/* A message from one side to the other. */
struct message {
    struct ipc_handle ipc;
    struct pool_pointer pointer;
    size_t left;
};

#define PLAIN (256 * MIB)
#define PHYSICAL (128 * MIB)
#define POOL (64 * MIB)

static int line;

static void tell(const struct message *message, const int *files, int count) {
    char space[CMSG_SPACE(2 * sizeof(int))] = {0};
    struct iovec part = {(void *)message, sizeof *message};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > 0) {
        header.msg_control = space;
        header.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        struct cmsghdr *control = CMSG_FIRSTHDR(&header);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(control), files, (size_t)count * sizeof(int));
    }
    if (sendmsg(line, &header, 0) < 0)
        exit(90);
}

static struct message hear(int *files, int count) {
    char space[CMSG_SPACE(2 * sizeof(int))] = {0};
    struct message message;
    struct iovec part = {&message, sizeof message};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(line, &header, MSG_WAITALL) != sizeof message)
        exit(91);
    struct cmsghdr *control = CMSG_FIRSTHDR(&header);
    if (count > 0 && control)
        memcpy(files, CMSG_DATA(control), (size_t)count * sizeof(int));
    return message;
}

static void exporter(void) {
    struct message message = {0};
    struct props shared = on_device(0);
    CUdeviceptr plain, pooled;
    CUmemoryPool pool;
    handle_t physical;
    int files[2] = {-1, -1};
    shared.handle_types = 1;
    hear(NULL, 0);
    must("cuMemAlloc_v2", &plain, PLAIN);
    must("cuIpcGetMemHandle", &message.ipc, plain);
    must("cuMemCreate", &physical, PHYSICAL, &shared, 0ull);
    must("cuMemExportToShareableHandle", &files[0], physical, 1, 0ull);
    must("cuMemPoolCreate", &pool, &shared);
    must("cuMemAllocFromPoolAsync", &pooled, POOL, pool, NULL);
    must("cuMemPoolExportToShareableHandle", &files[1], pool, 1, 0ull);
    must("cuMemPoolExportPointer", &message.pointer, pooled);
    message.left = left();
    tell(&message, files, 2);
    hear(NULL, 0);
    /* What was imported and closed has given nothing back here. */
    is_left(message.left);
    must("cuMemFree_v2", plain);
    must("cuMemRelease", physical);
    must("cuMemFreeAsync", pooled, NULL);
    must("cuMemPoolDestroy", pool);
    /* The descriptors still have theirs. */
    is_left(message.left + PLAIN);
    close(files[0]);
    close(files[1]);
    is_left(message.left + PLAIN + PHYSICAL + POOL);
    exit(0);
}

int main(void) {
    int pair[2], files[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
        return 89;
    pid_t child = fork();
    line = pair[child == 0];
    close(pair[child != 0]);
    library = open_driver(RTLD_NOW);
    struct driver d = driver_of(library);
    start_driver(&d);
    if (child == 0)
        exporter();
    struct message message = {0};
    tell(&message, NULL, 0);
    message = hear(files, 2);
    is_left(message.left);

    CUdeviceptr opened, twice, pooled, own;
    CUmemoryPool pool;
    handle_t physical, mine;
    struct props props = on_device(0);

    /* Opened twice, closed twice; the call for one's own memory does not free it. */
    must("cuIpcOpenMemHandle_v2", &opened, message.ipc, 1);
    must("cuIpcOpenMemHandle_v2", &twice, message.ipc, 1);
    is_left(message.left);
    must("cuIpcCloseMemHandle", opened);
    is_left(message.left);
    must("cuIpcCloseMemHandle", twice);
    if (call("cuIpcCloseMemHandle", twice) == 0)
        return 2;
    /* The address may next be one of the process's own. */
    ok(d.mem_alloc(&own, 64 * MIB));
    is_left(message.left - 64 * MIB);
    ok(d.mem_free(own));
    is_left(message.left);

    /* Imported by its descriptor, with the number that was one's own a moment ago, or not. */
    must("cuMemCreate", &mine, 64 * MIB, &props, 0ull);
    must("cuMemRelease", mine);
    must("cuMemImportFromShareableHandle", &physical, (void *)(intptr_t)files[0], 1);
    is_left(message.left);
    CUdeviceptr at;
    must("cuMemAddressReserve", &at, PHYSICAL, (size_t)0, (CUdeviceptr)0, 0ull);
    must("cuMemMap", at, PHYSICAL, (size_t)0, physical, 0ull);
    must("cuMemCreate", &mine, 64 * MIB, &props, 0ull);
    must("cuMemRelease", physical);
    is_left(message.left - 64 * MIB);
    must("cuMemRetainAllocationHandle", &physical, (void *)at);
    must("cuMemUnmap", at, PHYSICAL);
    must("cuMemRelease", physical);
    must("cuMemRelease", mine);
    is_left(message.left);

    /* A pool, and what was allocated from it. */
    must("cuMemPoolImportFromShareableHandle", &pool, (void *)(intptr_t)files[1], 1, 0ull);
    must("cuMemPoolImportPointer", &pooled, pool, &message.pointer);
    is_left(message.left);
    must("cuMemFreeAsync", pooled, NULL);
    ok(d.ctx_synchronize());
    must("cuMemPoolDestroy", pool);
    is_left(message.left);

    size_t all = message.left + PLAIN + PHYSICAL + POOL;
    close(files[0]);
    close(files[1]);
    tell(&message, NULL, 0);
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        return 3;
    /* Its context is gone too, which is noticed within a second. */
    double died = now();
    while (left() <= all && now() - died < 1)
        usleep(1000);
    printf("left=%zu\n", left() / MIB);
    return 0;
}
