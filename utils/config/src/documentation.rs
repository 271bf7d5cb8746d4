//! Generates `docs/environment.md` from the table of variables; a test compares the two.

use super::variables::{IndexSpace, Meaning, VARIABLES, Variable};

const INTRODUCTION: &str = "\
# Environment variables

The limiter reads these variables. The native variables come first; the others are those of earlier systems, so that an
existing deployment works once its library is replaced.

* In a session of `sluice run`, the variables have the values that `sluice run` found or set. If a process of the session
  changes a variable, the change has no effect, and one line names the variable. If the library is only preloaded, the
  variables have the values of the moment at which the process loaded it, so the process's environment sets the limits
  ([operations.md](operations.md)). `SLUICE_LOG` and the other log variables always come from the process itself.
* An empty variable counts as unset. A value that cannot be parsed is an error that names the variable, the value and the
  expected form; such a value never means \"unlimited\".
* A JSON object without a device is refused, and so is an index on a variable that takes none, because both would limit
  nothing.
* Sizes are bytes, or a number with a suffix in upper or lower case: `k`, `m`, `g`, `t` and `KiB` to `TiB` are powers of
  1024, `KB` to `TB` powers of 1000. A size that ends in `%` is a percentage of the device's memory as NVML shows it on
  the host; if the device's size is unknown, the limit is refused, not ignored. A size below 1 MiB needs its suffix
  (`512KiB`, `8B`), because a small number without one is probably a mistake.
* A GPU is named by its index, or by its UUID as `nvidia-smi -L` prints it, in upper or lower case: `GPU-…`, or `MIG-…`
  for a MIG slice.
* `NAME[_<i>]`: with the index the variable applies to one device, without it to every device.
* If several variables set a limit for the same device, the order of the systems decides: Sluice and vgpu.rs (native),
  VGPU-Controller, libvgpu, vcuda-hook, tensor-fusion, KAI Scheduler. Within one system, a GPU UUID comes before an index,
  and an index before a value for every device. For other settings, the upper row of the table below decides. The
  effective configuration, logged at level `info`, names the variables that were overruled.

## Which GPU an index means

Each variable counts GPUs as its own system does. The column \"index\" of the table says how:

* *host*: as `nvidia-smi -L` lists the GPUs, regardless of `CUDA_VISIBLE_DEVICES`. In a container these are the
  container's GPUs. `--device` counts the same way.
* *visible*: as CUDA counts the GPUs in the process, by the values that `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` had
  when the limits were decided. `CUDA_DEVICE_MEMORY_LIMIT_0` therefore applies to the first GPU that the process sees.
  Processes that get different limits from the same variables do not share a session. If a process chooses other devices
  later, no limit moves to another device.

If limits of one kind (memory limit or compute share) are set, but none for a GPU that the process sees, its CUDA calls
fail, and a line names the GPUs that it sees. An example is `{\"0\": 1073741824}` with `CUDA_VISIBLE_DEVICES=1`. A line
names limits for GPUs that the node does not have. NVML shows GPUs without a limit unchanged.

## The variables

| variable | system | index | accepted | meaning |
|---|---|---|---|---|
";

/// The complete document.
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
