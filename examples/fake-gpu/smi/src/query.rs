//! `--query-gpu` and `--query-compute-apps`.

use std::str::FromStr;

use crate::seen::{Gpu, Process, Seen};

const MIB: u64 = 1 << 20;
const NONE: &str = "[N/A]";

/// Output format of a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    header: bool,
    units: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    #[error("--format is missing; expected csv[,noheader][,nounits]")]
    NoFormat,
    #[error("'{0}' is not a format; expected csv[,noheader][,nounits]")]
    Format(String),
    #[error("Field \"{field}\" is not a valid field to query. These are: {}", known.join(", "))]
    Field { field: String, known: Vec<&'static str> },
}

impl FromStr for Format {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Self, QueryError> {
        let mut format = Self { header: true, units: true };
        let mut is_csv = false;
        for word in text.split(',') {
            match word {
                "csv" => is_csv = true,
                "noheader" => format.header = false,
                "nounits" => format.units = false,
                _ => return Err(QueryError::Format(text.to_owned())),
            }
        }
        if is_csv { Ok(format) } else { Err(QueryError::Format(text.to_owned())) }
    }
}

/// A queryable field: names, of which the first is printed in the header; unit; value.
struct Field<T> {
    names: &'static [&'static str],
    unit: &'static str,
    of: fn(&Seen, &T) -> Option<String>,
}

const fn field<T>(
    names: &'static [&'static str],
    unit: &'static str,
    of: fn(&Seen, &T) -> Option<String>,
) -> Field<T> {
    Field { names, unit, of }
}

fn watts(mw: u32) -> String {
    format!("{}.{:02}", mw / 1000, mw % 1000 / 10)
}

fn mib(bytes: u64) -> String {
    bytes.div_ceil(MIB).to_string()
}

fn number(value: Option<u32>) -> Option<String> {
    value.map(|value| value.to_string())
}

const OF_GPUS: [Field<Gpu>; 19] = [
    field(&["index"], "", |_, gpu| Some(gpu.index.to_string())),
    field(&["uuid", "gpu_uuid"], "", |_, gpu| Some(gpu.uuid.clone())),
    field(&["name", "gpu_name"], "", |_, gpu| Some(gpu.name.clone())),
    field(&["count"], "", |seen, _| Some(seen.gpus.len().to_string())),
    field(&["driver_version"], "", |seen, _| Some(seen.driver.clone())),
    field(&["pci.bus_id", "gpu_bus_id"], "", |_, gpu| Some(gpu.bus_id.clone())),
    field(&["memory.total"], "MiB", |_, gpu| Some((gpu.total / MIB).to_string())),
    field(&["memory.used"], "MiB", |_, gpu| Some(mib(gpu.used))),
    field(&["memory.free"], "MiB", |_, gpu| Some((gpu.free / MIB).to_string())),
    field(&["utilization.gpu"], "%", |_, gpu| number(gpu.utilization)),
    field(&["utilization.memory"], "%", |_, gpu| number(gpu.memory_utilization)),
    field(&["temperature.gpu"], "", |_, gpu| number(gpu.temperature)),
    field(&["power.draw"], "W", |_, gpu| gpu.power_mw.map(watts)),
    field(&["power.limit", "enforced.power.limit"], "W", |_, gpu| gpu.power_limit_mw.map(watts)),
    field(&["clocks.current.sm", "clocks.sm"], "MHz", |_, gpu| number(gpu.sm_mhz)),
    field(&["clocks.current.memory", "clocks.mem"], "MHz", |_, gpu| number(gpu.memory_mhz)),
    field(&["ecc.errors.uncorrected.volatile.total"], "", |_, gpu| {
        gpu.ecc.map(|count| count.to_string())
    }),
    field(&["pstate"], "", |_, _| Some("P0".to_owned())),
    field(&["compute_mode"], "", |_, _| Some("Default".to_owned())),
];

/// A process, and the index of its GPU among the visible ones.
struct Place {
    gpu: usize,
    process: usize,
}

fn of_process<T>(seen: &Seen, at: &Place, of: impl FnOnce(&Gpu, &Process) -> T) -> Option<T> {
    let gpu = seen.gpus.get(at.gpu)?;
    Some(of(gpu, gpu.processes.get(at.process)?))
}

const OF_PROCESSES: [Field<Place>; 6] = [
    field(&["gpu_uuid"], "", |seen, at| of_process(seen, at, |gpu, _| gpu.uuid.clone())),
    field(&["gpu_name"], "", |seen, at| of_process(seen, at, |gpu, _| gpu.name.clone())),
    field(&["gpu_bus_id"], "", |seen, at| of_process(seen, at, |gpu, _| gpu.bus_id.clone())),
    field(&["pid"], "", |seen, at| of_process(seen, at, |_, process| process.pid.to_string())),
    field(&["process_name", "name"], "", |seen, at| {
        of_process(seen, at, |_, process| process.name.clone())
    }),
    field(&["used_gpu_memory", "used_memory"], "MiB", |seen, at| {
        of_process(seen, at, |_, process| process.used)?.map(mib)
    }),
];

pub(crate) fn gpus(
    seen: &Seen,
    wanted: &[String],
    format: Option<Format>,
) -> Result<String, QueryError> {
    let all: Vec<&Gpu> = seen.gpus.iter().collect();
    let value = |field: &Field<Gpu>, gpu: &&Gpu| (field.of)(seen, gpu);
    csv(&OF_GPUS, wanted, format, &all, value)
}

pub(crate) fn processes(
    seen: &Seen,
    wanted: &[String],
    format: Option<Format>,
) -> Result<String, QueryError> {
    let of_gpu = |(gpu, one): (usize, &Gpu)| {
        (0..one.processes.len()).map(move |process| Place { gpu, process })
    };
    let all: Vec<Place> = seen.gpus.iter().enumerate().flat_map(of_gpu).collect();
    let value = |field: &Field<Place>, at: &Place| (field.of)(seen, at);
    csv(&OF_PROCESSES, wanted, format, &all, value)
}

fn csv<F, T>(
    known: &[Field<F>],
    wanted: &[String],
    format: Option<Format>,
    all: &[T],
    value: impl Fn(&Field<F>, &T) -> Option<String>,
) -> Result<String, QueryError> {
    let format = format.ok_or(QueryError::NoFormat)?;
    let find = |name: &String| {
        known.iter().find(|field| field.names.contains(&name.trim())).ok_or_else(|| {
            QueryError::Field {
                field: name.trim().to_owned(),
                known: known.iter().flat_map(|field| field.names).copied().collect(),
            }
        })
    };
    let fields: Vec<&Field<F>> = wanted.iter().map(find).collect::<Result<_, _>>()?;
    let title = |field: &&Field<F>| {
        let name = field.names.first().copied().unwrap_or_default();
        if field.unit.is_empty() { name.to_owned() } else { format!("{name} [{}]", field.unit) }
    };
    let mut lines = Vec::new();
    if format.header {
        lines.push(fields.iter().map(title).collect::<Vec<_>>().join(", "));
    }
    let cell = |field: &&Field<F>, one: &T| match value(field, one) {
        None => NONE.to_owned(),
        Some(value) if format.units && !field.unit.is_empty() => format!("{value} {}", field.unit),
        Some(value) => value,
    };
    lines.extend(
        all.iter()
            .map(|one| fields.iter().map(|field| cell(field, one)).collect::<Vec<_>>().join(", ")),
    );
    Ok(lines.iter().map(|line| format!("{line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen {
        let process =
            Process { pid: 4711, name: "/usr/bin/python3".to_owned(), used: Some(512 * MIB + 1) };
        let gpu = Gpu {
            index: 0,
            name: "Test".to_owned(),
            uuid: "GPU-1".to_owned(),
            bus_id: "00000000:10:00.0".to_owned(),
            total: 1024 * MIB,
            used: 513 * MIB,
            free: 511 * MIB,
            utilization: Some(7),
            memory_utilization: None,
            temperature: Some(32),
            power_mw: Some(70_120),
            power_limit_mw: Some(700_000),
            sm_mhz: Some(1980),
            memory_mhz: Some(3201),
            ecc: Some(0),
            processes: vec![process],
        };
        Seen { driver: "580".to_owned(), cuda: "13.0".to_owned(), gpus: vec![gpu] }
    }

    fn asked(fields: &str, format: &str) -> Result<String, String> {
        let fields: Vec<String> = fields.split(',').map(str::to_owned).collect();
        let format = format.parse().map_err(|error: QueryError| error.to_string())?;
        gpus(&seen(), &fields, Some(format)).map_err(|error| error.to_string())
    }

    #[test]
    fn figures_of_gpus_as_csv() {
        let fields = "index, memory.total,memory.used,utilization.memory,power.draw";
        assert_eq!(
            asked(fields, "csv").unwrap(),
            "index, memory.total [MiB], memory.used [MiB], utilization.memory [%], power.draw [W]\n\
             0, 1024 MiB, 513 MiB, [N/A], 70.12 W\n"
        );
        assert_eq!(asked(fields, "csv,noheader,nounits").unwrap(), "0, 1024, 513, [N/A], 70.12\n");
        let error = asked("memory.totl", "csv").unwrap_err();
        assert!(
            error.starts_with("Field \"memory.totl\" is not a valid field")
                && error.contains("memory.total")
        );
        assert!(asked("index", "xml").unwrap_err().contains("csv[,noheader]"));
        assert!(matches!(gpus(&seen(), &["index".to_owned()], None), Err(QueryError::NoFormat)));
    }

    #[test]
    fn figures_of_processes_as_csv() {
        let fields = ["pid", "process_name", "used_memory"].map(str::to_owned);
        let text = processes(&seen(), &fields, "csv".parse().ok()).unwrap();
        assert_eq!(
            text,
            "pid, process_name, used_gpu_memory [MiB]\n4711, /usr/bin/python3, 513 MiB\n"
        );
    }

    #[test]
    fn the_table_has_straight_edges() {
        let text = crate::table::table(&seen());
        for line in text.lines().filter(|line| !line.is_empty()) {
            assert_eq!(line.chars().count(), 91, "{line}");
        }
        assert!(
            text.contains("513MiB / 1024MiB") && text.contains("4711      C   /usr/bin/python3"),
            "{text}"
        );
        let mut empty = seen();
        empty.gpus[0].processes.clear();
        empty.gpus[0].processes.push(Process { pid: 1, name: "x".repeat(99), used: None });
        assert!(crate::table::table(&empty).lines().all(|line| line.chars().count() <= 91));
        empty.gpus[0].processes.clear();
        assert!(crate::table::table(&empty).contains("No running processes found"));
    }
}
