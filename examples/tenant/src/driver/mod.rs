//! A safe interface to the CUDA driver. All `unsafe` code of this program is in this folder.

mod context;
mod copy;
mod graph;
mod kernel;
mod memory;
mod page;
mod stream;
mod table;

pub(crate) use context::Context;
pub(crate) use copy::{Copies, CopyApi};
pub(crate) use graph::Graph;
pub(crate) use kernel::{Kernels, LaunchCall, Part, Spin};
pub(crate) use memory::{ARRAY_ROW, Allocator, MemoryApi};
pub(crate) use page::{Page, PageError, SLOTS, Trace};
pub(crate) use stream::{Event, Stream};

use driver::cuda::CuResult;

#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    /// The driver could not be loaded.
    #[error("cannot load libcuda.so.1: {0}")]
    Load(String),
    /// The driver lacks a function.
    #[error("the CUDA driver has no {0}: it is too old")]
    Missing(&'static str),
    #[error("device {index} does not exist: expected a number below {count}")]
    NoSuchDevice { index: u32, count: i32 },
    /// A driver call failed.
    #[error("{call} failed: {result}")]
    Call { call: &'static str, result: CuResult },
}
