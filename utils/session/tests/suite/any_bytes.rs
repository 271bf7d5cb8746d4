//! Pages with arbitrary bytes.

use crate::hostile::{change, sound_page, work_on};
use proptest::prelude::*;
use session::layout::PageLayout;

/// Length of a page in bytes.
const LENGTH: usize = size_of::<PageLayout>();

fn any_page() -> impl Strategy<Value = (bool, Vec<u8>)> {
    let noise = || prop::collection::vec(any::<u8>(), 0..2000);
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..400).prop_map(|changes| (false, changes)),
        1 => noise().prop_map(|bytes| (true, bytes)),
        1 => noise().prop_map(|bytes| (true, bytes.iter().copied().cycle().take(LENGTH).collect())),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_survived(first in any_page(), later in any_page()) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let sound = sound_page(dir.path()).unwrap();
        let bytes = |(plain, bytes): &(bool, Vec<u8>)| {
            if *plain {
                return bytes.clone();
            }
            let mut page = sound.clone();
            change(&mut page, bytes);
            page
        };
        work_on(dir.path(), &bytes(&first), &bytes(&later)).unwrap();
    }
}

#[test]
fn a_page_that_has_not_been_changed_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let sound = sound_page(dir.path()).unwrap();
    assert!(work_on(dir.path(), &sound, b"short").unwrap());
    assert!(!work_on(dir.path(), &sound[1..], &sound).unwrap());
}
