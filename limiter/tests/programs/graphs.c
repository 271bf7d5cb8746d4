/* Memory of graphs in odd orders. The limit leaves 512 MiB beside the context. */
#include "any.h"

#define AUTO_FREE_ON_LAUNCH 1ull

typedef void *CUgraphExec, *CUgraphNode;

struct alloc_node {
    struct props pool;
    void *access;
    size_t access_count, bytes;
    CUdeviceptr address;
};

/* A graph that allocates and, if `frees`, frees again. */
static CUgraph graph_of(size_t bytes, int frees, CUdeviceptr *address) {
    CUgraph graph;
    CUgraphNode node, end;
    struct alloc_node params = {.pool = on_device(0), .bytes = bytes};
    must("cuGraphCreate", &graph, 0);
    must("cuGraphAddMemAllocNode", &node, graph, NULL, (size_t)0, &params);
    if (frees)
        must("cuGraphAddMemFreeNode", &end, graph, &node, (size_t)1, params.address);
    if (address)
        *address = params.address;
    return graph;
}

static CUgraphExec executable(CUgraph graph, unsigned long long flags) {
    CUgraphExec exec;
    must("cuGraphInstantiateWithFlags", &exec, graph, flags);
    return exec;
}

static void end(CUgraphExec exec, CUgraph graph) {
    must("cuGraphExecDestroy", exec);
    must("cuGraphDestroy", graph);
}

int main(void) {
    library = open_driver(RTLD_NOW);
    struct driver d = driver_of(library);
    CUcontext context = start_driver(&d);
    CUstream stream, other;
    ok(d.stream_create(&stream, 1));
    ok(d.stream_create(&other, 1));
    const size_t whole = left();
    CUdeviceptr first, second, plain;

    /* Launched again and again, it needs its memory once. */
    CUgraph graph = graph_of(400 * MIB, 1, NULL);
    CUgraphExec exec = executable(graph, 0);
    is_left(whole);
    for (int round = 0; round < 20; round++)
        must("cuGraphLaunch", exec, stream);
    ok(d.stream_synchronize(stream));
    /* What it has cached makes room for others, and comes back. */
    ok(d.mem_alloc(&plain, 400 * MIB));
    expect(OUT_OF_MEMORY, "cuGraphLaunch", exec, stream);
    ok(d.mem_free(plain));
    must("cuGraphLaunch", exec, stream);
    ok(d.stream_synchronize(stream));
    end(exec, graph);
    must("cuDeviceGraphMemTrim", 0);
    is_left(whole);

    /* Graphs that come one after the other share. */
    CUgraph graphs[2] = {graph_of(300 * MIB, 1, NULL), graph_of(300 * MIB, 1, NULL)};
    CUgraphExec execs[2] = {executable(graphs[0], 0), executable(graphs[1], 0)};
    for (int round = 0; round < 20; round++)
        must("cuGraphLaunch", execs[round % 2], round % 4 < 2 ? stream : other);
    ok(d.ctx_synchronize());
    for (int i = 0; i < 2; i++)
        end(execs[i], graphs[i]);
    must("cuDeviceGraphMemTrim", 0);
    is_left(whole);

    /* What is left allocated stays charged when its graph is gone, until it is freed. */
    graphs[0] = graph_of(300 * MIB, 0, &first);
    graphs[1] = graph_of(300 * MIB, 0, &second);
    execs[0] = executable(graphs[0], 0);
    execs[1] = executable(graphs[1], 0);
    must("cuGraphLaunch", execs[0], stream);
    expect(OUT_OF_MEMORY, "cuGraphLaunch", execs[1], stream);
    ok(d.stream_synchronize(stream));
    end(execs[0], graphs[0]);
    must("cuDeviceGraphMemTrim", 0);
    expect(OUT_OF_MEMORY, "cuGraphLaunch", execs[1], stream);
    expect(OUT_OF_MEMORY, "cuMemAlloc_v2", &plain, 300 * MIB);
    ok(d.mem_free(first));
    must("cuGraphUpload", execs[1], stream);
    must("cuGraphLaunch", execs[1], stream);
    must("cuMemFreeAsync", second, stream);
    ok(d.stream_synchronize(stream));
    ok(d.mem_alloc(&plain, 400 * MIB));
    ok(d.mem_free(plain));
    end(execs[1], graphs[1]);
    must("cuDeviceGraphMemTrim", 0);
    is_left(whole);

    /* Each launch frees what the one before has left. */
    graph = graph_of(300 * MIB, 0, &first);
    exec = executable(graph, AUTO_FREE_ON_LAUNCH);
    for (int round = 0; round < 5; round++)
        must("cuGraphLaunch", exec, stream);
    must("cuMemFreeAsync", first, stream);
    ok(d.stream_synchronize(stream));
    end(exec, graph);
    must("cuDeviceGraphMemTrim", 0);
    is_left(whole);

    /* A captured allocation is a node: nothing is charged before its launch, nor as a pool's. */
    ok(d.begin_capture(stream, 2));
    must("cuMemAllocAsync", &first, 400 * MIB, stream);
    must("cuMemFreeAsync", first, stream);
    ok(d.end_capture(stream, &graph));
    is_left(whole);
    exec = executable(graph, 0);
    must("cuGraphLaunch", exec, stream);
    ok(d.stream_synchronize(stream));
    is_left(whole - 416 * MIB);
    end(exec, graph);
    ok(d.mem_alloc(&plain, 448 * MIB));
    ok(d.mem_free(plain));
    is_left(whole);

    /* Everything ends with the context. */
    graph = graph_of(300 * MIB, 0, NULL);
    exec = executable(graph, 0);
    must("cuGraphLaunch", exec, stream);
    ok(d.stream_synchronize(stream));
    ok(d.ctx_destroy(context));
    context = start_driver(&d);
    is_left(whole);
    printf("left=%zu\n", whole / MIB);
    return 0;
}
