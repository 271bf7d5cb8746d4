//! Who is on the node, and what happens to them.

use limits::{ComputeLimit, Priority};

use crate::dice::Dice;
use crate::program::Program;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// What a session's reports say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// What its limiter found.
    True,
    /// That it used nothing of what it held.
    Idle,
    /// That it used half of it.
    Half,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// What it may have of each of its devices.
    pub quota: ComputeLimit,
    /// Its devices. More than one are used together.
    pub devices: Vec<u32>,
    /// How many processes it has.
    pub processes: u32,
    /// What each of them does.
    pub program: Program,
    /// Whether its gates are in its streams.
    pub in_stream: bool,
    /// What its reports say.
    pub words: Words,
    /// When it comes, in nanoseconds after the beginning.
    pub comes_at: u64,
}

impl Tenant {
    /// One process on device 0 from the beginning, with gates on its threads.
    pub fn new(quota: ComputeLimit, program: Program) -> Self {
        let (devices, words) = (vec![0], Words::True);
        Self { quota, devices, processes: 1, program, in_stream: false, words, comes_at: 0 }
    }

    /// With gates in its streams.
    pub fn in_stream(self) -> Self {
        Self { in_stream: true, ..self }
    }
}

/// What goes wrong, or is changed by somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A process of a session is killed, and started again after some time.
    Killed {
        /// Which session.
        tenant: usize,
        /// How long it is gone.
        for_ns: u64,
    },
    /// All processes of a session are stopped (SIGSTOP), and go on after some time.
    Stopped {
        /// Which session.
        tenant: usize,
        /// For how long.
        for_ns: u64,
    },
    /// The daemon is killed, and started again after some time.
    DaemonDies {
        /// How long it is gone.
        for_ns: u64,
    },
    /// The operator freezes a session, and thaws it after some time.
    Frozen {
        /// Which session.
        tenant: usize,
        /// For how long.
        for_ns: u64,
    },
    /// A session's share becomes this part of what it was at first, in thousandths.
    Share {
        /// Which session.
        tenant: usize,
        /// Which part.
        thousandths: u32,
    },
    /// Messages take up to so long.
    LateMessages {
        /// How long one takes at most.
        most_ns: u64,
        /// For how long this is so.
        for_ns: u64,
    },
    /// Threads wake up so much too late at most.
    LateWakeups {
        /// How much.
        most_ns: u64,
        /// For how long this is so.
        for_ns: u64,
    },
    /// A device shows a fault: the daemon grants nothing there for some time.
    DeviceFails {
        /// Which device.
        device: u32,
        /// For how long.
        for_ns: u64,
    },
}

/// A run: who is there, what happens, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What all that is random in the run follows from.
    pub seed: u64,
    /// How many devices there are.
    pub devices: u32,
    /// The sessions.
    pub tenants: Vec<Tenant>,
    /// What happens, and when, in nanoseconds after the beginning.
    pub troubles: Vec<(u64, Trouble)>,
    /// How long the run is, in nanoseconds.
    pub length: u64,
}

impl Scenario {
    /// A run at random. The guarantees on each device together are at most nine tenths of it: the rest may go to
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
        Self { seed, devices, tenants, troubles, length }
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
