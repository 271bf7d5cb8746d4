//! `xtask export-tables`: the private tables of functions that programs get from the driver.

use super::{Error, new_symbols};
use crate::process::{Failure, command, run};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, thread};

/// Starts PROGRAM with a library preloaded that tells which tables it gets from libcuda (cuGetExportTable) and from
/// libnvidia-ml (nvmlInternalGetExportTable), who asks, which functions are in them, whether Sluice patches these, and
/// which are called. Each program is started as it is and with a breakpoint at each private function, which goes at its
/// first call. Results go to $OUT or ./export-tables-out: NAME.tables, NAME.calls, NAME.output and summary.txt. Sluice
/// takes no part.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Program and its arguments; by default nvidia-smi, PyTorch, CuPy, JAX and the CUDA runtime, as far as they are there
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<String>,
}

/// Programs of a machine with a GPU: a name, what has to be there, and the program.
const PROGRAMS: [(&str, &str, &str); 8] = [
    ("cupy", "cupy", "import cupy; print(cupy.arange(1000).sum())"),
    ("jax", "jax", "import jax.numpy as n; print(n.arange(1000).sum())"),
    ("smi-list", "nvidia-smi", "-L"),
    ("smi", "nvidia-smi", ""),
    ("smi-apps", "nvidia-smi", "--query-compute-apps=pid,name,used_memory --format=csv"),
    ("smi-memory", "nvidia-smi", "--query-gpu=memory.used,utilization.gpu --format=csv"),
    ("smi-pmon", "nvidia-smi", "pmon -c 1"),
    ("smi-xml", "nvidia-smi", "-q -x"),
];

const TORCH: &str =
    r#"import torch; x = torch.randn(512, 512, device="cuda"); print((x @ x).sum().item())"#;
/// Uses the GPU while nvidia-smi runs.
const BESIDE: &str =
    r#"import time, torch; x = torch.ones(1 << 28, device="cuda"); time.sleep(400)"#;

/// Starts the programs.
///
/// # Errors
/// There is no C compiler, or the results cannot be written.
pub(crate) fn tell(arguments: &Arguments) -> Result<(), Error> {
    let out = PathBuf::from(env::var("OUT").unwrap_or_else(|_| "export-tables-out".to_owned()));
    fs::create_dir_all(&out)?;
    let mut probe = Probe::build(&fs::canonicalize(out)?, &[])?;
    match arguments.program.as_slice() {
        [] => every_program(&mut probe)?,
        [program, arguments @ ..] => {
            let name =
                Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
            probe.start(&name, Command::new("timeout").args(["120", program]).args(arguments))?;
        }
    }
    print!("{}", probe.summary);
    Ok(fs::write(probe.out.join("summary.txt"), &probe.summary)?)
}

fn every_program(probe: &mut Probe) -> Result<(), Error> {
    let python = |code: &str| {
        let mut python = command("timeout 120 python3 -c");
        python.arg(code);
        python
    };
    let has = |part: &str| {
        let code = format!(
            "import importlib.util, sys; sys.exit(importlib.util.find_spec('{part}') is None)"
        );
        python(&code).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let runtime = probe.work.path().join("runtime");
    let mut nvcc = command("nvcc -O2 -arch=native scripts/gpu-proof/programs/runtime_ops.cu -o");
    match run(nvcc.arg(&runtime)) {
        Ok(()) => probe.start("runtime", command("timeout 120").arg(runtime))?,
        Err(_) => probe.skip("runtime: there is no nvcc that compiles here"),
    }
    let mut beside = None;
    if has("torch") {
        probe.start("torch", &mut python(TORCH))?;
        beside = Some(Beside(command("python3 -c").arg(BESIDE).spawn().map_err(Error::from)?));
        thread::sleep(Duration::from_secs(20));
    } else {
        probe.skip("torch: Python does not find it");
    }
    for (name, needs, what) in PROGRAMS {
        let smi = needs == "nvidia-smi";
        if smi && command("nvidia-smi -L").output().is_ok() {
            probe.start(name, &mut command(&format!("timeout 120 nvidia-smi {what}")))?;
        } else if !smi && has(needs) {
            probe.start(name, &mut python(what))?;
        } else {
            probe.skip(&format!("{name}: {needs} is not found"));
        }
    }
    drop(beside);
    Ok(())
}

/// A program that ends with this.
struct Beside(Child);

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The library that tells, and what was told.
struct Probe {
    work: tempfile::TempDir,
    out: PathBuf,
    summary: String,
}

impl Probe {
    fn build(out: &Path, options: &[&str]) -> Result<Self, Error> {
        let work = tempfile::tempdir()?;
        let mut compiler =
            command("cc -O2 -shared -fPIC scripts/export-tables/probe.c -ldl -lpthread -o");
        run(compiler.arg(work.path().join("probe.so")).args(options))?;
        let hooks = fs::read_to_string("docs/hooks.md")?;
        let patched: String =
            new_symbols::patched(&hooks).map(|name| format!("{name}\n")).collect();
        fs::write(work.path().join("patched"), patched)?;
        Ok(Self { work, out: out.to_owned(), summary: String::new() })
    }

    fn skip(&mut self, why: &str) {
        self.summary.push_str(&format!("\nSKIPPED {why}\n"));
    }

    /// Starts a program twice.
    fn start(&mut self, name: &str, program: &mut Command) -> Result<(), Error> {
        for (count, kind, way) in [("0", "tables", "as it is"), ("1", "calls", "first calls told")]
        {
            let told = self.out.join(format!("{name}.{kind}"));
            File::create(&told)?;
            let shown = File::create(self.out.join(format!("{name}.output")))?;
            let (probe, patched) =
                (self.work.path().join("probe.so"), self.work.path().join("patched"));
            program.envs([
                ("EXPORT_TABLES_OUT", &told),
                ("EXPORT_TABLES_PATCHED", &patched),
                ("LD_PRELOAD", &probe),
            ]);
            program.envs([("EXPORT_TABLES_COUNT", count), ("EXPORT_TABLES_NAMES", "1")]);
            let status = match run(program.stdout(shown.try_clone()?).stderr(shown)) {
                Ok(()) => "exit status: 0".to_owned(),
                Err(Failure::Status { status, .. }) => status.to_string(),
                Err(failure) => return Err(failure.into()),
            };
            self.summary.push_str(&format!(
                "\n{name}, {way}: {status}\n{}",
                summary(&fs::read_to_string(told)?)
            ));
        }
        Ok(())
    }
}

/// The tables of a program, each once, and how many functions of each are what.
fn summary(told: &str) -> String {
    let (mut tables, mut slots) = (Vec::new(), BTreeMap::<_, BTreeMap<_, _>>::new());
    let mut called = BTreeMap::<_, Vec<_>>::new();
    for line in told.lines() {
        let line = line.split_once(' ').map_or("", |(_process, line)| line);
        let mut words = line.split(' ');
        let (kind, table, slot) = (words.next(), words.next(), words.next().unwrap_or_default());
        match kind {
            Some("table") if !tables.iter().any(|(other, _)| *other == table) => {
                tables.push((table, line))
            }
            Some("slot") => {
                slots.entry(table).or_default().entry(slot).or_insert(line);
            }
            Some("first") => {
                let called = called.entry(table).or_default();
                let slot = slot.trim_end_matches(':');
                if !called.contains(&slot) {
                    called.push(slot);
                }
            }
            _ => {}
        }
    }
    let mut summary = String::new();
    for (table, line) in &tables {
        let slots = slots.remove(table).unwrap_or_default();
        let count = |what: &str| slots.values().filter(|line| line.contains(what)).count();
        let jump = |line: &&&str| {
            line.contains(", jumps to ")
                && line.contains(" patched,")
                && !line.contains(", exported as ")
        };
        summary.push_str(&format!(
            "  {line}\n    {} functions: {} patched, {} exported and not patched, {} that jump to patched ones",
            slots.len(),
            count(", PATCHED as "),
            slots.values().filter(|line| line.contains(", exported as ") && !line.contains(", PATCHED as ")).count(),
            slots.values().filter(jump).count(),
        ));
        if let Some(called) = called.get(table) {
            summary.push_str(&format!("; called, in this order: {}", called.join(" ")));
        }
        summary.push('\n');
    }
    if tables.is_empty() { "  asked for no table\n".to_owned() } else { summary }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a driver made for the purpose, which needs no GPU: what the files have, as `grep` looks for it.
    #[test]
    fn tables_are_told() {
        env::set_current_dir(crate::tools::ROOT).unwrap();
        let out = tempfile::tempdir().unwrap();
        let mut probe = Probe::build(out.path(), &["-Wall", "-Wextra", "-Werror"]).unwrap();
        for part in [
            "-DDRIVER -DCUDA -shared -o libcuda.so.1",
            "-DDRIVER -shared -o libnvidia-ml.so.1",
            "-o program",
        ] {
            let source = env::current_dir().unwrap().join("scripts/export-tables/example.c");
            let line = format!("cc -O1 -fPIC -D_GNU_SOURCE {part} {} -ldl", source.display());
            run(command(&line).current_dir(&out)).unwrap();
        }
        let mut program = Command::new(out.path().join("program"));
        probe.start("example", program.env("LD_LIBRARY_PATH", out.path())).unwrap();
        fs::write(out.path().join("summary"), &probe.summary).unwrap();
        let found = |file: &str, pattern: &str| {
            let lines = command("grep -- ")
                .arg(pattern)
                .arg(out.path().join(file))
                .output()
                .unwrap()
                .stdout;
            String::from_utf8(lines).unwrap().lines().count()
        };
        for (file, pattern) in [
            ("example.tables", "table 01ab.* of libcuda.so.1, asked for by program.*: bytes 48$"),
            ("example.tables", "table 01ab.* of libnvidia-ml.so.1, asked for by program"),
            ("example.tables", "table 02ab.* its size is not told"),
            ("example.tables", "table 03ab.*: refused, 1$"),
            (
                "example.tables",
                r"slot 01ab[^ ]* 1: libcuda.so.1+0x[0-9a-f]*, not exported, not patched, code [0-9a-f]\{48\}$",
            ),
            (
                "example.tables",
                "slot 01ab[^ ]* 2: libcuda.so.1+0x[0-9a-f]*, exported as cuMemAlloc_v2, PATCHED as cuMemAlloc_v2,",
            ),
            (
                "example.tables",
                "slot 01ab[^ ]* 4: .*not patched, jumps to libcuda.so.1+0x[0-9a-f]* cuMemAlloc_v2 patched,",
            ),
            ("example.tables", "slot 02ab[^ ]* 0: .* exported as cuNotPatched, not patched,"),
            ("example.tables", "slot 02ab[^ ]* 3: no code of the driver: 0x12345678$"),
            ("example.tables", "end 01ab[^ ]* the last function is 5$"),
            ("example.tables", "name nvmlInit_v2 asked for by program"),
            ("example.calls", "first 02ab[^ ]* 4: 0x1 0x1 0x1 0x1$"),
            ("example.calls", "first 01ab[^ ]* 1: 0x1 0x2 0x3 0x4$"),
            ("example.calls", "first 01ab[^ ]* 5: 0x4 "),
            // The program itself looks whether it gets the driver's own tables.
            ("example.output", "^status 0$"),
            ("summary", "example, first calls told: exit status: 0$"),
            (
                "summary",
                "4 functions: 1 patched, 0 exported and not patched, 1 that jump to patched ones; called, in this order: 1 5 4$",
            ),
        ] {
            assert!(found(file, pattern) > 0, "{file} lacks: {pattern}\n{}", probe.summary);
        }
        // No calls without breakpoints, and with them each function once in each library.
        assert_eq!(found("example.tables", "^[0-9]* first"), 0);
        assert_eq!(found("example.calls", "^[0-9]* first 01ab[^ ]* 1:"), 2);
    }
}
