//! Scenarios: which sessions are on the node, and what happens to them.

use limits::{ComputeLimit, Priority};
use scheduler::Way;

use crate::dice::Dice;
use crate::program::Program;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// How a session's reports are falsified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// Not at all.
    True,
    /// They claim that none of the held time was used.
    Idle,
    /// They claim that half of the use took place.
    Half,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its quota on each of its devices.
    pub quota: ComputeLimit,
    /// Its devices; several are used together.
    pub devices: Vec<u32>,
    /// Number of its processes.
    pub processes: u32,
    /// The program of each process.
    pub program: Program,
    /// Whether its gates are in its streams.
    pub in_stream: bool,
    /// How its reports are falsified.
    pub words: Words,
    /// When it starts, in nanoseconds after the beginning.
    pub comes_at: u64,
}

impl Tenant {
    /// A session of one process on device 0, from the beginning, with gates on its threads.
    pub fn new(quota: ComputeLimit, program: Program) -> Self {
        let (devices, words) = (vec![0], Words::True);
        Self { quota, devices, processes: 1, program, in_stream: false, words, comes_at: 0 }
    }

    /// The same with gates in its streams.
    pub fn in_stream(self) -> Self {
        Self { in_stream: true, ..self }
    }
}

/// A fault, or a change by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A process of a session is killed, and restarted after some time.
    Killed {
        /// The session.
        tenant: usize,
        /// Time until the restart.
        for_ns: u64,
    },
    /// All processes of a session are stopped (SIGSTOP), and continue after some time.
    Stopped {
        /// The session.
        tenant: usize,
        /// Duration.
        for_ns: u64,
    },
    /// The daemon is killed, and restarted after some time.
    DaemonDies {
        /// Time until the restart.
        for_ns: u64,
    },
    /// The operator freezes a session, and thaws it after some time.
    Frozen {
        /// The session.
        tenant: usize,
        /// Duration.
        for_ns: u64,
    },
    /// A session's share becomes a part of its initial one.
    Share {
        /// The session.
        tenant: usize,
        /// The part, in thousandths.
        thousandths: u32,
    },
    /// Messages are late.
    LateMessages {
        /// The longest time of a message.
        most_ns: u64,
        /// Duration.
        for_ns: u64,
    },
    /// Threads wake up late.
    LateWakeups {
        /// The longest delay.
        most_ns: u64,
        /// Duration.
        for_ns: u64,
    },
    /// A device shows a fault: the daemon grants nothing there for some time.
    DeviceFails {
        /// The device.
        device: u32,
        /// Duration.
        for_ns: u64,
    },
}

/// A run: its sessions, troubles and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Determines everything that is random in the run.
    pub seed: u64,
    /// Number of devices.
    pub devices: u32,
    /// The sessions.
    pub tenants: Vec<Tenant>,
    /// The troubles, with their times in nanoseconds after the beginning.
    pub troubles: Vec<(u64, Trouble)>,
    /// Length of the run in nanoseconds.
    pub length: u64,
    /// The only way in which sessions share a device. `None`: the scheduler chooses.
    pub way: Option<Way>,
}

impl Scenario {
    /// A random scenario. The guarantees on each device add up to at most nine tenths of it: the rest may go to
    /// handovers, slicing and probes.
    pub fn random(seed: u64, length: u64) -> Self {
        let mut dice = Dice::new(seed);
        let devices = dice.pick(&[1, 1, 2, 2, 4, 8]);
        let mut free = vec![900_000_u32; devices as usize];
        let mut tenants = Vec::new();
        let most = dice.between(1, 3 + u64::from(devices));
        for _ in 0..most {
            let wants =
                if devices > 1 && dice.one_in(3) { dice.between(2, devices.into()) } else { 1 };
            let first = dice.up_to(u64::from(devices) - wants) as u32;
            let own: Vec<u32> = (first..first + wants as u32).collect();
            let left = own.iter().map(|&device| free[device as usize]).min().unwrap_or(0);
            if left < 20_000 {
                continue;
            }
            let share_ppm = dice.between(20_000, left.into()) as u32;
            own.iter().for_each(|&device| free[device as usize] -= share_ppm);
            tenants.push(tenant(&mut dice, own, share_ppm));
        }
        let troubles = troubles(&mut dice, tenants.len(), devices, length);
        Self { seed, devices, tenants, troubles, length, way: None }
    }
}

fn tenant(dice: &mut Dice, devices: Vec<u32>, share_ppm: u32) -> Tenant {
    let several = devices.len() > 1;
    let mut quota = match dice.up_to(3) {
        0 | 1 => ComputeLimit::fixed(share_ppm),
        2 => ComputeLimit::balance(share_ppm, dice.between(1, 5) as u32),
        _ => {
            let soft_ppm = Some(dice.between(share_ppm.into(), 1_000_000) as u32);
            ComputeLimit { soft_ppm, ..ComputeLimit::balance(share_ppm, 1) }
        }
    };
    if dice.one_in(10) {
        quota.priority = Priority::Low;
    }
    let program = if several { Program::random_ranks(dice) } else { Program::random(dice) };
    Tenant {
        quota,
        devices,
        processes: if several || dice.up_to(4) > 0 { 1 } else { dice.between(2, 3) as u32 },
        program,
        in_stream: dice.one_in(2),
        words: if dice.one_in(12) { dice.pick(&[Words::Idle, Words::Half]) } else { Words::True },
        comes_at: if dice.one_in(2) { 0 } else { dice.up_to(5 * SECOND) },
    }
}

fn troubles(dice: &mut Dice, tenants: usize, devices: u32, length: u64) -> Vec<(u64, Trouble)> {
    let mut all = Vec::new();
    if dice.one_in(3) || tenants == 0 {
        return all;
    }
    let every = dice.between(10 * SECOND, 60 * SECOND);
    let mut at = dice.random_time(every);
    while at < length {
        let tenant = dice.up_to(tenants as u64 - 1) as usize;
        let for_ns = dice.between(10 * MS, 3 * SECOND);
        let trouble = match dice.up_to(7) {
            0 => Trouble::Killed { tenant, for_ns },
            1 => Trouble::Stopped { tenant, for_ns },
            2 => Trouble::DaemonDies { for_ns },
            3 => Trouble::Frozen { tenant, for_ns },
            4 => Trouble::Share { tenant, thousandths: dice.between(100, 1_000) as u32 },
            5 => Trouble::LateMessages { most_ns: dice.between(MS, 30 * MS), for_ns },
            6 => Trouble::LateWakeups { most_ns: dice.between(MS, 20 * MS), for_ns },
            _ => Trouble::DeviceFails { device: dice.up_to(u64::from(devices) - 1) as u32, for_ns },
        };
        all.push((at, trouble));
        at += dice.random_time(every) + MS;
    }
    all
}
