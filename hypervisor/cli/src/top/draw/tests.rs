//! What is drawn, on a terminal that is not one.

use protocol::sessions::OvercommittedGpu;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};

use super::super::model::{Input, Model};
use super::{Theme, frame, page};
use crate::series::tests::{compute, contained, memory, sample, session};

const COLOR: Theme = Theme { color: true };
const PLAIN: Theme = Theme { color: false };

fn model() -> Model {
    let mut model = Model::new(None);
    for second in 1..30 {
        let busy = compute(50, second * 480_000, second * 100_000);
        let mut train = session("train", busy, memory(6, 8));
        train.frozen = second > 25;
        train.devices[0].refusals = second / 10;
        let mut sample =
            sample(second, vec![train, session("serve", compute(20, 0, 0), memory(1, 2))]);
        sample.status.elsewhere.push(contained("env-1"));
        sample.devices[0].trouble = Some("UNHEALTHY: XID 79".to_owned());
        sample.devices[0].unknown_processes = 2;
        sample.status.overcommitted.push(OvercommittedGpu {
            uuid: sample.devices[0].uuid,
            shares_ppm: 1_500_000,
            notice: "shares on GPU 0 add up to 150.0 %".to_owned(),
        });
        sample.notices.push("the daemon \u{1b}[31m does not see".to_owned());
        model.take(sample);
    }
    model
}

fn on(model: &Model, theme: Theme, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|one| frame(model, theme, one)).unwrap();
    terminal
}

fn lines(terminal: &Terminal<TestBackend>) -> Vec<String> {
    let buffer = terminal.backend().buffer();
    let width = usize::from(buffer.area.width);
    let text = |line: &[ratatui::buffer::Cell]| line.iter().map(|cell| cell.symbol()).collect();
    buffer.content.chunks(width).map(text).collect()
}

fn press(model: &mut Model, code: KeyCode) {
    model.apply(Input::Key(KeyEvent::new(code, KeyModifiers::NONE)));
}

#[test]
fn a_small_terminal_shows_devices_sessions_and_keys() {
    let lines = lines(&on(&model(), COLOR, 80, 24));
    let text = lines.join("\n");
    for words in [
        "1 GPU, 3 sessions, daemon",
        "GPU 0  Test GPU",
        "shares on GPU 0 add up to 150.0 %",
        "320/700 W",
        "61 °C",
        " 70 % ",
        "4.0/16.0 GiB",
        "UNHEALTHY: XID 79",
        "processes outside any session: 2",
        "*train",
        "45.0 %",
        "6.0/8.0 GiB",
        "2.9s",
        "1m05s",
        "web",
        "q end",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    // The mark of a limit of half of the time is in the middle of its bar.
    let train = lines.iter().find(|line| line.contains("*train")).unwrap();
    let bar: Vec<char> = train.chars().filter(|c| "▏▎▍▌▋▊▉█·│┃".contains(*c)).collect();
    assert_eq!(bar.iter().position(|c| "│┃".contains(*c)), Some(bar.len() / 2), "{train}");
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn nothing_is_lost_at_the_edge_of_80_columns() {
    let mut model = model();
    for open in [false, true] {
        model.open = open;
        for width in [64, 80, 81, 100, 132, 250] {
            for line in page(&model, PLAIN, width) {
                let is_notice = line.spans.len() == 1;
                assert!(is_notice || line.width() <= width, "{width}: {line}");
            }
        }
    }
}

#[test]
fn without_colours_there_are_none_and_trouble_is_bold() {
    let colors = |theme| {
        let terminal = on(&model(), theme, 80, 24);
        let cells = &terminal.backend().buffer().content;
        cells.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert!(colors(COLOR) > 0);
    assert_eq!(colors(PLAIN), 0);
    let terminal = on(&model(), PLAIN, 80, 24);
    let buffer = terminal.backend().buffer();
    let row = lines(&terminal).iter().position(|line| line.contains("UNHEALTHY")).unwrap();
    assert!(buffer[(3, u16::try_from(row).unwrap())].modifier.contains(Modifier::BOLD));
}

#[test]
fn the_selected_session_is_seen_however_many_there_are() {
    let mut model = Model::new(None);
    let many =
        (0..50).map(|number| session(&format!("job-{number:02}"), compute(1, 0, 0), memory(1, 2)));
    model.take(sample(1, many.collect()));
    press(&mut model, KeyCode::End);
    let terminal = on(&model, PLAIN, 80, 24);
    let buffer = terminal.backend().buffer();
    let row = lines(&terminal).iter().position(|line| line.contains("job-49")).unwrap();
    assert!(buffer[(3, u16::try_from(row).unwrap())].modifier.contains(Modifier::REVERSED));
    press(&mut model, KeyCode::Home);
    assert!(lines(&on(&model, PLAIN, 80, 24)).join("").contains("job-00"));
}

#[test]
fn one_session_is_shown_with_its_processes_and_what_happened_to_it() {
    let mut model = model();
    model.open_session("train").unwrap();
    let text = lines(&on(&model, COLOR, 80, 24)).join("\n");
    for words in [
        "train  session 1-train of ann",
        "frozen",
        "python train.py",
        "6.0 GiB of 8.0 GiB",
        "2 refused",
        "4711 python",
        "13.9s",
        "90 %",
        "holding",
        "data 3.0 GiB",
        "the last 29 samples",
        "╌▁",
        "FFFF",
        "!",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    // One that only the daemon knows.
    model.open_session("web").unwrap();
    let text = lines(&on(&model, COLOR, 80, 24)).join("\n");
    assert!(text.contains("not visible from here") && text.contains("no process"), "{text}");
}

#[test]
fn what_is_asked_stands_in_front() {
    let mut model = model();
    press(&mut model, KeyCode::Char('l'));
    let text = lines(&on(&model, PLAIN, 80, 24)).join("\n");
    assert!(text.contains("now: --mem 8GiB --compute 50; type a share such as 50"), "{text}");
    for c in "--mem x".chars() {
        press(&mut model, KeyCode::Char(c));
    }
    assert!(lines(&on(&model, PLAIN, 80, 24)).join("\n").contains("> --mem x_"));
    let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    model.apply(Input::Key(control('w')));
    assert!(lines(&on(&model, PLAIN, 80, 24)).join("\n").contains("> --mem x_"));
    model.apply(Input::Key(control('u')));
    assert!(lines(&on(&model, PLAIN, 80, 24)).join("\n").contains("> _"));
    for c in "--mem x".chars() {
        press(&mut model, KeyCode::Char(c));
    }
    press(&mut model, KeyCode::Enter);
    let text = lines(&on(&model, PLAIN, 80, 24)).join("\n");
    assert!(text.contains("invalid value 'x' for"), "{text}");
    press(&mut model, KeyCode::Esc);
    press(&mut model, KeyCode::Char('f'));
    let text = lines(&on(&model, PLAIN, 80, 24)).join("\n");
    assert!(text.contains("sluice thaw 1-train") && text.contains("y confirms"), "{text}");
    press(&mut model, KeyCode::Char('n'));
    press(&mut model, KeyCode::Char('?'));
    assert!(lines(&on(&model, PLAIN, 80, 24)).join("\n").contains("change its limits"));
    press(&mut model, KeyCode::Esc);
    press(&mut model, KeyCode::Char('/'));
    press(&mut model, KeyCode::Char('z'));
    let lines = lines(&on(&model, PLAIN, 80, 24));
    assert!(lines.join("\n").contains("no session matches") && lines[23].starts_with("/z_"));
}

#[test]
fn a_long_message_is_shown_whole() {
    let mut model = model();
    let message = format!("{}is now 10% fixed", "word ".repeat(20));
    model.apply(Input::Outcome(message));
    let lines = lines(&on(&model, PLAIN, 80, 24));
    assert!(
        lines[22].starts_with("word") && lines[23].trim_end().ends_with("is now 10% fixed"),
        "{lines:?}"
    );
}

#[test]
fn any_size_is_drawn() {
    for mode in ['x', '?', 'l', 'f', '/'] {
        let mut model = model();
        press(&mut model, KeyCode::Char(mode));
        for open in [false, true] {
            model.open = open;
            for (width, height) in [(1, 1), (2, 3), (20, 5), (60, 8), (300, 90)] {
                on(&model, COLOR, width, height);
            }
        }
    }
    on(&Model::new(None), COLOR, 80, 24);
}
