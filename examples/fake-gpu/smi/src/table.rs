//! The table that `nvidia-smi` prints without options.

use crate::seen::{Gpu, Process, Seen};

const MIB: u64 = 1 << 20;

/// Widths of the first table's columns, without borders.
const COLUMNS: [usize; 3] = [41, 24, 22];
const WIDTH: usize = 89;

pub(crate) fn table(seen: &Seen) -> String {
    let mut text = line('-', &[WIDTH]);
    let versions = format!(
        " {:<34}Driver Version: {:<19}CUDA Version: {:<5}",
        "NVIDIA-SMI (simulated)", seen.driver, seen.cuda
    );
    text += &row(&[(&versions, WIDTH)]);
    text += &line('-', &COLUMNS);
    for heads in [
        [
            " GPU  Name                 Persistence-M ",
            " Bus-Id          Disp.A ",
            " Volatile Uncorr. ECC ",
        ],
        [
            " Fan  Temp   Perf          Pwr:Usage/Cap ",
            "           Memory-Usage ",
            " GPU-Util  Compute M. ",
        ],
        ["", "", "               MIG M. "],
    ] {
        text += &cells(heads.map(str::to_owned));
    }
    text += &line('=', &COLUMNS);
    for gpu in &seen.gpus {
        text += &of_gpu(gpu);
        text += &line('-', &COLUMNS);
    }
    text += "\n";
    text += &line('-', &[WIDTH]);
    for head in [
        " Processes:",
        "  GPU   GI   CI              PID   Type   Process name                        GPU Memory ",
        "        ID   ID                                                               Usage      ",
    ] {
        text += &row(&[(head, WIDTH)]);
    }
    text += &line('=', &[WIDTH]);
    let all = seen.gpus.iter().flat_map(|gpu| gpu.processes.iter().map(|one| of_process(gpu, one)));
    let all: String = all.collect();
    text += &if all.is_empty() { row(&[("  No running processes found", WIDTH)]) } else { all };
    text + &line('-', &[WIDTH])
}

fn of_gpu(gpu: &Gpu) -> String {
    let name: String = gpu.name.chars().take(26).collect();
    let figure = |value: Option<u32>, unit: &str| {
        value.map_or_else(|| "N/A".to_owned(), |value| format!("{value}{unit}"))
    };
    let power = |mw: Option<u32>| figure(mw.map(|mw| mw.div_ceil(1000)), "W");
    let memory = format!("{}MiB / {}MiB ", gpu.used.div_ceil(MIB), gpu.total / MIB);
    let ecc = gpu.ecc.map_or_else(|| "N/A".to_owned(), |count| count.to_string());
    let usage = format!("{} / {} ", power(gpu.power_mw), power(gpu.power_limit_mw));
    let temperature = figure(gpu.temperature, "C");
    cells([
        format!(" {:>3}  {name:<26}     Off ", gpu.index),
        format!("   {:<16} Off ", gpu.bus_id),
        format!("{ecc:>21} "),
    ]) + &cells([
        format!(" N/A  {temperature:>4}    P0      {usage:>18}"),
        format!("{memory:>24}"),
        format!("{:>8}      Default ", figure(gpu.utilization, "%")),
    ]) + &cells([String::new(), String::new(), "                  N/A ".to_owned()])
}

fn of_process(gpu: &Gpu, process: &Process) -> String {
    const NAME: usize = 35;
    let length = process.name.chars().count();
    let name: String = match length.checked_sub(NAME) {
        // The end of a path says more than its beginning.
        Some(more) if more > 0 => {
            "...".chars().chain(process.name.chars().skip(more + 3)).collect()
        }
        _ => process.name.clone(),
    };
    let used =
        process.used.map_or_else(|| "N/A".to_owned(), |used| format!("{}MiB", used.div_ceil(MIB)));
    let text = format!(
        " {:>4}   N/A  N/A {:>16}      C   {name:<NAME$} {used:>9} ",
        gpu.index, process.pid
    );
    row(&[(&text, WIDTH)])
}

fn line(c: char, columns: &[usize]) -> String {
    let (outer, inner) = if c == '=' { ('|', '+') } else { ('+', '+') };
    let parts: Vec<String> = columns.iter().map(|width| c.to_string().repeat(*width)).collect();
    format!("{outer}{}{outer}\n", parts.join(&inner.to_string()))
}

fn cells(texts: [String; 3]) -> String {
    let [first, second, third] = &texts;
    let [a, b, c] = COLUMNS;
    row(&[(first, a), (second, b), (third, c)])
}

fn row(cells: &[(&str, usize)]) -> String {
    let cells: Vec<String> = cells.iter().map(|(text, width)| format!("{text:<width$}")).collect();
    format!("|{}|\n", cells.join("|"))
}
