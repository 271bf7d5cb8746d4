/* Never uses a GPU; says what is in its process all the same. */
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

int main(void) {
    char line[4096];
    int mapped = 0, preloaded = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        preloaded |= strstr(line, "libcuda_limiter.so") != NULL;
        /* Pages of sessions, and the driver. */
        mapped += strstr(line, ".page") != NULL || strstr(line, "libfake") != NULL;
    }
    fclose(maps);
    /* Above standard error; the one that reads the directory is not counted. */
    printf("secure=%lu preloaded=%d threads=%d descriptors=%d mapped=%d\n", getauxval(AT_SECURE), preloaded,
           count("/proc/self/task", 0), count("/proc/self/fd", 2) - 1, mapped);
    return 0;
}
