/* Never uses a GPU, and prints what its process contains all the same; with "memory" also how much memory that
 * takes. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* Entries of a directory of /proc/self, those above `from` if they are numbers. */
static int count(const char *path, int from) {
    int found = 0;
    DIR *dir = opendir(path);
    struct dirent *entry;
    while ((entry = readdir(dir)))
        found += entry->d_name[0] != '.' && atoi(entry->d_name) > from;
    closedir(dir);
    return found;
}

/* KiB of this process that are resident, how many of them belong to mappings of the limiter, and how many of those
 * it has changed. */
static void resident(long *all, long *limiter, long *own) {
    char line[4096];
    long kib;
    int is_limiter = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    *all = *limiter = *own = 0;
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "Rss: %ld kB", &kib) == 1) {
            *all += kib;
            *limiter += is_limiter ? kib : 0;
        } else if (sscanf(line, "Anonymous: %ld kB", &kib) == 1) {
            *own += is_limiter ? kib : 0;
        } else if (strchr("0123456789abcdef", line[0])) {
            is_limiter = strstr(line, "libcuda_limiter.so") != NULL;
        }
    }
    fclose(maps);
}

/* For how many descriptors the kernel has room before it enlarges this process's table. */
static int table(void) {
    char line[4096];
    int size = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        sscanf(line, "FDSize: %d", &size);
    fclose(status);
    return size;
}

int main(int argc, char **argv) {
    char line[4096];
    long all, limiter, own;
    int mapped = 0, preloaded = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        preloaded |= strstr(line, "libcuda_limiter.so") != NULL;
        /* Pages of sessions, and the driver. */
        mapped += strstr(line, ".page") != NULL || strstr(line, "libfake") != NULL;
    }
    fclose(maps);
    /* Above standard error, without the one that reads the directory. */
    printf("secure=%lu preloaded=%d threads=%d descriptors=%d mapped=%d table=%d\n", getauxval(AT_SECURE), preloaded,
           count("/proc/self/task", 0), count("/proc/self/fd", 2) - 1, mapped, table());
    if (argc > 1 && !strcmp(argv[1], "memory")) {
        resident(&all, &limiter, &own);
        printf("resident=%ld of_limiter=%ld own=%ld\n", all, limiter, own);
    }
    return 0;
}
