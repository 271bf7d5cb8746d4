//! A simulated gum: the known behaviour of the real one, as far as the engine has to cope with it. Its state belongs to
//! the process, as gum's does.

use super::{Engine, Interceptor, Refusal};
use crate::HookEngine;
use crate::code::{machine::jump, mappings::Mappings};
use crate::detour_engine::code_memory::CodeMemory;
use core::ffi::c_void;
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionBlock,
};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const PAGE: usize = 4096;
const WRITABLE_CODE: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
/// The bytes that gum overwrites, whatever jump it writes.
const LEAST: usize = 16;

/// A function that gum has replaced.
#[derive(Clone, Debug)]
struct Remembered {
    prologue: Vec<u8>,
    replacement: usize,
    is_active: bool,
}

/// A pending change of a transaction.
enum Task {
    Activate(usize),
    Deactivate(usize, Vec<u8>),
}

#[derive(Default)]
struct State {
    references: usize,
    level: usize,
    functions: HashMap<usize, Remembered>,
    tasks: Vec<Task>,
    /// Never made read-only: gum's own blocks stay writable.
    memory: CodeMemory,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    let mut state: MutexGuard<'_, _> = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    work(state.get_or_insert_default())
}

/// A reference to gum's interceptor.
#[derive(Debug)]
pub(super) struct Simulated(());

/// A kept reference, as in the real engine.
pub(super) static KEPT: OnceLock<Simulated> = OnceLock::new();

/// An engine over the simulated gum, which is obtained once per process, as the real one.
pub(crate) fn engine() -> Box<dyn HookEngine> {
    KEPT.get_or_init(Simulated::obtain);
    Box::new(Engine::over(Simulated::obtain))
}

impl Simulated {
    pub(super) fn obtain() -> Self {
        with(|state| state.references += 1);
        Self(())
    }

    /// Number of functions that gum remembers.
    #[cfg(test)]
    pub(super) fn remembered() -> usize {
        with(|state| state.functions.len())
    }

    /// Whether a transaction is open.
    #[cfg(test)]
    pub(super) fn is_open() -> bool {
        with(|state| state.level > 0)
    }
}

impl Drop for Simulated {
    /// The last reference reverts everything.
    fn drop(&mut self) {
        with(|state| {
            state.references -= 1;
            if state.references == 0 {
                let active = state.functions.drain().filter(|(_, function)| function.is_active);
                active.for_each(|(at, function)| write(at, &function.prologue));
            }
        });
    }
}

/// Gum makes the pages writable and leaves them so. If the kernel refuses, it aborts the process.
fn write(at: usize, bytes: &[u8]) {
    let first = at / PAGE * PAGE;
    let length = (at + bytes.len()).next_multiple_of(PAGE) - first;
    // SAFETY: pages that the engine's user has mapped; written while they are writable.
    unsafe {
        if libc::mprotect(first as *mut c_void, length, WRITABLE_CODE) != 0 {
            libc::abort();
        }
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len());
    }
}

/// The function that gum patches: the target of a leading jump.
fn resolved(function: usize) -> usize {
    // SAFETY: the engine has looked at it: it is code.
    let code = unsafe { core::slice::from_raw_parts(function as *const u8, 64) };
    let mut decoder = Decoder::with_ip(64, code, function as u64, DecoderOptions::NONE);
    let first = decoder.decode();
    match first.flow_control() {
        FlowControl::UnconditionalBranch => resolved(first.near_branch_target() as usize),
        _ => function,
    }
}

/// The relocated instructions under gum's jump. Gum refuses a function that ends there, and takes a breakpoint for an
/// instruction.
fn relocated(function: usize, state: &mut State) -> Option<(Vec<u8>, usize)> {
    // SAFETY: as above.
    let code = unsafe { core::slice::from_raw_parts(function as *const u8, 64) };
    let mut decoder = Decoder::with_ip(64, code, function as u64, DecoderOptions::NONE);
    let mut instructions = Vec::new();
    while decoder.position() < LEAST {
        let instruction = decoder.decode();
        if instruction.is_invalid()
            || !matches!(instruction.flow_control(), FlowControl::Next | FlowControl::Interrupt)
        {
            return None;
        }
        instructions.push(instruction);
    }
    let length = decoder.position();
    instructions.push(Instruction::with_branch(Code::Jmp_rel32_64, decoder.ip()).ok()?);
    let block = state.memory.near(function, &mut Mappings::now()?)?;
    let to = block.next();
    let moved = InstructionBlock::new(&instructions, to as u64);
    let moved = BlockEncoder::encode(64, moved, BlockEncoderOptions::NONE).ok()?;
    block.put(&moved.code_buffer)?;
    Some((code[..length].to_vec(), to))
}

impl State {
    fn end(&mut self) {
        self.level -= 1;
        if self.level > 0 {
            return;
        }
        for task in core::mem::take(&mut self.tasks) {
            match task {
                Task::Activate(at) => {
                    let Some(function) = self.functions.get_mut(&at) else { continue };
                    function.is_active = true;
                    let near = jump::near(at, function.replacement);
                    let far = jump::far(function.replacement);
                    write(at, near.as_ref().map_or(&far[..], |near| &near[..]));
                }
                Task::Deactivate(at, prologue) => write(at, &prologue),
            }
        }
    }
}

impl Interceptor for Simulated {
    fn begin(&mut self) {
        with(|state| state.level += 1);
    }

    fn replace_fast(
        &mut self,
        function: *const c_void,
        replacement: *const c_void,
    ) -> Result<*const c_void, Refusal> {
        with(|state| {
            state.level += 1;
            let at = resolved(function as usize);
            let outcome = if state.functions.contains_key(&at) {
                Err(Refusal::Remembered)
            } else {
                relocated(at, state).ok_or(Refusal::Unfit).map(|(prologue, original)| {
                    let replacement = replacement as usize;
                    let function = Remembered { prologue, replacement, is_active: false };
                    state.functions.insert(at, function);
                    state.tasks.push(Task::Activate(at));
                    original as *const c_void
                })
            };
            state.end();
            outcome
        })
    }

    fn revert(&mut self, function: *const c_void) {
        with(|state| {
            state.level += 1;
            let at = resolved(function as usize);
            if let Some(function) =
                state.functions.remove(&at).filter(|function| function.is_active)
            {
                state.tasks.push(Task::Deactivate(at, function.prologue));
            }
            state.end();
        });
    }

    fn end(&mut self) {
        with(State::end);
    }
}
