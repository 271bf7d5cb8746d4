//! A process that may have no memory which is writable and executable, as with systemd's `MemoryDenyWriteExecute`, and one
//! whose kernel cannot be asked for single mappings.

use super::functions::PLAIN;
use super::{Case, Failure, Make, Outcome, PLAIN_RESULTS, function, map};
use std::panic::{self, AssertUnwindSafe};

pub(super) const CASES: &[Case] = &[
    Case::other("no writable and executable memory", denied),
    Case::other("a kernel that only lists all mappings", not_asked),
];

/// How the child ends.
const PATCHED: i32 = 0;
const REFUSED: i32 = 1;
const BROKEN: i32 = 2;
const NO_FILTER: i32 = 3;

const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANY: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
/// Where a filter finds the number of a call.
const NUMBER: u32 = 0;

fn statement(code: u32, k: u32) -> libc::sock_filter {
    jump(code, k, 0, 0)
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn answer(answer: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, answer)
}

/// Has the kernel refuse memory that is writable and executable, or becomes executable, from now on.
fn deny_writable_code() -> bool {
    let protection = 16 + 2 * 8;
    let both = (libc::PROT_WRITE | libc::PROT_EXEC) as u32;
    apply(&mut [
        load(NUMBER),
        jump(EQUAL, libc::SYS_mprotect as u32, 0, 2),
        load(protection),
        jump(ANY, libc::PROT_EXEC as u32, 4, 5),
        jump(EQUAL, libc::SYS_mmap as u32, 0, 4),
        load(protection),
        statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, both),
        jump(EQUAL, both, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ])
}

/// Has the kernel refuse questions about open files, as one that does not know them.
fn deny_questions() -> bool {
    apply(&mut [
        load(NUMBER),
        jump(EQUAL, libc::SYS_ioctl as u32, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::ENOTTY as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ])
}

fn apply(filter: &mut [libc::sock_filter]) -> bool {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter lives as long as the calls.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    }
}

unsafe fn denied(make: Make) -> Result<Outcome, Failure> {
    in_child(make, deny_writable_code)
}

unsafe fn not_asked(make: Make) -> Result<Outcome, Failure> {
    in_child(make, deny_questions)
}

/// Patches a function in a child that the kernel refuses something.
fn in_child(make: Make, deny: fn() -> bool) -> Result<Outcome, Failure> {
    let address = map(PLAIN, 0)?;
    let work = || {
        if !deny() {
            return NO_FILTER;
        }
        // SAFETY: a function of the case's own that nothing else calls.
        match unsafe { function(make, address, PLAIN_RESULTS) } {
            Ok(Outcome::Patched) => PATCHED,
            Ok(Outcome::Refused(_)) => REFUSED,
            Err(_) => BROKEN,
        }
    };
    // SAFETY: the child does the work and ends, without anything of this process's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or(BROKEN);
        // SAFETY: ends the child only.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: a child of this process's own.
    if child < 0 || unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
        return Err(Failure::NotMade(0));
    }
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, PATCHED) => Ok(Outcome::Patched),
        (true, REFUSED) => Ok(Outcome::Refused("refused by the engine".to_owned())),
        (true, NO_FILTER) => Err(Failure::NotMade(0)),
        _ => Err(Failure::Ended(format!("status {status:#x}"))),
    }
}
