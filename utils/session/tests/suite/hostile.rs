//! Gives arbitrary bytes to all readers of a page. The fuzz target (`fuzz/`) runs the same code.

use limits::{GpuId, Limits, MemoryLimit};
use session::layout::MemoryKind;
use session::{Membership, Page, PageError};
use std::fs;
use std::path::Path;

const DEVICE: GpuId = GpuId::from_bytes([0x5a; 16]);

/// The bytes of a valid page, for changing some of them.
///
/// # Errors
/// Errors of creating the page.
pub(crate) fn sound_page(dir: &Path) -> Result<Vec<u8>, PageError> {
    let memory = Some(MemoryLimit { limit: 1000, real: Some(500) });
    let limits = Limits { memory, ..Limits::NONE };
    let page = Page::open(dir, DEVICE, &limits)?;
    let io = |source| PageError::Io { path: page.path().to_owned(), source };
    let bytes = fs::read(page.path()).map_err(io)?;
    fs::remove_file(page.path()).map_err(io)?;
    Ok(bytes)
}

/// Applies `changes` (place and byte) to `bytes`.
pub(crate) fn change(bytes: &mut [u8], changes: &[u8]) {
    for change in changes.chunks_exact(4) {
        // Half of the changes go to the fields before the slots.
        let place = usize::from(u16::from_le_bytes([change[0], change[1]]));
        let place = if change[2] & 1 == 0 { place % 128 } else { place << (change[2] % 4) };
        if let Some(byte) = bytes.get_mut(place) {
            *byte = change[3];
        }
    }
}

/// Opens `bytes` as a page in `dir` and does everything that a process of the session does. Then fills the open file
/// with `later`, and repeats that. Returns whether `bytes` were accepted as a page.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn work_on(dir: &Path, bytes: &[u8], later: &[u8]) -> Result<bool, std::io::Error> {
    let path = dir.join(format!("{DEVICE}.page"));
    fs::write(&path, bytes)?;
    let opened = Page::open_existing(&path);
    let accepted = opened.is_ok();
    if let Ok(page) = opened {
        let _ = page.summary();
        if let Ok(membership) = Membership::claim(page) {
            work(&membership);
            fs::write(&path, later)?;
            work(&membership);
            // A page once found damaged stays damaged.
            fs::write(&path, bytes)?;
            work(&membership);
        }
    }
    fs::remove_file(&path)?;
    Ok(accepted)
}

fn work(membership: &Membership) {
    for kind in MemoryKind::ALL {
        if let Ok(mut ledger) = membership.open() {
            let _ = ledger.reserve(membership.slot(), kind, 100);
            let _ = ledger.reserve_anywhere(membership.slot(), kind, 400);
            let _ = ledger.release(membership.slot(), kind, 70);
            ledger.set(membership.slot(), kind, 7);
            let _ = (ledger.used(), ledger.on_device(), ledger.place(u64::MAX));
        }
    }
    if let Ok(mut ledger) = membership.open() {
        let _ = ledger.begin_lease(membership.slot(), 1_000_000_000);
        ledger.end_lease(membership.slot(), 2_000_000_000, 500_000_000);
    }
    membership.still_holding(3);
    let _ = membership.reap();
}
