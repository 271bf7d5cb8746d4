//! Types and constants of the CUDA driver API (`cuda.h`, CUDA 13.0).

mod array;
mod device;
mod external;
mod graph;
mod handle;
mod launch;
mod memory;
mod result;
mod stream;

pub use array::*;
pub use device::*;
pub use external::*;
pub use graph::*;
pub use handle::*;
pub use launch::*;
pub use memory::*;
pub use result::*;
pub use stream::*;
