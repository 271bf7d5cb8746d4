//! Arguments of `sluice inject`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `sluice inject`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Copies libcuda_limiter.so and libadd_path.so to DIR/usr/lib/sluice, and appends them to DIR/etc/ld.so.preload. So every
program loads them, whatever its environment; the limits still come from the environment, as without 'sluice run'.
Symbolic links in DIR are resolved within that root. Run it again after an upgrade.

Exit status: 0 if DIR is prepared; 1 if --check found something missing; 2 wrong usage, or DIR cannot be
prepared; 4 a part of Sluice is missing; 70 a system call failed.")]
pub struct InjectArgs {
    /// Root directory of the container or chroot, which its processes see as '/'.
    #[arg(value_name = "DIR")]
    pub root: PathBuf,

    /// Only report what is missing.
    #[arg(long, conflicts_with = "remove")]
    pub check: bool,

    /// Undo the preparation.
    #[arg(long)]
    pub remove: bool,
}
