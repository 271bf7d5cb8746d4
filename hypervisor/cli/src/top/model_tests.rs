use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::{Action, Change, Input, Mode, Model, Place, Sort};
use crate::series::tests::{compute, contained, gpu, memory, sample, session};

/// A model with three sessions.
fn model() -> Model {
    let mut model = Model::new(Some("/d.sock".into()));
    model.take(three(1));
    model
}

fn three(second: u64) -> protocol::record::Sample {
    let mut busy = session("busy", compute(50, second * 500_000, 0), memory(1, 8));
    busy.devices[0].compute.recent_ppm = Some(490_000);
    let mut old = session("old", compute(20, 0, 9_000_000), memory(2, 8));
    old.devices[0].age_us = Some(99_000_000);
    let large = session("large", compute(10, 0, 0), memory(4, 8));
    let mut sample = sample(second, vec![large, old, busy]);
    sample.status.elsewhere.push(contained("env-1"));
    sample
}

fn press(model: &mut Model, code: KeyCode) -> Option<Action> {
    model.apply(Input::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn write(model: &mut Model, text: &str) {
    for c in text.chars() {
        assert!(press(model, KeyCode::Char(c)).is_none());
    }
}

fn names(model: &Model) -> Vec<String> {
    model.rows().iter().map(|row| row.name.to_owned()).collect()
}

fn selected(model: &Model) -> String {
    model.selected().map(|row| row.name.to_owned()).unwrap_or_default()
}

#[test]
fn sessions_are_sorted_in_each_way() {
    let mut model = model();
    let mut orders = Vec::new();
    for _ in 0..6 {
        orders.push((model.sort.name(), names(&model)[0].clone()));
        press(&mut model, KeyCode::Char('s'));
    }
    let first = [
        ("share", "busy"),
        ("memory", "large"),
        ("waited", "old"),
        ("age", "old"),
        ("name", "busy"),
        ("user", "busy"),
    ];
    assert_eq!(orders, first.map(|(sort, name)| (sort, name.to_owned())));
    assert_eq!(model.sort, Sort::Share);
    press(&mut model, KeyCode::Char('r'));
    assert_eq!(names(&model), ["env-1", "large", "old", "busy"]);
}

#[test]
fn the_selection_stays_with_its_session() {
    let mut model = model();
    assert_eq!(selected(&model), "busy");
    press(&mut model, KeyCode::Down);
    assert_eq!(selected(&model), "old");
    press(&mut model, KeyCode::Char('r'));
    assert_eq!(selected(&model), "old");
    press(&mut model, KeyCode::Home);
    assert_eq!(selected(&model), "env-1");
    for key in [KeyCode::Up, KeyCode::PageUp] {
        press(&mut model, key);
        assert_eq!(selected(&model), "env-1");
    }
    for key in [KeyCode::End, KeyCode::Down, KeyCode::PageDown] {
        press(&mut model, key);
        assert_eq!(selected(&model), "busy");
    }
    // It is looked at, and ends.
    press(&mut model, KeyCode::Enter);
    assert!(model.open);
    model.apply(Input::Sample(Box::new(sample(2, Vec::new())), None));
    assert!(!model.open && model.selected.is_none());
    assert_eq!(model.message.as_deref(), Some("the session has ended"));
    for key in [KeyCode::Down, KeyCode::Enter, KeyCode::Char('l'), KeyCode::Char('f')] {
        assert!(press(&mut model, key).is_none());
        assert!(!model.open && matches!(model.mode, Mode::Browse));
    }
}

#[test]
fn a_filter_is_typed_kept_and_given_up() {
    let mut model = model();
    press(&mut model, KeyCode::Char('/'));
    write(&mut model, "lqr");
    assert_eq!(names(&model), [""; 0]);
    press(&mut model, KeyCode::Backspace);
    press(&mut model, KeyCode::Backspace);
    assert_eq!(names(&model), ["old", "large"]);
    press(&mut model, KeyCode::Enter);
    assert_eq!(selected(&model), "old");
    // Now keys mean what they mean.
    press(&mut model, KeyCode::Down);
    assert_eq!(selected(&model), "large");
    press(&mut model, KeyCode::Esc);
    assert_eq!(names(&model).len(), 4);
}

#[test]
fn limits_are_changed_after_a_confirmation_and_not_before() {
    let mut model = model();
    press(&mut model, KeyCode::Char('l'));
    for wrong in ["", "--mem", "--mem lots", "--json", "-- x"] {
        write(&mut model, wrong);
        assert!(press(&mut model, KeyCode::Enter).is_none());
        let Mode::Limits { text, error: Some(_) } = &model.mode else {
            unreachable!("{wrong}: {:?}", model.mode)
        };
        for _ in 0..text.clone().len() {
            press(&mut model, KeyCode::Backspace);
        }
    }
    write(&mut model, "--mem 4GiB --compute 30");
    assert!(press(&mut model, KeyCode::Enter).is_none());
    let Mode::Confirm { line, .. } = &model.mode else { unreachable!("{:?}", model.mode) };
    assert_eq!(*line, format!("limit 1-busy --device {} --mem 4GiB --compute 30", gpu(1)));
    // No other key is a yes.
    for key in [KeyCode::Enter, KeyCode::Char('x'), KeyCode::Down] {
        assert!(press(&mut model, key).is_none());
    }
    let Some(Action::Change(Change::Limit(arguments))) = press(&mut model, KeyCode::Char('y'))
    else {
        unreachable!()
    };
    assert_eq!(arguments.session, "1-busy");
    assert_eq!(arguments.daemon.as_deref(), Some("/d.sock".as_ref()));
    assert_eq!(arguments.limits.compute, Some(300_000));
    model.apply(Input::Outcome("done".to_owned()));
    assert_eq!(model.message.as_deref(), Some("done"));
}

#[test]
fn a_share_or_a_size_may_be_typed_alone() {
    for (text, option) in
        [("50", "--compute 50"), ("12.5%", "--compute 12.5%"), ("4GiB", "--mem 4GiB")]
    {
        let mut model = model();
        press(&mut model, KeyCode::Char('l'));
        write(&mut model, text);
        assert!(press(&mut model, KeyCode::Enter).is_none());
        let Mode::Confirm { line, .. } = &model.mode else { unreachable!("{:?}", model.mode) };
        assert!(line.ends_with(option), "{line}");
    }
}

#[test]
fn freezing_needs_a_confirmation_too_and_a_frozen_session_is_thawed() {
    let mut model = model();
    press(&mut model, KeyCode::Char('f'));
    assert!(matches!(&model.mode, Mode::Confirm { line, .. } if line == "freeze 1-busy"));
    assert!(press(&mut model, KeyCode::Esc).is_none());
    assert_eq!(model.message.as_deref(), Some("nothing was changed"));
    let mut frozen = three(2);
    frozen.status.sessions[2].frozen = true;
    model.take(frozen);
    press(&mut model, KeyCode::Char('f'));
    let action = press(&mut model, KeyCode::Char('y'));
    assert!(matches!(action, Some(Action::Change(Change::Freeze(_, false)))), "{action:?}");
    // One in a container is named by the container.
    press(&mut model, KeyCode::End);
    press(&mut model, KeyCode::Char('f'));
    let Some(Action::Change(Change::Freeze(arguments, true))) =
        press(&mut model, KeyCode::Char('y'))
    else {
        unreachable!()
    };
    assert_eq!(arguments.session, "ab12");
}

#[test]
fn a_pause_stops_what_is_live_and_a_recording_is_played() {
    let mut model = model();
    assert!(press(&mut model, KeyCode::Char(' ')).is_none());
    model.apply(Input::Sample(Box::new(three(2)), None));
    assert_eq!(model.sample.as_ref().unwrap().clock_us, 1_000_000);
    press(&mut model, KeyCode::Char(' '));
    model.apply(Input::Sample(Box::new(three(2)), Some(Place { at: 1, of: 3 })));
    assert_eq!(model.sample.as_ref().unwrap().clock_us, 2_000_000);
    assert!(matches!(press(&mut model, KeyCode::Char(' ')), Some(Action::Play(false))));
    assert!(matches!(press(&mut model, KeyCode::Right), Some(Action::Seek(1))));
    assert!(matches!(press(&mut model, KeyCode::Left), Some(Action::Seek(-1))));
    model.apply(Input::Sample(Box::new(three(3)), Some(Place { at: 2, of: 3 })));
    assert_eq!(model.sample.as_ref().unwrap().clock_us, 3_000_000);
    for key in ['l', 'f'] {
        assert!(press(&mut model, KeyCode::Char(key)).is_none());
        assert_eq!(model.message.as_deref(), Some("a recording cannot be changed"));
    }
    model.apply(Input::Rewound);
    assert!(model.series.sessions.is_empty());
}

#[test]
fn it_ends_by_a_key_or_a_signal() {
    assert!(matches!(press(&mut model(), KeyCode::Char('q')), Some(Action::Quit)));
    assert!(matches!(model().apply(Input::End), Some(Action::Quit)));
    // In each mode.
    for open in ['/', 'l', 'f', '?'] {
        let mut model = model();
        press(&mut model, KeyCode::Char(open));
        let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(matches!(model.apply(Input::Key(key)), Some(Action::Quit)), "{open}");
    }
    let mut helped = model();
    press(&mut helped, KeyCode::Char('?'));
    assert!(matches!(helped.mode, Mode::Help));
    assert!(press(&mut helped, KeyCode::Char('q')).is_none());
    assert!(matches!(helped.mode, Mode::Browse));
}
