//! `tenant mem`: allocates until refused, holds everything, and reports.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::cli::Mem;
use crate::driver::{ARRAY_ROW, Allocator, Context, DriverError, MemoryApi};
use crate::{Failure, report};

/// The result line. Sizes in bytes.
#[derive(Serialize)]
struct Granted {
    api: String,
    chunk: u64,
    granted_bytes: u64,
    granted_chunks: usize,
    /// Name of the result that refused the next chunk, or "cap".
    stop: String,
    /// The call that was refused, if any.
    stop_call: Option<&'static str>,
    /// Free memory from cuMemGetInfo while everything is held.
    meminfo_free: usize,
    meminfo_total: usize,
    device: String,
    uuid: String,
}

pub(crate) fn run(options: &Mem) -> Result<(), Failure> {
    let api = options.api.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
    let arrays = matches!(options.api, MemoryApi::Array | MemoryApi::Array3d | MemoryApi::Mipmap);
    let chunk = usize::try_from(options.chunk).unwrap_or(usize::MAX);
    if arrays && chunk < ARRAY_ROW {
        return Err(Failure::Chunk { chunk: options.chunk, api, least: ARRAY_ROW });
    }
    let context = Context::open(options.target.device, options.target.ptsz)?;
    let allocator = Allocator::new(&context, options.api)?;
    let (mut held, mut granted_bytes) = (Vec::new(), 0_u64);
    let (stop, stop_call) = loop {
        if options.cap.saturating_sub(granted_bytes) < options.chunk {
            break ("cap".to_owned(), None);
        }
        match allocator.allocate(chunk) {
            Ok(allocation) => {
                granted_bytes += allocation.bytes;
                held.push(allocation);
            }
            Err(DriverError::Call { call, result }) => break (result.to_string(), Some(call)),
            Err(error) => return Err(error.into()),
        }
    };
    let (meminfo_free, meminfo_total) = context.memory_info()?;
    report::line(&Granted {
        api,
        chunk: options.chunk,
        granted_bytes,
        granted_chunks: held.len(),
        stop,
        stop_call,
        meminfo_free,
        meminfo_total,
        device: context.device_name()?,
        uuid: context.device_uuid()?,
    })?;
    if let Some(seconds) = options.hold {
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
    drop(held);
    Ok(())
}
