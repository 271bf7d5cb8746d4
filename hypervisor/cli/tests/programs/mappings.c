/* Has MAPPINGS mappings, and so have COPIES children; prints their ids and ends with its input:
 *   mappings MAPPINGS COPIES */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    long count = atol(argv[1]), page = sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, (size_t)(count * page), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* Neighbours of different kinds are not joined. */
    for (long i = 0; i < count; i += 2)
        if (mprotect(at + i * page, (size_t)page, PROT_NONE))
            break;
    for (int copies = atoi(argv[2]); copies > 0; copies--) {
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                pause();
        }
        printf("%d\n", (int)child);
    }
    printf("ready\n");
    fflush(stdout);
    return getchar() == EOF ? 0 : 1;
}
