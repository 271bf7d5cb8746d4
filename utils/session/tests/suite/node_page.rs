//! The page of the node: written by one thread and read by others.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use limits::GpuId;
use session::node_page::{
    NodeDevice, NodeFigures, NodeHealth, NodePage, NodePageError, NodePageWriter,
};

/// Figures in which every field tells the write.
fn figures(number: u64) -> NodeFigures {
    let device = |_| NodeDevice {
        uuid: GpuId::from_bytes([number as u8; 16]),
        memory_total: Some(number),
        memory_used: Some(number),
        sm_percent: Some(number as u8 % 100),
        memory_percent: None,
        health: if number.is_multiple_of(2) { NodeHealth::Healthy } else { NodeHealth::Unhealthy },
        read_ns: number,
    };
    NodeFigures { written_ns: number, devices: (0..number % 9).map(device).collect() }
}

#[test]
fn readers_see_whole_figures_while_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("daemon.sock.devices");
    assert!(matches!(NodePage::open(&path), Err(NodePageError::Io { .. })));
    let writer = NodePageWriter::create(&path).unwrap();
    let page = NodePage::open(&path).unwrap();
    assert_eq!(page.read().unwrap(), NodeFigures::default());
    let over = AtomicBool::new(false);
    let start = Instant::now();
    let patience = Duration::from_secs(60);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                writer.publish(&figures(number));
                // Pauses, because otherwise no reader would ever find the page at rest.
                if number.is_multiple_of(8) {
                    thread::sleep(Duration::from_micros(10));
                }
                if over.load(Ordering::Relaxed) || start.elapsed() > patience {
                    break;
                }
            }
        });
        let (mut last, mut different) = (0, 0);
        // Reads that gave up because of a write are no failure.
        while different < 1_000 && start.elapsed() < patience {
            let Ok(found) = page.read() else { continue };
            assert_eq!(found, figures(found.written_ns));
            assert!(found.written_ns >= last);
            different += u32::from(found.written_ns > last);
            last = found.written_ns;
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(different, 1_000);
    });
    // The next daemon creates its own page; the former page stays as it was left.
    let next = NodePageWriter::create(&path).unwrap();
    next.publish(&figures(3));
    assert!(page.read().unwrap().written_ns > 3);
    assert_eq!(NodePage::open(&path).unwrap().read().unwrap(), figures(3));
    // The former daemon does not remove another one's page.
    drop(writer);
    assert!(path.exists());
    drop(next);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_page_that_is_cut_short_is_none() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("page");
    let writer = NodePageWriter::create(&path).unwrap();
    writer.publish(&figures(3));
    let page = NodePage::open(&path).unwrap();
    assert_eq!(page.read().unwrap(), figures(3));
    fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert!(matches!(page.read(), Err(NodePageError::NoPage)));
    // The writer continues without effect.
    writer.publish(&figures(4));
    assert!(matches!(page.read(), Err(NodePageError::NoPage)));
    assert!(matches!(NodePage::open(&path), Err(NodePageError::NoPage)));
    fs::write(&path, [0; 5000]).unwrap();
    let zeros = NodePage::open(&path).unwrap();
    assert!(matches!(zeros.read(), Err(NodePageError::NoPage)));
    // A file that is no page is left alone.
    assert!(matches!(NodePageWriter::create(&path), Err(NodePageError::Taken(_))));
    assert_eq!(fs::read(&path).unwrap(), [0; 5000]);
}
