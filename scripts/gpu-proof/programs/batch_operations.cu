// What operations of a stream cost the device and the thread, beside kernels that come after each other.
//
//   nvcc -O2 -arch=sm_90 -o batch_operations batch_operations.cu -lcuda
//   batch_operations KERNELS US BATCHES ROUNDS
//
// A batch is so many kernels of so many microseconds, with a wait for a word that has its value, and words that are
// written, around it. Each way comes once in a round; medians of the rounds. The thread's times are good only where the
// driver's queue does not fill up.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <algorithm>
#include <vector>
#include <cuda.h>
#include <cuda_runtime.h>
__global__ void work(long long loops, float* out) {
    float x = threadIdx.x;
    for (long long l = 0; l < loops; l++) x = x * 1.0001f + 0.5f;
    if (x == 12345.678f) *out = x;
}
static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
#define OK(c) do { int err_ = (int)(c); if (err_) { fprintf(stderr, "%s: %d\n", #c, err_); exit(1);} } while (0)
static CUdeviceptr gate, begun, done_;
static cudaStream_t s;
static float* out;
static cudaEvent_t ev[64];
static double ops_ns;
static int K; static long long loops;
static unsigned n = 1;
static CUstreamBatchMemOpParams wait_op() { CUstreamBatchMemOpParams p; memset(&p, 0, sizeof p); p.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32; p.waitValue.address = gate; p.waitValue.value = 1; p.waitValue.flags = CU_STREAM_WAIT_VALUE_AND; return p; }
static CUstreamBatchMemOpParams write_op(CUdeviceptr at, unsigned v) { CUstreamBatchMemOpParams p; memset(&p, 0, sizeof p); p.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32; p.writeValue.address = at; p.writeValue.value = v; return p; }
static void kernels() { for (int i = 0; i < K; i++) work<<<132, 64, 0, s>>>(loops, out); }
static void batch(int v, int i) {
    double a = now(), b, c, d;
    n++;
    CUstreamBatchMemOpParams p[3];
    switch (v) {
    case 1: case 7: OK(cuStreamWaitValue32_v2(s, gate, 1, CU_STREAM_WAIT_VALUE_AND)); OK(cuStreamWriteValue32_v2(s, begun, n, 0)); break;
    case 2: case 9: p[0] = wait_op(); p[1] = write_op(begun, n); OK(cuStreamBatchMemOp_v2(s, 2, p, 0)); break;
    case 3: p[0] = write_op(done_, n - 1); p[1] = wait_op(); p[2] = write_op(begun, n); OK(cuStreamBatchMemOp_v2(s, 3, p, 0)); break;
    case 5: OK(cuStreamWaitValue32_v2(s, gate, 1, CU_STREAM_WAIT_VALUE_AND)); break;
    case 8: OK(cuStreamWriteValue32_v2(s, begun, n, 0)); break;
    }
    b = now();
    kernels();
    c = now();
    switch (v) {
    case 1: case 2: case 4: OK(cuStreamWriteValue32_v2(s, done_, n, 0)); break;
    case 6: case 9: OK(cudaEventRecord(ev[i % 64], s)); break;
    }
    d = now();
    ops_ns += (b - a + d - c) * 1e9;
}
int main(int, char** av) {
    K = atoi(av[1]); double us = atof(av[2]); int N = atoi(av[3]), R = atoi(av[4]);
    OK(cudaSetDevice(0)); OK(cudaMalloc(&out, 4));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (auto& e : ev) OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    unsigned* h; OK(cuMemHostAlloc((void**)&h, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    CUdeviceptr at; OK(cuMemHostGetDevicePointer_v2(&at, h, 0));
    h[0] = 1; gate = at; begun = at + 128; done_ = at + 256;
    // calibrate
    loops = 10000; for (int i = 0; i < 3000; i++) work<<<132, 64, 0, s>>>(loops, out);
    OK(cudaStreamSynchronize(s));
    cudaEvent_t x, y; cudaEventCreate(&x); cudaEventCreate(&y);
    cudaEventRecord(x, s); work<<<132, 64, 0, s>>>(4000000, out); cudaEventRecord(y, s); OK(cudaStreamSynchronize(s));
    float ms; cudaEventElapsedTime(&ms, x, y); loops = (long long)(us * 4000000 / (ms * 1e3));
    const char* names[] = {"none", "wait, write; write", "batch(wait, write); write", "batch(write, wait, write)", "write only", "wait only", "event only", "wait, write", "write begun only", "batch(wait, write); event"};
    const int V = 10;
    std::vector<double> per[V], cpu[V];
    for (int r = 0; r < R; r++)
        for (int k = 0; k < V; k++) {
            int v = (k + r) % V;
            for (int i = 0; i < 20; i++) batch(v, i);
            OK(cudaStreamSynchronize(s));
            ops_ns = 0; double a = now();
            for (int i = 0; i < N; i++) batch(v, i);
            OK(cudaStreamSynchronize(s));
            per[v].push_back((now() - a) * 1e6 / N); cpu[v].push_back(ops_ns / N / 1e3);
        }
    auto med = [](std::vector<double> x) { std::sort(x.begin(), x.end()); return x[x.size() / 2]; };
    double base = med(per[0]);
    for (int v = 0; v < V; v++) printf("%-36s %9.2f us a batch, %+6.2f us; host %5.2f us\n", names[v], med(per[v]), med(per[v]) - base, med(cpu[v]) - med(cpu[0]));
}
