//! What programs and libraries look like on the processor that this was built for. Those of another one are not loaded.

#[cfg(target_arch = "x86_64")]
mod this {
    use object::elf::EM_X86_64;

    /// `e_machine` of its ELF files.
    pub(crate) const MACHINE: u16 = EM_X86_64;
    /// What is said of it.
    pub(crate) const LIBRARY_WANTED: &str = "it is not a shared library for x86-64";
    /// Where its glibc's loader is in a root.
    pub(crate) const GLIBC_LOADER: &str = "lib64/ld-linux-x86-64.so.2";
    /// Where musl's is.
    pub(crate) const MUSL_LOADER: &str = "lib/ld-musl-x86_64.so.1";
    /// Where Debian's systems have libraries for it.
    pub(crate) const GLIBC_OF_DEBIAN: [&str; 2] =
        ["lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"];
}

#[cfg(target_arch = "aarch64")]
mod this {
    use object::elf::EM_AARCH64;

    pub(crate) const MACHINE: u16 = EM_AARCH64;
    pub(crate) const LIBRARY_WANTED: &str = "it is not a shared library for aarch64";
    pub(crate) const GLIBC_LOADER: &str = "lib/ld-linux-aarch64.so.1";
    pub(crate) const MUSL_LOADER: &str = "lib/ld-musl-aarch64.so.1";
    pub(crate) const GLIBC_OF_DEBIAN: [&str; 2] =
        ["lib/aarch64-linux-gnu/libc.so.6", "usr/lib/aarch64-linux-gnu/libc.so.6"];
}

pub(crate) use this::{GLIBC_LOADER, GLIBC_OF_DEBIAN, LIBRARY_WANTED, MACHINE, MUSL_LOADER};
