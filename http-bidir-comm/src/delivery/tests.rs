//! Delivery under everything that a network and two programs may do: what is sent is lost, comes
//! twice, late, in any order; time passes; either side is started again.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use super::inbox::{Inbox, Verdict};
use super::outbox::{Bounds, Outbox};
use super::{Cursor, Epoch};

const BOUNDS: Bounds = Bounds { tasks: 6, bytes: 60, window: 3 };

#[derive(Clone, Debug)]
enum Step {
    Produce {
        ttl: u64,
        bytes: usize,
    },
    Poll,
    /// The server sends one more task of the open stream.
    Stream,
    Cut,
    SendResult,
    Arrive(usize),
    Lose(usize),
    Repeat(usize),
    Pass(u64),
    RestartServer,
    RestartClient,
}

#[derive(Clone, Debug)]
enum Message {
    Poll { run: Epoch, cursor: Option<Cursor> },
    Task { run: Epoch, epoch: Epoch, after: u64, id: u64, expires_in: Duration, task: usize },
    Result { run: Epoch, epoch: Epoch, id: u64, answer: Option<usize> },
    Confirm { run: Epoch, epoch: Epoch, id: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Full,
    Done(usize),
    /// The client said that it was late.
    Late,
    Expired {
        given: bool,
    },
    Interrupted,
    ServerGone,
}

/// Both sides, the network between them, and what happened.
struct World {
    now: Duration,
    epochs: u64,
    outbox: Outbox<usize>,
    client_epoch: Epoch,
    inbox: Inbox<Option<usize>>,
    /// The open stream: whose, and how far it is.
    stream: Option<(Epoch, u64)>,
    network: Vec<Message>,
    outcomes: Vec<Option<Outcome>>,
    handled: HashMap<usize, u32>,
    superseded: bool,
    /// The newest run of the server that a task came from.
    heard: Epoch,
}

impl World {
    fn new() -> Self {
        Self {
            now: Duration::ZERO,
            epochs: 2,
            outbox: Outbox::new(BOUNDS, Epoch(1)),
            client_epoch: Epoch(2),
            inbox: Inbox::new(),
            stream: None,
            network: Vec::new(),
            outcomes: Vec::new(),
            handled: HashMap::new(),
            superseded: false,
            heard: Epoch(0),
        }
    }

    fn end(&mut self, task: usize, outcome: Outcome) {
        let before = self.outcomes[task].replace(outcome);
        assert_eq!(before, None, "task {task} ended twice, then as {outcome:?}");
    }

    fn new_epoch(&mut self) -> Epoch {
        self.epochs += 1;
        Epoch(self.epochs)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Produce { ttl, bytes } => {
                let task = self.outcomes.len();
                self.outcomes.push(None);
                let deadline = self.now + Duration::from_millis(ttl);
                if self.outbox.push(task, bytes, deadline).is_err() {
                    self.end(task, Outcome::Full);
                }
            }
            Step::Poll => {
                let message = Message::Poll { run: self.client_epoch, cursor: self.inbox.cursor() };
                self.network.push(message);
            }
            Step::Stream => self.stream_on(),
            Step::Cut => {
                self.stream = None;
                self.network.clear();
            }
            Step::SendResult => self.send_result(),
            Step::Arrive(at) => {
                if !self.network.is_empty() {
                    let message = self.network.remove(at % self.network.len());
                    self.arrive(message);
                }
            }
            Step::Lose(at) => {
                if !self.network.is_empty() {
                    self.network.remove(at % self.network.len());
                }
            }
            Step::Repeat(at) => {
                if !self.network.is_empty() {
                    self.network.push(self.network[at % self.network.len()].clone());
                }
            }
            Step::Pass(ms) => {
                self.now += Duration::from_millis(ms);
                for expired in self.outbox.expire(self.now) {
                    self.end(expired.item, Outcome::Expired { given: expired.given });
                }
            }
            Step::RestartServer => {
                let new = Outbox::new(BOUNDS, self.new_epoch());
                let outbox = std::mem::replace(&mut self.outbox, new);
                outbox.into_items().for_each(|(task, _)| self.end(task, Outcome::ServerGone));
                self.stream = None;
            }
            Step::RestartClient => {
                self.client_epoch = self.new_epoch();
                self.inbox = Inbox::new();
                self.superseded = false;
            }
        }
        assert!(self.outbox.len() <= BOUNDS.tasks && self.outbox.given() <= BOUNDS.window);
    }

    fn stream_on(&mut self) {
        let Some((run, position)) = self.stream else { return };
        if let Some(given) = self.outbox.next(position, self.now) {
            self.stream = Some((run, given.id));
            self.network.push(Message::Task {
                run,
                epoch: given.epoch,
                after: given.after,
                id: given.id,
                expires_in: given.expires_in,
                task: *given.item,
            });
        }
    }

    fn send_result(&mut self) {
        if let Some(kept) = self.inbox.unconfirmed() {
            self.network.push(Message::Result {
                run: self.client_epoch,
                epoch: kept.epoch,
                id: kept.id,
                answer: kept.answer,
            });
        }
    }

    fn attend(&mut self, run: Epoch) -> bool {
        match self.outbox.attend(run) {
            Ok(interrupted) => {
                interrupted.into_iter().for_each(|task| self.end(task, Outcome::Interrupted));
                true
            }
            Err(_) => {
                self.superseded |= run == self.client_epoch;
                false
            }
        }
    }

    fn arrive(&mut self, message: Message) {
        match message {
            Message::Poll { run, cursor } => {
                if self.attend(run) {
                    self.stream = Some((run, self.outbox.resume(cursor)));
                    self.stream_on();
                }
            }
            Message::Result { run, epoch, id, answer } => {
                if !self.attend(run) {
                    return;
                }
                if let Some(task) = self.outbox.settle(epoch, id) {
                    let outcome = answer.map_or(Outcome::Late, Outcome::Done);
                    self.end(task, outcome);
                }
                self.network.push(Message::Confirm { run, epoch, id });
            }
            // What is meant for a run of the client that is over reaches nobody.
            Message::Task { run, .. } | Message::Confirm { run, .. }
                if run != self.client_epoch => {}
            Message::Confirm { epoch, id, .. } => self.inbox.confirm(epoch, id),
            // A client reads one connection at a time: that to an earlier run of the server is closed.
            Message::Task { epoch, .. } if epoch.0 < self.heard.0 => {}
            Message::Task { epoch, after, id, expires_in, task, .. } => {
                self.heard = epoch;
                let deadline = self.now + expires_in;
                match self.inbox.receive(epoch, after, id, deadline, self.now) {
                    Verdict::Handle => {
                        *self.handled.entry(task).or_default() += 1;
                        self.inbox.finish(Some(task));
                    }
                    Verdict::Late => self.inbox.finish(None),
                    Verdict::AnswerFirst => self.send_result(),
                    Verdict::HandledBefore | Verdict::OutOfOrder | Verdict::PastEpoch => {}
                }
            }
        }
    }

    /// Nothing is lost any more, and no time passes.
    fn settle_down(&mut self) {
        self.network.clear();
        for _ in 0..4 * BOUNDS.tasks + 4 {
            if self.superseded {
                self.step(Step::RestartClient);
            }
            for step in [Step::SendResult, Step::Arrive(0), Step::Arrive(0), Step::Poll] {
                self.step(step);
            }
            while !self.network.is_empty() {
                self.step(Step::Arrive(0));
            }
        }
    }

    fn check(&self) {
        for (task, outcome) in self.outcomes.iter().enumerate() {
            let handled = self.handled.get(&task).copied().unwrap_or(0);
            assert!(handled <= 1, "task {task} was handled {handled} times: {outcome:?}");
            match outcome {
                Some(Outcome::Done(answer)) => assert_eq!((*answer, handled), (task, 1)),
                Some(Outcome::Full | Outcome::Late | Outcome::Expired { given: false }) => {
                    assert_eq!(handled, 0, "task {task}: {outcome:?}");
                }
                Some(Outcome::Expired { .. } | Outcome::Interrupted | Outcome::ServerGone) => {}
                None => panic!("nobody knows what became of task {task}"),
            }
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u64..400, 1usize..20).prop_map(|(ttl, bytes)| Step::Produce { ttl, bytes }),
        6 => Just(Step::Poll),
        6 => Just(Step::Stream),
        6 => Just(Step::SendResult),
        24 => any::<usize>().prop_map(Step::Arrive),
        3 => any::<usize>().prop_map(Step::Lose),
        3 => any::<usize>().prop_map(Step::Repeat),
        2 => (0u64..60).prop_map(Step::Pass),
        1 => Just(Step::Cut),
    ]
}

/// At most as many restarts as either side remembers.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let restart = prop_oneof![Just(Step::RestartServer), Just(Step::RestartClient)];
    let calm = || prop::collection::vec(step(), 0..60);
    let spells = prop::collection::vec((calm(), restart), 0..5);
    (spells, calm()).prop_map(|(spells, last)| {
        let mut steps = Vec::new();
        for (calm, restart) in spells {
            steps.extend(calm);
            steps.push(restart);
        }
        steps.extend(last);
        steps
    })
}

proptest! {
    #[test]
    fn every_task_is_handled_once_or_reported(steps in steps()) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.step(step));
        world.settle_down();
        world.check();
    }

    #[test]
    fn without_restarts_and_ends_of_time_everything_is_done(
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Pass(_) => {}
                Step::Produce { bytes, .. } => world.step(Step::Produce { ttl: 1, bytes }),
                other => world.step(other),
            }
        }
        world.settle_down();
        world.check();
        for (task, outcome) in world.outcomes.iter().enumerate() {
            let fine = matches!(outcome, Some(Outcome::Done(_) | Outcome::Full));
            prop_assert!(fine, "{task}: {outcome:?}");
        }
    }
}

#[test]
fn a_full_outbox_refuses_the_newest_and_keeps_the_rest() {
    let mut outbox = Outbox::new(Bounds { tasks: 2, bytes: 10, window: 1 }, Epoch(7));
    let soon = Duration::from_secs(1);
    assert_eq!(outbox.push('a', 6, soon), Ok(1));
    let full = outbox.push('b', 5, soon).unwrap_err();
    assert_eq!((full.tasks, full.bytes), (1, 6));
    assert_eq!(outbox.push('b', 4, soon), Ok(2));
    assert!(outbox.push('c', 0, soon).is_err());
    assert_eq!(outbox.next(0, Duration::ZERO).map(|given| *given.item), Some('a'));
    // The window has room for one.
    assert!(outbox.next(1, Duration::ZERO).is_none());
    assert_eq!(outbox.settle(Epoch(7), 2), None, "it was never given");
    assert_eq!(outbox.settle(Epoch(8), 1), None, "it is another sequence's");
    assert_eq!(outbox.settle(Epoch(7), 1), Some('a'));
    assert_eq!(outbox.settle(Epoch(7), 1), None);
    assert_eq!(outbox.push('c', 6, soon), Ok(3));
    assert_eq!(outbox.next_deadline(), Some(soon));
    assert_eq!(outbox.expire(soon).len(), 2);
    assert_eq!((outbox.len(), outbox.next_deadline()), (0, None));
}

#[test]
fn a_task_whose_time_is_over_is_not_handled_but_answered() {
    let (mut inbox, epoch) = (Inbox::new(), Epoch(7));
    let (soon, now) = (Duration::from_secs(2), Duration::from_secs(1));
    assert_eq!(inbox.receive(epoch, 0, 1, now, now), Verdict::Late);
    inbox.finish("late");
    assert_eq!(inbox.receive(epoch, 1, 2, soon, now), Verdict::AnswerFirst);
    inbox.confirm(epoch, 2);
    inbox.confirm(Epoch(8), 1);
    assert_eq!(inbox.unconfirmed().map(|kept| kept.answer), Some("late"));
    inbox.confirm(epoch, 1);
    assert_eq!(inbox.receive(epoch, 0, 1, soon, now), Verdict::HandledBefore);
    assert_eq!(inbox.receive(epoch, 2, 3, soon, now), Verdict::OutOfOrder);
    assert_eq!(inbox.receive(epoch, 1, 2, soon, now), Verdict::Handle);
    assert_eq!(inbox.cursor(), Some(Cursor { epoch, after: 2 }));
}
