//! The entry code of exported functions.
//!
//! The real driver's entry points are small stubs, which begin with a frame and a comparison with a word of the
//! library's own data (`81 3d disp32 imm32`). The word makes a driver that was shut down at process exit return
//! `CUDA_ERROR_DEINITIALIZED`. The stubs here do the same and are byte-identical up to the comparison, so tools that
//! patch entry points meet the same code. On aarch64, where the real driver was not examined, the code is the
//! equivalent.

use core::sync::atomic::AtomicU32;

/// The value of [`LIFE`] after the driver was shut down.
pub(crate) const TAKEN_DOWN: u32 = 0x321c_ba00;

/// The word that every stub compares.
pub(crate) static LIFE: AtomicU32 = AtomicU32::new(0);

/// One exported function, for `cuGetProcAddress`.
pub(crate) struct Entry {
    /// The exported name.
    pub(crate) name: &'static str,
    /// The name without version and stream suffix.
    pub(crate) base: &'static str,
    /// CUDA version that introduced this form (1000 * major + 10 * minor).
    pub(crate) since: i32,
    /// Whether a null stream means the per-thread stream in this function.
    pub(crate) per_thread: bool,
    /// The exported symbol.
    pub(crate) function: unsafe extern "C" fn(),
}

/// Generates one exported stub per line `exported = base since stream => implementation;`.
macro_rules! exports {
    (@stream legacy) => { false };
    (@stream thread) => { true };
    ($($name:ident = $base:ident $since:literal $stream:ident => $implementation:path;)*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            #[allow(non_snake_case, reason = "the driver's own names")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    "push rbp",
                    "mov rbp, rsp",
                    "push r12",
                    "sub rsp, 8",
                    "cmp dword ptr [rip + {life}], 0x321cba00",
                    "je 2f",
                    "add rsp, 8",
                    "pop r12",
                    "pop rbp",
                    "jmp {implementation}",
                    "2:",
                    "mov eax, 4",
                    "add rsp, 8",
                    "pop r12",
                    "pop rbp",
                    "ret",
                    life = sym $crate::stub::LIFE,
                    implementation = sym $implementation,
                )
            }

            #[cfg(target_arch = "aarch64")]
            #[allow(non_snake_case, reason = "the driver's own names")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    "stp x29, x30, [sp, -32]!",
                    "mov x29, sp",
                    "str x19, [sp, 16]",
                    "adrp x16, {life}",
                    "ldr w16, [x16, :lo12:{life}]",
                    "movz w17, 0xba00",
                    "movk w17, 0x321c, lsl 16",
                    "cmp w16, w17",
                    "b.eq 2f",
                    "ldr x19, [sp, 16]",
                    "ldp x29, x30, [sp], 32",
                    "b {implementation}",
                    "2:",
                    "mov w0, 4",
                    "ldr x19, [sp, 16]",
                    "ldp x29, x30, [sp], 32",
                    "ret",
                    life = sym $crate::stub::LIFE,
                    implementation = sym $implementation,
                )
            }
        )*

        /// Every exported function.
        pub(crate) static TABLE: &[$crate::stub::Entry] = &[
            $($crate::stub::Entry {
                name: stringify!($name),
                base: stringify!($base),
                since: $since,
                per_thread: $crate::stub::exports!(@stream $stream),
                function: $name,
            },)*
        ];
    };
}
pub(crate) use exports;
