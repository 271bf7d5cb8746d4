//! Patches functions together with one engine: all, or none if the engine fails. The engine's claims are verified.
//!
//! Each function is prepared and its slot filled; then all are enabled, the engine is dropped, and each entry is
//! checked.

use crate::canary::Canary;
use crate::code::follow;
use crate::code::overwrite::overwrite;
use crate::code::peek;
use crate::{HookEngine, HookError, Mappings, Slot, Target};
use core::ffi::c_void;
use core::fmt;
use std::panic::{self, AssertUnwindSafe};

const UNCHANGED: &str =
    "the hook engine reports it as patched, but its first instructions are unchanged";
const ELSEWHERE: &str =
    "the hook engine reports it as patched, but its first instructions do not lead to the hook";
const NO_CANARY: &str = "no page can be mapped for the test function";
const NOT_PREPARED: &str = "the test function cannot be patched in the same way";
const NO_MAPPINGS: &str = "cannot read the list of this process's mappings";
const TWICE: &str = "it is already in this batch";
const PANICKED: &str = "the engine panicked";

/// Bytes of a function's beginning to record.
const RECORDED: usize = size_of::<u64>();
/// The most bytes that an engine may overwrite: a far jump, rounded up.
const OVERWRITTEN: usize = 16;

/// A verified patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// The function's address.
    pub address: usize,
    pub(crate) code: [u8; RECORDED],
    pub(crate) length: usize,
}

/// The result of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The engine's name.
    pub engine: &'static str,
    /// The functions whose calls reach their detours.
    pub patches: Vec<Patch>,
    /// Functions whose calls do not reach their detours, or may not, in the order of their preparation.
    pub lost: Vec<Lost>,
}

/// A function that was prepared but is not patched, whatever the engine reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The reason.
    pub error: HookError,
    /// Whether the function is unchanged. Its slot then holds its own address, because the trampoline may be gone.
    pub is_unchanged: bool,
}

/// A function that the engine has prepared.
struct Prepared<'slots> {
    target: Target,
    slot: &'slots Slot,
    before: [u8; OVERWRITTEN],
    /// How many of these bytes could be read.
    length: usize,
}

/// Functions that are patched together by one engine.
pub struct PatchBatch<'slots> {
    canary: Option<Canary>,
    engine: Box<dyn HookEngine>,
    mappings: Option<Mappings>,
    prepared: Vec<Prepared<'slots>>,
}

impl fmt::Debug for PatchBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.engine.name())
    }
}

/// Turns an engine's panic into an error.
fn caught<T>(
    function: *const c_void,
    work: impl FnOnce() -> Result<T, HookError>,
) -> Result<T, HookError> {
    panic::catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(HookError::new(function, PANICKED)))
}

impl<'slots> PatchBatch<'slots> {
    /// Begins a batch of the engine that `make` creates. Code that is mapped later cannot be patched by this batch.
    pub fn begin(make: impl FnOnce() -> Box<dyn HookEngine>) -> Self {
        let (canary, engine, mut mappings) = (Canary::map(), make(), Mappings::now());
        if let (Some(canary), Some(mappings)) = (&canary, &mut mappings) {
            canary.note(mappings);
        }
        Self { canary, engine, mappings, prepared: Vec::new() }
    }

    /// The engine's name.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        self.engine.name()
    }

    /// Has the engine prepare `target`, and puts the trampoline into `slot`. Callers notice nothing until
    /// [`Self::enable`].
    ///
    /// # Safety
    /// `target` must be the entry of a function whose first instructions no thread executes until the batch has ended.
    /// `detour` must be a function of the same signature and calling convention. No other thread may patch in the same
    /// page meanwhile.
    ///
    /// # Errors
    /// [`HookError`] if the function cannot be patched. It is left out of the batch then, and nothing has changed.
    pub unsafe fn prepare(
        &mut self,
        target: *const c_void,
        detour: *const c_void,
        slot: &'slots Slot,
    ) -> Result<(), HookError> {
        let refused = |reason| HookError::new(target, reason);
        let mappings = self.mappings.as_mut().ok_or_else(|| refused(NO_MAPPINGS))?;
        if self.prepared.iter().any(|prepared| prepared.target.entry == target) {
            return Err(refused(TWICE));
        }
        let function = Target::look(target, detour, mappings)?;
        let mut before = [0; OVERWRITTEN];
        let length = peek::read(target as usize, &mut before);
        let engine = &mut self.engine;
        // SAFETY: the caller's.
        let original = caught(target, || unsafe { engine.prepare(&function, mappings) })?;
        slot.set(original);
        self.prepared.push(Prepared { target: function, slot, before, length });
        Ok(())
    }

    /// Ends the batch: enables the prepared functions, drops the engine, checks each function's entry, and calls a test
    /// function that was patched in the same way. If the engine fails, or that call does not arrive, restores every
    /// function.
    #[must_use]
    pub fn enable(mut self) -> Verified {
        let engine = self.engine.name();
        let canary = self.prepare_canary();
        let enabled = self.enable_all();
        let Self { engine: used, prepared, .. } = self;
        let _ = caught(core::ptr::null(), || {
            drop(used);
            Ok(())
        });
        let canary = canary.and_then(|canary| canary.check());
        let mut verified = Verified { engine, patches: Vec::new(), lost: Vec::new() };
        let fault = enabled.as_ref().err().or(canary.as_ref().err());
        for function in &prepared {
            match (function.look(), fault) {
                (Ok(patch), None) => verified.patches.push(patch),
                (Ok(_), Some(fault)) => verified.lost.push(function.lost(&fault.reason)),
                (Err(lost), _) => verified.lost.push(lost),
            }
        }
        let is_undone = fault.is_some();
        if let Err(error) = enabled {
            verified.lost.iter_mut().for_each(|lost| lost.because_of(&error));
        }
        for (function, lost) in lost_of(&prepared, &mut verified.lost) {
            if is_undone {
                function.restore();
            }
            lost.is_unchanged = function.is_unchanged();
            if lost.is_unchanged {
                function.slot.set(function.target.entry);
            }
        }
        verified
    }

    /// Prepares the canary last, as one of the functions.
    fn prepare_canary(&mut self) -> Result<crate::canary::Prepared, HookError> {
        let none = |reason: &str| HookError::new(core::ptr::null(), reason);
        let canary = self.canary.take().ok_or_else(|| none(NO_CANARY))?;
        let mappings = self.mappings.as_mut().ok_or_else(|| none(NO_MAPPINGS))?;
        let engine = &mut self.engine;
        caught(canary.address(), || canary.prepare(engine.as_mut(), mappings))
            .map_err(|error| none(&format!("{NOT_PREPARED}: {}", error.reason)))
    }

    /// Enables all prepared functions, or undoes them.
    fn enable_all(&mut self) -> Result<(), HookError> {
        let engine = &mut self.engine;
        // SAFETY: vouched for where each function was prepared; its slot is filled.
        let enabled = caught(core::ptr::null(), || unsafe { engine.enable() });
        if enabled.is_err() {
            let _ = caught(core::ptr::null(), || {
                // SAFETY: as above.
                unsafe { engine.undo() };
                Ok(())
            });
        }
        enabled
    }
}

/// Each lost function with its prepared state.
fn lost_of<'a, 's>(
    prepared: &'a [Prepared<'s>],
    lost: &'a mut [Lost],
) -> impl Iterator<Item = (&'a Prepared<'s>, &'a mut Lost)> {
    // Both are in the order in which the functions were prepared.
    let mut functions = prepared.iter();
    lost.iter_mut().filter_map(move |lost| {
        let function = functions.find(|one| one.target.entry as usize == lost.error.address)?;
        Some((function, lost))
    })
}

impl Lost {
    /// Sets the reason: the engine failed with `error`, for this function or another.
    fn because_of(&mut self, error: &HookError) {
        self.error.reason = if error.address == self.error.address || error.address == 0 {
            error.reason.clone()
        } else {
            format!("undone, because the hook engine failed: {error}")
        };
    }
}

impl Prepared<'_> {
    fn lost(&self, reason: &str) -> Lost {
        Lost { error: HookError::new(self.target.entry, reason), is_unchanged: false }
    }

    /// The function's present first bytes.
    fn now(&self) -> ([u8; OVERWRITTEN], usize) {
        let mut code = [0; OVERWRITTEN];
        let read = peek::read(self.target.entry as usize, &mut code);
        (code, read)
    }

    fn is_unchanged(&self) -> bool {
        let (code, read) = self.now();
        read == self.length && code == self.before
    }

    /// Restores the function, without relying on the engine.
    fn restore(&self) {
        if !self.is_unchanged() {
            // SAFETY: code of one mapping, as it was before, of which nothing was executed since the batch began.
            unsafe {
                let bytes = &self.before[..self.length.min(self.target.left)];
                overwrite(self.target.entry, bytes, self.target.protection);
            }
        }
    }

    /// Checks where the function's entry leads.
    fn look(&self) -> Result<Patch, Lost> {
        let (now, read) = self.now();
        let mut code = [0; RECORDED];
        code.copy_from_slice(&now[..RECORDED]);
        let changed = (0..read.min(RECORDED)).rev().find(|&index| now[index] != self.before[index]);
        let Some(last) = changed else { return Err(self.lost(UNCHANGED)) };
        if self.leads() {
            // Unreadable bytes cannot be checked later.
            Ok(Patch { address: self.target.entry as usize, code, length: last + 1 })
        } else {
            Err(self.lost(ELSEWHERE))
        }
    }

    fn leads(&self) -> bool {
        let detour = self.target.detour as usize;
        follow::leads(self.target.entry as usize, detour) == follow::Leads::To(detour)
    }
}
