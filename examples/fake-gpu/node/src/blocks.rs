//! Memory blocks shared by processes: one process has exported the block, others open it.
//!
//! A block counts on its device while it has holders: its owner, which is charged for it, the processes that have
//! opened it, and file descriptors that export it. Once the owner has released it (or is dead), it counts on the device
//! but is charged to no process.

use crate::layout::{MAX_PROCESSES, NONE, State};
use crate::queue::QueueError;

/// Most blocks of all processes.
pub const MAX_BLOCKS: usize = 4096;

/// State of a block's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Use {
    /// Unused.
    Free = 0,
    /// In use.
    Block = 1,
    /// Without holders; the file is still to be deleted.
    Gone = 2,
}

/// A shared block. Its contents are in a file beside the node's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Block {
    /// [`Use`] as a number.
    pub state: u32,
    /// Number of times this slot was used.
    pub generation: u32,
    /// Device ordinal on the node.
    pub device: u32,
    /// Slot of the process that is charged; [`NONE`] after it has released the block.
    pub owner: u32,
    /// Bytes counted on the device.
    pub bytes: u64,
    /// Length of the block, in bytes.
    pub length: u64,
    /// Whether the owner is charged for the bytes through another allocation (a pool).
    pub covered: u32,
    /// Whether file descriptors were created for it.
    pub exported: u32,
    /// One bit per process that holds it.
    pub holders: [u64; MAX_PROCESSES / 64],
}

impl Block {
    /// Whether any process holds it.
    #[must_use]
    pub fn held(&self) -> bool {
        self.holders.iter().any(|&bits| bits != 0)
    }

    fn set(&mut self, process: u32, held: bool) {
        let (word, bit) = (process as usize / 64, 1 << (process % 64));
        if held {
            self.holders[word] |= bit;
        } else {
            self.holders[word] &= !bit;
        }
    }

    /// Whether a process holds it.
    #[must_use]
    pub fn holds(&self, process: u32) -> bool {
        self.holders[process as usize / 64] & (1 << (process % 64)) != 0
    }
}

/// Identifies a block for as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockId {
    /// Slot number.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
}

impl State {
    /// Creates a block of memory for which `process` is already charged.
    ///
    /// # Errors
    /// [`QueueError::NoSlot`].
    pub fn add_block(
        &mut self,
        process: u32,
        device: u32,
        (bytes, covered): (u64, bool),
        length: u64,
    ) -> Result<BlockId, QueueError> {
        let mark = self.block_mark as usize;
        let free = self.blocks[..mark].iter().position(|b| b.state == Use::Free as u32);
        let slot = match free {
            Some(slot) => slot,
            None if mark < MAX_BLOCKS => {
                self.block_mark += 1;
                mark
            }
            None => return Err(QueueError::NoSlot),
        };
        let block = &mut self.blocks[slot];
        let generation = block.generation.wrapping_add(1);
        *block = Block {
            state: Use::Block as u32,
            generation,
            device,
            owner: process,
            bytes,
            length,
            covered: u32::from(covered),
            exported: 0,
            holders: [0; MAX_PROCESSES / 64],
        };
        block.set(process, true);
        Ok(BlockId { slot: slot as u32, generation })
    }

    /// The block, if it exists.
    #[must_use]
    pub fn block(&self, id: BlockId) -> Option<&Block> {
        self.blocks
            .get(id.slot as usize)
            .filter(|b| b.state == Use::Block as u32 && b.generation == id.generation)
    }

    /// Bytes of blocks that a process holds alone after their owner has released them; they are charged to that
    /// process. Blocks with several holders, or a descriptor, are charged to no process.
    #[must_use]
    pub fn inherited(&self, process: u32, device: u32) -> u64 {
        let alone = |block: &&Block| {
            block.state == Use::Block as u32
                && (block.device, block.owner, block.exported) == (device, NONE, 0)
                && block.holds(process)
                && block.holders.iter().map(|bits| bits.count_ones()).sum::<u32>() == 1
        };
        self.blocks[..self.block_mark as usize].iter().filter(alone).map(|block| block.bytes).sum()
    }

    /// Adds a process to a block's holders.
    ///
    /// # Errors
    /// [`QueueError::Gone`].
    pub fn hold_block(&mut self, process: u32, id: BlockId) -> Result<Block, QueueError> {
        self.block(id).ok_or(QueueError::Gone)?;
        let block = &mut self.blocks[id.slot as usize];
        block.set(process, true);
        Ok(*block)
    }

    /// Removes a process from a block's holders.
    pub fn release_block(&mut self, process: u32, id: BlockId) {
        if !self.block(id).is_some_and(|block| block.holds(process)) {
            return;
        }
        let block = &mut self.blocks[id.slot as usize];
        block.set(process, false);
        let (device, bytes) = (block.device, block.bytes);
        if block.owner == process {
            block.owner = NONE;
            let covered = block.covered == 1;
            if !covered {
                let client = &mut self.processes[process as usize].clients[device as usize];
                client.memory = client.memory.saturating_sub(bytes);
            } else {
                // The covering allocation returns its own bytes.
                self.devices[device as usize].used += bytes;
            }
        }
        self.end_if_unheld(id.slot);
    }

    /// Frees a block without holders. If descriptors may hold it, [`State::end_exported`] must be called first.
    fn end_if_unheld(&mut self, slot: u32) {
        let block = &mut self.blocks[slot as usize];
        if block.state == Use::Block as u32 && !block.held() && block.exported == 0 {
            block.state = Use::Gone as u32;
            let device = &mut self.devices[block.device as usize];
            device.used = device.used.saturating_sub(block.bytes);
        }
    }

    /// Records that no descriptor of the block is open.
    pub fn end_exported(&mut self, id: BlockId) {
        if self.block(id).is_some() {
            self.blocks[id.slot as usize].exported = 0;
            self.end_if_unheld(id.slot);
        }
    }

    /// Part of [`State::rebuild`]: removes dead processes from the blocks and recounts the rest.
    pub(crate) fn rebuild_blocks(&mut self) {
        for slot in 0..self.block_mark as usize {
            let mut block = self.blocks[slot];
            if block.state != Use::Block as u32 {
                continue;
            }
            for process in 0..self.process_mark {
                if block.holds(process) && self.processes[process as usize].state != 1 {
                    block.set(process, false);
                    if block.owner == process {
                        block.owner = NONE;
                    }
                }
            }
            if !block.held() && block.exported == 0 {
                block.state = Use::Gone as u32;
            } else if block.owner == NONE {
                self.devices[block.device as usize].used += block.bytes;
            }
            self.blocks[slot] = block;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::node;

    #[test]
    fn a_block_counts_until_the_last_holder_lets_go() {
        let mut state = node();
        let all = state.free_memory(0);
        let (a, b) = (state.add_process(1, 1).unwrap(), state.add_process(2, 2).unwrap());
        state.take(a, 0, 100).unwrap();
        let id = state.add_block(a, 0, (100, false), 100).unwrap();
        state.hold_block(b, id).unwrap();
        state.release_block(a, id);
        assert_eq!(state.processes[a as usize].clients[0].memory, 0);
        assert_eq!(all - state.free_memory(0), 100);
        state.rebuild();
        assert_eq!(all - state.free_memory(0), 100);
        let c = state.add_process(3, 3).unwrap();
        state.hold_block(c, id).unwrap();
        assert_eq!((state.inherited(b, 0), state.inherited(c, 0)), (0, 0), "counted for nobody");
        state.release_block(c, id);
        assert_eq!((state.inherited(b, 0), state.inherited(c, 0)), (100, 0));
        state.release_block(b, id);
        assert_eq!(state.free_memory(0), all);
        assert!(state.block(id).is_none());
        assert_eq!(state.hold_block(b, id).err(), Some(QueueError::Gone));
    }

    #[test]
    fn the_dead_let_go() {
        let mut state = node();
        let all = state.free_memory(0);
        let (a, b) = (state.add_process(1, 1).unwrap(), state.add_process(2, 2).unwrap());
        state.take(a, 0, 100).unwrap();
        let id = state.add_block(a, 0, (100, false), 100).unwrap();
        state.hold_block(b, id).unwrap();
        state.drop_process(a);
        assert_eq!(all - state.free_memory(0), 100);
        state.drop_process(b);
        assert_eq!(state.free_memory(0), all);
    }

    #[test]
    fn an_exported_block_outlives_its_holders() {
        let mut state = node();
        let all = state.free_memory(0);
        let a = state.add_process(1, 1).unwrap();
        state.take(a, 0, 100).unwrap();
        let id = state.add_block(a, 0, (100, false), 100).unwrap();
        state.blocks[id.slot as usize].exported = 1;
        state.drop_process(a);
        assert_eq!(all - state.free_memory(0), 100);
        state.end_exported(id);
        assert_eq!(state.free_memory(0), all);
    }

    #[test]
    fn what_a_pool_covers_is_not_counted_twice() {
        let mut state = node();
        let all = state.free_memory(0);
        let (a, b) = (state.add_process(1, 1).unwrap(), state.add_process(2, 2).unwrap());
        state.take(a, 0, 1000).unwrap();
        let id = state.add_block(a, 0, (100, true), 100).unwrap();
        assert_eq!(all - state.free_memory(0), 1000);
        state.hold_block(b, id).unwrap();
        state.drop_process(a);
        assert_eq!(all - state.free_memory(0), 100);
        state.release_block(b, id);
        assert_eq!(state.free_memory(0), all);
    }
}
