// Starts a thread and a process, which becomes the program that the arguments name.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void *thread(void *unused) { return unused; }
int main(int argc, char **argv) {
    pthread_t one;
    int status = 1;
    if (pthread_create(&one, NULL, thread, NULL) || pthread_join(one, NULL)) return 1;
    if (fork() == 0) { if (argc > 1) execv(argv[1], argv + 1); _exit(0); }
    wait(&status);
    printf("%s: %d\n", argc > 1 ? "parent" : "child", status);
    return 0;
}
