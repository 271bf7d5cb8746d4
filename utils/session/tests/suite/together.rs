//! Devices that a session uses together: one account, a common end of leases, and counted collectives.

use limits::{ComputeLimit, GpuId, Limits};
use session::ledger::Turn;
use session::together::{COLLECTIVES_OF_BATCH, Together};
use session::{Membership, clock};
use std::path::Path;

const MS: u64 = 1_000_000;

struct Device {
    own: Together,
    membership: Membership,
}

impl Device {
    fn join(dir: &Path, number: u8, share_ppm: u32) -> Self {
        let limits = Limits { compute: ComputeLimit::fixed(share_ppm), ..Limits::NONE };
        let id = GpuId::from_bytes([number; 16]);
        let (own, membership) = Together::join(dir, id, &limits).unwrap();
        let device = Self { own, membership };
        device.own.is_used(device.membership.look().unwrap(), share_ppm);
        device
    }

    fn is(&self, question: impl Fn(&Together, &session::layout::PageLayout) -> bool) -> bool {
        question(&self.own, self.membership.look().unwrap())
    }

    fn launches(&self, collectives: u64) {
        let page = self.membership.look().unwrap();
        self.own.collectives_begin(page, collectives.cast_signed());
    }

    fn is_left(&self, stuck: bool) {
        self.own.ends(self.membership.look().unwrap(), stuck);
    }

    fn begin(&self, now: u64) -> Turn {
        self.membership.open().unwrap().begin_lease(self.membership.slot(), now)
    }

    fn renew(&self, now: u64, used: u64) -> Turn {
        self.membership.open().unwrap().renew_lease(self.membership.slot(), now, used)
    }

    fn end(&self, now: u64, used: u64) {
        self.membership.open().unwrap().end_lease(self.membership.slot(), now, used);
    }

    fn called(&self, now: u64) -> Option<u64> {
        self.membership.open().unwrap().begin_called_lease(self.membership.slot(), now)
    }
}

/// A process that waits for its first lease launches no collective. Its device counts as used together all the same,
/// for a second, if other processes of its session launch some.
#[test]
fn a_device_is_presumed_to_be_used_with_others() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    assert!(!Together::may_join(dir.path()));
    let limits = Limits { compute: ComputeLimit::fixed(500_000), ..Limits::NONE };
    let (own, membership) =
        Together::join(dir.path(), GpuId::from_bytes([2; 16]), &limits).unwrap();
    assert!(Together::may_join(dir.path()));
    let page = membership.look().unwrap();
    assert!(!own.may_be_used(page, 500_000) && !own.holds(page));
    let first = Device::join(dir.path(), 1, 500_000);
    assert!(!own.holds(page) && !first.is(Together::holds));
    assert!(own.may_be_used(page, 500_000) && own.holds(page));
    assert!(first.is(Together::holds));
    first.launches(1);
    assert!(own.is_behind(page));
}

/// Two devices of one process, with the first lease running on both.
fn two(shares: [u32; 2]) -> (tempfile::TempDir, [Device; 2], u64) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let first = Device::join(dir.path(), 1, shares[0]);
    assert!(!first.is(Together::holds));
    let second = Device::join(dir.path(), 2, shares[1]);
    assert!(first.is(Together::holds) && second.is(Together::holds));
    let now = clock::now_ns();
    assert!(matches!(first.begin(now), Turn::In(_)));
    (dir, [first, second], now + 800 * MS)
}

#[test]
fn leases_have_one_end_and_the_least_share() {
    let (_dir, [first, second], now) = two([500_000, 250_000]);
    // A quarter of two periods of 100 ms has been saved up, and lasts a third longer.
    let Turn::Granted(length) = first.begin(now) else { panic!() };
    assert_eq!(length, 30 * MS);
    assert_eq!(second.begin(now + 5 * MS), Turn::Granted(25 * MS));
    // The first device to ask decides for both, whether the lease is renewed ...
    let Turn::Granted(more) = second.renew(now + 24 * MS, 19 * MS) else { panic!() };
    assert_eq!(first.renew(now + 25 * MS, 25 * MS), Turn::Granted(more - MS));
    let mut end = now + 24 * MS + more;
    // ... or not, when the savings are used up.
    loop {
        let renewed = second.renew(end - MS, 100 * MS);
        assert_eq!(first.renew(end - MS, 100 * MS), renewed);
        match renewed {
            Turn::Granted(more) if more > MS => end += more - MS,
            _ => break,
        }
    }
    assert!((65 * MS..=70 * MS).contains(&(end - now)), "{}", end - now);
    first.end(end, MS);
    // A lease that is only draining is not joined.
    assert!(matches!(first.begin(end), Turn::In(_)));
    second.end(end + MS, MS);
    assert!(matches!(first.begin(end + 2 * MS), Turn::In(_)));
}

#[test]
fn a_device_is_behind_until_it_has_launched_as_many() {
    let (_dir, [first, second], now) = two([500_000; 2]);
    let _ = (first.begin(now), second.begin(now));
    first.launches(3);
    second.launches(2);
    assert!(second.is(Together::is_behind) && first.is(Together::is_ahead));
    second.launches(1);
    assert!(!second.is(Together::is_behind) && !first.is(Together::is_ahead));
    // One more collective has begun than on the other device, and is left: the other device is still behind in the next
    // turn.
    first.launches(1);
    let turn = |at: u64, is_left: bool| {
        first.is_left(is_left);
        first.end(at, 50 * MS);
        second.end(at, 50 * MS);
        assert!(matches!(first.begin(at + 600 * MS), Turn::Granted(_)));
        assert!(matches!(second.begin(at + 600 * MS), Turn::Granted(_)));
        at + 650 * MS
    };
    let mut at = turn(now + 50 * MS, true);
    assert!(second.is(Together::is_behind));
    second.launches(1);
    assert!(!second.is(Together::is_behind));
    at = turn(at, false);
    assert!(first.is(Together::numbers_tell));
    // The counts differ although all work is done: they do not tell which device waits.
    first.launches(1);
    at = turn(at, false);
    first.launches(5);
    assert!(!second.is(Together::is_behind) && !first.is(Together::numbers_tell));
    second.launches(5);
    at = turn(at, false);
    assert!(first.is(Together::numbers_tell));
    // Equal counts, but one device waits for the other: the counts are wrong until all work is done again.
    first.is_left(true);
    assert!(!first.is(Together::numbers_tell));
    at = turn(at, true);
    assert!(!first.is(Together::numbers_tell));
    turn(at, false);
    assert!(first.is(Together::numbers_tell));
}

/// Devices that began to count at different times have different counts. Batches still end with the same collective,
/// once none of the devices was held and each had done equally many since the last time.
#[test]
fn batches_end_with_the_same_collective_on_all_devices() {
    let (_dir, [first, second], now) = two([500_000; 2]);
    let last_of = |device: &Device, ahead| device.is(|own, page| own.ends_batch(page, ahead));
    let ends =
        |device: &Device| (1..=20).filter(|&ahead| last_of(device, ahead)).collect::<Vec<_>>();
    assert_eq!(ends(&first), [COLLECTIVES_OF_BATCH, 2 * COLLECTIVES_OF_BATCH]);
    first.launches(3);
    assert_ne!(ends(&first), ends(&second));
    let turn = |at: u64, collectives: [u64; 2]| {
        for (device, collectives) in [&first, &second].into_iter().zip(collectives) {
            assert!(matches!(device.begin(at), Turn::Granted(_)));
            device.launches(collectives);
        }
        first.end(at + 20 * MS, 20 * MS);
        second.end(at + 20 * MS, 20 * MS);
    };
    // Each batch has one collective while the counts differ.
    let each: Vec<u64> = (1..=20).collect();
    turn(now, [2, 2]);
    assert_eq!([ends(&first), ends(&second)], [each.clone(), each]);
    turn(now + 600 * MS, [4, 4]);
    assert_eq!([ends(&first), ends(&second)], [[4, 12, 20]; 2]);
    // From then on, batches stay aligned.
    first.launches(5);
    assert_eq!(ends(&first), [7, 15]);
}

#[test]
fn a_call_is_for_those_behind_or_for_all() {
    let (_dir, [first, second], now) = two([500_000; 2]);
    let _ = (first.begin(now), second.begin(now));
    first.launches(1);
    second.end(now + 50 * MS, 50 * MS);
    let called = |device: &Device| device.is(|own, page| own.is_called(page, now + 51 * MS));
    let calls =
        |device: &Device, until| device.own.call_others(device.membership.look().unwrap(), until);
    let is_over = |call| Together::call_is_over(first.membership.look().unwrap(), call);
    let call = calls(&first, now + 55 * MS);
    assert!(called(&second) && !called(&first));
    // Granted whatever is left, and other devices do not join.
    assert!(matches!(second.begin(now + 200 * MS), Turn::In(_)));
    assert!(second.called(now + 51 * MS).is_some_and(|length| length <= 5 * MS));
    first.end(now + 52 * MS, 52 * MS);
    assert!(matches!(first.begin(now + 52 * MS), Turn::In(_)));
    // Another call came later, and continues when the first is over.
    let later = calls(&first, now + 56 * MS);
    is_over(call);
    assert!(called(&second));
    is_over(later);
    assert!(!called(&second) && second.called(now + 52 * MS).is_none());
}

/// With stream gates, a device that ends first keeps its collectives until no other one may begin more.
#[test]
fn a_device_sees_whether_others_may_begin_more() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let [first, second] = [1, 2].map(|number| Device::join(dir.path(), number, 500_000));
    let are_open = |device: &Device| device.is(Together::others_are_open);
    assert!(!are_open(&first) && !are_open(&second));
    let later = session::clock::now_ns() + 60_000_000_000;
    first.own.is_open(first.membership.look().unwrap(), later);
    assert!(!are_open(&first) && are_open(&second));
    first.own.is_closed(first.membership.look().unwrap());
    assert!(!are_open(&second));
    // A process that has died meanwhile does not block the others.
    first.own.is_open(first.membership.look().unwrap(), session::clock::now_ns());
    assert!(!are_open(&second));
    // A failed launch no longer counts.
    first.launches(2);
    assert!(second.is(Together::is_behind));
    first.own.collectives_begin(first.membership.look().unwrap(), -2);
    assert!(!second.is(Together::is_behind));
}
