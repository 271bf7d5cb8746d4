// How many launches, fills and copies fit behind a held stream before the driver stops the thread. On two GPUs copies
// between them, too: first without peer access, then with it.
//
//   nvcc -O2 -arch=sm_90 -o queue_entries queue_entries.cu -lcuda
//   queue_entries
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <atomic>
#include <chrono>
#include <cuda.h>
#include <cuda_runtime.h>
__global__ void work(float* out) { if (out == nullptr) printf("x"); }
#define OK(c) do { int err_ = (int)(c); if (err_) { fprintf(stderr, "%s: %d\n", #c, err_); exit(1);} } while (0)
int main() {
    OK(cudaSetDevice(0));
    char* m; OK(cudaMalloc(&m, 256 << 20));
    char* pinned; OK(cudaMallocHost(&pinned, 64 << 20));
    unsigned* h; OK(cuMemHostAlloc((void**)&h, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    CUdeviceptr at; OK(cuMemHostGetDevicePointer_v2(&at, h, 0));
    const char* names[] = {"kernel", "fill of 64 bytes", "fill of 4 KiB", "fill of 16 MiB", "fill of rows", "copy within of 64 bytes", "copy within of 4 KiB", "copy within of 16 MiB", "copy from pinned, 4 KiB", "copy to pinned, 4 KiB", "copy from pinned, 1 MiB", "fill of 1 MiB by 32 bits",
        "copy to the other GPU, 4 KiB", "copy to the other GPU, 16 MiB", "copy in 3D, 4 KiB",
        "with peer access, 4 KiB", "with peer access, 16 MiB", "with peer access, in 3D, 4 KiB"};
    int devices; OK(cudaGetDeviceCount(&devices));
    CUcontext contexts[2]; OK(cuCtxGetCurrent(&contexts[0]));
    char* other = nullptr;
    if (devices > 1) {
        OK(cudaSetDevice(1)); OK(cudaMalloc(&other, 64 << 20)); OK(cuCtxGetCurrent(&contexts[1])); OK(cudaSetDevice(0));
    }
    CUDA_MEMCPY3D_PEER box{};
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice = (CUdeviceptr)m; box.srcContext = contexts[0];
    box.dstDevice = (CUdeviceptr)other; box.dstContext = contexts[1];
    box.srcPitch = box.dstPitch = box.WidthInBytes = 1024;
    box.srcHeight = box.dstHeight = box.Height = 4; box.Depth = 1;
    work<<<1, 32>>>((float*)m); OK(cudaDeviceSynchronize());
    for (int kind = 0; kind < (devices > 1 ? 18 : 12); kind++) {
        if (kind == 15) OK(cudaDeviceEnablePeerAccess(1, 0));
        cudaStream_t s; OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        CUdeviceptr a = (CUdeviceptr)m, b = a + (128 << 20);
        auto op = [&] {
            switch (kind) {
            case 0: work<<<1, 32, 0, s>>>((float*)m); break;
            case 1: OK(cuMemsetD8Async(a, 1, 64, s)); break;
            case 2: OK(cuMemsetD8Async(a, 1, 4096, s)); break;
            case 3: OK(cuMemsetD8Async(a, 1, 16 << 20, s)); break;
            case 4: OK(cuMemsetD2D8Async(a, 1024, 1, 512, 64, s)); break;
            case 5: OK(cuMemcpyDtoDAsync(b, a, 64, s)); break;
            case 6: OK(cuMemcpyDtoDAsync(b, a, 4096, s)); break;
            case 7: OK(cuMemcpyDtoDAsync(b, a, 16 << 20, s)); break;
            case 8: OK(cuMemcpyHtoDAsync(a, pinned, 4096, s)); break;
            case 9: OK(cuMemcpyDtoHAsync(pinned, a, 4096, s)); break;
            case 10: OK(cuMemcpyHtoDAsync(a, pinned, 1 << 20, s)); break;
            case 11: OK(cuMemsetD32Async(a, 1, 1 << 18, s)); break;
            case 12: case 15: OK(cuMemcpyPeerAsync((CUdeviceptr)other, contexts[1], a, contexts[0], 4096, s)); break;
            case 13: case 16: OK(cuMemcpyPeerAsync((CUdeviceptr)other, contexts[1], a, contexts[0], 16 << 20, s)); break;
            case 14: case 17: OK(cuMemcpy3DPeerAsync(&box, s)); break;
            }
        };
        op(); OK(cudaStreamSynchronize(s));
        h[0] = 0;
        OK(cuStreamWaitValue32_v2(s, at, 1, CU_STREAM_WAIT_VALUE_AND));
        std::atomic<int> n{0};
        std::thread t([&] { for (int i = 0; i < 3000; i++) { op(); n++; } });
        int before = -1;
        for (;;) {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            int now = n; if (now == before || now == 3000) break; before = now;
        }
        printf("%-28s %d%s\n", names[kind], (int)n, n == 3000 ? " and more" : " and then it blocks"); fflush(stdout);
        h[0] = 1; t.join(); OK(cudaStreamSynchronize(s)); OK(cudaStreamDestroy(s));
    }
}
