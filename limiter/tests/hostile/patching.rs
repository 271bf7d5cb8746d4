//! Hook engines that claim to have patched and have not.
