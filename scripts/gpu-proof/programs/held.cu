// What streams that wait cost another process. Holds streams for some seconds, and prints `held` when they are.
//
//     nvcc -o held held.cu -lcuda
//     ./held 0 & sleep 1; tenant dense --kernel-us 250 --seconds 1.2; wait
//
// The ways to hold: 0 none. 1 one stream waits for a value in host memory. 2 another stream waits for its event as well.
// 3 seven streams wait for the value. 4 as 2, and the other waits for the value behind that. 5 the legacy stream waits
// for the value, and behind it for the event of a held stream. 6 three streams wait for the value, the legacy one among
// them. 7 a blocking stream is held, and then the legacy one. 8 as 2, but the other stream waits for a value that the
// first writes once it has passed, and then for its event. 9 as 7, the other way round.

#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <vector>

#define CHECK(call)                                        \
    do {                                                   \
        CUresult result = (call);                          \
        if (result != CUDA_SUCCESS) {                      \
            fprintf(stderr, "%s: %d\n", #call, result);    \
            exit(1);                                       \
        }                                                  \
    } while (0)

static const char *kernel = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing(){ret;}";
static CUfunction nothing;
static CUdeviceptr gate;

static void launch(CUstream stream) { CHECK(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr)); }

static void hold(CUstream stream) {
    CHECK(cuStreamWaitValue32(stream, gate, 1, CU_STREAM_WAIT_VALUE_AND));
    launch(stream);
}

int main(int count, char **arguments) {
    int way = count > 1 ? atoi(arguments[1]) : 0;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, kernel));
    CHECK(cuModuleGetFunction(&nothing, module, "nothing"));
    volatile unsigned *words;
    CHECK(cuMemHostAlloc((void **)&words, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    CHECK(cuMemHostGetDevicePointer(&gate, (void *)words, 0));
    words[0] = words[16] = 0;
    CUdeviceptr passed = gate + 16 * sizeof(unsigned);
    std::vector<CUstream> streams(way == 3 ? 7 : 2);
    for (auto &stream : streams) CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUstream blocking, first = streams[0], second = streams[1];
    CHECK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CUevent event;
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    // What is loaded for a first launch would wait for held streams.
    for (auto stream : streams) launch(stream);
    launch(blocking);
    launch(CU_STREAM_LEGACY);
    CHECK(cuCtxSynchronize());
    if (way == 1 || way == 2 || way == 4) hold(first);
    if (way == 2 || way == 4) {
        CHECK(cuEventRecord(event, first));
        CHECK(cuStreamWaitEvent(second, event, 0));
        way == 2 ? launch(second) : hold(second);
    }
    if (way == 3)
        for (auto stream : streams) hold(stream);
    if (way == 5) {
        hold(second);
        CHECK(cuEventRecord(event, second));
        hold(CU_STREAM_LEGACY);
        CHECK(cuStreamWaitEvent(CU_STREAM_LEGACY, event, 0));
        launch(CU_STREAM_LEGACY);
    }
    if (way == 6) {
        hold(first);
        hold(second);
        hold(CU_STREAM_LEGACY);
    }
    if (way == 7 || way == 9) {
        hold(way == 7 ? blocking : CU_STREAM_LEGACY);
        hold(way == 7 ? CU_STREAM_LEGACY : blocking);
    }
    if (way == 8) {
        hold(first);
        CHECK(cuStreamWriteValue32(first, passed, 1, 0));
        launch(first);
        CHECK(cuEventRecord(event, first));
        CHECK(cuStreamWaitValue32(second, passed, 1, CU_STREAM_WAIT_VALUE_GEQ));
        CHECK(cuStreamWaitEvent(second, event, 0));
        hold(second);
    }
    puts("held");
    fflush(stdout);
    usleep(3500000);
    words[0] = 1;
    CHECK(cuCtxSynchronize());
}
