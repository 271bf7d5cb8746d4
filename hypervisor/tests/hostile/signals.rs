//! Every way to end the daemon.
