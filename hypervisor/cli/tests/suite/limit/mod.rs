//! `sluice status` and `sluice limit` on running programs.

mod memory;
mod preloaded;
pub(crate) mod program;
mod refused;
mod several;
mod status;
