//! The numbers by which the scheduler behaves, each with its unit, its reason, and the figure or test that needs it.
//!
//! Times are in nanoseconds, parts in millionths. Numbers that follow from others say so, here or where they are used.
//! A test (`pure_crates` of the limiter) checks that there are no others, and no more than there were.

use std::ops::RangeInclusive;

use limits::turns::{COMFORTABLE_TURN_NS, MEMORY_NS, PERIOD_NS, SHORTEST_TURN_NS};

const MS: u64 = 1_000_000;

// Leases.

/// Time that messages may take: this much may be missing between two reports, and for this long after its poll a worker
/// is assumed to be about to send the next one.
pub(crate) const MESSAGE_NS: u64 = 2 * MS;
/// How long a lease keeps others waiting after its end, or after the last report. While its work runs on, reports come
/// every 10 ms: a process that sends none was stopped, or lies.
pub(crate) const GRACE_NS: u64 = 20 * MS;
/// How long a lease keeps others waiting after its end at most, whatever is reported. Longer work is left to the
/// hardware's slicing.
pub(crate) const LONGEST_DRAIN_NS: u64 = 2_000 * MS;
/// How long a worker keeps others waiting after it was told to stop. Its running work is a batch: if that takes longer,
/// slicing serves others better than waiting.
pub(crate) const STOPPED_NS: u64 = 3 * MS;
/// A session that has saved up this part of its account uses less than its share, a little at a time, so it need not
/// wait for the end of a turn (a server's p99 beside a training).
pub(crate) const SAVED_UP_PPM: u64 = 500_000;

// The way to share.

/// Who wants the device for this part of the time contends for it. A server that waits for requests does not: its
/// requests would wait for slices (p99 22 ms sliced, 15 in turns).
pub(crate) const CONTENDS_PPM: u64 = 500_000;
/// For how many periods a way is measured: some steps of a large training. A trial that costs a session much ends after
/// fewer.
pub(crate) const PIECES: u64 = 4;
/// How many times as long turns are measured if gates are on threads, where each takes up to 100 ms.
pub(crate) const LONG_MEASURE: u64 = 3;
/// How long the chosen way holds before what it gives is compared with before, and how many times before the other way
/// is tried. A trial takes about a sixtieth of that.
pub(crate) const HOLD_NS: u64 = 1_000 * MS;
/// See [`HOLD_NS`].
pub(crate) const LEAST_HOLDS: u64 = 30;
/// A program has changed if what it gets done in a hold differs by this much from before.
pub(crate) const NOTABLE_PPM: u64 = 300_000;
/// How much more must get done at once than in turns, relative to the better way, so that it is chosen.
pub(crate) const GAIN_PPM: u64 = 30_000;
/// How much less than its guarantee a session may get done at once: measurements vary by this much.
pub(crate) const GUARANTEE_ERROR_PPM: u64 = 20_000;
/// While turns show what each session is, it takes some if it would use at least this part of the device.
pub(crate) const TAKES_TURNS_PPM: u64 = 100_000;

// Reports that have to add up.

/// The range of an estimate's correction: a larger deviation is no estimation error. The limiter tolerates a quarter
/// more than its limit, because estimates are multiplied by 0.8 at least.
pub(crate) const CALIBRATION_PPM: RangeInclusive<u64> = 800_000..=1_500_000;

/// By how much figures may be off, as a part of the time, without raising any doubt.
pub(crate) const ERROR_PPM: u64 = 50_000;
/// The most that slicing may cost, as measured, as a part of the time ...
pub(crate) const SLICING_PPM: u64 = 220_000;
/// ... per unit of time that sparse sessions use ...
pub(crate) const SLICING_TIMES: u64 = 2;
/// ... and per unit of time that a dense session uses.
pub(crate) const SLICED_PPM: u64 = 400_000;
/// What slicing leaves at least: of an equal slice to a holder with work queued, and of its solo speed to a holder
/// whose account stays full. Slicing alone costs a sparse worker up to a tenth; excluding others would cost them more
/// than this worker gains.
pub(crate) const SLICE_PPM: u64 = 850_000;
/// How long a session that was found out takes turns at first, and how many times as long at most.
pub(crate) const DOUBT_NS: u64 = 1_000 * MS;
/// See [`DOUBT_NS`].
pub(crate) const LONGEST_DOUBT: u64 = 64;
/// How much device time has to be missing before a session is found out.
pub(crate) const FOUND_OUT_NS: i64 = 15_000_000;
/// The part of all time that may be exclusive and charged by reports alone: new and suspected workers show in a turn
/// what they are.
pub(crate) const ON_WORD_PPM: u64 = 20_000;

// Idle time.

/// Use alone is measured in short moments, which show up to a twentieth too little.
pub(crate) const TOLD_TOO_LITTLE_PPM: u64 = 1_060_000;
/// A session needs clearly less than its share if it needs at most this part of it.
pub(crate) const LESS_THAN_SHARE_PPM: u64 = 800_000;
/// An account this full is not being used up.
pub(crate) const FULL_PPM: u64 = 750_000;
/// An account fuller than this is used too little if others are in the way. The bound is low, so that the others have
/// paid before anything earned is lost.
pub(crate) const FILLING_PPM: u64 = 400_000;

// These follow from others.

/// The shortest lease, the shortest prolongation, and the shortest time in which an estimate's error is learned.
pub(crate) const SHORTEST_REST_NS: u64 = SHORTEST_TURN_NS / 2;
/// Averaging time for the part of it for which a worker holds the device.
pub(crate) const HOLDS_OVER_NS: u64 = 5 * MEMORY_NS;
/// The length of a span over which reports have to add up: a comfortable turn. Also the most that a session's good
/// record counts in its favor.
pub(crate) const SPAN_NS: u64 = COMFORTABLE_TURN_NS;
/// The longest time for which a session that was found out takes turns and is remembered.
pub(crate) const LONGEST_DOUBT_NS: u64 = LONGEST_DOUBT * DOUBT_NS;
/// How long a session that may overlap again is watched before the next one.
pub(crate) const WATCHED_NS: u64 = 3 * PERIOD_NS;
/// How long a session takes part in the division of an overcommitted device after it last asked or held a lease.
pub(crate) const ACTIVE_NS: u64 = 10 * PERIOD_NS;
/// How often the length of rounds is computed: within the shortest of them.
pub(crate) const ROUNDS_EVERY_NS: u64 = PERIOD_NS / 20;
/// How often it is checked who wants the device, and over what time that is averaged.
pub(crate) const LOOK_NS: u64 = PERIOD_NS / 5;
/// See [`LOOK_NS`].
pub(crate) const WANTS_OVER_NS: u64 = 5 * PERIOD_NS;
/// How long a way was begun before it is measured, and one piece of the measurement.
pub(crate) const SETTLE_NS: u64 = PERIOD_NS;
/// See [`SETTLE_NS`].
pub(crate) const PIECE_NS: u64 = PERIOD_NS;
/// For how many holds the chosen way holds at most, if trials show nothing new.
pub(crate) const MOST_HOLDS: u64 = LEAST_HOLDS * 16;
