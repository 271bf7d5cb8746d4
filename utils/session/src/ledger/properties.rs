//! Compares the ledger with a model that is too simple to be wrong: a table of bytes by process and kind.

use super::death::{blank, dies_after, total};
use super::{Ledger, MemoryBound, Placement};
use crate::layout::{MemoryKind, PageLayout, SLOTS};
use core::sync::atomic::Ordering::Relaxed;
use proptest::prelude::*;
use std::collections::HashMap;

/// Constant: no time passes.
const NOW: u64 = 1_000_000;

/// Processes of the session: neighbours, and one at the far end.
const PROCESSES: [usize; 5] = [0, 1, 2, 63, SLOTS - 1];

#[derive(Clone, Debug)]
enum Op {
    Reserve(usize, MemoryKind, u64),
    ReserveAnywhere(usize, MemoryKind, u64),
    Charge(usize, MemoryKind, u64),
    /// Reserves bytes and releases them, as when the driver refuses the allocation.
    RollBack(usize, MemoryKind, u64),
    Release(usize, MemoryKind, u64),
    Set(usize, MemoryKind, u64),
    /// The process ends, which is noticed.
    Death(usize),
    /// The process ends in the middle of a charge, before one of its stores, and another one takes over.
    DeathWithin(usize, MemoryKind, u64, u32),
    Resize(u64, u64),
}

fn operations() -> impl Strategy<Value = Op> {
    let who = || 0..PROCESSES.len();
    let kind = || (0..MemoryKind::ALL.len()).prop_map(|index| MemoryKind::ALL[index]);
    let bytes = || prop_oneof![8 => 0..3_000_u64, 1 => Just(u64::MAX), 1 => Just(0)];
    // Not the largest value, which no sum may reach.
    let limit = || prop_oneof![4 => 0..20_000_u64, 1 => Just(u64::MAX - 1)];
    prop_oneof![
        4 => (who(), kind(), bytes()).prop_map(|(p, k, b)| Op::Reserve(p, k, b)),
        2 => (who(), kind(), bytes()).prop_map(|(p, k, b)| Op::ReserveAnywhere(p, k, b)),
        1 => (who(), kind(), 0..30_000_u64).prop_map(|(p, k, b)| Op::Charge(p, k, b)),
        1 => (who(), kind(), bytes()).prop_map(|(p, k, b)| Op::RollBack(p, k, b)),
        3 => (who(), kind(), bytes()).prop_map(|(p, k, b)| Op::Release(p, k, b)),
        1 => (who(), kind(), 0..30_000_u64).prop_map(|(p, k, b)| Op::Set(p, k, b)),
        1 => who().prop_map(Op::Death),
        1 => (who(), kind(), 0..3_000_u64, 0..4_u32).prop_map(|(p, k, b, s)| Op::DeathWithin(p, k, b, s)),
        1 => (limit(), limit()).prop_map(|(limit, real)| Op::Resize(limit, real)),
    ]
}

#[derive(Debug)]
struct Model {
    limit: u64,
    real: u64,
    has: HashMap<(usize, usize), u64>,
}

impl Model {
    fn used(&self) -> u64 {
        self.has.values().sum()
    }

    fn on_host(&self) -> u64 {
        let host = MemoryKind::Overcommitted as usize;
        self.has.iter().filter(|((_, kind), _)| *kind == host).map(|(_, bytes)| bytes).sum()
    }

    fn place(&self, bytes: u64) -> Result<Placement, MemoryBound> {
        let (used, bytes) = (u128::from(self.used()), u128::from(bytes));
        if used + bytes > u128::from(self.limit) {
            return Err(MemoryBound::Limit);
        }
        let on_device = used - u128::from(self.on_host()) + bytes;
        Ok(if on_device > u128::from(self.real.min(self.limit)) {
            Placement::Host
        } else {
            Placement::Device
        })
    }

    fn cell(&mut self, process: usize, kind: MemoryKind) -> &mut u64 {
        self.has.entry((process, kind as usize)).or_default()
    }

    fn dies(&mut self, process: usize) {
        self.has.retain(|&(of, _), _| of != process);
    }

    fn reserve(&mut self, process: usize, kind: MemoryKind, bytes: u64) -> Result<(), MemoryBound> {
        match (kind, self.place(bytes)?) {
            (MemoryKind::Overcommitted, _) | (_, Placement::Device) => {
                *self.cell(process, kind) += bytes
            }
            (_, Placement::Host) => return Err(MemoryBound::Real),
        }
        Ok(())
    }
}

fn step(model: &mut Model, layout: &PageLayout, op: &Op) {
    let mut ledger = Ledger::new(layout);
    let slot = |process: usize| PROCESSES[process];
    match *op {
        Op::Reserve(p, kind, bytes) => {
            let before = (ledger.used(), ledger.on_device());
            let result = ledger.reserve(slot(p), kind, bytes);
            assert_eq!(result.map_err(|refusal| refusal.bound), model.reserve(p, kind, bytes));
            if let Err(refusal) = result {
                assert_eq!((ledger.used(), ledger.on_device()), before);
                assert!(u128::from(refusal.used) + u128::from(bytes) > u128::from(refusal.limit));
            }
        }
        Op::ReserveAnywhere(p, kind, bytes) => {
            let place = ledger.reserve_anywhere(slot(p), kind, bytes);
            assert_eq!(place.map_err(|refusal| refusal.bound), model.place(bytes));
            if let Ok(place) = place {
                let kind = if place == Placement::Host { MemoryKind::Overcommitted } else { kind };
                *model.cell(p, kind) += bytes;
            }
        }
        Op::Charge(p, kind, bytes) => {
            ledger.charge(slot(p), kind, bytes);
            *model.cell(p, kind) += bytes;
        }
        Op::RollBack(p, kind, bytes) => {
            if ledger.reserve(slot(p), kind, bytes).is_ok() {
                ledger.release(slot(p), kind, bytes).unwrap();
            }
        }
        Op::Release(p, kind, bytes) => {
            let has = *model.cell(p, kind);
            assert_eq!(ledger.release(slot(p), kind, bytes).is_ok(), has >= bytes);
            *model.cell(p, kind) = has.saturating_sub(bytes);
        }
        Op::Set(p, kind, bytes) => {
            ledger.set(slot(p), kind, bytes);
            *model.cell(p, kind) = bytes;
        }
        Op::Death(p) => {
            ledger.vacate(slot(p), NOW);
            model.dies(p);
        }
        Op::DeathWithin(p, kind, bytes, stores) => {
            if dies_after(stores, || Ledger::new(layout).charge(slot(p), kind, bytes)) {
                // Sums may be stale, as for a process that takes over the lock.
                ledger.recount();
                ledger.vacate(slot(p), NOW);
                model.dies(p);
            } else {
                *model.cell(p, kind) += bytes;
            }
        }
        Op::Resize(limit, real) => {
            layout.memory_limit.store(limit, Relaxed);
            layout.memory_real.store(real, Relaxed);
            (model.limit, model.real) = (limit, real);
        }
    }
}

proptest! {
    #[test]
    fn sums_limits_and_slots_are_the_models(ops in prop::collection::vec(operations(), 1..120)) {
        let layout = blank(10_000, 6_000);
        let mut model = Model { limit: 10_000, real: 6_000, has: HashMap::new() };
        for (number, &slot) in PROCESSES.iter().enumerate() {
            Ledger::new(&layout).enroll(slot, u32::try_from(number).unwrap() + 1, 1, NOW);
        }
        for op in &ops {
            step(&mut model, &layout, op);
            let ledger = Ledger::new(&layout);
            prop_assert_eq!(ledger.used(), model.used(), "{:?}", op);
            prop_assert_eq!(ledger.on_device(), model.used() - model.on_host(), "{:?}", op);
            prop_assert_eq!(ledger.limit(), model.limit);
            for (process, &slot) in PROCESSES.iter().enumerate() {
                for kind in MemoryKind::ALL {
                    prop_assert_eq!(ledger.has(slot, kind), *model.cell(process, kind), "{:?}", op);
                }
            }
            prop_assert_eq!(total(&layout, 5), 0);
        }
    }
}
