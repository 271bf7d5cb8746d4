//! Cases in a process that may have no writable and executable memory, as under systemd's `MemoryDenyWriteExecute`, and
//! in one whose kernel answers no queries for single mappings.

use super::functions::PLAIN;
use super::{Case, Failure, Make, Outcome, PLAIN_RESULTS, function, map};
use std::panic::{self, AssertUnwindSafe};

pub(super) const CASES: &[Case] = &[
    Case::other("no writable and executable memory", denied),
    Case::other("a kernel that only lists all mappings", not_asked),
];

/// The child's exit status.
const PATCHED: i32 = 0;
const REFUSED: i32 = 1;
const BROKEN: i32 = 2;
const NO_FILTER: i32 = 3;

const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANY: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
/// Offset of the system call's number in a filter's input.
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

/// Makes the kernel refuse memory that is writable and executable, or becomes executable.
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

/// Makes the kernel refuse all `ioctl` calls, as one that does not know them.
fn deny_questions() -> bool {
    refuse(libc::SYS_ioctl, libc::ENOTTY)
}

/// Makes the kernel answer a system call with an error.
fn refuse(call: libc::c_long, error: i32) -> bool {
    apply(&mut [
        load(NUMBER),
        jump(EQUAL, call as u32, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | error as u32),
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

/// Patches a function in a child to which the kernel refuses something.
fn in_child(make: Make, deny: fn() -> bool) -> Result<Outcome, Failure> {
    let address = map(PLAIN, 0)?;
    child(deny, || {
        // SAFETY: a function of the case's own that nothing else calls.
        match unsafe { function(make, address, PLAIN_RESULTS) } {
            Ok(Outcome::Patched) => PATCHED,
            Ok(Outcome::Refused(_)) => REFUSED,
            Err(_) => BROKEN,
        }
    })
}

/// Runs `work` in a child to which the kernel refuses something.
fn child(deny: fn() -> bool, work: impl Fn() -> i32) -> Result<Outcome, Failure> {
    let work = || if deny() { work() } else { NO_FILTER };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DetourEngine, PatchBatch, Slot};
    use core::ffi::c_void;

    extern "C" fn nobody() -> libc::pid_t {
        -77
    }

    /// Lets the list be opened but not read.
    fn no_list() -> bool {
        deny_questions() && refuse(libc::SYS_read, libc::EPERM)
    }

    /// A library's function and a hook of this program, under a kernel that neither answers queries nor lists mappings:
    /// the loader knows both.
    #[test]
    fn the_list_of_mappings_is_not_read_for_a_librarys_functions() {
        let patched = |address: *const c_void| {
            let slot = Slot::new();
            let mut batch = PatchBatch::begin(|| Box::new(DetourEngine::new()));
            // SAFETY: the child has one thread; the signatures are the same.
            let prepared = unsafe { batch.prepare(address, nobody as *const c_void, &slot) };
            let verified = batch.enable();
            // SAFETY: asks for a number.
            let told = unsafe { libc::getppid() };
            match (prepared, verified.patches.len()) {
                (Ok(()), 1) if told == -77 => PATCHED,
                (Err(_), 0) if told > 0 => REFUSED,
                _ => BROKEN,
            }
        };
        let library = child(no_list, || patched(libc::getppid as *const c_void));
        if let Err(Failure::NotMade(_)) = library {
            println!("SKIPPED: there are no seccomp filters here");
            return;
        }
        assert!(matches!(library, Ok(Outcome::Patched)), "{library:?}");
        // Code outside any library would need the list.
        let mapped = map(PLAIN, 0).unwrap();
        let other = child(no_list, || patched(mapped.cast()));
        assert!(matches!(other, Ok(Outcome::Refused(_))), "{other:?}");
    }
}
