// A program of the CUDA runtime that is linked into it, as nvcc does unless told otherwise: four threads, each with
// memory of its own and the stream that is its default.
//
//   nvcc -O2 -arch=native -o runtime_ops runtime_ops.cu
//   nvcc -O2 -arch=native --default-stream per-thread -o runtime_ops runtime_ops.cu
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

static const int THREADS = 4, STEPS = 400, WARM_UP = 10, VALUES = 1 << 22;

static void check(cudaError_t status, const char *call)
{
    if (status != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
        exit(1);
    }
}
#define CHECK(call) check(call, #call)

__global__ void begin(float *values, int thread)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    values[at] = (at % 1000) * 0.001f + thread;
}

__global__ void step(float *values)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    float value = values[at];
    for (int i = 0; i < 64; i++)
        value = value * 0.999f + 0.001f;
    values[at] = value;
}

struct Outcome {
    double sum;
    bool correct;
};

static void work(int thread, Outcome *outcome)
{
    float *values;
    CHECK(cudaMalloc(&values, VALUES * sizeof(float)));
    begin<<<VALUES / 256, 256>>>(values, thread);
    for (int i = 0; i < WARM_UP + STEPS; i++)
        step<<<VALUES / 256, 256>>>(values);
    std::vector<float> host(VALUES);
    CHECK(cudaMemcpy(host.data(), values, VALUES * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(values));
    *outcome = {0, true};
    // The first thousand repeat; they are reckoned again here.
    for (int at = 0; at < VALUES; at++) {
        outcome->sum += host[at];
        outcome->correct &= host[at] == host[at % 1000];
    }
    for (int at = 0; at < 1000; at += 37) {
        float value = at * 0.001f + thread;
        for (int i = 0; i < (WARM_UP + STEPS) * 64; i++)
            value = value * 0.999f + 0.001f;
        outcome->correct &= value - host[at] < 1e-3f && host[at] - value < 1e-3f;
    }
}

int main()
{
    CHECK(cudaFree(0));
    size_t available, total;
    CHECK(cudaMemGetInfo(&available, &total));
    Outcome outcomes[THREADS];
    std::vector<std::thread> threads;
    auto begun = std::chrono::steady_clock::now();
    for (int thread = 0; thread < THREADS; thread++)
        threads.emplace_back(work, thread, &outcomes[thread]);
    for (auto &thread : threads)
        thread.join();
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    bool correct = true;
    printf("{\"program\": \"runtime_ops\", \"unit\": \"kernels/s\", \"rate\": %f, \"memory_total\": %zu, \"result\": [", THREADS * STEPS / seconds, total);
    for (int thread = 0; thread < THREADS; thread++) {
        printf("%s%.9g", thread ? ", " : "", outcomes[thread].sum);
        correct &= outcomes[thread].correct;
    }
    printf("], \"correct\": %s}\n", correct ? "true" : "false");
    return correct ? 0 : 1;
}
