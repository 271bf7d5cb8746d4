//! Memory that one process shares with others: it counts once, and stays allocated until the last process has released
//! it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;

use crate::support::*;
use driver::cuda::{
    AccessDesc, AllocationProp, HANDLE_TYPE_POSIX_FD, IPC_LAZY_PEER_ACCESS, IpcMemHandle,
    MemLocation, PoolProps,
};

const SMALL: &[(&str, &str)] = &[("SLUICE_FAKE_MEMORY", "1GiB"), ("SLUICE_FAKE_CONTEXT", "128MiB")];
const CONTEXT: u64 = 128 * MIB;
const SIZE: u64 = 4 * MIB;

fn location() -> MemLocation {
    MemLocation { kind: 1, id: 0 }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> [u8; 64] {
    core::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

fn fill(address: u64, value: u8) {
    ok(cuMemsetD8_v2(address, value, 1000));
}

fn first_byte(address: u64) -> u8 {
    let mut byte = 0;
    ok(cuMemcpyDtoH_v2((&raw mut byte).cast(), address, 1));
    byte
}

/// Another process, which opens something, prints a word after each step, and takes the next step for each byte it
/// receives.
struct Other {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(part: &str) -> Self {
        let mut child = start_part(part);
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Waits until the process prints `word`.
    fn says(&mut self, word: &str) {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "it ended before '{word}'");
            if line.trim_end().ends_with(word) {
                return;
            }
        }
    }

    fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"g").unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[allow(clippy::print_stdout, reason = "a part of a test speaks to the other by its output")]
fn say(word: &str) {
    println!("\n{word}");
}

fn wait_for_go() {
    std::io::stdin().read_exact(&mut [0]).unwrap();
}

/// Makes a descriptor inheritable, under the same number.
fn inherit(descriptor: i32) {
    // SAFETY: clears a flag of a descriptor of this test.
    assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) }, 0);
}

fn close(descriptor: i32) {
    // SAFETY: a descriptor of this test, not used again.
    assert_eq!(unsafe { libc::close(descriptor) }, 0);
}

#[test]
fn ipc_memory_counts_once_and_until_all_let_go() {
    isolated(SMALL, || {
        if let Some(part) = part() {
            let _gpu = Gpu::open();
            let handle = IpcMemHandle { reserved: unhex(&part) };
            let (mut address, mut again) = (0, 0);
            assert_eq!(cuIpcOpenMemHandle_v2(&mut address, handle, 0), INVALID_VALUE);
            let wrong = IpcMemHandle { reserved: [7; 64] };
            assert_eq!(cuIpcOpenMemHandle_v2(&mut address, wrong, 1), INVALID_HANDLE);
            ok(cuIpcOpenMemHandle_v2(&mut address, handle, IPC_LAZY_PEER_ACCESS));
            assert_eq!(first_byte(address), 0x5a);
            fill(address, 0x33);
            ok(cuIpcOpenMemHandle_v2(&mut again, handle, IPC_LAZY_PEER_ACCESS));
            assert_eq!(again, address);
            assert_eq!(cuMemFree_v2(address), INVALID_VALUE);
            ok(cuIpcCloseMemHandle(address));
            say("opened");
            wait_for_go();
            assert_eq!(first_byte(address), 0x33);
            ok(cuIpcCloseMemHandle(address));
            assert_eq!(cuIpcCloseMemHandle(address), INVALID_VALUE);
            say("closed");
            wait_for_go();
            return;
        }
        let _gpu = Gpu::open();
        let before = free_memory();
        let (mut address, mut handle) = (0, IpcMemHandle { reserved: [0; 64] });
        ok(cuMemAlloc_v2(&mut address, SIZE as usize));
        fill(address, 0x5a);
        assert_eq!(cuIpcGetMemHandle(&mut handle, address + 4096), INVALID_VALUE);
        ok(cuIpcGetMemHandle(&mut handle, address));
        ok(cuIpcGetMemHandle(&mut handle, address));
        assert_eq!(first_byte(address), 0x5a);
        let mut own = 0;
        assert_eq!(cuIpcOpenMemHandle_v2(&mut own, handle, 1), INVALID_CONTEXT);
        let mut other = Other::start(&hex(&handle.reserved));
        other.says("opened");
        assert_eq!(first_byte(address), 0x33);
        assert_eq!(before - free_memory(), CONTEXT + SIZE);
        ok(cuMemFree_v2(address));
        assert_eq!(before - free_memory(), CONTEXT + SIZE, "the other one has it");
        assert_eq!(cuIpcOpenMemHandle_v2(&mut own, handle, 1), INVALID_HANDLE);
        other.go_on();
        other.says("closed");
        assert_eq!(before - free_memory(), CONTEXT);
        other.kill();
        eventually(|| free_memory() == before);
        // Only memory from `cuMemAlloc` can be exported.
        ok(cuMemAllocAsync(&mut address, 4096, null()));
        assert_eq!(cuIpcGetMemHandle(&mut handle, address), INVALID_VALUE);
    });
}

#[test]
fn the_dead_close_what_they_opened_and_leave_what_they_exported() {
    isolated(SMALL, || {
        if let Some(part) = part() {
            let _gpu = Gpu::open();
            let (mut address, mut handle) = (0, IpcMemHandle { reserved: [0; 64] });
            if part == "export" {
                ok(cuMemAlloc_v2(&mut address, SIZE as usize));
                ok(cuIpcGetMemHandle(&mut handle, address));
                say(&hex(&handle.reserved));
            } else {
                handle.reserved = unhex(&part);
                ok(cuIpcOpenMemHandle_v2(&mut address, handle, 1));
                say("opened");
            }
            wait_for_go();
            return;
        }
        let _gpu = Gpu::open();
        let before = free_memory();
        let mut exporter = Other::start("export");
        let mut line = String::new();
        while line.trim_end().len() != 128 {
            line.clear();
            assert_ne!(exporter.lines.read_line(&mut line).unwrap(), 0);
        }
        let mut importer = Other::start(line.trim_end());
        importer.says("opened");
        assert_eq!(before - free_memory(), 2 * CONTEXT + SIZE);
        exporter.kill();
        eventually(|| before - free_memory() == CONTEXT + SIZE);
        importer.kill();
        eventually(|| free_memory() == before);
    });
}

#[test]
fn physical_memory_travels_in_a_descriptor() {
    isolated(SMALL, || {
        let mut prop = AllocationProp {
            kind: 1,
            handle_types: HANDLE_TYPE_POSIX_FD,
            location: location(),
            win32_handle_meta_data: null(),
            alloc_flags: [0; 8],
        };
        let access = AccessDesc { location: location(), flags: 3 };
        let map = |handle| {
            let mut address = 0;
            ok(cuMemAddressReserve(&mut address, SIZE as usize, 0, 0, 0));
            ok(cuMemMap(address, SIZE as usize, 0, handle, 0));
            ok(cuMemSetAccess(address, SIZE as usize, (&raw const access).cast(), 1));
            address
        };
        if let Some(part) = part() {
            let _gpu = Gpu::open();
            let descriptor: i32 = part.parse().unwrap();
            let mut handle = 0;
            ok(cuMemImportFromShareableHandle(&mut handle, descriptor as usize as Ptr, 1));
            let mut told = prop;
            (told.handle_types, told.location.id) = (0, 9);
            ok(cuMemGetAllocationPropertiesFromHandle((&raw mut told).cast(), handle));
            assert_eq!((told.handle_types, told.location), (1, location()));
            let address = map(handle);
            ok(cuMemRelease(handle));
            assert_eq!(first_byte(address), 0x5a);
            say("mapped");
            wait_for_go();
            ok(cuMemUnmap(address, SIZE as usize));
            say("unmapped");
            wait_for_go();
            close(descriptor);
            say("closed");
            wait_for_go();
            return;
        }
        let _gpu = Gpu::open();
        let before = free_memory();
        let (mut handle, mut plain, mut descriptor) = (0, 0, -1);
        ok(cuMemCreate(&mut handle, SIZE as usize, (&raw const prop).cast(), 0));
        prop.handle_types = 0;
        ok(cuMemCreate(&mut plain, SIZE as usize, (&raw const prop).cast(), 0));
        let refused = cuMemExportToShareableHandle(&mut descriptor, plain, 1, 0);
        assert_eq!(refused, INVALID_VALUE, "it was not made for that");
        ok(cuMemRelease(plain));
        assert_eq!(cuMemExportToShareableHandle(&mut descriptor, handle, 2, 0), INVALID_VALUE);
        let address = map(handle);
        fill(address, 0x5a);
        ok(cuMemExportToShareableHandle(&mut descriptor, handle, 1, 0));
        inherit(descriptor);
        let mut other = Other::start(&descriptor.to_string());
        close(descriptor);
        assert_eq!(cuMemImportFromShareableHandle(&mut plain, descriptor as Ptr, 1), INVALID_VALUE);
        other.says("mapped");
        assert_eq!(before - free_memory(), CONTEXT + SIZE);
        ok(cuMemUnmap(address, SIZE as usize));
        ok(cuMemRelease(handle));
        assert_eq!(before - free_memory(), CONTEXT + SIZE, "the other one maps it");
        other.go_on();
        other.says("unmapped");
        assert_eq!(before - free_memory(), CONTEXT + SIZE, "a descriptor is open");
        other.go_on();
        other.says("closed");
        assert_eq!(before - free_memory(), CONTEXT);
        other.kill();
        eventually(|| free_memory() == before);
    });
}

#[test]
fn pools_are_shared_by_descriptor_and_pointer() {
    isolated(SMALL, || {
        if let Some(part) = part() {
            let _gpu = Gpu::open();
            let (descriptor, data) = part.split_once(':').unwrap();
            let descriptor = descriptor.parse::<usize>().unwrap() as Ptr;
            let (mut pool, mut address) = (null(), 0);
            let mut handle = 0;
            assert_eq!(cuMemImportFromShareableHandle(&mut handle, descriptor, 1), INVALID_VALUE);
            ok(cuMemPoolImportFromShareableHandle(&mut pool, descriptor, 1, 0));
            let denied = cuMemAllocFromPoolAsync(&mut address, 100, pool, null());
            assert_eq!(denied, INVALID_VALUE);
            ok(cuMemPoolImportPointer(&mut address, pool, &unhex(data)));
            assert_eq!(cuMemPoolImportPointer(&mut address, pool, &[1; 64]), INVALID_VALUE);
            assert_eq!(first_byte(address), 0x5a);
            ok(cuMemFreeAsync(address, null()));
            ok(cuMemPoolDestroy(pool));
            say("freed");
            wait_for_go();
            return;
        }
        let _gpu = Gpu::open();
        let before = free_memory();
        let mut props = PoolProps {
            kind: 1,
            handle_types: 0,
            location: location(),
            win32_security_attributes: null(),
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let (mut plain, mut pool, mut address, mut descriptor) = (null(), null(), 0, -1);
        ok(cuMemPoolCreate(&mut plain, (&raw const props).cast()));
        let refused = cuMemPoolExportToShareableHandle(&mut descriptor, plain, 1, 0);
        assert_eq!(refused, INVALID_VALUE);
        props.handle_types = HANDLE_TYPE_POSIX_FD;
        ok(cuMemPoolCreate(&mut pool, (&raw const props).cast()));
        let mut data = [0; 64];
        ok(cuMemAllocFromPoolAsync(&mut address, SIZE as usize, pool, null()));
        assert_eq!(cuMemPoolExportPointer(&mut data, address), INVALID_VALUE, "not shared yet");
        fill(address, 0x5a);
        ok(cuMemPoolExportToShareableHandle(&mut descriptor, pool, 1, 0));
        ok(cuMemPoolExportPointer(&mut data, address));
        inherit(descriptor);
        let mut other = Other::start(&format!("{descriptor}:{}", hex(&data)));
        other.says("freed");
        assert_eq!(before - free_memory(), CONTEXT + 32 * MIB);
        ok(cuMemFreeAsync(address, null()));
        ok(cuMemPoolDestroy(pool));
        assert_eq!(before - free_memory(), CONTEXT);
        other.kill();
        eventually(|| free_memory() == before);
    });
}
