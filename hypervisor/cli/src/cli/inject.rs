//! Arguments of `sluice inject`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `sluice inject`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Copies libcuda_limiter.so and libadd_path.so to DIR/usr/lib/sluice, and names them in DIR/etc/ld.so.preload behind what
is there. So programs load them whatever their environment; what limits them is in their environment, as without
'sluice run'. Links in DIR are followed as within that root. Run it again after an upgrade.

Exit status: 0 when DIR is as it should be; 1 --check found something that is not; 2 wrong usage, or DIR cannot be
prepared; 4 a part of Sluice is missing; 70 the system refused something.")]
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
