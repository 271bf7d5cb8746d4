//! Converts OpenMetrics to Prometheus' older text format: family names with the suffixes of their series, no end mark.
//! For readers without OpenMetrics, such as `promtool check metrics`.

pub(super) fn of(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    // HELP precedes the TYPE of its family.
    let mut help = None;
    for line in open.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), said) => help = Some((name, said.unwrap_or(""))),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", kind),
                    "info" => ("_info", "gauge"),
                    kind => ("", kind),
                };
                if let Some((_, said)) = help.take().filter(|(of, _)| *of == name) {
                    text += &format!("# HELP {name}{suffix} {said}\n");
                }
                text += &format!("# TYPE {name}{suffix} {kind}\n");
            }
            (Some("#"), ..) => {}
            _ => {
                text += line;
                text.push('\n');
            }
        }
    }
    text
}
