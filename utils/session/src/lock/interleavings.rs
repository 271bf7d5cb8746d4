//! All executions of the lock's protocol: the steps of some processes in any order, with deaths between any two steps.
//! The decisions are those of [`Attempt`]; the rest is a model: the word, the file's locks, and the kernel, which drops
//! a process's locks when it ends.

use super::{Attempt, Step, StepResult, number};
use std::collections::{HashMap, VecDeque};

/// A process of the model.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Process {
    /// Is taking the lock.
    Tries(Attempt),
    /// Has the ledger open.
    Owns,
    /// Has a slot and does nothing.
    Rests,
    Dead,
    /// A new program that looks for a slot, and tries this one next.
    Newcomer(usize),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    word: u32,
    /// The process that locks each slot's byte. Record locks belong to processes, so attempts and members do not differ
    /// here.
    bytes: Vec<Option<usize>>,
    /// The slot of each process.
    slot_of: Vec<usize>,
    processes: Vec<Process>,
    /// How often processes may still start anew, and die.
    rounds: u8,
    deaths: u8,
}

impl World {
    fn new(count: usize, rounds: u8, deaths: u8) -> Self {
        Self {
            word: 0,
            bytes: (0..count).map(Some).collect(),
            slot_of: (0..count).collect(),
            processes: (0..count).map(|slot| Process::Tries(Attempt::new(slot, count))).collect(),
            rounds,
            deaths,
        }
    }

    fn count(&self) -> usize {
        self.processes.len()
    }

    /// One step of a process towards the lock.
    fn tries(&mut self, who: usize, mut attempt: Attempt) -> Process {
        let seen = match attempt.next() {
            Step::Taken { .. } => return Process::Owns,
            Step::Impossible(owner) => panic!("{owner}"),
            Step::Replace(old) if self.word == old => {
                self.word = number(self.slot_of[who]);
                StepResult::Replaced
            }
            Step::Replace(_) => StepResult::Owner(self.word),
            // The kernel does not report the caller's own lock.
            Step::IsAlive(slot) => StepResult::Answer(self.bytes[slot].is_some_and(|by| by != who)),
            Step::LockSlot(slot) => {
                let free = self.bytes[slot].is_none_or(|by| by == who);
                if free {
                    self.bytes[slot] = Some(who);
                }
                StepResult::Answer(free)
            }
            Step::UnlockSlot(slot) => {
                assert_eq!(self.bytes[slot], Some(who));
                self.bytes[slot] = None;
                StepResult::Done
            }
        };
        attempt.saw(seen);
        if matches!(attempt.next(), Step::Taken { .. }) {
            Process::Owns
        } else {
            Process::Tries(attempt)
        }
    }

    /// The state after a process's next step without dying; `None`: it has nothing to do.
    fn goes_on(&self, who: usize) -> Option<Self> {
        let mut next = self.clone();
        next.processes[who] = match &self.processes[who] {
            Process::Tries(attempt) => next.tries(who, attempt.clone()),
            Process::Owns => {
                next.word = 0;
                Process::Rests
            }
            Process::Newcomer(slot) if self.bytes[*slot].is_none() => {
                next.bytes[*slot] = Some(who);
                next.slot_of[who] = *slot;
                Process::Tries(Attempt::new(*slot, self.count()))
            }
            Process::Newcomer(slot) => Process::Newcomer((slot + 1) % self.count()),
            Process::Rests if self.rounds > 0 => {
                next.rounds -= 1;
                Process::Tries(Attempt::new(self.slot_of[who], self.count()))
            }
            Process::Rests | Process::Dead => return None,
        };
        Some(next)
    }

    /// The state after a process's death, or after its replacement by a new process that looks for a slot.
    fn dies(&self, who: usize) -> Option<Self> {
        match self.processes[who] {
            Process::Dead if self.rounds > 0 => {
                let mut next = self.clone();
                next.rounds -= 1;
                next.processes[who] = Process::Newcomer(0);
                Some(next)
            }
            Process::Dead => None,
            _ if self.deaths == 0 => None,
            _ => {
                let mut next = self.clone();
                next.deaths -= 1;
                next.processes[who] = Process::Dead;
                for byte in &mut next.bytes {
                    if *byte == Some(who) {
                        *byte = None;
                    }
                }
                Some(next)
            }
        }
    }

    fn check(&self) {
        let owners: Vec<usize> =
            (0..self.count()).filter(|&who| self.processes[who] == Process::Owns).collect();
        assert!(owners.len() <= 1, "two have the ledger open: {self:#?}");
        if let [owner] = owners[..] {
            assert_eq!(self.word, number(self.slot_of[owner]), "{self:#?}");
        }
    }

    /// From here on no process dies and all take turns: each that wants the lock gets it.
    fn comes_to_rest(&self) {
        let mut world = Self { rounds: 0, deaths: 0, ..self.clone() };
        for _ in 0..60 {
            for who in 0..world.count() {
                if let Some(next) = world.goes_on(who) {
                    world = next;
                    world.check();
                }
            }
        }
        let rests = |process: &Process| matches!(process, Process::Rests | Process::Dead);
        assert!(world.processes.iter().all(rests), "from {self:#?} to {world:#?}");
    }
}

/// Visits every reachable state, and returns their number.
fn explore(first: World) -> usize {
    let mut known = HashMap::from([(first.clone(), ())]);
    let mut ahead = VecDeque::from([first]);
    while let Some(world) = ahead.pop_front() {
        world.check();
        world.comes_to_rest();
        for who in 0..world.count() {
            for next in [world.goes_on(who), world.dies(who)].into_iter().flatten() {
                if known.insert(next.clone(), ()).is_none() {
                    ahead.push_back(next);
                }
            }
        }
    }
    known.len()
}

#[test]
fn two_processes_never_own_the_lock_at_once_and_it_is_never_lost() {
    assert!(explore(World::new(2, 4, 4)) > 1_000);
}

#[test]
fn nor_do_three() {
    assert!(explore(World::new(3, 2, 2)) > 10_000);
}
