use super::list::LIST;
use super::*;
use crate::injection::preload_text;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

/// A node with one allocation, and a container that a runtime is about to start.
struct Made {
    folder: tempfile::TempDir,
    key: String,
}

impl Made {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = Self { folder, key: "0123456789abcdef".repeat(4) };
        fs::create_dir_all(made.list().parent().unwrap()).unwrap();
        fs::create_dir_all(made.at("bundle/rootfs/etc")).unwrap();
        fs::write(made.list(), preload_text()).unwrap();
        made.config(&[made.list()]);
        made
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn list(&self) -> PathBuf {
        self.at("allocations").join(&self.key).join(LIST)
    }

    /// As containerd writes it: the root is relative to the bundle.
    fn config(&self, sources: &[PathBuf]) {
        let mounts = sources.iter().map(
            |source| json!({"destination": PRELOAD, "source": source, "options": ["rbind", "ro"]}),
        );
        let mut mounts: Vec<_> = mounts.collect();
        mounts.insert(0, json!({"destination": "/proc", "type": "proc"}));
        let config = json!({"ociVersion": "1.0.2", "root": {"path": "rootfs"}, "mounts": mounts});
        fs::write(self.at("bundle/config.json"), config.to_string()).unwrap();
    }

    fn image(&self, text: &[u8]) {
        fs::write(self.at("bundle/rootfs/etc/ld.so.preload"), text).unwrap();
    }

    fn run(&self) -> Result<String, HookError> {
        let state = json!({"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 1, "bundle": self.at("bundle")});
        keep_image_preloads(self.at("allocations"), io::Cursor::new(state.to_string()))
    }

    fn written(&self) -> String {
        fs::read_to_string(self.list()).unwrap()
    }

    #[track_caller]
    fn is_as_before(&self, said: &str) {
        let error = self.run().unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(self.written(), preload_text());
    }
}

#[test]
fn the_images_come_behind_ours_in_place_and_once() {
    let made = Made::new();
    let inode = || fs::metadata(made.list()).unwrap().ino();
    let before = inode();
    assert!(made.run().unwrap().contains("kept 0"));
    assert_eq!(made.written(), preload_text());
    made.image(b"/opt/a.so:/opt/$LIB/b.so # c\n/usr/lib/sluice/libadd_path.so");
    let wanted = preload_text() + "/opt/a.so\n/opt/$LIB/b.so\n";
    for _ in 0..2 {
        let said = made.run().unwrap();
        assert!(
            said.ends_with("kept 2; libraries of Sluice, which are there already: 1"),
            "{said}"
        );
        assert_eq!((made.written(), inode()), (wanted.clone(), before));
        let told = fs::read_to_string(made.list().with_file_name("image-preloads.txt")).unwrap();
        assert_eq!(told, said + "\n");
    }
    // The next container with these ids has another image.
    made.image(b"/d.so");
    made.run().unwrap();
    assert_eq!((made.written(), inode()), (preload_text() + "/d.so\n", before));
    fs::remove_dir_all(made.at("bundle/rootfs/etc")).unwrap();
    made.run().unwrap();
    assert_eq!(made.written(), preload_text());
}

#[test]
fn an_image_that_is_refused_leaves_ours_alone() {
    let made = Made::new();
    made.image(b"/opt/a.so");
    made.run().unwrap();
    made.image(&vec![b'x'; 17 << 10]);
    made.is_as_before("17408 bytes");
    let told = fs::read_to_string(made.list().with_file_name("image-preloads.txt")).unwrap();
    assert!(told.contains("17408 bytes"), "{told}");
    // A damaged list is repaired.
    made.image(b"/opt/a.so");
    fs::write(made.list(), "/opt/other.so\n").unwrap();
    made.run().unwrap();
    assert_eq!(made.written(), preload_text() + "/opt/a.so\n");
}

/// The hook runs as root on the node, so it must not be led to another file.
#[test]
fn nothing_else_is_written_to() {
    let made = Made::new();
    made.image(b"/opt/a.so");
    let other = made.at("other");
    fs::write(&other, "other").unwrap();
    let key = "f".repeat(64);
    let elsewhere = made.at("elsewhere").join(&key);
    fs::create_dir_all(&elsewhere).unwrap();
    fs::write(elsewhere.join(LIST), "other").unwrap();
    let beside = made.at("allocations").join("x").join(LIST);
    fs::create_dir_all(beside.parent().unwrap()).unwrap();
    fs::write(&beside, "other").unwrap();
    for source in [&other, &beside, &made.at("allocations/ld.so.preload"), &PathBuf::from("tmpfs")]
    {
        made.config(std::slice::from_ref(source));
        made.is_as_before("a file ALLOCATION/ld.so.preload in ");
    }
    // An unknown key, and a file with a valid key in another directory.
    made.config(&[elsewhere.join(LIST)]);
    made.is_as_before("No such file");
    let twin = made.at("allocations").join(&key);
    fs::create_dir(&twin).unwrap();
    fs::write(twin.join(LIST), "twin").unwrap();
    made.is_as_before("; expected ");
    // Links: the list itself, and its directory.
    fs::remove_file(twin.join(LIST)).unwrap();
    made.config(&[twin.join(LIST)]);
    symlink(&other, twin.join(LIST)).unwrap();
    made.is_as_before("symbolic links");
    fs::remove_file(twin.join(LIST)).unwrap();
    fs::hard_link(&other, twin.join(LIST)).unwrap();
    made.is_as_before("; expected ");
    fs::remove_dir_all(&twin).unwrap();
    symlink(&elsewhere, &twin).unwrap();
    made.is_as_before("symbolic links");
    for path in [&other, &beside, &elsewhere.join(LIST)] {
        assert_eq!(fs::read_to_string(path).unwrap(), "other", "{}", path.display());
    }
    // A volume of the pod covers the list: nothing is to be kept.
    made.config(&[made.list(), other.clone()]);
    made.is_as_before("; expected ");
    // The runtime may have resolved links in the path of the allocations' directory.
    symlink(made.at("allocations"), made.at("link")).unwrap();
    made.config(&[made.at("link").join(&made.key).join(LIST)]);
    made.run().unwrap();
    assert_eq!(made.written(), preload_text() + "/opt/a.so\n");
}

#[test]
fn a_runtimes_word_that_cannot_be_read_changes_nothing() {
    let made = Made::new();
    made.image(b"/opt/a.so");
    for text in ["", "{", "[]", "{\"bundle\": 1}", "{\"id\": \"x\"}"] {
        let text = io::Cursor::new(text.to_owned());
        let said = keep_image_preloads(made.at("allocations"), text).unwrap_err().to_string();
        assert!(said.starts_with("the state on standard input: "), "{said}");
    }
    made.config(&[]);
    made.is_as_before("nothing is mounted at /etc/ld.so.preload");
    for text in ["", "{}", "{\"root\": {}}"] {
        fs::write(made.at("bundle/config.json"), text).unwrap();
        made.is_as_before("config.json: ");
    }
    fs::remove_file(made.at("bundle/config.json")).unwrap();
    made.is_as_before("config.json: No such file");
}

struct Silent(mpsc::Receiver<()>);

impl Read for Silent {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        _ = self.0.recv();
        Ok(0)
    }
}

#[test]
fn a_hook_that_hangs_is_given_up() {
    let (_open, never) = mpsc::channel();
    let said = keep_image_preloads(PathBuf::from("/"), Silent(never)).unwrap_err().to_string();
    assert_eq!(said, "not done within 2 s");
}
