/* A driver that exports one function twice under one name, as libraries with symbol versions do. */
int init(unsigned flags) { return flags == 0 ? 0 : 1; }
__asm__(".symver init, cuInit@FIRST");
int init_again(unsigned flags) __attribute__((alias("init")));
__asm__(".symver init_again, cuInit@@SECOND");
