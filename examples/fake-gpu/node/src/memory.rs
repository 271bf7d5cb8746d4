//! Each process's memory on each device.

use crate::layout::State;

/// The device has not enough left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("out of device memory: {wanted} bytes wanted, {free} free")]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub wanted: u64,
    /// Bytes left.
    pub free: u64,
}

impl State {
    /// Bytes left on a device.
    #[must_use]
    pub fn free_memory(&self, device: u32) -> u64 {
        self.config.memory.saturating_sub(self.devices[device as usize].used)
    }

    /// Takes memory for a process.
    ///
    /// # Errors
    /// [`OutOfMemory`]; nothing is taken then.
    pub fn take(&mut self, process: u32, device: u32, bytes: u64) -> Result<(), OutOfMemory> {
        let free = self.free_memory(device);
        if bytes > free {
            return Err(OutOfMemory { wanted: bytes, free });
        }
        self.processes[process as usize].clients[device as usize].memory += bytes;
        self.devices[device as usize].used += bytes;
        Ok(())
    }

    /// Returns memory of a process, at most what it holds.
    pub fn give_back(&mut self, process: u32, device: u32, bytes: u64) {
        let client = &mut self.processes[process as usize].clients[device as usize];
        let bytes = bytes.min(client.memory);
        client.memory -= bytes;
        self.devices[device as usize].used -= bytes;
    }

    /// Takes what a context needs.
    ///
    /// # Errors
    /// [`OutOfMemory`]; nothing is taken then.
    pub fn add_context(&mut self, process: u32, device: u32) -> Result<(), OutOfMemory> {
        self.take(process, device, self.config.context)?;
        self.processes[process as usize].clients[device as usize].contexts += 1;
        Ok(())
    }

    /// Returns what a context took.
    pub fn remove_context(&mut self, process: u32, device: u32) {
        let client = &mut self.processes[process as usize].clients[device as usize];
        if client.contexts > 0 {
            client.contexts -= 1;
            self.give_back(process, device, self.config.context);
        }
    }
}
