//! Any text as a value: parsed, or refused with one short line.

use limits::gpu::{GpuChoice, GpuId, GpuKey};
use limits::units::{
    Amount, PPM_ONE, Percent, Size, parse_amount, parse_percent, parse_size, parse_weight,
    parse_whole,
};
use limits::{Policy, Priority, Shown};

/// Parses `text` in every form.
///
/// # Panics
/// If a rule is broken.
pub(crate) fn any_text(text: &str) {
    let looks_like_a_sign = text.contains(['+', '_', ',', 'x']);
    line(text, parse_size(text), |bytes| {
        assert!(!looks_like_a_sign && !text.contains('-'));
        assert_eq!(parse_size(&Size(bytes).to_string()), Ok(bytes));
    });
    line(text, parse_amount(text), |amount| {
        assert_ne!(amount, Amount::Bytes(0));
        assert_ne!(amount.of(Some(16 << 30)), None);
    });
    line(text, parse_percent(text), |ppm| {
        assert!((1..=PPM_ONE).contains(&ppm) && !looks_like_a_sign);
        assert_eq!(parse_percent(&Percent(ppm).to_string()), Ok(ppm));
    });
    line(text, parse_weight(text), |weight| assert_eq!(weight.to_string(), text));
    assert!(parse_whole(text).is_none_or(|number| number.to_string() == text));
    line(text, text.parse::<GpuId>(), |id| {
        assert_eq!(id.to_string().to_lowercase(), text.to_lowercase());
    });
    line(text, text.parse::<GpuKey>(), |_| ());
    line(text, text.parse::<GpuChoice>(), |_| ());
    line(text, text.parse::<Policy>(), |_| ());
    line(text, text.parse::<Priority>(), |_| ());
    let shown = Shown(text).to_string();
    assert!(!shown.contains(hidden));
    assert_eq!(Shown(&shown).to_string(), shown);
}

fn hidden(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
}

fn line<T, E: std::fmt::Display>(text: &str, read: Result<T, E>, value: impl FnOnce(T)) {
    match read {
        Ok(read) => value(read),
        Err(error) => {
            let line = error.to_string();
            assert!(line.len() < 2500 && !line.contains(hidden), "{text:?}: {line:?}");
        }
    }
}
