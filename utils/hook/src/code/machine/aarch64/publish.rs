//! Makes written code visible to instruction fetches.

use core::arch::asm;

/// Cleans the written range from the data cache and invalidates the instruction caches (Arm Architecture Reference
/// Manual, "Concurrent modification and execution of instructions").
pub(crate) fn publish(at: *const u8, length: usize) {
    let sizes: usize;
    // SAFETY: reads the sizes of cache lines, which programs may.
    unsafe {
        asm!("mrs {}, ctr_el0", out(reg) sizes, options(nomem, nostack, preserves_flags));
    }
    let data = 4 << (sizes >> 16 & 0xf);
    let instructions = 4 << (sizes & 0xf);
    let end = at as usize + length;
    // SAFETY: these instructions change no memory. The addresses are those of code that was just written.
    unsafe {
        for line in (at as usize / data * data..end).step_by(data) {
            asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags));
        }
        asm!("dsb ish", options(nostack, preserves_flags));
        for line in (at as usize / instructions * instructions..end).step_by(instructions) {
            asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags));
        }
        asm!("dsb ish", "isb", options(nostack, preserves_flags));
    }
}
