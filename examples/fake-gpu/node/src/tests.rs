//! The simulation's rules, in virtual time.

use proptest::prelude::*;

use crate::config::Config;
use crate::layout::{Kind, Op, Order, QUEUE_DEPTH, SAMPLE_NS, State, StreamId};
use crate::queue::{EventState, QueueError};

pub(crate) const MS: u64 = 1_000_000;

pub(crate) fn node() -> Box<State> {
    State::boxed(Config::default(), 0)
}

pub(crate) fn kernel(ns: u64) -> Op {
    Op::work(Kind::Kernel, ns)
}

pub(crate) fn stream(state: &mut State, process: u32, order: Order) -> StreamId {
    state.create_stream(process, 0, 1, order, 0).unwrap()
}

pub(crate) fn reached(state: &mut State, process: u32, on: StreamId) -> crate::layout::EventId {
    let event = state.create_event(process).unwrap();
    state.record(on, event).unwrap();
    event
}

#[test]
fn a_stream_is_in_order_and_events_are_exact() {
    let mut s = node();
    let p = s.add_process(1, 1).unwrap();
    let st = stream(&mut s, p, Order::Blocking);
    s.advance(10);
    let start = reached(&mut s, p, st);
    s.push(st, kernel(2 * MS)).unwrap();
    let middle = reached(&mut s, p, st);
    s.push(st, kernel(3 * MS)).unwrap();
    let end = reached(&mut s, p, st);
    s.advance(10 + 2 * MS - 1);
    assert_eq!(s.event_state(start), Ok(EventState::Reached(10)));
    assert_eq!(s.event_state(middle), Ok(EventState::Pending));
    s.advance(100 * MS);
    assert_eq!(s.event_state(middle), Ok(EventState::Reached(10 + 2 * MS)));
    assert_eq!(s.event_state(end), Ok(EventState::Reached(10 + 5 * MS)));
}

#[test]
fn streams_of_a_process_share_the_device_in_order_of_submission() {
    let mut s = node();
    let p = s.add_process(1, 1).unwrap();
    let a = stream(&mut s, p, Order::NonBlocking);
    let b = stream(&mut s, p, Order::NonBlocking);
    s.push(a, kernel(MS)).unwrap();
    s.push(b, kernel(MS)).unwrap();
    s.push(a, kernel(MS)).unwrap();
    let end_a = reached(&mut s, p, a);
    let end_b = reached(&mut s, p, b);
    s.advance(10 * MS);
    assert_eq!(s.event_state(end_b), Ok(EventState::Reached(2 * MS)));
    assert_eq!(s.event_state(end_a), Ok(EventState::Reached(3 * MS)));
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let mut s = node();
    let p = s.add_process(1, 1).unwrap();
    let legacy = stream(&mut s, p, Order::Legacy);
    let blocking = stream(&mut s, p, Order::Blocking);
    let free = stream(&mut s, p, Order::NonBlocking);
    s.push(blocking, kernel(4 * MS)).unwrap();
    let on_legacy = reached(&mut s, p, legacy);
    s.push(legacy, kernel(MS)).unwrap();
    let after = reached(&mut s, p, blocking);
    let apart = reached(&mut s, p, free);
    s.advance(20 * MS);
    assert_eq!(s.event_state(apart), Ok(EventState::Reached(0)));
    assert_eq!(s.event_state(on_legacy), Ok(EventState::Reached(4 * MS)));
    assert_eq!(s.event_state(after), Ok(EventState::Reached(5 * MS)));
}

#[test]
fn a_wait_holds_its_stream_across_devices() {
    let mut s = node();
    let p = s.add_process(1, 1).unwrap();
    let a = stream(&mut s, p, Order::NonBlocking);
    let b = s.create_stream(p, 1, 2, Order::NonBlocking, 0).unwrap();
    s.push(a, kernel(3 * MS)).unwrap();
    let done = reached(&mut s, p, a);
    s.wait(b, done).unwrap();
    s.push(b, kernel(MS)).unwrap();
    let end = reached(&mut s, p, b);
    assert_eq!(s.least_time(b, s.end_of(b).unwrap()), 3 * MS);
    s.advance(10 * MS);
    assert_eq!(s.event_state(end), Ok(EventState::Reached(4 * MS)));
}

#[test]
fn a_wait_refers_to_the_record_of_its_time() {
    let mut s = node();
    let p = s.add_process(1, 1).unwrap();
    let a = stream(&mut s, p, Order::NonBlocking);
    let b = stream(&mut s, p, Order::NonBlocking);
    let event = s.create_event(p).unwrap();
    s.push(a, kernel(MS)).unwrap();
    s.record(a, event).unwrap();
    s.wait(b, event).unwrap();
    let passed = reached(&mut s, p, b);
    s.push(a, kernel(5 * MS)).unwrap();
    s.record(a, event).unwrap();
    s.advance(20 * MS);
    assert_eq!(s.event_state(passed), Ok(EventState::Reached(MS)));
    assert_eq!(s.event_state(event), Ok(EventState::Reached(6 * MS)));
}

#[test]
fn a_wait_for_a_value_holds_its_stream_alone() {
    let mut s = node();
    let p = s.add_process(1, 1).unwrap();
    let q = s.add_process(2, 1).unwrap();
    let a = stream(&mut s, p, Order::NonBlocking);
    let b = stream(&mut s, p, Order::NonBlocking);
    let c = stream(&mut s, q, Order::NonBlocking);
    s.push(a, kernel(MS)).unwrap();
    let before = reached(&mut s, p, a);
    let held = s.push(a, Op::value(false)).unwrap();
    s.push(a, kernel(MS)).unwrap();
    let after = reached(&mut s, p, a);
    s.push(b, kernel(MS)).unwrap();
    let apart = reached(&mut s, p, b);
    s.push(c, kernel(MS)).unwrap();
    let other = reached(&mut s, q, c);
    s.advance(50 * MS);
    assert_eq!(s.event_state(before), Ok(EventState::Reached(MS)));
    assert_eq!(s.event_state(apart), Ok(EventState::Reached(2 * MS)));
    assert_eq!(s.event_state(other), Ok(EventState::Reached(3 * MS + 20_000)));
    assert_eq!(s.event_state(after), Ok(EventState::Pending));
    assert!(s.tell(a, held, false));
    s.advance(60 * MS);
    assert_eq!(s.event_state(after), Ok(EventState::Pending));
    assert!(s.tell(a, held, true));
    s.advance(60 * MS);
    assert!(!s.tell(a, held, true), "nothing waits there any more");
    s.advance(70 * MS);
    // The other process hands the device back.
    assert_eq!(s.event_state(after), Ok(EventState::Reached(61 * MS + 20_000)));
    // A value that is there before the stream's turn causes no wait. A value that was there but disappeared before the
    // turn causes one.
    s.push(a, kernel(MS)).unwrap();
    let kept = s.push(a, Op::value(true)).unwrap();
    s.push(a, kernel(MS)).unwrap();
    let gone = s.push(a, Op::value(true)).unwrap();
    let end = reached(&mut s, p, a);
    assert!(s.tell(a, gone, false));
    s.advance(80 * MS);
    assert!(!s.tell(a, kept, false));
    assert!(s.tell(a, gone, false));
    assert_eq!(s.event_state(end), Ok(EventState::Pending));
    assert_eq!(s.least_time(a, gone), 20_000);
    // A dead process's wait is dropped.
    s.drop_process(p);
    assert!(!s.tell(a, gone, true));
    s.push(c, kernel(MS)).unwrap();
    let end = reached(&mut s, q, c);
    s.advance(90 * MS);
    assert_eq!(s.event_state(end), Ok(EventState::Reached(81 * MS)));
}

#[test]
fn a_write_ends_in_stream_order_and_both_can_cost() {
    let mut s = node();
    let p = s.add_process(1, 1).unwrap();
    let a = stream(&mut s, p, Order::NonBlocking);
    for costs in [0, 1] {
        (s.config.wait_ns, s.config.write_ns) = (costs * 2400, costs * 600);
        let from = s.now;
        let held = s.push(a, Op::value(false)).unwrap();
        let begun = s.push(a, Op::write()).unwrap();
        s.push(a, kernel(MS)).unwrap();
        let done = s.push(a, Op::write()).unwrap();
        s.push(a, kernel(MS)).unwrap();
        let end = reached(&mut s, p, a);
        s.advance(from + MS);
        assert!(!s.passed(a.slot, a.generation, begun));
        assert_eq!((s.due_in(a, begun), s.due_in(a, done)), (None, None));
        s.tell(a, held, true);
        s.advance(from + MS);
        assert!(s.passed(a.slot, a.generation, begun));
        assert_eq!(s.due_in(a, done), Some(MS));
        s.advance(from + 2 * MS - 1 + costs * 3000);
        assert!(!s.passed(a.slot, a.generation, done));
        s.advance(from + 2 * MS + costs * 3000);
        assert!(s.passed(a.slot, a.generation, done));
        s.advance(from + 9 * MS);
        assert_eq!(s.event_state(end), Ok(EventState::Reached(from + 3 * MS + costs * 3600)));
    }
}

#[test]
fn events_can_cost() {
    let mut s = node();
    s.config.event_ns = 1248;
    let p = s.add_process(1, 1).unwrap();
    let q = s.add_process(2, 1).unwrap();
    let a = stream(&mut s, p, Order::NonBlocking);
    let b = stream(&mut s, p, Order::NonBlocking);
    let c = stream(&mut s, q, Order::NonBlocking);
    let time = |s: &State, event| match s.event_state(event) {
        Ok(EventState::Reached(time)) => time,
        other => panic!("{other:?}"),
    };
    // Equal on an idle stream and after work, with another process that wants the device.
    for round in 0..2 {
        if round == 1 {
            s.push(a, kernel(MS)).unwrap();
        }
        let first = reached(&mut s, p, a);
        let second = reached(&mut s, p, a);
        s.push(a, kernel(50_000)).unwrap();
        let third = reached(&mut s, p, a);
        s.push(a, kernel(50_000)).unwrap();
        s.push(c, kernel(50_000)).unwrap();
        s.advance(s.now + 5 * MS);
        assert_eq!(time(&s, second) - time(&s, first), 1248);
        assert_eq!(time(&s, third) - time(&s, second), 50_000 + 2248);
    }
    // A record does not wait for the device, and occupies none that another stream could use.
    s.push(b, kernel(MS)).unwrap();
    let (from, begun) = (s.now, reached(&mut s, p, a));
    s.push(a, kernel(MS)).unwrap();
    let end = reached(&mut s, p, a);
    s.advance(from + 5 * MS);
    assert_eq!(time(&s, begun), from);
    assert_eq!(time(&s, end), from + 2 * MS + 1000);
}

#[test]
fn kernels_can_have_a_gap_between_them() {
    let mut s = node();
    s.config.event_ns = 1248;
    s.config.gap_ns = 300;
    let p = s.add_process(1, 1).unwrap();
    let a = stream(&mut s, p, Order::NonBlocking);
    for _ in 0..100 {
        s.push(a, kernel(10_000)).unwrap();
    }
    let end = reached(&mut s, p, a);
    s.advance(10 * MS);
    // After the last kernel there is no gap, and an event costs more than the gap.
    assert_eq!(s.event_state(end), Ok(EventState::Reached(100 * 10_000 + 99 * 300 + 1000)));

    // An event between two kernels is reached before the gap ends.
    s.config.event_ns = 0;
    let from = s.now;
    s.push(a, kernel(10_000)).unwrap();
    let first = reached(&mut s, p, a);
    s.push(a, kernel(10_000)).unwrap();
    let second = reached(&mut s, p, a);
    s.advance(20 * MS);
    assert_eq!(s.event_state(first), Ok(EventState::Reached(from + 10_000)));
    assert_eq!(s.event_state(second), Ok(EventState::Reached(from + 20_300)));
}

#[test]
fn two_dense_processes_are_sliced_fairly_with_a_loss() {
    let mut s = node();
    let mut last = Vec::new();
    for pid in 1..=2 {
        let p = s.add_process(pid, 1).unwrap();
        let st = stream(&mut s, p, Order::NonBlocking);
        for _ in 0..QUEUE_DEPTH {
            s.push(st, kernel(2 * MS + MS / 2)).unwrap();
        }
        last.push(st);
    }
    s.advance(1000 * MS);
    let left: Vec<f64> =
        last.iter().map(|&st| s.least_time(st, QUEUE_DEPTH) as f64 / MS as f64).collect();
    let done: Vec<f64> = left.iter().map(|l| 2.5 * QUEUE_DEPTH as f64 - l).collect();
    assert!((done[0] - done[1]).abs() <= 2.0, "{done:?}");
    let total = done[0] + done[1];
    assert!((total - 1000.0 * 2.0 / 2.2).abs() < 2.0, "{total}");
}

/// Measured on an H100. A stream that waits for a value costs nothing.
#[test]
fn a_stream_that_waits_for_another_one_has_its_slices() {
    for (waits, most) in [(false, 1.0), (true, 0.6)] {
        let mut s = node();
        let p = s.add_process(1, 1).unwrap();
        let a = stream(&mut s, p, Order::NonBlocking);
        let b = stream(&mut s, p, Order::NonBlocking);
        let event = s.create_event(p).unwrap();
        s.push(a, Op::value(false)).unwrap();
        s.push(a, kernel(MS)).unwrap();
        s.record(a, event).unwrap();
        if waits {
            s.wait(b, event).unwrap();
            s.push(b, kernel(MS)).unwrap();
        }
        let q = s.add_process(2, 1).unwrap();
        let c = stream(&mut s, q, Order::NonBlocking);
        for _ in 0..100 {
            s.push(c, kernel(MS)).unwrap();
        }
        s.advance(50 * MS);
        let done = 1.0 - s.least_time(c, 100) as f64 / (100 * MS) as f64;
        assert!((most - 0.2..=most).contains(&(done * 2.0)), "{waits}: {done}");
    }
}

#[test]
fn an_idle_process_gives_the_device_up_at_once() {
    let mut s = node();
    let p = s.add_process(1, 1).unwrap();
    let q = s.add_process(2, 1).unwrap();
    let a = stream(&mut s, p, Order::NonBlocking);
    let b = stream(&mut s, q, Order::NonBlocking);
    s.push(a, kernel(MS)).unwrap();
    s.push(b, kernel(MS)).unwrap();
    let end = reached(&mut s, q, b);
    s.advance(10 * MS);
    assert_eq!(s.event_state(end), Ok(EventState::Reached(2 * MS + 20_000)));
}

#[test]
fn a_full_queue_refuses() {
    let mut s = node();
    let p = s.add_process(1, 1).unwrap();
    let st = stream(&mut s, p, Order::NonBlocking);
    for _ in 0..QUEUE_DEPTH {
        s.push(st, kernel(MS)).unwrap();
    }
    assert_eq!(s.push(st, kernel(MS)), Err(QueueError::Full));
    s.advance(MS);
    assert!(s.push(st, kernel(MS)).is_ok());
    assert_eq!(s.push(st, kernel(MS)), Err(QueueError::Full));
}

#[test]
fn a_dropped_process_leaves_nothing_behind() {
    let mut s = node();
    let p = s.add_process(1, 1).unwrap();
    let q = s.add_process(2, 1).unwrap();
    let a = stream(&mut s, p, Order::NonBlocking);
    let b = stream(&mut s, q, Order::NonBlocking);
    let event = reached(&mut s, p, a);
    s.take(p, 0, 5 << 30).unwrap();
    s.push(a, kernel(1000 * MS)).unwrap();
    s.push(b, kernel(5 * MS)).unwrap();
    let end = reached(&mut s, q, b);
    s.advance(MS);
    s.drop_process(p);
    s.advance(20 * MS);
    assert_eq!(s.free_memory(0), 16 << 30);
    assert_eq!(s.event_state(end), Ok(EventState::Reached(6 * MS)));
    assert_eq!(s.event_state(event), Err(QueueError::Gone));
    assert_eq!(s.push(a, kernel(1)), Err(QueueError::Gone));
    assert!(s.passed(a.slot, a.generation, 1));
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let mut s = node();
    let p = s.add_process(1, 1).unwrap();
    let a = stream(&mut s, p, Order::NonBlocking);
    s.push(a, kernel(MS)).unwrap();
    let event = reached(&mut s, p, a);
    s.destroy_stream(a).unwrap();
    assert_eq!(s.push(a, kernel(MS)), Err(QueueError::Gone));
    assert_eq!(s.event_state(event), Ok(EventState::Pending));
    s.advance(2 * MS);
    assert_eq!(s.event_state(event), Ok(EventState::Reached(MS)));
    let b = stream(&mut s, p, Order::NonBlocking);
    assert_eq!(b.slot, a.slot);
    assert_ne!(b.generation, a.generation);
}

#[test]
fn memory_stops_at_the_last_byte() {
    let mut s = node();
    let p = s.add_process(1, 1).unwrap();
    s.take(p, 0, (16 << 30) - 512).unwrap();
    assert_eq!(s.take(p, 0, 1024).unwrap_err().free, 512);
    s.take(p, 0, 512).unwrap();
    assert!(s.take(p, 0, 1).is_err());
    s.take(p, 1, 1).unwrap();
    s.give_back(p, 0, 16 << 30);
    assert_eq!(s.free_memory(0), 16 << 30);
}

#[test]
fn utilisation_is_of_the_last_full_period() {
    let mut s = node();
    let p = s.add_process(7, 1).unwrap();
    let a = stream(&mut s, p, Order::NonBlocking);
    s.push(a, kernel(SAMPLE_NS / 2)).unwrap();
    s.advance(SAMPLE_NS - 1);
    assert_eq!(s.utilization(0), 0);
    s.advance(SAMPLE_NS);
    assert_eq!(s.utilization(0), 50);
    let samples = s.process_samples(0, 0);
    assert_eq!(samples.len(), 1);
    assert_eq!((samples[0].pid, samples[0].percent, samples[0].end_ns), (7, 50, SAMPLE_NS));
    assert!(s.process_samples(0, SAMPLE_NS).is_empty());
    s.advance(2 * SAMPLE_NS);
    assert_eq!(s.utilization(0), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Push { process: usize, stream: usize, us: u64 },
    Wait { process: usize, from: usize, to: usize },
    Value { process: usize, stream: usize },
    Write { process: usize, stream: usize },
    Store,
    Pass { us: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_usize, 0..3_usize, 1..4000_u64)
            .prop_map(|(process, stream, us)| Step::Push { process, stream, us }),
        1 => (0..3_usize, 0..3_usize, 0..3_usize)
            .prop_map(|(process, from, to)| Step::Wait { process, from, to }),
        1 => (0..3_usize, 0..3_usize).prop_map(|(process, stream)| Step::Value { process, stream }),
        1 => (0..3_usize, 0..3_usize).prop_map(|(process, stream)| Step::Write { process, stream }),
        1 => Just(Step::Store),
        3 => (1..3000_u64).prop_map(|us| Step::Pass { us }),
    ]
}

fn play(
    steps: &[Step],
    queues: u32,
    (event_ns, gap_ns): (u64, u64),
    chop: bool,
) -> (Vec<u64>, u64) {
    let mut s = node();
    s.config.event_ns = event_ns;
    s.config.gap_ns = gap_ns;
    (s.config.wait_ns, s.config.write_ns) = (gap_ns, event_ns / 2);
    let orders = [Order::Legacy, Order::Blocking, Order::NonBlocking];
    let mut streams = Vec::new();
    for pid in 0..3 {
        let p = s.add_process(pid, 1).unwrap();
        s.set_queues(p, queues);
        streams.push((p, orders.map(|order| stream(&mut s, p, order))));
    }
    let mut now = 0;
    let mut events = Vec::new();
    let mut work = 0;
    let mut values = Vec::new();
    let store = |s: &mut State, values: &mut Vec<(StreamId, u64)>, now| {
        for (on, position) in values.drain(..) {
            s.tell(on, position, true);
        }
        s.advance(now);
    };
    for step in steps {
        match *step {
            Step::Push { process, stream, us } => {
                let (p, of) = &streams[process];
                match s.push(of[stream], kernel(us * 1000)) {
                    Ok(_) => work += us * 1000,
                    Err(error) => assert_eq!(error, QueueError::Held),
                }
                events.push(reached(&mut s, *p, of[stream]));
            }
            Step::Wait { process, from, to } => {
                let (p, of) = &streams[process];
                let event = reached(&mut s, *p, of[from]);
                s.wait(of[to], event).unwrap();
            }
            Step::Value { process, stream } => {
                let on = streams[process].1[stream];
                values.push((on, s.push(on, Op::value(false)).unwrap()));
            }
            Step::Write { process, stream } => {
                s.push(streams[process].1[stream], Op::write()).unwrap();
            }
            Step::Store => store(&mut s, &mut values, now),
            Step::Pass { us } => {
                let end = now + us * 1000;
                if chop {
                    while now < end {
                        now = end.min(now + 37_000);
                        s.advance(now);
                    }
                }
                now = end;
                s.advance(now);
            }
        }
    }
    store(&mut s, &mut values, now);
    s.advance(now + 10 * (work + MS));
    let times = events
        .iter()
        .map(|&event| match s.event_state(event) {
            Ok(EventState::Reached(time)) => time,
            other => panic!("work is stuck: {other:?}"),
        })
        .collect();
    (times, work)
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    /// When and how often the simulation is advanced does not matter. All work ends, and no two kernels overlap: the
    /// last one ends no earlier than the sum of all.
    #[test]
    fn results_depend_on_the_clock_alone(
        steps in proptest::collection::vec(step(), 1..60),
        event_ns in prop_oneof![Just(0), 1..5000_u64],
        gap_ns in prop_oneof![Just(0), 1..5000_u64],
        queues in 1..4_u32,
    ) {
        let (whole, work) = play(&steps, queues, (event_ns, gap_ns), false);
        let (chopped, _) = play(&steps, queues, (event_ns, gap_ns), true);
        prop_assert_eq!(&whole, &chopped);
        if let Some(&last) = whole.iter().max() {
            prop_assert!(last >= work);
        }
    }
}
