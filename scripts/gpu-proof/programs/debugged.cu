// A kernel for a debugger to stop in: it is launched four times.
//
//   nvcc -g -G -arch=native -o debugged debugged.cu
#include <cstdio>
#include <cstdlib>

static const int LAUNCHES = 4, BLOCKS = 6, THREADS = 96;

static void check(cudaError_t status, const char *call)
{
    if (status != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
        exit(1);
    }
}
#define CHECK(call) check(call, #call)

__global__ void debugged(float *values, int launch)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    values[at] = values[at] * 0.5f + launch + at;
}

int main()
{
    static float host[BLOCKS * THREADS];
    float *values;
    CHECK(cudaMalloc(&values, sizeof host));
    CHECK(cudaMemset(values, 0, sizeof host));
    for (int launch = 0; launch < LAUNCHES; launch++)
        debugged<<<BLOCKS, THREADS>>>(values, launch);
    CHECK(cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(values));
    double sum = 0;
    for (float value : host)
        sum += value;
    printf("\n{\"program\": \"debugged\", \"result\": [%.6f, %.6f]}\n", sum, host[7]);
    return 0;
}
