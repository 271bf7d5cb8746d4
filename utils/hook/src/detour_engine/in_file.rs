//! Reads code from the file from which it was mapped, to see the instructions under breakpoints.

use crate::code::machine::BREAKPOINT;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// The code at `address` without the breakpoints that were set in it; `seen` is the memory there. `None` if the file
/// cannot be read or differs in anything else.
pub(crate) fn beneath_breakpoints(seen: &[u8], address: usize) -> Option<Vec<u8>> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let (path, offset) = maps.split(|&byte| byte == b'\n').find_map(|line| place(line, address))?;
    let mut code = vec![0; seen.len()];
    File::open(OsStr::from_bytes(path)).ok()?.read_exact_at(&mut code, offset).ok()?;
    let (is, was) = (seen.chunks(BREAKPOINT.len()), code.chunks(BREAKPOINT.len()));
    let same = is.zip(was).all(|(is, was)| is == was || is == BREAKPOINT);
    same.then_some(code)
}

/// The file named in a line of the kernel's list of mappings, and the offset of `address` in it:
/// `7f00-7f10 r-xp 00001000 08:00 16088   /path`.
fn place(line: &[u8], address: usize) -> Option<(&[u8], u64)> {
    let slash = line.iter().position(|&byte| byte == b'/')?;
    let (fields, path) = line.split_at(slash);
    let mut fields = core::str::from_utf8(fields).ok()?.split(' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).ok());
    let (start, end) = (start?, end?);
    let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
    let within = address.checked_sub(start).filter(|_| address < end)?;
    Some((path, offset.checked_add(within as u64)?))
}

/// Parses any bytes without harm.
#[cfg(any(test, feature = "checks"))]
pub(crate) fn check(list: &[u8]) {
    for line in list.split(|&byte| byte == b'\n') {
        for address in [0, 0x1000, 0x7f00_0000_1000, usize::MAX] {
            let _ = place(line, address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_files_are_found() {
        let line = b"7f00-7f80 r-xp 00001000 08:00 16088      /usr/lib/a name \xff";
        assert_eq!(place(line, 0x7f10), Some((&b"/usr/lib/a name \xff"[..], 0x1010)));
        assert_eq!(place(line, 0x7f80), None);
        assert_eq!(place(line, 0x7eff), None);
        assert_eq!(place(b"7f00-7f80 r-xp 00001000 00:00 0", 0x7f10), None);
    }

    #[test]
    fn code_without_breakpoints_is_as_in_its_file() {
        let own = code_without_breakpoints_is_as_in_its_file as *const ();
        // SAFETY: this function.
        let mut seen = unsafe { core::slice::from_raw_parts(own.cast::<u8>(), 16) }.to_vec();
        let code = seen.clone();
        assert_eq!(beneath_breakpoints(&seen, own as usize), Some(code.clone()));
        seen[4..4 + BREAKPOINT.len()].copy_from_slice(&BREAKPOINT);
        assert_eq!(beneath_breakpoints(&seen, own as usize), Some(code));
        seen[9] = !seen[9];
        assert_eq!(beneath_breakpoints(&seen, own as usize), None);
    }
}
