//! `docs/environment.md`, written from the table.

use super::variables::{IndexSpace, Meaning, VARIABLES, Variable};

const INTRODUCTION: &str = "\
# Environment variables

The limiter reads these. The native variables come first; the others are those of earlier systems,
so that an existing deployment works by replacing its library.

* Who decides: in a session of `sluice run` the variables count as `sluice run` found or set them. What a process of
  the session says otherwise is not honoured, and one line names it. Where the library is only preloaded, the variables
  count as they were when it was loaded into the process; whoever controls them then controls the limits
  ([operations.md](operations.md)). `SLUICE_LOG` and its relatives are always the process's own.
* An empty variable counts as unset. A value that cannot be read is an error that names the variable,
  the value and the accepted form; it never means \"unlimited\".
* An object without a device and an index where none is read are refused: they would limit nothing.
* Sizes are bytes, or a number with a suffix in any case: `k`, `m`, `g`, `t` and `KiB` to `TiB` count in
  1024, `KB` to `TB` in 1000. A size that ends in `%` is that part of the device's memory, as NVML shows it
  on the host; where the device's size cannot be found out, the limit is refused, not dropped. Below 1 MiB
  a size needs its suffix (`512KiB`, `8B`): a small number without one is a suffix forgotten.
* A GPU is named by its index, or by its UUID as `nvidia-smi -L` prints it, in any case: `GPU-…`, or `MIG-…`
  for a slice of one.
* `NAME[_<i>]` holds for one device with the index and for every device without it.
* Where several variables set a limit for one device, the earlier system holds: Sluice and vgpu.rs
  (native), VGPU-Controller, libvgpu, vcuda-hook, tensor-fusion, KAI Scheduler. Within one system a GPU UUID comes before an index, and an
  index before a value for every device. Of the other settings, the upper row of this table holds. What
  is overruled is named in the effective configuration, which is logged at level `info`.

## Which GPU an index means

Each variable counts as its own system does; the table says which of the two:

* *host*: as `nvidia-smi -L` lists the GPUs, whatever `CUDA_VISIBLE_DEVICES` says. In a container these are the
  container's GPUs. `--device` counts like that, too.
* *visible*: as CUDA counts them in the process, by `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` as they were when the
  limits were decided. So `CUDA_DEVICE_MEMORY_LIMIT_0` is for another GPU in a process that sees another one first, and
  processes to which the same variables give other limits do not share a session. A later choice of devices moves no
  limit to another device.

Limits of one kind (memory, share) that are all for GPUs which a process does not see would limit nothing: its CUDA calls
fail, and a line says which GPUs it sees. With `CUDA_VISIBLE_DEVICES=1` that is so for `{\"0\": 1073741824}`. A limit for a GPU
that the node does not have is named in a line. NVML shows other GPUs than those that the limits are for as they are.

## The variables

| variable | system | index | accepted | meaning |
|---|---|---|---|---|
";

/// The whole document.
pub(super) fn documentation() -> String {
    let rows: String = VARIABLES.iter().map(line).collect();
    format!("{INTRODUCTION}{rows}")
}

fn line(variable: &Variable) -> String {
    let system = variable.system.title();
    let index = match variable.index {
        IndexSpace::None => "",
        IndexSpace::Host => "host",
        IndexSpace::Visible => "visible",
    };
    let (name, purpose) = (variable.name, variable.purpose);
    let suffix = if variable.takes_suffix() { "[_<i>]" } else { "" };
    let meaning = match variable.meaning {
        Meaning::Ignored => format!("accepted and ignored: {purpose}"),
        _ => purpose.to_owned(),
    };
    let accepted = match variable.meaning {
        Meaning::AddPath => "entries as in the variable added to",
        _ => variable.format.accepted(),
    };
    format!("| `{name}{suffix}` | {system} | {index} | {accepted} | {meaning} |\n")
}

#[test]
fn the_document_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/environment.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, documentation()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap();
    assert_eq!(
        written,
        documentation(),
        "docs/environment.md differs from the table; run this test with UPDATE_DOCS=1"
    );
}
