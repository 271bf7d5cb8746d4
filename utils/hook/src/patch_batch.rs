//! Functions that one engine patches together. What the engine says is verified.

#[cfg(target_arch = "x86_64")]
use crate::canary::Canary;
#[cfg(target_arch = "x86_64")]
use crate::code::follow;
use crate::code::peek;
use crate::{HookEngine, HookError, Slot};
use core::ffi::c_void;
use core::fmt;

const UNCHANGED: &str =
    "the hook engine reports it as patched, and its first instructions are as they were";
const ELSEWHERE: &str =
    "the hook engine reports it as patched, and its first instructions do not lead to the hook";
const NO_CANARY: &str =
    "a function of Sluice's own that was patched in the same way is not redirected";

/// How much of a function's beginning is recorded.
const RECORDED: usize = size_of::<u64>();

/// A patch that was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// The function's address.
    pub address: usize,
    pub(crate) code: [u8; RECORDED],
    pub(crate) length: usize,
}

/// What is true of a batch after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The functions whose calls reach their detours.
    pub patches: Vec<Patch>,
    /// Those whose calls do not, or may not, in the order in which they were patched.
    pub lost: Vec<Lost>,
}

/// A function that is not patched although the engine says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Why.
    pub error: HookError,
    /// Whether the function is as it was before: then its trampoline may be gone.
    pub is_unchanged: bool,
}

/// A function that the engine reports as patched.
struct Reported {
    address: usize,
    detour: usize,
    before: [u8; RECORDED],
}

/// Functions that are patched together by one engine.
pub struct PatchBatch {
    // Made before the engine, which may look at what is mapped only once.
    #[cfg(target_arch = "x86_64")]
    canary: Option<Canary>,
    engine: Box<dyn HookEngine>,
    reported: Vec<Reported>,
}

impl fmt::Debug for PatchBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.engine.name())
    }
}

impl PatchBatch {
    /// Begins a batch of the engine that `make` makes.
    pub fn begin(make: impl FnOnce() -> Box<dyn HookEngine>) -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            canary: Canary::map(),
            engine: make(),
            reported: Vec::new(),
        }
    }

    /// As [`HookEngine::install`]. What the engine says is not verified yet.
    ///
    /// # Safety
    /// As for [`HookEngine::install`].
    ///
    /// # Errors
    /// As for [`HookEngine::install`].
    pub unsafe fn install(
        &mut self,
        target: *const c_void,
        detour: *const c_void,
        slot: &Slot,
    ) -> Result<(), HookError> {
        let (address, mut before) = (target as usize, [0; RECORDED]);
        peek::read(address, &mut before);
        // SAFETY: the caller's.
        unsafe { self.engine.install(target, detour, slot) }?;
        self.reported.push(Reported { address, detour: detour as usize, before });
        Ok(())
    }

    /// Ends the batch: the engine goes, and each function's entry is looked at. A function of our own
    /// that was patched in the same way is called. If that call does not arrive, no function of the
    /// batch counts as patched.
    #[must_use]
    pub fn end(self) -> Verified {
        #[cfg(target_arch = "x86_64")]
        let Self { canary, mut engine, reported } = self;
        #[cfg(not(target_arch = "x86_64"))]
        let Self { engine, reported } = self;
        let through_own_code = engine.goes_through_own_code();
        #[cfg(target_arch = "x86_64")]
        let canary = canary.and_then(|canary| canary.patch(engine.as_mut()).ok());
        drop(engine);
        #[cfg(target_arch = "x86_64")]
        let redirects = canary.is_some_and(|canary| canary.is_redirected());
        #[cfg(not(target_arch = "x86_64"))]
        let redirects = true;
        let mut verified = Verified { patches: Vec::new(), lost: Vec::new() };
        for function in &reported {
            match look(function, through_own_code) {
                Ok(patch) if redirects => verified.patches.push(patch),
                Ok(_) => verified.lost.push(function.lost(NO_CANARY, false)),
                Err(lost) => verified.lost.push(lost),
            }
        }
        verified
    }
}

impl Reported {
    fn lost(&self, reason: &str, is_unchanged: bool) -> Lost {
        let error = HookError { address: self.address, reason: reason.to_owned() };
        Lost { error, is_unchanged }
    }
}

/// Looks where the function's entry leads.
fn look(reported: &Reported, through_own_code: bool) -> Result<Patch, Lost> {
    let mut code = [0; RECORDED];
    let read = peek::read(reported.address, &mut code);
    let changed = (0..read).rev().find(|&index| code[index] != reported.before[index]);
    let Some(last) = changed else { return Err(reported.lost(UNCHANGED, true)) };
    if leads(reported, through_own_code) {
        // What is not read cannot be looked at later.
        Ok(Patch { address: reported.address, code, length: last + 1 })
    } else {
        Err(reported.lost(ELSEWHERE, false))
    }
}

#[cfg(target_arch = "x86_64")]
fn leads(reported: &Reported, through_own_code: bool) -> bool {
    match follow::leads(reported.address, reported.detour) {
        follow::Leads::Nowhere => false,
        follow::Leads::To(place) => place == reported.detour || through_own_code,
    }
}

/// Without a decoder a changed entry has to do.
#[cfg(not(target_arch = "x86_64"))]
fn leads(_: &Reported, _: bool) -> bool {
    true
}
