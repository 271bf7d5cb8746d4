/* The part of the driver API that the test programs use, looked up like a program without the toolkit does: dlopen,
 * then dlsym. */
#ifndef DRIVER_H
#define DRIVER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef void *CUcontext, *CUstream, *CUmodule, *CUfunction, *CUgraph;
typedef uint64_t CUdeviceptr;

#define MIB ((size_t)1 << 20)
/* More than the limit of these tests and less than the device has. */
#define TOO_MUCH (2048 * MIB)
#define LITTLE (64 * MIB)

struct driver {
    CUresult (*init)(unsigned);
    CUresult (*device_get)(CUdevice *, int);
    CUresult (*ctx_create)(CUcontext *, unsigned, CUdevice);
    CUresult (*ctx_destroy)(CUcontext);
    CUresult (*ctx_set)(CUcontext);
    CUresult (*ctx_synchronize)(void);
    CUresult (*mem_alloc)(CUdeviceptr *, size_t);
    CUresult (*mem_free)(CUdeviceptr);
    CUresult (*mem_info)(size_t *, size_t *);
    CUresult (*total_mem)(size_t *, CUdevice);
    CUresult (*module_load)(CUmodule *, const void *);
    CUresult (*module_function)(CUfunction *, CUmodule, const char *);
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       unsigned, CUstream, void **, void **);
    CUresult (*stream_create)(CUstream *, unsigned);
    CUresult (*stream_destroy)(CUstream);
    CUresult (*stream_synchronize)(CUstream);
    CUresult (*begin_capture)(CUstream, int);
    CUresult (*end_capture)(CUstream, CUgraph *);
};

static inline void *need(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(99);
    }
    return found;
}

static inline struct driver driver_of(void *library) {
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(98);
    }
    struct driver d;
    *(void **)&d.init = need(library, "cuInit");
    *(void **)&d.device_get = need(library, "cuDeviceGet");
    *(void **)&d.ctx_create = need(library, "cuCtxCreate_v2");
    *(void **)&d.ctx_destroy = need(library, "cuCtxDestroy_v2");
    *(void **)&d.ctx_set = need(library, "cuCtxSetCurrent");
    *(void **)&d.ctx_synchronize = need(library, "cuCtxSynchronize");
    *(void **)&d.mem_alloc = need(library, "cuMemAlloc_v2");
    *(void **)&d.mem_free = need(library, "cuMemFree_v2");
    *(void **)&d.mem_info = need(library, "cuMemGetInfo_v2");
    *(void **)&d.total_mem = need(library, "cuDeviceTotalMem_v2");
    *(void **)&d.module_load = need(library, "cuModuleLoadData");
    *(void **)&d.module_function = need(library, "cuModuleGetFunction");
    *(void **)&d.launch = need(library, "cuLaunchKernel");
    *(void **)&d.stream_create = need(library, "cuStreamCreate");
    *(void **)&d.stream_destroy = need(library, "cuStreamDestroy_v2");
    *(void **)&d.stream_synchronize = need(library, "cuStreamSynchronize");
    *(void **)&d.begin_capture = need(library, "cuStreamBeginCapture_v2");
    *(void **)&d.end_capture = need(library, "cuStreamEndCapture");
    return d;
}

static inline void *open_driver(int flags) { return dlopen("libcuda.so.1", flags); }

/* Ends the program if a call failed. */
static inline void ok_(CUresult result, const char *call) {
    if (result != 0) {
        fprintf(stderr, "%s: CUresult %d\n", call, result);
        exit(97);
    }
}
#define ok(call) ok_(call, #call)

/* A context on the first device. */
static inline CUcontext start_driver(const struct driver *d) {
    CUdevice device;
    CUcontext context;
    ok(d->init(0));
    ok(d->device_get(&device, 0));
    ok(d->ctx_create(&context, 0, device));
    return context;
}

/* Prints the results of an allocation within the limit and of one beyond it. */
static inline void say_limit(const struct driver *d) {
    CUdeviceptr memory;
    printf("little=%d ", d->mem_alloc(&memory, LITTLE));
    printf("much=%d\n", d->mem_alloc(&memory, TOO_MUCH));
    fflush(stdout);
}

/* A kernel that keeps the device busy for as many nanoseconds as its first parameter says. */
static inline CUfunction spin_kernel(const struct driver *d) {
    static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                                ".visible .entry spin(.param .u64 ns) { ret; }\n";
    CUmodule module;
    CUfunction function;
    ok(d->module_load(&module, image));
    ok(d->module_function(&function, module, "spin"));
    return function;
}

static inline CUresult spin(const struct driver *d, CUfunction kernel, uint64_t us, CUstream stream) {
    uint64_t ns = us * 1000;
    void *params[] = {&ns};
    return d->launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

/* For programs that hold streams: with lazy loading, the first launch of a kernel waits for all held streams. */
static inline void load_spin(const struct driver *d, CUfunction kernel) {
    ok(spin(d, kernel, 1, NULL));
    ok(d->ctx_synchronize());
}

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

#endif
