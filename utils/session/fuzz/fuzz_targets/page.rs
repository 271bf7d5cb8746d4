//! Arbitrary bytes as a session's page: no crash, no hang. Run with `cargo fuzz run page`, or without cargo-fuzz with
//! `cargo xtask fuzz page`.
#![no_main]

#[path = "../../tests/suite/hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;
use std::cell::OnceCell;
use tempfile::TempDir;

struct Stage {
    dir: TempDir,
    sound: Vec<u8>,
}

thread_local! {
    static STAGE: OnceCell<Stage> = const { OnceCell::new() };
}

fn stage() -> Stage {
    let dir = tempfile::Builder::new().prefix("sluice-fuzz-").tempdir_in("/dev/shm");
    let dir = dir.expect("/dev/shm has to be there");
    let sound = hostile::sound_page(dir.path()).expect("a page can be made");
    Stage { dir, sound }
}

fuzz_target!(|data: &[u8]| {
    STAGE.with(|cell| {
        let Stage { dir, sound } = cell.get_or_init(stage);
        let Some((&how, rest)) = data.split_first() else { return };
        let (first, later) = rest.split_at(rest.len() / 2);
        let page = |changes: &[u8], plain: bool| {
            if plain {
                return changes.to_vec();
            }
            let mut bytes = sound.clone();
            hostile::change(&mut bytes, changes);
            bytes
        };
        hostile::work_on(dir.path(), &page(first, how & 1 == 1), &page(later, how & 2 == 2))
            .expect("/dev/shm has room");
    });
});
