//! Gives the library the real driver's soname. What it uses of itself is its own, whoever exports the same names, and
//! without a lookup: a name that is taken out of the file (`fake_node::older`) is then missed by nobody in it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1,-Bsymbolic");
}
