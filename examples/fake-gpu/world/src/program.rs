//! Models of programs: what a thread launches, when it waits, and what its CPU does in between.
//!
//! Kernels shorter than a batch (about a millisecond) are modelled as one operation of a batch's length: the limiter
//! decides about batches, not about single launches.

use crate::dice::Dice;

const MS: u64 = 1_000_000;
const US: u64 = 1_000;

/// A program, as what it repeats. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Launches kernels and never waits: it fills the device.
    Dense {
        /// Duration of a kernel.
        kernel: u64,
    },
    /// Steps of several kernels, a wait for them, and some CPU time.
    Training {
        /// Kernels per step.
        kernels: u64,
        /// Duration of a kernel.
        kernel: u64,
        /// Time between steps.
        gap: u64,
    },
    /// Launch-bound: a launch takes the CPU longer than the kernel takes the device.
    Decode {
        /// Duration of a kernel.
        kernel: u64,
        /// Time between launches.
        cpu: u64,
    },
    /// One long launch at a time, with a wait for it.
    Graph {
        /// Duration of the launch.
        length: u64,
    },
    /// Serves requests that arrive at random.
    Server {
        /// Mean time between arrivals.
        every: u64,
        /// Duration of a request.
        length: u64,
    },
    /// Its stream waits for a value that the host writes after some time, then runs a kernel.
    HostWaits {
        /// Duration of the kernel.
        kernel: u64,
        /// How long the host works before it writes the value.
        host: u64,
    },
    /// A rank's step on each of its devices: a kernel, a collective, and a wait for both.
    DataParallel {
        /// Duration of the kernel.
        compute: u64,
        /// Duration of the collective once all devices have begun it.
        collective: u64,
    },
    /// Alternates between filling the device and being launch-bound.
    Changing {
        /// Duration of a kernel.
        kernel: u64,
        /// Time between changes.
        every: u64,
    },
}

/// A thread's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Launches work of this duration on each of its devices.
    Launch(u64),
    /// Launches a collective over its devices.
    Collective(u64),
    /// Makes its stream wait for a value.
    Hold,
    /// Writes that value.
    Release,
    /// Waits for all that it has launched.
    Wait,
    /// Uses its CPU, or sleeps, for this time.
    Cpu(u64),
    /// Sleeps until the next request arrives.
    Request(u64),
}

impl Program {
    /// A random program.
    pub(crate) fn random(dice: &mut Dice) -> Self {
        let kernels = [60 * US, 250 * US, MS, 2_500 * US, 8 * MS, 20 * MS];
        match dice.up_to(7) {
            0 | 1 => Self::Dense { kernel: dice.pick(&kernels).max(500 * US) },
            2 => Self::Training {
                kernels: dice.between(4, 60),
                kernel: dice.between(400 * US, 2 * MS),
                gap: dice.between(0, 15 * MS),
            },
            3 => Self::Decode {
                kernel: dice.between(100 * US, 400 * US),
                cpu: dice.between(500 * US, 2 * MS),
            },
            4 => Self::Graph { length: dice.between(MS, 25 * MS) },
            5 => Self::Server {
                every: dice.between(15 * MS, 200 * MS),
                length: dice.between(MS, 8 * MS),
            },
            6 => Self::HostWaits {
                kernel: dice.between(MS, 6 * MS),
                host: dice.between(200 * US, 5 * MS),
            },
            _ => Self::Changing {
                kernel: dice.between(500 * US, 2 * MS),
                every: dice.between(500 * MS, 8_000 * MS),
            },
        }
    }

    /// A random data-parallel job.
    pub(crate) fn random_ranks(dice: &mut Dice) -> Self {
        Self::DataParallel {
            compute: dice.between(MS, 12 * MS),
            collective: dice.between(100 * US, 3 * MS),
        }
    }

    /// Whether it always has work for the device.
    pub fn fills(&self) -> bool {
        matches!(self, Self::Dense { .. })
    }

    /// The longest single piece of work (ns).
    pub fn longest(&self) -> u64 {
        match *self {
            Self::Dense { kernel }
            | Self::Training { kernel, .. }
            | Self::Decode { kernel, .. }
            | Self::HostWaits { kernel, .. }
            | Self::Changing { kernel, .. } => kernel,
            Self::Graph { length } | Self::Server { length, .. } => length,
            Self::DataParallel { compute, collective } => compute.max(collective),
        }
    }

    /// The thread's next step, after `steps` steps.
    pub(crate) fn step(&self, steps: u64, now: u64, dice: &mut Dice) -> Step {
        match *self {
            Self::Dense { kernel } => Step::Launch(kernel),
            Self::Training { kernels, kernel, gap } => match steps % (kernels + 2) {
                at if at < kernels => Step::Launch(kernel),
                at if at == kernels => Step::Wait,
                _ => Step::Cpu(gap),
            },
            Self::Decode { kernel, cpu } => decode(steps, kernel, cpu),
            Self::Graph { length } => {
                if steps.is_multiple_of(2) {
                    Step::Launch(length)
                } else {
                    Step::Wait
                }
            }
            Self::Server { every, length } => match steps % 3 {
                0 => Step::Request(dice.random_time(every)),
                1 => Step::Launch(length),
                _ => Step::Wait,
            },
            Self::HostWaits { kernel, host } => match steps % 5 {
                0 => Step::Hold,
                1 => Step::Launch(kernel),
                2 => Step::Cpu(host),
                3 => Step::Release,
                _ => Step::Wait,
            },
            Self::DataParallel { compute, collective } => match steps % 3 {
                0 => Step::Launch(compute),
                1 => Step::Collective(collective),
                _ => Step::Wait,
            },
            Self::Changing { kernel, every } => {
                if (now / every).is_multiple_of(2) {
                    Step::Launch(kernel)
                } else {
                    decode(steps, kernel / 4, kernel)
                }
            }
        }
    }
}

fn decode(steps: u64, kernel: u64, cpu: u64) -> Step {
    if steps.is_multiple_of(2) { Step::Launch(kernel) } else { Step::Cpu(cpu) }
}
