//! Parses as much PTX as is needed to find a module's kernels.

/// A kernel of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Whether its first parameter is a 64-bit integer: its duration in ns.
    pub(crate) timed: bool,
    /// The indices of the parameters whose names end in `group` and `members`, if it is a collective kernel.
    pub(crate) collective: Option<[usize; 2]>,
    /// Sizes and offsets of its parameters in bytes.
    pub(crate) params: Vec<(usize, usize)>,
}

/// The kernels declared in a PTX text; `None` if it is not PTX (no `.version` line).
pub(crate) fn entries(text: &str) -> Option<Vec<Entry>> {
    let text = without_comments(text);
    if !text.trim_start().starts_with(".version") {
        return None;
    }
    let mut found = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find(".entry") {
        rest = &rest[at + ".entry".len()..];
        let after = rest.trim_start();
        let end = after
            .find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '$' | '%')))
            .unwrap_or(after.len());
        let (name, tail) = after.split_at(end);
        if name.is_empty() {
            continue;
        }
        let declared = tail
            .trim_start()
            .strip_prefix('(')
            .and_then(|list| list.split_once(')'))
            .map_or("", |(list, _)| list);
        let params = parameters(declared);
        let timed = declared.split(',').next().is_some_and(|first| {
            first.split_whitespace().any(|word| matches!(word, ".u64" | ".b64" | ".s64"))
                && !first.contains('[')
        });
        let named = |end: &str| declared.split(',').position(|one| one.trim().ends_with(end));
        let collective =
            named("group").zip(named("members")).map(|(group, members)| [group, members]);
        let collective = collective.filter(|at| timed && at.iter().all(|&i| params[i].1 == 8));
        found.push(Entry { name: name.to_owned(), timed, collective, params });
    }
    Some(found)
}

/// Bytes of the device variables declared in a PTX text.
pub(crate) fn variables(text: &str) -> u64 {
    let text = without_comments(text);
    let declared = text.split(".global").skip(1).filter_map(|rest| rest.split(';').next());
    declared.map(variable).sum()
}

/// Bytes of a variable: element size times extents.
fn variable(declaration: &str) -> u64 {
    let bits = declaration.split_whitespace().find_map(|word| {
        let kind = word.strip_prefix('.')?;
        kind.strip_prefix(['b', 'u', 's', 'f'])?.parse::<u64>().ok()
    });
    let extents = declaration.split('[').skip(1);
    let count = extents.fold(1_u64, |product, rest| {
        let extent = rest.split(']').next().and_then(|number| number.trim().parse().ok());
        product.saturating_mul(extent.unwrap_or(1))
    });
    (bits.unwrap_or(32) / 8).saturating_mul(count)
}

fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if rest.starts_with("/*") {
            rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
        } else {
            kept.push('/');
            rest = &rest[1..];
        }
    }
    kept.push_str(rest);
    kept
}

fn parameters(list: &str) -> Vec<(usize, usize)> {
    let mut offset = 0_usize;
    let mut found = Vec::new();
    for declaration in list.split(',').filter(|d| !d.trim().is_empty()) {
        let mut size = 4;
        let mut align = 0;
        let mut words = declaration.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                ".u8" | ".s8" | ".b8" => size = 1,
                ".u16" | ".s16" | ".b16" | ".f16" => size = 2,
                ".u64" | ".s64" | ".b64" | ".f64" => size = 8,
                ".align" => align = words.next().and_then(|w| w.parse().ok()).unwrap_or(0),
                _ => {}
            }
        }
        let count = declaration
            .split_once('[')
            .and_then(|(_, tail)| tail.split_once(']'))
            .and_then(|(count, _)| count.trim().parse::<usize>().ok())
            .unwrap_or(1);
        let align: usize = if align == 0 { size } else { align };
        offset = offset.next_multiple_of(align.max(1));
        found.push((offset, size * count));
        offset += size * count;
    }
    found
}

/// The size of an image's code, if a comment `// placed: BYTES` states it. Compressed images have more code than bytes.
pub(crate) fn placed(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("// placed: ")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// made by hand: .entry commented(\n.version 8.0\n.target sm_70\n\
        .address_size 64\n.visible .entry spin(\n  .param .u64 spin_ns,\n  .param .u32 x\n)\n{ ret; }\n\
        /* .entry hidden() */ .entry other(.param .f32 a, .param .align 8 .b8 b[24]) { ret; }\n\
        .entry bare() { ret; }\n.visible .entry plain { ret; }";

    #[test]
    fn variables_take_element_times_extents() {
        let text = ".version 7.0\n.global .align 4 .b8 big[1024];\n.visible .global .f64 m[2][3];\n\
                    .global .u32 one = 5; // .global .b8 no[7];\n.entry k() { ret; }";
        assert_eq!(variables(text), 1024 + 48 + 4);
        assert_eq!(variables(".version 7.0\n.entry k() { ret; }"), 0);
    }

    #[test]
    fn an_image_may_say_what_its_code_takes() {
        assert_eq!(placed(".version 7.0\n// placed: 8388608\n.entry k() { ret; }"), Some(8 << 20));
        assert_eq!(placed(".version 7.0\n.entry k() { ret; }"), None);
    }

    #[test]
    fn finds_kernels() {
        let found = entries(TEXT).unwrap();
        let names: Vec<_> = found.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["spin", "other", "bare", "plain"]);
        let timed: Vec<_> = found.iter().map(|e| e.timed).collect();
        assert_eq!(timed, [true, false, false, false]);
        assert_eq!(found[0].params, [(0, 8), (8, 4)]);
        assert_eq!(found[1].params, [(0, 4), (8, 24)]);
        assert!(found[2].params.is_empty());
    }

    #[test]
    fn a_collective_kernel_is_known_by_its_parameters() {
        let text = ".version 7.0\n.entry a(.param .u64 ns, .param .u64 a_group, .param .u64 a_members) {}\n\
            .entry b(.param .u64 ns, .param .u64 b_group) {}\n\
            .entry c(.param .u64 ns, .param .u32 c_group, .param .u64 c_members) {}";
        let found: Vec<_> = entries(text).unwrap().iter().map(|e| e.collective).collect();
        assert_eq!(found, [Some([1, 2]), None, None]);
    }

    #[test]
    fn refuses_other_texts() {
        for text in ["", "int main() {}", "\u{7f}ELF", "// .version 8.0"] {
            assert_eq!(entries(text), None, "{text}");
        }
    }
}
