//! Default sockets of a daemon.

use std::ffi::OsStr;

use protocol::socket::sockets_of;

#[test]
fn the_node_s_daemon_comes_first_and_root_has_no_other() {
    let runtime = Some(OsStr::new("/run/user/1000"));
    let node = "/run/sluice/hypervisor.sock";
    let sockets = |uid, runtime| -> Vec<String> {
        let paths = sockets_of(uid, runtime).into_iter();
        paths.map(|path| path.to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(sockets(0, runtime), [node]);
    assert_eq!(sockets(1000, runtime), [node, "/run/user/1000/sluice/hypervisor.sock"]);
    for none in [None, Some(OsStr::new(""))] {
        assert_eq!(sockets(1000, none), [node, "/tmp/sluice-1000/hypervisor.sock"]);
    }
}
