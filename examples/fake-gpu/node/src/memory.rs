//! Device memory per process.

use crate::layout::State;

/// The device has too little free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("out of device memory: {wanted} bytes wanted, {free} free")]
pub struct OutOfMemory {
    /// Requested bytes.
    pub wanted: u64,
    /// Free bytes.
    pub free: u64,
}

impl State {
    /// Free bytes on a device.
    #[must_use]
    pub fn free_memory(&self, device: u32) -> u64 {
        self.config.memory.saturating_sub(self.devices[device as usize].used)
    }

    /// Allocates memory for a process.
    ///
    /// # Errors
    /// [`OutOfMemory`]; nothing is allocated.
    pub fn take(&mut self, process: u32, device: u32, bytes: u64) -> Result<(), OutOfMemory> {
        let free = self.free_memory(device);
        if bytes > free {
            return Err(OutOfMemory { wanted: bytes, free });
        }
        self.processes[process as usize].clients[device as usize].memory += bytes;
        self.devices[device as usize].used += bytes;
        Ok(())
    }

    /// Frees memory of a process, at most what it holds.
    pub fn give_back(&mut self, process: u32, device: u32, bytes: u64) {
        let client = &mut self.processes[process as usize].clients[device as usize];
        let bytes = bytes.min(client.memory);
        client.memory -= bytes;
        self.devices[device as usize].used -= bytes;
    }

    /// Allocates a context's memory.
    ///
    /// # Errors
    /// [`OutOfMemory`]; nothing is allocated.
    pub fn add_context(&mut self, process: u32, device: u32) -> Result<(), OutOfMemory> {
        self.take(process, device, self.config.context)?;
        self.processes[process as usize].clients[device as usize].contexts += 1;
        Ok(())
    }

    /// Frees a context's memory.
    pub fn remove_context(&mut self, process: u32, device: u32) {
        let client = &mut self.processes[process as usize].clients[device as usize];
        if client.contexts > 0 {
            client.contexts -= 1;
            self.give_back(process, device, self.config.context);
        }
    }
}
