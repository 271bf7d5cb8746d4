//! Gives the library the real driver's soname, and binds its calls of its own exported functions to itself
//! (`-Bsymbolic`): another library may export the same names, and `fake_node::older` removes names from the file.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1,-Bsymbolic");
}
