// A dense program that notes the device's clock at the begin and the end of each kernel, for gaps.py.
//
//   nvcc -O2 -arch=sm_90 -o gaps gaps.cu
//   gaps calibrate US               prints how many loops take so many microseconds
//   gaps LOOPS SECONDS FILE         runs, and writes two numbers of 64 bits for each kernel
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <cuda_runtime.h>
#include <vector>

struct Times {
    unsigned long long begin, end;
};

__global__ void work(long long loops, Times* times, int number) {
    unsigned long long begin, end;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    float x = threadIdx.x;
    for (long long loop = 0; loop < loops; loop++) x = x * 1.0001f + 0.5f;
    if (x == 12345.678f) times[0].begin = 1;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(end));
    if (threadIdx.x == 0 && blockIdx.x == 0) times[number] = {begin, end};
}

#define CHECK(call)                                                                    \
    do {                                                                               \
        cudaError_t error_ = (call);                                                   \
        if (error_ != cudaSuccess) {                                                   \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_));            \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

static double now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void calibrate(double us) {
    const long long loops = 100000;
    Times *device, host[2];
    CHECK(cudaMalloc(&device, sizeof host));
    // Until the clocks are up.
    for (int i = 0; i < 3000; i++) work<<<132, 64>>>(loops, device, 0);
    work<<<132, 64>>>(loops, device, 0);
    work<<<132, 64>>>(2 * loops, device, 1);
    CHECK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    double once = host[0].end - host[0].begin, twice = host[1].end - host[1].begin;
    printf("%lld\n", (long long)(loops * us * 1e3 / (twice - once)));
}

int main(int count, char** arguments) {
    if (count == 3 && !strcmp(arguments[1], "calibrate")) {
        calibrate(atof(arguments[2]));
        return 0;
    }
    if (count != 4) {
        fprintf(stderr, "gaps calibrate US, or gaps LOOPS SECONDS FILE\n");
        return 2;
    }
    const long long loops = atoll(arguments[1]);
    const double seconds = atof(arguments[2]);
    // Kernels that are queued at most: 64 times a few.
    const int most = 1000000, ring = 64, each = loops < 90000 ? 8 : 1;
    Times* device;
    CHECK(cudaMalloc(&device, sizeof(Times) * (size_t)most));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaEvent_t events[ring];
    for (auto& event : events) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    int kernels = 0;
    const double begun = now();
    for (int step = 0; now() - begun < seconds && kernels < most - each; step++) {
        if (step >= ring) CHECK(cudaEventSynchronize(events[step % ring]));
        for (int one = 0; one < each; one++) work<<<132, 64, 0, stream>>>(loops, device, kernels++);
        CHECK(cudaEventRecord(events[step % ring], stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    std::vector<Times> host(kernels);
    CHECK(cudaMemcpy(host.data(), device, sizeof(Times) * kernels, cudaMemcpyDeviceToHost));
    FILE* file = fopen(arguments[3], "wb");
    if (!file || fwrite(host.data(), sizeof(Times), kernels, file) != (size_t)kernels || fclose(file)) {
        perror(arguments[3]);
        return 1;
    }
    return 0;
}
