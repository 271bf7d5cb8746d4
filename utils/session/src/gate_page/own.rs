//! The limiter's side of the gate page.

use super::error::GatePageError;
use super::layout::{BLOCKS, GateBlock, GatePageLayout, LENGTH, MAGIC, VERSION};
use super::map::Map;
use super::peer::{SEALS, check_seals};
use core::mem::{ManuallyDrop, offset_of};
use core::sync::atomic::Ordering::{Relaxed, Release};
use limits::GpuId;
use rustix::fs::{MemfdFlags, Mode, fchmod, fcntl_add_seals, fstat, memfd_create};
use rustix::io::{Errno, pwrite};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// This process's gate page.
#[derive(Debug)]
pub struct GatePage {
    memory: OwnedFd,
    /// Device and inode, which identify the memory.
    identity: (u64, u64),
    map: Map,
    /// The devices that have a block, in the order of the blocks.
    devices: Mutex<Vec<GpuId>>,
}

/// The index of a device's block in a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockNumber(usize);

impl BlockNumber {
    /// Offset of the word that streams wait for, in bytes from the start of a [`Mapping`].
    #[must_use]
    pub const fn word_offset(self) -> usize {
        offset_of!(GatePageLayout, blocks)
            + self.0 * size_of::<GateBlock>()
            + offset_of!(GateBlock, word)
    }
}

impl GatePage {
    /// Creates a page. Programs that this process starts do not inherit the descriptor.
    ///
    /// # Errors
    /// [`GatePageError::Io`]: the system has no memfd (before Linux 3.17, and in some sandboxes), or no descriptor or
    /// memory is left.
    pub fn create() -> Result<Self, GatePageError> {
        const NAME: &str = "sluice-gates";
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // The third flag is newer than the system call, and mandatory on some machines.
        let memory = match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => memfd_create(NAME, flags),
            other => other,
        };
        let memory = memory.map_err(GatePageError::io("making memory without a name"))?;
        let fail = GatePageError::io("preparing the memory");
        fchmod(&memory, Mode::RUSR | Mode::WUSR).map_err(GatePageError::io("its mode"))?;
        // Written now, so that the memory exists: a hole would be filled at the first access, which cannot report a
        // lack of memory.
        if pwrite(&memory, &[0; LENGTH], 0).map_err(fail)? != LENGTH {
            return Err(GatePageError::io("preparing the memory")(Errno::NOMEM));
        }
        fcntl_add_seals(&memory, SEALS).map_err(GatePageError::io("sealing it"))?;
        check_seals(memory.as_fd())?;
        let map = Map::new(memory.as_fd())?;
        let layout = map.layout();
        layout.count.store(BLOCKS as u32, Relaxed);
        layout.version.store(VERSION, Relaxed);
        layout.magic.store(MAGIC, Release);
        let identity = identity_of(memory.as_fd())?;
        Ok(Self { memory, identity, map, devices: Mutex::default() })
    }

    /// The descriptor, for the registration with the daemon.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Checks that the descriptor is still the page's: a program may close all descriptors and open others.
    ///
    /// # Errors
    /// [`GatePageError::Io`], [`GatePageError::Replaced`].
    pub fn check_descriptor(&self) -> Result<(), GatePageError> {
        let found = identity_of(self.memory.as_fd())?;
        if found == self.identity { Ok(()) } else { Err(GatePageError::Replaced) }
    }

    /// The block of a device. A device's block never changes.
    ///
    /// # Errors
    /// [`GatePageError::Full`].
    pub fn block_of(&self, device: GpuId) -> Result<BlockNumber, GatePageError> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = devices.iter().position(|known| *known == device) {
            return Ok(BlockNumber(known));
        }
        let number = devices.len();
        let block = self.map.layout().blocks.get(number).ok_or(GatePageError::Full)?;
        block.give_to(device);
        devices.push(device);
        Ok(BlockNumber(number))
    }

    /// A block of this page.
    #[must_use]
    pub fn block(&self, number: BlockNumber) -> &GateBlock {
        // Reduced modulo the count, because another page may have made the number.
        &self.map.layout().blocks[number.0 % BLOCKS]
    }

    /// Maps the same memory at another address. Each context registers a mapping of its own with the driver, because an
    /// address can be registered only once.
    ///
    /// # Errors
    /// [`GatePageError::Io`], [`GatePageError::Replaced`], [`GatePageError::TooMany`].
    pub fn map_again(&self) -> Result<Mapping, GatePageError> {
        self.check_descriptor()?;
        Ok(Mapping(ManuallyDrop::new(Map::new(self.memory.as_fd())?)))
    }
}

fn identity_of(memory: BorrowedFd<'_>) -> Result<(u64, u64), GatePageError> {
    let found = fstat(memory).map_err(GatePageError::io("looking at it"))?;
    Ok((found.st_dev, found.st_ino))
}

/// A mapping for the driver. Dropping this value keeps the mapping: a device may access it as long as its context
/// lives, the end of which is not announced in time.
#[derive(Debug)]
pub struct Mapping(ManuallyDrop<Map>);

impl Mapping {
    /// The address, for the driver.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start()
    }

    /// The length in bytes.
    #[must_use]
    pub const fn length(&self) -> usize {
        LENGTH
    }

    /// Unmaps the memory.
    ///
    /// # Safety
    /// The driver no longer knows the address, and no stream waits for a word in it.
    pub unsafe fn unmap(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}
