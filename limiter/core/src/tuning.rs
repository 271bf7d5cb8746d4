//! The numbers by which this crate behaves, each with its unit, its reason, and the figure that needs it.
//!
//! A test (`pure_crates` of the limiter) checks that there are no others, and no more than there were.

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const SECOND: u64 = 1_000 * MS;

// What may be outstanding.

/// What may always be outstanding, in estimated nanoseconds: beside other sessions, at a lease's end, and before work
/// of unknown duration, or behind a wait for something outside of the device. A long launch may go beyond it. The next
/// holder waits for it (p95 of waits, 12 ms).
pub const LEAST_OUTSTANDING_NS: u64 = 2 * MS;
/// The most that may be outstanding, however long a lease is: the longest lease.
pub const MOST_OUTSTANDING_NS: u64 = 50 * MS;

// A lease while its gate is open.

/// How often the governor looks whether the program still uses its lease: every 3 to 5 ms, in no rhythm that a program
/// could have.
pub(crate) const LEAST_LOOK_NS: u64 = 3 * MS;
pub(crate) const LOOK_SPREAD_NS: u64 = 2 * MS;
/// The first check comes sooner, because more may be launched then.
pub(crate) const FIRST_LOOK_NS: u64 = MS;
/// The longest time between two checks.
pub const LONGEST_LOOK_NS: u64 = LEAST_LOOK_NS + LOOK_SPREAD_NS;
/// The time between checks with gates in streams, where a check only reads memory.
pub const SHORTEST_LOOK_NS: u64 = 500 * US;
/// For how long a program may not use its lease, where that costs others nothing, and where it does. Programs pause for
/// some milliseconds between steps.
pub(crate) const PAUSE_NS: u64 = 25 * MS;
pub(crate) const COSTLY_PAUSE_NS: u64 = 4 * MS;
/// The same if others use the device as well and a handover is cheap.
pub(crate) const SHARED_PAUSE_NS: u64 = 2 * MS;
/// For how long a program may not use a lease that nobody else waits for: the daemon says when somebody does. Servers
/// with four requests a second begin at an open gate.
pub const KEEP_NS: u64 = 250 * MS;
/// A lease with less than twice this left is not extended: the answer would come too late.
pub(crate) const LEAST_BEFORE_NS: u64 = 500 * US;
/// How long another session that was seen to use the device is expected to return.
pub(crate) const NEIGHBOURS_NS: u64 = SECOND;
/// A program that uses less than this part of its leases leaves the device idle part of the time: waiting a while for
/// it to go on costs others nothing.
pub(crate) const SPARSE: f64 = 0.8;
/// Averaging time of that part, in nanoseconds.
pub(crate) const UTILIZATION_OVER_NS: f64 = 200e6;

// What is charged.

/// How far, in nanoseconds, what a lane tells of backlog may be behind or ahead of what was counted: it tells when a
/// batch ends, or a long kernel.
pub(crate) const FAR_APART_NS: u64 = 200 * MS;
/// What work takes in relation to its estimates, in millionths, so that it matters; more than the second is not
/// believed.
pub(crate) const OFF_PPM: u64 = 1_250_000;
pub(crate) const MOST_OFF_PPM: u64 = 64_000_000;
/// Awaited work has taken far longer than expected from this factor and this many nanoseconds on.
pub(crate) const FAR_OFF: u64 = 2;
pub(crate) const LONG_NS: u64 = 4 * MS;
/// Launches of which nobody knows how long one takes, but that it is no longer than this, count as that long: the
/// device of a program that waits for its CPU is never busy. What is known of longer ones in that way tells nothing.
pub(crate) const SURELY_SHORT_NS: u64 = 100 * US;

// Launches that wait.

/// How long a launch waits for room if another has waited in vain lately, and what is lately: a program that did so
/// once does it again in its next step.
pub(crate) const PATIENCE_AGAIN_NS: u64 = 20 * MS;
pub(crate) const LATELY_NS: u64 = 2 * SECOND;

// How long work takes.

/// Number of latest samples of a kind, and of latest trials of guesses, that count.
pub(crate) const SAMPLES: usize = 15;
/// Samples after which work is no longer looked at whenever it comes, a function's other grids are guessed, and tries
/// that were taken alone tell the mean.
pub(crate) const ENOUGH_SAMPLES: usize = 3;
/// Beside another session work is taken to be what it was alone if it takes at most twice as long, and so many
/// nanoseconds on top: what an event costs there.
pub(crate) const DISTURBANCE_NS: u64 = 3 * US;
/// Number of latest grid sizes of a function that count.
pub(crate) const SIZES: usize = 16;
/// No guess is shorter, in nanoseconds: below that, samples tell little. What may take longer than the second is not
/// guessed: while it runs, all of the time counts.
pub(crate) const LEAST_GUESS_NS: f64 = 1_000.0;
pub(crate) const MOST_GUESS_NS: f64 = 100e6;

// After a failure.

/// How long the own account is used before a daemon that is gone is tried again: first, and at most. A call that fails
/// costs the program up to 25 ms.
pub const FIRST_RETRY_NS: u64 = 20 * MS;
/// See [`FIRST_RETRY_NS`].
pub const LAST_RETRY_NS: u64 = 320 * MS;
/// The same for a daemon that is not trusted.
pub const DISTRUST_RETRY_NS: u64 = 10 * SECOND;
/// How long to rest after a failure: first, and at most.
pub(crate) const FIRST_REST_NS: u64 = SECOND;
pub(crate) const LONGEST_REST_NS: u64 = 128 * SECOND;
