//! GPUs that an operator has taken out of service for new work (cordoned). The node agent writes them to a file beside
//! the daemon's socket, one UUID per line; the daemon reads it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use limits::GpuId;

const FILE: &str = "cordoned-gpus";

/// Path of the file, given the path of the daemon's socket.
#[must_use]
pub fn beside(socket: &Path) -> PathBuf {
    socket.with_file_name(FILE)
}

/// Reads the cordoned GPUs; an absent file means none.
///
/// # Errors
/// The file cannot be read, or a line is not a GPU's UUID.
pub fn read(file: &Path) -> io::Result<BTreeSet<GpuId>> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        other => other?,
    };
    let one = |line: &str| line.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    text.lines().map(one).collect()
}

/// Writes the cordoned GPUs.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: &Path, gpus: &BTreeSet<GpuId>) -> io::Result<()> {
    let draft = file.with_extension("draft");
    fs::write(&draft, gpus.iter().map(|gpu| format!("{gpu}\n")).collect::<String>())?;
    fs::rename(draft, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = beside(&folder.path().join("hypervisor.sock"));
        assert!(read(&file).unwrap().is_empty());
        for count in [2, 0] {
            let gpus = (0..count).map(|byte| GpuId::from_bytes([byte; 16])).collect();
            write(&file, &gpus).unwrap();
            assert_eq!(read(&file).unwrap(), gpus);
        }
        fs::write(&file, "0\n").unwrap();
        assert_eq!(read(&file).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
