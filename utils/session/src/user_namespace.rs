//! Users unknown in this process's user namespace.

use std::fs;

/// The kernel's number for each of them (user_namespaces(7)). A user of the namespace may have the same number.
const NOT_KNOWN: u32 = 65_534;

/// Whether this user may be root outside of this process's user namespace.
pub(crate) fn may_be_outer_root(uid: u32) -> bool {
    uid == NOT_KNOWN && fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !has_all(&map))
}

/// Whether a user namespace maps all users, as the initial one does.
fn has_all(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_in_a_namespace_of_its_own_are_there_others() {
        assert!(has_all("         0          0 4294967295\n"));
        assert!(!has_all("         0     100000      65536\n"));
        assert!(!has_all("0 0 1\n1 1 4294967294\n"));
        assert!(!has_all(""));
        assert!(!may_be_outer_root(0) && !may_be_outer_root(1000));
    }
}
