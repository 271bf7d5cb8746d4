//! Which allocations some process still sees, as the kernel tells. `hypervisor node` has to be in the node's own pid
//! namespace for that.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::pool::AllocationKey;

/// Those of `keys` that are mounted in any process's mount namespace.
pub(crate) fn among(proc: &Path, keys: &[AllocationKey]) -> BTreeSet<AllocationKey> {
    let mut mounted = BTreeSet::new();
    let Ok(processes) = fs::read_dir(proc) else { return mounted };
    for process in processes.flatten() {
        let is_process = process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        if !is_process || mounted.len() == keys.len() {
            continue;
        }
        // It may have ended.
        let Ok(mounts) = fs::read(process.path().join("mountinfo")) else { continue };
        let mounts = String::from_utf8_lossy(&mounts);
        for key in keys.iter().filter(|key| mounts.contains(key.as_str())) {
            mounted.insert(key.clone());
        }
    }
    mounted
}
